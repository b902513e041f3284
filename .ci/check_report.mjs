// Checks the page of `mcpfz-probe report` in a browser.
//
// Usage: check_report.mjs PROBE NODE_MODULES CHROMIUM
//
// The page of the demo is looked at, in light and dark, wide and narrow, with and without
// script, and used by keyboard. A page of hostile strings must run none of them. A page of
// 100,000 events has to open quickly: how fast is printed, not judged, since machines
// differ; how much of it is in the document is judged.

import assert from "node:assert/strict";
import { execFileSync } from "node:child_process";
import { mkdtempSync, rmSync, writeFileSync } from "node:fs";
import { createRequire } from "node:module";
import { tmpdir } from "node:os";
import { join } from "node:path";

const [probe, modules, chromium] = process.argv.slice(2);
const puppeteer = createRequire(join(modules, "x.js"))("puppeteer-core");
const dir = mkdtempSync(join(tmpdir(), "report-"));
const browser = await puppeteer.launch({ executablePath: chromium, args: ["--no-sandbox"] });
const problems = []; // what no page may do

async function open(file, { script = true, dark = false, width = 1280 } = {}) {
	const page = await browser.newPage();
	page.on("console", (m) => problems.push(`${file}: console: ${m.text()}`));
	page.on("pageerror", (e) => problems.push(`${file}: error: ${e.message}`));
	page.on("dialog", (d) => problems.push(`${file}: dialog: ${d.message()}`) && d.dismiss());
	page.on("request", (r) => {
		if (r.url().split("#")[0] !== `file://${file}`) problems.push(`${file}: request: ${r.url()}`);
	});
	await page.setJavaScriptEnabled(script);
	await page.setViewport({ width, height: 900 });
	await page.emulateMediaFeatures([{ name: "prefers-color-scheme", value: dark ? "dark" : "light" }]);
	await page.goto(`file://${file}`);
	return page;
}

const text = (page, selector) => page.$eval(selector, (e) => e.innerText);
const focused = (page) => page.evaluate(() => document.activeElement.closest("[id]").id);

async function looks(file) {
	const backgrounds = new Set();
	for (const dark of [false, true]) {
		const page = await open(file, { dark });
		backgrounds.add(await page.$eval("body", (e) => getComputedStyle(e).backgroundColor));
		assert.ok((await page.screenshot({ fullPage: true })).length > 10_000);
		await page.close();
	}
	assert.equal(backgrounds.size, 2, "light and dark look the same");

	const narrow = await open(file, { width: 400 });
	const [wide, width] = await narrow.evaluate(() => [document.documentElement.scrollWidth, innerWidth]);
	assert.ok(wide <= width, `the page is ${wide} wide on a screen of ${width}`);
	await narrow.close();

	const still = await open(file, { script: false });
	const all = await text(still, "body");
	for (const want of ["7\ncalls, 1 failed", "sensitive file opened", "run_command", "need the script"]) {
		assert.ok(all.includes(want), `without script the page does not say ${want}`);
	}
	await still.close();
}

async function works(file) {
	const page = await open(file);
	const key = (...keys) => keys.reduce((p, k) => p.then(() => page.keyboard.press(k)), Promise.resolve());

	// The first things that Tab comes to are the link that skips, and the timeline.
	await key("Tab");
	assert.equal(await text(page, ":focus"), "To the calls");
	await key("Tab");
	assert.match(await page.$eval(":focus", (e) => e.getAttribute("aria-label")), /^call 1 \(get_time\)/);
	await key("ArrowRight", "ArrowRight", "ArrowLeft", "Enter");
	await page.waitForSelector("#call-2[open]");
	assert.equal(await focused(page), "call-2");
	const call = await text(page, "#call-2");
	assert.match(call, /ran \/bin\/sh -c 'echo "\$1"' sh 'hello; id'/);
	assert.match(call, /routine \d/);

	// An event tells all of its line.
	await page.focus("#call-2 .events details summary");
	await key("Enter");
	await page.waitForSelector("#call-2 .events details[open] dl");
	assert.match(await text(page, "#call-2 .events dl"), /type\s+process_spawn/);

	// What was late stands apart.
	await page.$eval("#call-7", (e) => (e.open = true));
	await page.waitForFunction(() => document.querySelector("#call-7").innerText.includes("after it had been answered"));

	// A finding leads to its call, also a second time.
	for (let i = 0; i < 2; i++) {
		await page.$eval("#call-3", (e) => (e.open = false));
		await page.click("a[href='#call-3']:not(.lane a)");
		await page.waitForSelector("#call-3[open]");
	}

	// The search finds paths, and says how many calls have them.
	await page.focus("body");
	await page.evaluate(() => document.activeElement.blur());
	await key("/");
	assert.equal(await focused(page), "search");
	await page.keyboard.type("ID_ed25519");
	await page.waitForFunction(() => document.getElementById("found").textContent.startsWith("1 call"));
	assert.deepEqual(await page.$$eval("#list details.call", (all) => all.map((e) => e.id)), ["call-3"]);
	await page.select("#only", "failed");
	assert.equal(await page.$$eval("#list details.call", (all) => all.length), 0);
	await page.select("#only", "all");

	// Processes: the server, and its two shells below it.
	assert.equal(await page.$$eval("#tree .name", (all) => all.filter((e) => e.textContent.startsWith("/bin/sh")).length), 2);
	await page.click("#tree li li button");
	await page.waitForFunction(() => /^pid \d+$/.test(document.getElementById("search").value));
	await page.close();
}

async function hostile() {
	const evil = "</script><script>window.run = 1</script><img src=x onerror='window.run=2'>\"'><!-- ${window.run=3} \u202e\u2028";
	const base = { comm: evil, exe: evil, path: evil, flags: evil, argv: [evil], dst: evil, host: evil, [evil]: evil };
	const lines = [
		{ type: "status", message: "scope", pgid: 7, ts_ns: 1 },
		{ type: "exec", bucket: "startup", pid: 7, ts_ns: 2, ...base },
		{ type: "status", message: "begin", call_id: evil, tool: evil, method: evil, request_id: evil, ts_ns: 3 },
		...["exec", "connect", "file_open", "dns", "mount", "process_spawn", evil].map((type, i) => ({ type, call_id: evil, pid: 7, ts_ns: 4 + i, child_pid: i, ...base })),
		{ type: "drop", call_id: evil, count: 1, reason: evil, ts_ns: 20 },
		{ type: "status", message: "end", call_id: evil, failed: true, error: evil, ts_ns: 30 },
	];
	const page = await open(report("hostile", lines));
	for (let i = 0; i < 5; i++) {
		// What is opened has more to open in it.
		await page.$$eval("details", (all) => all.forEach((e) => (e.open = true)));
		await page.evaluate(() => new Promise((done) => setTimeout(done, 20)));
	}
	const [run, scripts, images, shown] = await page.evaluate(() => [window.run ?? "nothing", document.scripts.length, document.images.length, document.body.innerText]);
	assert.deepEqual([run, scripts, images], ["nothing", 2, 0]);
	assert.ok(!/[\u202e\u2028]/.test(shown), "there is text that changes the direction of other text");
	assert.ok(shown.includes("onerror"));
	await page.close();
}

async function large() {
	const lines = [{ type: "status", message: "ready", backend: "ebpf", ts_ns: 1e9 }];
	let ns = 1e9;
	for (let call = 0; call < 500; call++) {
		const call_id = String(call);
		lines.push({ type: "status", message: "begin", call_id, tool: `tool_${call % 25}`, ts_ns: (ns += 1e9) });
		for (let i = 0; i < 200; i++) {
			const path = `/usr/share/somewhere/${call}/a-file-of-a-call-${i}`;
			lines.push({ type: "file_open", call_id, bucket: "call", pid: 100 + (i % 50), ppid: 1, comm: "node", exe: "/usr/bin/node", path, flags: i % 10 ? "O_RDONLY|O_CLOEXEC" : "O_WRONLY|O_CREAT", dev: "8:1", ino: call * 200 + i, ts_ns: (ns += 1e4) });
		}
		lines.push({ type: "status", message: "end", call_id, ts_ns: (ns += 1e4) });
	}
	const file = report("large", lines);
	const times = [];
	for (let i = 0; i < 5; i++) {
		const start = performance.now();
		const page = await open(file);
		await page.evaluate(() => new Promise((done) => requestAnimationFrame(() => setTimeout(done))));
		times.push(performance.now() - start);
		if (i === 4) {
			const nodes = await page.$$eval("*", (all) => all.length);
			assert.ok(nodes < 40_000, `${nodes} elements`);
			await page.evaluate(() => (location.hash = "#call-499"));
			await page.waitForSelector("#call-499[open] .events li");
			await page.type("#search", "call-199");
			await page.waitForFunction(() => document.getElementById("found").textContent.startsWith("500 calls"));
		}
		await page.close();
	}
	times.sort((a, b) => a - b);
	console.log(`a page of 100,000 events opens in ${(times[2] / 1000).toFixed(2)} s (median of 5; goal: 2 s)`);
}

// report makes a page of lines.
function report(name, lines) {
	const events = join(dir, `${name}.ndjson`);
	const file = join(dir, `${name}.html`);
	writeFileSync(events, lines.map((l) => JSON.stringify(l) + "\n").join(""));
	execFileSync(probe, ["report", events, "-o", file]);
	return file;
}

try {
	const demo = join(dir, "demo.html");
	execFileSync(probe, ["demo", "--backend", "ebpf", "--report", demo]);
	await looks(demo);
	await works(demo);
	await hostile();
	await large();
	assert.deepEqual(problems, []);
	console.log("the report's page works, and runs nothing of what is in it");
} finally {
	await browser.close();
	rmSync(dir, { recursive: true });
}
