"""Checks the sidecar beside MCP servers that know nothing of it.

Usage: check_servers.py PROBE FILESYSTEM_SERVER_JS

Each call has a file name of its own. What the server did with that file has to be
in the call's events and in nobody else's, acknowledged in time and with no loss.
"""

import json
import os
import queue
import signal
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

from mcpfz_probe import SidecarRuntimeMonitor

TIMEOUT = 20  # seconds for an answer of a server or the sidecar's start
ACK_LIMIT = 1  # seconds from a mark to its acknowledgement
ROUNDS = 8


class Server:
    """An MCP server over stdio, in a session of its own."""

    def __init__(self, command, log):
        self.process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
            start_new_session=True,
        )
        self.answers = queue.Queue()
        self.last_id = 0
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self):
        for line in self.process.stdout:
            self.answers.put(json.loads(line))
        self.answers.put(None)

    def send(self, method, **message):
        message = {"jsonrpc": "2.0", "method": method, **message}
        self.process.stdin.write(json.dumps(message) + "\n")
        self.process.stdin.flush()

    def request(self, method, params):
        self.last_id += 1
        self.send(method, id=self.last_id, params=params)
        while True:
            answer = self.answers.get(timeout=TIMEOUT)
            if answer is None:
                sys.exit(f"the server ended instead of answering {method}")
            if answer.get("id") == self.last_id and "method" not in answer:
                break
        if "error" in answer or answer["result"].get("isError"):
            sys.exit(f"{method} {params}: {answer}")
        return answer["result"]

    def initialize(self):
        info = {"name": "check", "version": "1"}
        params = {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": info}
        self.request("initialize", params)
        self.send("notifications/initialized")

    def stop(self):
        self.process.stdin.close()
        try:
            self.process.wait(timeout=5)
        except subprocess.TimeoutExpired:
            os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()


def filesystem_calls(folder):
    """Yields (tool, arguments, the type of the event to see, its path)."""
    for i in range(ROUNDS):
        path = folder / f"written-{i}"
        yield "write_file", {"path": str(path), "content": "x"}, "file_open", path
        path = folder / f"read-{i}"
        path.write_text("x")
        yield "read_text_file", {"path": str(path)}, "file_open", path
        path = folder / f"made-{i}"
        yield "create_directory", {"path": str(path)}, "file_mkdir", path
        old, path = folder / f"old-{i}", folder / f"moved-{i}"
        old.write_text("x")
        arguments = {"source": str(old), "destination": str(path)}
        yield "move_file", arguments, "file_rename", path


def notes_calls(folder):
    for i in range(2 * ROUNDS):
        name = f"written-{i}"
        yield "write_note", {"name": name, "text": "x"}, "file_open", folder / name
        name = f"read-{i}"
        (folder / name).write_text("x")
        yield "read_note", {"name": name}, "file_open", folder / name
    yield "list_notes", {}, "file_open", folder


def wait_ready(monitor):
    end = time.monotonic() + TIMEOUT
    while not any(e.data.get("message") == "ready" for e in monitor.ambient_events()):
        if time.monotonic() > end:
            sys.exit("the sidecar does not get ready")
        time.sleep(0.01)


def timed(what, function, *args):
    start = time.monotonic()
    result = function(*args)
    taken = time.monotonic() - start
    if taken > ACK_LIMIT:
        sys.exit(f"{what} was acknowledged after {taken:.2f} s")
    return result


def watch(server, monitor, calls):
    """Makes the calls; returns for each its wanted type and path, and its events."""
    monitor.start()
    wait_ready(monitor)
    monitor.set_scope_pgid(server.process.pid, generation=1)
    server.initialize()
    seen = []
    for tool, arguments, kind, path in calls:
        call_id = str(len(seen))
        timed(f"begin of call {call_id}", monitor.begin_call, call_id, tool)
        server.request("tools/call", {"name": tool, "arguments": arguments})
        events = timed(f"end of call {call_id}", monitor.end_call, call_id).events
        seen.append((kind, str(path), events))
    return seen


def mentions(event, path):
    return path in (event.data.get("path"), event.data.get("old_path"))


def problems(seen, ambient, lines):
    """Returns what is not as expected."""
    wrong = [f"lost: {line}" for line in lines if '"type":"drop"' in line]
    for i, (kind, path, events) in enumerate(seen):
        if not any(e.type == kind and e.data.get("path") == path for e in events):
            wrong.append(f"call {i}: no {kind} of {path} among {events}")
        others = [e for j, call in enumerate(seen) if j != i for e in call[2]]
        for event in [*others, *ambient]:
            if mentions(event, path):
                wrong.append(f"call {i} should have had {event}")
    return wrong


def check(probe, name, command, calls):
    with tempfile.TemporaryDirectory() as folder:
        folder = Path(folder).resolve()
        files, raw, log = folder / "files", folder / "raw", folder / "log"
        files.mkdir()
        monitor = SidecarRuntimeMonitor([probe, "--backend", "ebpf"], raw_path=raw)
        with log.open("w") as stderr:
            server = Server([*command, str(files)], stderr)
        try:
            seen = watch(server, monitor, calls(files))
            ambient = monitor.ambient_events()
        except BaseException:
            print(f"{name} says:", log.read_text(), sep="\n")
            raise
        finally:
            monitor.stop()
            server.stop()
        wrong = problems(seen, ambient, raw.read_text(encoding="utf-8").splitlines())
    if wrong:
        print(f"{name}:", *wrong, sep="\n  ")
        sys.exit(1)
    print(f"{name}: {len(seen)} calls, each with its own file and no other's")


def main():
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    _, probe, filesystem_server = sys.argv
    notes_server = str(Path(__file__).with_name("notes_server.py"))
    check(probe, "filesystem server", ["node", filesystem_server], filesystem_calls)
    check(probe, "notes server", [sys.executable, notes_server], notes_calls)


if __name__ == "__main__":
    main()
