// Checks `mcpfz-probe run` with the TypeScript SDK's client: what servers answer has to
// be the same as without it.
//
// Usage: node check_run.mjs PROBE NODE_MODULES

import { mkdtempSync, rmSync } from "node:fs";
import { createRequire } from "node:module";
import { tmpdir } from "node:os";
import { join, resolve } from "node:path";
import { pathToFileURL } from "node:url";

const [probe, modules] = process.argv.slice(2);
const require = createRequire(join(resolve(modules), "x.js"));
const load = (name) => import(pathToFileURL(require.resolve(`@modelcontextprotocol/sdk/${name}`)).href);
const { Client } = await load("client/index.js");
const { StdioClientTransport } = await load("client/stdio.js");

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

async function drive(command, calls) {
  const transport = new StdioClientTransport({ command: command[0], args: command.slice(1), stderr: "ignore" });
  const client = new Client({ name: "check", version: "1" });
  await client.connect(transport);
  const told = [client.getServerVersion(), client.getServerCapabilities(), await calls(client)];
  await client.close();
  return JSON.stringify(told);
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
} finally {
  rmSync(folder, { recursive: true });
}
