"use strict";
// Shows, on demand, what is in the page's data: the events of calls, and processes. All of
// it is text from elsewhere, and becomes text: nothing here makes HTML of a string.
(() => {
	const data = JSON.parse(document.getElementById("data").textContent);
	const severities = ["low", "medium", "high", "critical"];
	// Facts and who have three values each: see reportData in report_page.go.
	const factClass = (i) => data.classes[data.facts[3 * i]];
	const factWords = (i) => data.facts[3 * i + 1];
	const factFields = (i) => data.facts[3 * i + 2];
	const whoProcess = (i) => data.who[3 * i];
	const whoGroup = (i) => data.who[3 * i + 1];
	const whoFields = (i) => data.who[3 * i + 2];
	const factCount = data.facts.length / 3;
	const whoCount = data.who.length / 3;
	const firstCall = 4; // of data.places
	const placeIDs = ["startup", "ambient", "several", "further"]; // those before
	const atOnce = 200; // rows that are added at a time

	function make(name, properties, ...children) {
		const element = Object.assign(document.createElement(name), properties);
		element.append(...children);
		return element;
	}
	const upTo = (n, value) => Array.from({ length: n }, (_, i) => value(i));
	const span = (className, text) => make("span", { className }, text);
	const plural = (n, one, many = one + "s") => (n === 1 ? "1 " + one : n.toLocaleString("en") + " " + many);

	// duration writes µs with three digits, as showDuration in report_page.go does.
	function duration(us) {
		if (us < 1000) return us + " µs";
		for (const [name, is, end] of [["ms", 1e3, 999.5], ["s", 1e6, 59.95]]) {
			const v = us / is;
			if (v < end) return v.toFixed(v < 9.995 ? 2 : v < 99.95 ? 1 : 0) + " " + name;
		}
		const seconds = Math.round(us / 1e6);
		if (seconds < 3600) return Math.floor(seconds / 60) + " min " + (seconds % 60) + " s";
		return Math.floor(seconds / 3600) + " h " + Math.floor((seconds % 3600) / 60) + " min";
	}

	function badge(severity) {
		return severity < 0 ? "" : span("badge sev-" + severities[severity], severities[severity]);
	}

	const placeID = (i) => (i < firstCall ? placeIDs[i] : "call-" + (i - firstCall + 1));
	const placeName = (i) => (i < firstCall ? data.tools[data.places[i].tool] : "call " + (i - firstCall + 1));
	const placeLink = (i) => make("a", { href: "#" + placeID(i) }, placeName(i));

	// more adds items, made by build, to a list: some at once, and a button for others.
	function more(list, items, build) {
		let shown = 0;
		const button = make("button", { type: "button", className: "more" });
		function step() {
			const next = items.slice(shown, shown + atOnce);
			const first = list.childElementCount;
			list.append(...next.map(build));
			shown += next.length;
			button.textContent = `Show ${Math.min(atOnce, items.length - shown)} more of ${plural(items.length - shown, "row")}`;
			if (shown >= items.length) button.remove();
			return list.children[first];
		}
		step();
		if (shown < items.length) list.after(button);
		button.addEventListener("click", () => {
			const first = step();
			const target = first.querySelector("summary, a, button") ?? first;
			if (target === first) first.tabIndex = -1;
			target.focus();
		});
	}

	// visible spells out what has no look of its own, or changes that of others: see
	// escapeUnseen in words.go.
	const spell = (c) => `\\u{${c.codePointAt(0).toString(16)}}`;
	const visible = (text) =>
		text.replace(/[\p{C}\p{Zl}\p{Zp}\p{Default_Ignorable_Code_Point}\u2800]/gu, spell).replace(/(?<=\p{M}\p{M})\p{M}/gu, spell);

	// members decodes an object. Numbers that a script cannot hold stay as they are written.
	const members = (text) => JSON.parse(text, (_, v, context) => (typeof v === "number" && !Number.isSafeInteger(v) && context?.source ? context.source : v));

	// fields lists what JSON objects have.
	function fields(...objects) {
		const list = make("dl");
		for (const [key, value] of objects.flatMap((o) => Object.entries(o))) {
			list.append(make("dt", {}, visible(key)), make("dd", {}, make("code", {}, visible(typeof value === "string" ? value : JSON.stringify(value)))));
		}
		return list;
	}

	// lazily fills a details element when it is opened for the first time.
	function lazily(details, fill) {
		details.addEventListener("toggle", () => {
			if (details.open && !details.filled) {
				details.filled = true;
				fill(details);
			}
		});
		return details;
	}

	// ---- calls and their events ----

	let query = null; // what is searched for; null for nothing

	// newQuery makes tests of places and of events from what was typed. Keys are not searched.
	function newQuery(text) {
		const pid = /^pid (\d+)$/.exec(text);
		if (pid) {
			const number = Number(pid[1]);
			const whos = upTo(whoCount, (i) => data.processes[whoProcess(i)].pid === number);
			return { place: () => false, event: (who) => whos[who] };
		}
		const pattern = new RegExp(text.replace(/[.*+?^${}()|[\]\\]/g, "\\$&"), "i");
		const values = (fields) => fields.replace(/([{,])"[^"\\]*":/g, "$1");
		const facts = upTo(factCount, (i) => pattern.test(factWords(i)) || pattern.test(values(factFields(i))));
		const whos = upTo(whoCount, (i) => pattern.test(values(whoFields(i))));
		const tools = data.tools.map((t) => pattern.test(t));
		const place = (p) => tools[p.tool] || [p.call, p.id, p.method, p.problem].some((t) => t && pattern.test(t));
		return { place, event: (who, fact) => facts[fact] || whos[who] };
	}

	// matches tells whether what is searched for is among a place's events.
	function matches(place) {
		for (let i = 0; i < place.events.length; i += 5) {
			if (query.event(place.events[i + 2], place.events[i + 3])) return true;
		}
		return false;
	}

	// rowsOf puts equal events of a place together.
	function rowsOf(place) {
		const rows = new Map();
		const all = !query || query.place(place);
		for (let i = 0, line = 0, at = 0; i < place.events.length; i += 5) {
			const [lines, time, who, fact, flags] = place.events.slice(i, i + 5);
			line += lines;
			at += time;
			if (!all && !query.event(who, fact)) continue;
			const late = flags & 8;
			const severity = (flags & 7) - 1;
			const key = `${fact} ${whoGroup(who)} ${late}`;
			const row = rows.get(key);
			if (row) {
				row.lines.push(line);
				row.last = at;
				row.severity = Math.max(row.severity, severity);
			} else {
				rows.set(key, { lines: [line], at, last: at, who, fact, late, severity });
			}
		}
		return [...rows.values()];
	}

	// What has a finding is never taken for routine.
	const rowClass = (row) => (row.severity >= 0 && factClass(row.fact) === "routine" ? "read" : factClass(row.fact));

	// callsOf links the calls of which an event may be.
	function callsOf(ids) {
		const links = [];
		for (const id of ids) {
			const i = data.places.findLastIndex((p) => p.call === id);
			links.push(links.length ? " or " : "", i < 0 ? "call " + visible(String(id)) : placeLink(i));
		}
		return links;
	}

	function eventRow(place, row) {
		const since = place.at < 0 ? row.at : row.at - place.at;
		const summary = make("summary", {},
			span("at", row.at < 0 ? "" : (since < 0 ? "−" : "+") + duration(Math.abs(since))), " ",
			span("words " + rowClass(row), factWords(row.fact)), " ",
			row.lines.length > 1 ? span("meta", "×" + row.lines.length.toLocaleString("en") + " ") : "",
			badge(row.severity), " ",
			span("meta", "process " + data.processes[whoProcess(row.who)].pid));
		if (place === data.places[2]) summary.append(" of ", ...callsOf(members(factFields(row.fact)).candidate_call_ids ?? []));
		return make("li", {}, lazily(make("details", {}, summary), (details) => {
			const lines = row.lines.length > 20 ? row.lines.slice(0, 20).join(", ") + ", …" : row.lines.join(", ");
			const where = { [row.lines.length > 1 ? "lines" : "line"]: lines };
			if (row.lines.length > 1 && row.last >= 0) where.last = "+" + duration(row.last - Math.max(place.at, 0));
			details.append(fields(where, members(factFields(row.fact)), members(whoFields(row.who))));
		}));
	}

	function fillPlace(body, place) {
		const rows = rowsOf(place);
		const about = {};
		if (place.method && place.method !== "tools/call") about.method = place.method;
		if (place.id) about["request id"] = place.id;
		if (place.call) about["call id"] = place.call;
		if (place.problem) about.error = place.problem;
		if (Object.keys(about).length) body.append(fields(about));
		const classes = new Map();
		for (const row of rows) {
			const name = rowClass(row);
			classes.set(name, (classes.get(name) ?? 0) + row.lines.length);
		}
		const off = new Set(query || classes.size < 2 ? [] : ["routine"]);
		const lists = make("div");
		function show() {
			lists.replaceChildren();
			for (const late of [0, 8]) {
				const some = rows.filter((r) => r.late === late && !off.has(rowClass(r)));
				if (!some.length) continue;
				if (late) lists.append(make("p", { className: "after" }, place.over ? "after it had been answered" : "outside of it"));
				const list = make("ol", { className: "events" });
				lists.append(list);
				more(list, some, (row) => eventRow(place, row));
			}
			if (!lists.childElementCount) lists.append(make("p", { className: "meta" }, "nothing"));
		}
		if (classes.size > 1) {
			const chips = make("div", { className: "chips", role: "group", ariaLabel: "What is shown" });
			for (const [name, n] of classes) {
				const chip = make("button", { type: "button", className: name, ariaPressed: String(!off.has(name)) }, `${name} ${n.toLocaleString("en")}`);
				chip.addEventListener("click", () => {
					if (!off.delete(name)) off.add(name);
					chip.ariaPressed = String(!off.has(name));
					show();
				});
				chips.append(chip);
			}
			body.append(chips);
		}
		body.append(lists);
		if (place.n > place.events.length / 5) {
			body.append(make("p", { className: "warn" }, `${plural(place.n - place.events.length / 5, "further event")}: see the file of events`));
		}
		if (place.lost) body.append(make("p", { className: "warn" }, `${plural(place.lost, "event")} lost: they could not be delivered`));
		if (place.maybe) {
			body.append(make("p", {}, "Calls overlapped: ", make("a", { href: "#several" }, plural(place.maybe, "further event")), " may be of this one."));
		}
		show();
	}

	function placeDetails(i) {
		const place = data.places[i];
		const summary = make("summary");
		const name = data.tools[place.tool];
		if (i < firstCall) {
			summary.append(make("em", {}, name), " ");
		} else {
			const took = place.latency >= 0 ? "took " + duration(place.latency) + ", " : place.over ? "" : "not answered, ";
			summary.append(
				span("number", "#" + (i - firstCall + 1)), " ", make("code", { className: "tool" }, name), " ",
				span("meta", (place.at < 0 ? "" : "+" + duration(place.at) + ", ") + took));
		}
		summary.append(span("meta", plural(place.n, "event") + (place.maybe ? ` and ${place.maybe} that may be its` : "")), " ");
		if (place.lost) summary.append(span("badge failed", plural(place.lost, "event") + " lost"), " ");
		if (place.failed) summary.append(span("badge failed", "failed"), " ");
		summary.append(badge(place.severity));
		const details = make("details", { className: "call", id: placeID(i) }, summary);
		return lazily(details, () => fillPlace(details, place));
	}

	const list = document.getElementById("list");
	const only = document.getElementById("only");
	const search = document.getElementById("search");
	const found = document.getElementById("found");
	let timer = 0; // until what is typed is searched for

	// showPlaces lists those that are asked for, from one of them on if that is given.
	function showPlaces(from) {
		clearTimeout(timer);
		const text = search.value.trim();
		query = text ? newQuery(text) : null;
		const wanted = [];
		data.places.forEach((place, i) => {
			if (i < firstCall && !place.n && !place.lost) return;
			if (only.value === "findings" && place.severity < 0) return;
			if (only.value === "failed" && !place.failed) return;
			if (query && !query.place(place) && !matches(place)) return;
			wanted.push(i);
		});
		const skipped = from === undefined ? 0 : Math.max(0, wanted.indexOf(from) - 5);
		const inner = make("div");
		list.replaceChildren(inner);
		if (skipped) {
			const earlier = make("button", { type: "button" }, `Show ${plural(skipped, "earlier row")}`);
			earlier.addEventListener("click", () => {
				showPlaces();
				list.querySelector("summary").focus();
			});
			inner.before(earlier);
		}
		more(inner, wanted.slice(skipped), placeDetails);
		const all = query || only.value !== "all";
		const calls = wanted.filter((i) => i >= firstCall).length;
		found.textContent = all ? plural(calls, "call") + (query ? ", events that match" : "") : "";
	}

	// follow opens what the address of the page names.
	function follow() {
		const id = location.hash.slice(1);
		const number = /^call-(\d+)$/.exec(id);
		const i = number ? Number(number[1]) - 1 + firstCall : placeIDs.indexOf(id);
		if (i < 0 || i >= data.places.length) return;
		clearTimeout(timer);
		if (!document.getElementById(id)) {
			search.value = "";
			only.value = "all";
			showPlaces(i);
		}
		const details = document.getElementById(id);
		if (!details) return;
		details.open = true;
		details.scrollIntoView({ block: "start" });
		details.firstElementChild.focus({ preventScroll: true });
	}

	search.addEventListener("input", () => {
		clearTimeout(timer);
		timer = setTimeout(() => showPlaces(), 150);
	});
	only.addEventListener("change", () => showPlaces());
	search.form.addEventListener("submit", (event) => event.preventDefault());
	search.form.hidden = false;
	addEventListener("hashchange", follow);
	document.addEventListener("click", (event) => {
		// A link to where the page is already is followed, too.
		const link = event.target.closest("a[href^='#']");
		if (link && (link.href.baseVal ?? link.getAttribute("href")) === location.hash) follow();
	});
	document.addEventListener("keydown", (event) => {
		if (event.key === "/" && !event.ctrlKey && !event.altKey && !event.metaKey && !/^(INPUT|SELECT|TEXTAREA)$/.test(document.activeElement.tagName)) {
			event.preventDefault();
			search.focus();
		}
	});

	// ---- the timeline's keys ----

	const bars = [...document.querySelectorAll(".lane a")];
	if (bars.length) bars[0].setAttribute("tabindex", "0");
	bars.forEach((bar, i) => bar.addEventListener("keydown", (event) => {
		const step = { ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1 }[event.key];
		const to = { Home: 0, End: bars.length - 1 }[event.key] ?? i + step;
		if (!bars[to] || event.ctrlKey || event.altKey || event.metaKey) return;
		event.preventDefault();
		bar.setAttribute("tabindex", "-1");
		bars[to].setAttribute("tabindex", "0");
		bars[to].focus();
	}));

	// ---- processes ----

	const children = new Map();
	data.processes.forEach((process, i) => {
		if (!i && !process.n) return; // it stands for no process
		const siblings = children.get(process.parent);
		if (siblings) siblings.push(i);
		else children.set(process.parent, [i]);
	});

	function processWords(i) {
		const process = data.processes[i];
		const words = [span("number", i ? String(process.pid) : "…"), " ", span("name", i ? process.name || "?" : "others"), " "];
		if (process.place >= 0) {
			words.push("started in ", placeLink(process.place), " ");
		}
		const events = make("button", { type: "button", title: "show them" }, plural(process.n, "event"));
		events.addEventListener("click", (event) => {
			event.preventDefault();
			search.value = "pid " + process.pid;
			only.value = "all";
			showPlaces();
			document.getElementById("calls").scrollIntoView();
			search.focus({ preventScroll: true });
		});
		words.push(process.n ? events : span("meta", "no event"), " ", badge(process.severity));
		return words;
	}

	// groups puts childless siblings together that are alike.
	function groups(siblings) {
		const alike = new Map();
		for (const i of siblings) {
			const p = data.processes[i];
			const key = children.has(i) ? "one " + i : `${p.place} ${p.severity} ${p.name}`;
			const group = alike.get(key);
			if (group) group.push(i);
			else alike.set(key, [i]);
		}
		return [...alike.values()].flatMap((group) => (group.length > 3 ? [group] : group.map((i) => [i])));
	}

	function branch(siblings, depth) {
		const tree = make("ul");
		const box = make("div", {}, tree);
		more(tree, groups(siblings), (group) => {
			const i = group[0];
			if (group.length > 1) {
				const p = data.processes[i];
				const summary = make("summary", {}, span("number", "×" + group.length.toLocaleString("en")), " ", span("name", p.name || "?"), " ", badge(p.severity));
				return make("li", {}, lazily(make("details", {}, summary), (details) => {
					const all = make("ul");
					details.append(all);
					more(all, group, (i) => make("li", {}, ...processWords(i)));
				}));
			}
			if (!children.has(i)) return make("li", {}, ...processWords(i));
			const details = make("details", { open: depth > 0 }, make("summary", {}, ...processWords(i)));
			return make("li", {}, lazily(details, () => details.append(branch(children.get(i), depth - 1))));
		});
		return box;
	}

	// A small tree is shown whole, but for what is deep.
	const roots = children.get(-1) ?? [];
	if (roots.length) document.getElementById("tree").append(branch(roots, data.processes.length <= 100 ? 6 : 0));

	showPlaces();
	follow();
})();
