// Checks `mcpfz-probe run` with the TypeScript SDK's client: what servers answer has to
// be the same as without it.
//
// Usage: node check_run.mjs PROBE NODE_MODULES

import { spawn } from "node:child_process";
import { once } from "node:events";
import { mkdtempSync, readFileSync, rmSync } from "node:fs";
import { createRequire } from "node:module";
import { connect, createServer } from "node:net";
import { tmpdir } from "node:os";
import { join, resolve } from "node:path";
import { pathToFileURL } from "node:url";

const [probe, modules] = process.argv.slice(2);
const require = createRequire(join(resolve(modules), "x.js"));
const load = (name) => import(pathToFileURL(require.resolve(`@modelcontextprotocol/sdk/${name}`)).href);
const { Client } = await load("client/index.js");
const { StdioClientTransport } = await load("client/stdio.js");
const { StreamableHTTPClientTransport } = await load("client/streamableHttp.js");
const { SSEClientTransport } = await load("client/sse.js");

const folder = mkdtempSync(join(tmpdir(), "check-run-"));
const server = (name) => ["node", join(resolve(modules), `@modelcontextprotocol/server-${name}/dist/index.js`)];
const sessions = {
  filesystem: [
    [...server("filesystem"), folder],
    async (client) => [
      await client.callTool({ name: "write_file", arguments: { path: join(folder, "é"), content: "x".repeat(100000) } }),
      await client.callTool({ name: "read_text_file", arguments: { path: join(folder, "é") } }),
      await client.callTool({ name: "read_text_file", arguments: { path: "/outside" } }),
    ],
  ],
  everything: [
    server("everything"),
    async (client) => [
      await client.listTools(),
      await client.listPrompts(),
      await Promise.all(["a", "b", "c"].map((message) => client.callTool({ name: "echo", arguments: { message } }))),
      await client.callTool({ name: "no-such-tool", arguments: {} }).catch(String),
      await client.ping(),
    ],
  ],
  memory: [
    ["env", `MEMORY_FILE_PATH=${join(folder, "memory")}`, ...server("memory")],
    async (client) => [await client.callTool({ name: "read_graph", arguments: {} })],
  ],
};

function drive(command, calls) {
  return session(new StdioClientTransport({ command: command[0], args: command.slice(1), stderr: "ignore" }), calls);
}

async function session(transport, calls) {
  const client = new Client({ name: "check", version: "1" });
  await client.connect(transport);
  const told = [client.getServerVersion(), client.getServerCapabilities(), await calls(client)];
  await client.close();
  return JSON.stringify(told);
}

// freePort returns a port that nobody listens on.
async function freePort() {
  const s = createServer().listen(0, "127.0.0.1");
  await once(s, "listening");
  const { port } = s.address();
  s.close();
  await once(s, "close");
  return port;
}

async function listening(port) {
  for (let i = 0; i < 600; i++) {
    const s = connect(port, "127.0.0.1");
    const ok = await once(s, "connect").then(() => true, () => false);
    s.destroy();
    if (ok) return;
    await new Promise((done) => setTimeout(done, 50));
  }
  throw new Error(`nobody listens on port ${port}`);
}

// overHTTP drives a server through the proxy, which has one call at a time, and by itself.
async function overHTTP(kind, Transport, path) {
  const [, calls] = sessions.everything;
  const [upstream, listen] = [await freePort(), await freePort()];
  const events = join(folder, kind);
  const args = ["run", "--http", `${listen}=${upstream}`, "--serialize", "--backend", "ebpf", "--events", events, "--", ...server("everything"), kind];
  const run = spawn(probe, args, { env: { ...process.env, PORT: String(upstream) }, stdio: "ignore" });
  const ended = once(run, "exit");
  try {
    await listening(listen);
    const behind = await session(new Transport(new URL(`http://127.0.0.1:${listen}${path}`)), calls);
    const direct = await session(new Transport(new URL(`http://127.0.0.1:${upstream}${path}`)), calls);
    if (direct !== behind) throw new Error(`over ${kind}, everything behaves otherwise behind run:\n${direct.slice(0, 2000)}\n${behind.slice(0, 2000)}`);
  } finally {
    run.kill();
    await ended;
  }
  const marks = readFileSync(events, "utf8").trim().split("\n").map((l) => JSON.parse(l)).filter((e) => e.message === "begin" || e.message === "end");
  const order = marks.map((m) => m.message[0]).join("");
  if (order !== "bebebebe") throw new Error(`over ${kind}, calls begin and end as ${order}`);
  console.log(`everything over ${kind}: the same for the TypeScript SDK, one call at a time`);
}

try {
  for (const [name, [command, calls]] of Object.entries(sessions)) {
    const direct = await drive(command, calls);
    const behind = await drive([probe, "run", "--backend", "ebpf", "--", ...command], calls);
    if (direct !== behind) {
      console.error(`${name} behaves otherwise behind run:\n${direct.slice(0, 2000)}\n${behind.slice(0, 2000)}`);
      process.exitCode = 1;
    } else {
      console.log(`${name}: the same for the TypeScript SDK, ${direct.length} characters`);
    }
  }
  await overHTTP("streamableHttp", StreamableHTTPClientTransport, "/mcp");
  await overHTTP("sse", SSEClientTransport, "/sse");
} finally {
  rmSync(folder, { recursive: true });
}
