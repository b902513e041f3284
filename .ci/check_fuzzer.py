"""Checks what the fuzzer reports of the demo server when it uses our sidecar, and what we
report of it when the fuzzer, without a probe, has the server behind `run`.

Usage: check_fuzzer.py MCP_FUZZER PROBE

Every run of the fuzzer has to find the same for each tool, in each of its calls, with
nothing lost. Each has a seed of its own, so that all of this can be done again.
"""

import collections
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

EXPECTED = {
    "get_time": set(),
    "run_command": {"runtime.exec", "runtime.process_spawn"},
    "read_secret": {"runtime.sensitive_read"},
    "drop_file": {"runtime.fs_write", "runtime.fs_chmod", "runtime.fs_delete"},
    "send_beacon": {"runtime.net_connect"},
    "trace_process": {"runtime.ptrace"},
    "start_background": {"runtime.exec", "runtime.process_spawn"},
}
# These have an argument: what the fuzzer sends for it, the server may refuse.
REFUSING = {"run_command", "send_beacon"}
CALLS = 3  # of each tool in a run
RUNS = 10
TIMEOUT = 60  # seconds for a run, which takes two or three


def run_fuzzer(fuzzer, endpoint, seed, folder, env):
    """Runs the fuzzer once in a new folder, and returns that."""
    workspace = folder / "workspace"
    workspace.mkdir()
    command = [fuzzer, "--mode", "tools", "--protocol", "stdio"]
    command += ["--endpoint", endpoint]
    command += ["--runs", str(CALLS), "--max-concurrency", "1"]
    command += ["--seed", str(seed)]
    done = subprocess.run(
        command,
        cwd=workspace,
        env=os.environ | {"HOME": str(folder)} | env,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=TIMEOUT,
    )
    if done.returncode != 0:
        sys.exit(f"the fuzzer exits with {done.returncode} and says\n{done.stdout}")
    return workspace


def read_lines(file):
    return [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]


def fuzz(fuzzer, probe, seed, folder):
    """Returns what the fuzzer finds with our sidecar, and the sidecar's lines."""
    raw = folder / "raw"
    env = {
        "MCP_FUZZER_RUNTIME_PROBE": "1",
        "MCPFZ_PROBE_BACKEND": "ebpf",
        "MCPFZ_PROBE_BIN": probe,
        "MCPFZ_PROBE_RAW": str(raw),
    }
    workspace = run_fuzzer(fuzzer, f"{probe} demo-server", seed, folder, env)
    report = workspace / "reports" / "findings.json"
    findings = json.loads(report.read_text(encoding="utf-8"))["findings"]
    return [f for f in findings if f["category"].startswith("runtime.")], read_lines(raw)


def fuzz_behind_run(fuzzer, probe, seed, folder):
    """Returns what `run` finds when the fuzzer is its client, and its lines."""
    events, findings, page = folder / "events", folder / "findings", folder / "page.html"
    run = f"{probe} run --backend ebpf --events {events} --findings {findings} --report {page}"
    run_fuzzer(fuzzer, f"{run} -- {probe} demo-server", seed, folder, {})
    end = time.monotonic() + TIMEOUT
    while not page.read_text(encoding="utf-8").endswith("</html>\n"):
        # The fuzzer has killed run, and what is left is being written.
        if time.monotonic() > end:
            sys.exit("there is no whole page")
        time.sleep(0.05)
    found = []
    for f in read_lines(findings):
        late = "call_id" not in f and "origin_call_id" in f
        if not f.get("beyond_python") and ("call_id" in f or late):
            target = "<ambient>" if late else f["tool"]
            found.append({"target": target, "run": f.get("call_id"), "category": f["category"]})
    return found, read_lines(events)


def problems(findings, lines):
    """Returns what is not as expected."""
    found = collections.defaultdict(lambda: collections.defaultdict(set))
    for finding in findings:
        found[finding["target"]][finding["run"]].add(finding["category"])
    # What start_background leaves behind acts 0.2 s after its call, which may be
    # before the end of the run or after it.
    late = found.pop("<ambient>", {}).get(None, set())
    wrong = []
    if late - {"runtime.fs_write"}:
        wrong.append(f"outside of calls: {sorted(late)}")
    for tool, categories in EXPECTED.items():
        calls = list(found.pop(tool, {}).values())
        least = 1 if tool in REFUSING else CALLS
        if not categories:
            fine = not calls
        else:
            fine = len(calls) >= least and all(got == categories for got in calls)
        if not fine:
            wrong.append(f"{tool}: want {categories or 'nothing'} in each call, got {calls}")
    wrong += [f"unknown target {target}" for target in found]
    begun = collections.Counter(l["tool"] for l in lines if l.get("message") == "begin")
    if begun != {tool: CALLS for tool in EXPECTED}:
        wrong.append(f"calls begun: {dict(begun)}")
    wrong += [f"lost: {line}" for line in lines if line["type"] == "drop"]
    return wrong


def main():
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    _, fuzzer, probe = sys.argv
    for run in range(RUNS + 1):
        with tempfile.TemporaryDirectory() as folder:
            how = fuzz if run else fuzz_behind_run
            findings, lines = how(fuzzer, probe, run, Path(folder).resolve())
        wrong = problems(findings, lines)
        if wrong:
            print(f"run {run} of {RUNS}:" if run else "behind run:", *wrong, sep="\n  ")
            print("the probe's lines:", *map(json.dumps, lines), sep="\n  ")
            sys.exit(1)
    print(f"{RUNS} runs, and one behind `run`, each with the same findings for {len(EXPECTED)} tools")


if __name__ == "__main__":
    main()
