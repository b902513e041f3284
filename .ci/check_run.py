"""Checks `mcpfz-probe run` in front of MCP servers that know nothing of it.

Usage: check_run.py PROBE NODE_MODULES

Each server is driven by the official Python client, once by itself and once behind
`run`, and has to answer the same. Behind `run`, each call has to have its own window,
with what the server did for it. A transcript is then sent line by line, and every
byte that comes back has to be the same. One server is driven over HTTP, too.
"""

import json
import os
import re
import signal
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import anyio
from mcp import ClientSession, StdioServerParameters, stdio_client
from mcp.client.sse import sse_client
from mcp.client.streamable_http import streamable_http_client

TIMEOUT = 60  # seconds for a session


def servers(modules):
    """Yields (name, command for a folder, calls in that folder)."""

    def node(name):
        return ["node", str(modules / f"@modelcontextprotocol/server-{name}/dist/index.js")]

    notes = str(Path(__file__).with_name("notes_server.py"))
    yield "filesystem", lambda d: [*node("filesystem"), str(d)], lambda d: [
        ("write_file", {"path": f"{d}/w", "content": "x" * 100_000}, "file_open", d / "w"),
        ("read_text_file", {"path": f"{d}/w"}, "file_open", d / "w"),
        ("create_directory", {"path": f"{d}/made"}, "file_mkdir", d / "made"),
        ("list_directory", {"path": str(d)}, "file_open", d),
        ("read_text_file", {"path": f"{d}/missing"}, None, None),
    ]
    yield "memory", lambda d: ["env", f"MEMORY_FILE_PATH={d}/memory", *node("memory")], lambda d: [
        (
            "create_entities",
            {"entities": [{"name": "é", "entityType": "t", "observations": ["o"]}]},
            "file_open",
            d / "memory",
        ),
        ("read_graph", {}, "file_open", d / "memory"),
    ]
    yield "everything", lambda d: node("everything"), lambda d: [
        ("echo", {"message": "hello \u2028 there"}, None, None),
        ("get-sum", {"a": 1, "b": 2}, None, None),
    ]
    yield "notes", lambda d: [sys.executable, notes, str(d)], lambda d: [
        ("write_note", {"name": "n", "text": "x"}, "file_open", d / "n"),
        ("read_note", {"name": "n"}, "file_open", d / "n"),
    ]


async def session(transport, calls):
    """Returns what the server tells a client, as text."""
    told = []
    async with transport as streams:
        async with ClientSession(streams[0], streams[1]) as client:
            told.append(await client.initialize())
            told.append(await client.list_tools())
            for tool, arguments, _, _ in calls:
                try:
                    told.append(await client.call_tool(tool, arguments))
                except Exception as error:  # the same one is wanted again
                    told.append(repr(error))
            await client.send_ping()
    return [t if isinstance(t, str) else t.model_dump_json() for t in told]


def limited_session(transport, calls):
    async def limited():
        with anyio.fail_after(TIMEOUT):
            return await session(transport, calls)

    return anyio.run(limited)


def stdio(command, log):
    return stdio_client(StdioServerParameters(command=command[0], args=command[1:]), errlog=log)


def check_events(name, file, calls):
    begun, done, problems = {}, {}, []
    for line in file.read_text(encoding="utf-8").splitlines():
        event = json.loads(line)
        if event["type"] == "drop":
            problems.append(f"lost: {line}")
        if event["type"] != "status":
            done.setdefault(event.get("call_id"), []).append(event)
        elif event["message"] == "begin":
            begun[event["call_id"]] = event
        elif event["message"] == "end" and "latency_us" not in event:
            problems.append(f"no latency: {line}")
    tools = [e["tool"] for e in begun.values()]
    if tools != [tool for tool, *_ in calls]:
        problems.append(f"calls of {tools}")
    for call_id, (tool, _, kind, path) in zip(begun, calls):
        seen = [(e["type"], e.get("path")) for e in done.get(call_id, [])]
        if kind and (kind, str(path)) not in seen:
            problems.append(f"{tool}: no {kind} of {path} in {seen}")
    if problems:
        sys.exit("\n".join(f"{name}: {p}" for p in problems))
    return len(begun)


def transcript(command, calls):
    """Returns the bytes that come back for the lines of a session, one after the other."""
    process = subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
    )
    info = {"name": "check", "version": "1"}
    params = {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": info}
    requests = [("initialize", params)]
    requests += [("tools/call", {"name": t, "arguments": a}) for t, a, *_ in calls]
    back = b""
    for i, (method, params) in enumerate(requests):
        message = {"jsonrpc": "2.0", "id": i, "method": method, "params": params}
        process.stdin.write(json.dumps(message).encode() + b"\n")
        process.stdin.flush()
        while True:
            line = process.stdout.readline()
            back += line
            if not line or json.loads(line).get("id") == i:
                break
        if i == 0:
            process.stdin.write(b'{"jsonrpc":"2.0","method":"notifications/initialized"}\n')
    process.stdin.close()
    back += process.stdout.read()
    return back, process.wait(timeout=TIMEOUT)


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


def wait_listening(port):
    end = time.monotonic() + TIMEOUT
    while True:
        with socket.socket() as s:
            if s.connect_ex(("127.0.0.1", port)) == 0:
                return
        if time.monotonic() > end:
            sys.exit(f"nobody listens on port {port}")
        time.sleep(0.05)


def everything(modules, kind):
    calls = [("echo", {"message": "x" * 100_000}, None, None), ("get-sum", {"a": 1, "b": 2}, None, None)]
    return ["node", str(modules / "@modelcontextprotocol/server-everything/dist/index.js"), kind], calls


def notes(folder):
    calls = [
        ("write_note", {"name": "n", "text": "x"}, "file_open", folder / "n"),
        ("read_note", {"name": "n"}, "file_open", folder / "n"),
    ]
    return [sys.executable, str(Path(__file__).with_name("notes_server.py")), str(folder)], calls


def over_http(probe, kind, server, calls, client, path):
    """Drives the server by itself, and then through the proxy."""
    upstream, listen = free_port(), free_port()
    with tempfile.TemporaryDirectory() as folder:
        events = Path(folder) / "events"
        run = [probe, "run", "--http", f"{listen}={upstream}", "--backend", "ebpf", "--events", str(events), "--"]
        process = subprocess.Popen(
            run + server,
            env=os.environ | {"PORT": str(upstream)},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        try:
            # Through the proxy first: it waits until the server listens.
            wait_listening(listen)
            told = [limited_session(client(f"http://127.0.0.1:{port}{path}"), calls) for port in (listen, upstream)]
        finally:
            process.send_signal(signal.SIGTERM)
            process.wait(timeout=TIMEOUT)
        if told[0] != told[1]:
            sys.exit(f"{kind}, by itself: {told[1]}\nbehind run: {told[0]}"[:4000])
        print(f"{kind}: the same")
        return check_events(kind, events, calls)


def main():
    probe, modules = sys.argv[1], Path(sys.argv[2])
    total = 0
    for name, command, make_calls in servers(modules):
        answers = []
        for behind in (False, True):
            with tempfile.TemporaryDirectory() as folder, tempfile.TemporaryDirectory() as other:
                folder, events = Path(folder).resolve(), Path(other) / "events"
                full, calls = command(folder), make_calls(folder)
                run = [probe, "run", "--backend", "ebpf", "--events", str(events), "--"]

                with open(os.devnull, "w", encoding="utf-8") as log:
                    told = limited_session(stdio(run + full if behind else full, log), calls)
                if behind:
                    total += check_events(name, events, calls)
                for path in folder.iterdir():
                    path.rmdir() if path.is_dir() else path.unlink()
                raw, status = transcript(run + full if behind else full, calls)
                # The folder's name is another one each time, and so are times.
                clean = [re.sub(re.escape(str(folder)), "FOLDER", t) for t in told]
                answers.append((clean, raw.replace(str(folder).encode(), b"FOLDER"), status))
        if answers[0] != answers[1]:
            for a, b in zip(*answers):
                if a != b:
                    print(f"by itself: {str(a)[:2000]}\nbehind run: {str(b)[:2000]}")
            sys.exit(f"{name} behaves otherwise behind run")
        print(f"{name}: the same to the byte, {len(answers[0][1])} bytes")
    total += over_http(
        probe, "everything over streamable HTTP", *everything(modules, "streamableHttp"), streamable_http_client, "/mcp"
    )
    total += over_http(probe, "everything over HTTP+SSE", *everything(modules, "sse"), sse_client, "/sse")
    with tempfile.TemporaryDirectory() as folder:
        total += over_http(
            probe, "notes over streamable HTTP", *notes(Path(folder).resolve()), streamable_http_client, "/mcp"
        )
    print(f"{total} calls in their windows")


main()
