"use strict";
// Numbers and lists of the run's state.
const HISTORY = 80, WINDOW = 5;
const at = (id) => document.getElementById(id);
const history = { fps: [], drops: [], p50: [], p99: [] };
const seen = [], medians = [], GROWTH_MS = 30000;
const KEPT_MESSAGES = 8;
let lastState = "";

function make(name, text) {
  const element = document.createElement(name);
  if (text !== undefined) element.textContent = text;
  return element;
}

// Changes a text only if it differs, so that screen readers and selections are not disturbed.
function write(element, text) {
  if (element.textContent !== text) element.textContent = text;
}

// Returns the element of each name in a list. Existing elements are not even moved, as they would lose the focus.
function fill(list, names, build) {
  const before = new Map([...list.children].map((one) => [one.dataset.name, one]));
  const items = names.map((name) => {
    const item = before.get(name) ?? build(name);
    item.dataset.name = name;
    return item;
  });
  for (const one of [...list.children]) if (!items.includes(one)) one.remove();
  items.forEach((item, n) => { if (item !== list.children[n]) list.insertBefore(item, list.children[n] ?? null); });
  return items;
}

// Lets screen readers read a text, after those before it. It must not have numbers that change all the time.
function say(text) {
  at("said").append(make("p", text));
  if (at("said").children.length > KEPT_MESSAGES) at("said").firstChild.remove();
}

function short(value) {
  if (!Number.isFinite(value)) return "–";
  if (value >= 100000) return (value / 1000).toFixed(0) + "k";
  return value >= 100 || Number.isInteger(value) ? value.toFixed(0) : value.toFixed(1);
}

// Returns a duration in a readable unit: "842 ms", "12.2 s".
function lasting(ms) {
  if (!Number.isFinite(ms)) return ["–", "ms"];
  return ms < 1000 ? [short(ms), "ms"] : [(ms / 1000).toFixed(ms < 100000 ? 1 : 0), "s"];
}

function time(seconds) {
  for (const [unit, length] of [["d", 86400], ["h", 3600], ["min", 60]]) {
    if (seconds >= 2 * length) return `${Math.floor(seconds / length)} ${unit}`;
  }
  return `${seconds.toFixed(seconds < 10 ? 1 : 0)} s`;
}

// Returns a time of day, with the date if it is not today.
function clock(when) {
  const day = when.toDateString() === new Date().toDateString() ? "" : `${when.toLocaleDateString()} `;
  return day + when.toLocaleTimeString();
}

function spark(card, values) {
  const space = "http://www.w3.org/2000/svg";
  let svg = card.querySelector("svg");
  if (!svg) {
    svg = card.appendChild(document.createElementNS(space, "svg"));
    svg.setAttribute("viewBox", `0 0 ${HISTORY - 1} 38`);
    svg.setAttribute("preserveAspectRatio", "none");
    svg.setAttribute("aria-hidden", "true");
    svg.append(document.createElementNS(space, "polygon"), document.createElementNS(space, "polyline"));
  }
  const top = Math.max(...values, 1e-9) * 1.15, start = HISTORY - values.length;
  const points = values.map((value, n) => `${start + n},${(37 - 34 * value / top).toFixed(2)}`).join(" ");
  svg.querySelector("polyline").setAttribute("points", points);
  svg.querySelector("polygon").setAttribute("points", `${start},38 ${points} ${HISTORY - 1},38`);
}

function show(id, value, drawn, text = short(value), unit = "") {
  const card = at(id);
  write(card.querySelector("strong"), text);
  if (unit) write(card.querySelector("small"), unit);
  if (!Number.isFinite(drawn)) return;
  history[id].push(drawn);
  if (history[id].length > HISTORY) history[id].shift();
  spark(card, history[id]);
}

function rate(stats, now) {
  seen.push([now, stats.frames_out]);
  if (seen.length > WINDOW) seen.shift();
  const [then, before] = seen[0];
  const fps = (stats.frames_out - before) / (now - then) * 1000;
  return seen.length > 1 && Number.isFinite(fps) && fps >= 0 ? fps : stats.fps;
}

const CAUSES = { queue: "queue full", join: "other part missing", end: "stage ended", error: "stage failed" };

function sum(dropped) {
  return Object.values(dropped || {}).reduce((all, one) => all + one, 0);
}

function drops(dropped) {
  return Object.entries(dropped || {}).map(([cause, count]) => `${short(count)} dropped: ${CAUSES[cause] ?? cause}`);
}

function stageItem(name) {
  const item = make("li"), bar = make("i");
  bar.append(make("b"));
  item.append(make("span", name), make("span"), bar, make("em"));
  return item;
}

function showStages(stages, recent) {
  const names = Object.keys(stages).filter((name) => !stages[name].source);
  for (const item of fill(at("stages"), names, stageItem)) {
    const { name } = item.dataset, [, rates, bar, note] = item.children, stage = stages[name], now = recent[name] || {};
    const busy = Math.min(100, Math.max(0, now.busy_percent ?? stage.busy_percent ?? 0));
    const fps = now.fps === undefined ? "" : `${short(now.fps)} fps · `, notes = drops(now.dropped);
    if (stage.stuck_s) notes.unshift(`in one call for ${time(stage.stuck_s)}`);
    if (stage.failing) notes.unshift(`down: ${stage.failing}`);
    bar.firstChild.style.width = busy + "%";
    item.classList.toggle("full", busy > 90);
    write(rates, `${fps}${busy.toFixed(0)} % busy`);
    write(note, notes.join(" · "));
  }
}

function isCamera([, stage]) {
  return typeof stage.source?.up === "boolean";
}

function cameraItem(name) {
  const item = make("li"), line = make("div");
  line.append(make("b", name), make("span"));
  item.append(line, make("span"));
  return item;
}

function showCameras(stages, recent) {
  const names = Object.keys(stages).filter((name) => stages[name].source);
  at("sources").hidden = !names.length;
  for (const item of fill(at("cameras"), names, cameraItem)) {
    const { name } = item.dataset, { source, busy_percent: busy } = stages[name], now = recent[name] || {}, parts = [];
    const isDown = source.up === false, reason = source.reason ? `: ${source.reason}` : "", [line, more] = item.children;
    if (isCamera([name, stages[name]])) parts.push(`${isDown ? "down" : "up"} for ${time(source.state_s)}${reason}`);
    if (source.frame_age_s > 2) parts.push(`frame ${time(source.frame_age_s)} ago`);
    if (now.latency_ms?.count) parts.push(`p99 ${lasting(now.latency_ms.p99).join(" ")}`);
    parts.push(...drops(now.dropped));
    if (source.reconnects) parts.push(`reconnected ${source.reconnects} times`);
    line.className = isDown ? "dot down" : "dot up";
    write(line.lastChild, isDown ? "" : now.fps === undefined ? `${short(busy)} % busy` : `${short(now.fps)} fps`);
    write(more, parts.join(" · "));
  }
}

function objectRow() {
  const row = make("tr");
  row.append(make("td"), make("td"), make("td"));
  return row;
}

function showObjects(objects) {
  at("rows").hidden = !objects.length;
  document.querySelector(".none").hidden = objects.length > 0;
  fill(document.querySelector("tbody"), objects.map((_, number) => `${number}`), objectRow).forEach((row, number) => {
    const object = objects[number], [label, score, track] = row.children;
    write(label, object.label ?? (object.class === undefined ? "pose" : `class ${object.class}`));
    write(score, Number.isFinite(object.score) ? object.score.toFixed(2) : "–");
    write(track, object.id === undefined ? "" : `#${object.id}`);
    row.title = object.stage;
  });
}

function showNumbers(stats, now) {
  const recent = stats.recent || {}, total = stats.dropped, previous = history.drops.total ?? total;
  const latency = recent.latency_ms?.count ? recent.latency_ms : {}, dropped = recent.dropped && sum(recent.dropped);
  history.drops.total = total;
  const fps = rate(stats, now);
  show("fps", Number.isFinite(fps) ? fps : undefined, fps);
  show("drops", dropped, total - previous);
  at("drops").classList.toggle("bad", total > previous);
  show("p50", latency.p50, latency.p50, ...lasting(latency.p50));
  show("p99", latency.p99, latency.p99, ...lasting(latency.p99));
  noteLatency(latency.p50, now);
}

// Notes the latency. It grows if the median of the last minute rises by a fifth within 30 s, to more than a second.
function noteLatency(p50, now) {
  if (!Number.isFinite(p50)) return;
  medians.push([now, p50]);
  while (medians.length > 2 && now - medians[1][0] > GROWTH_MS) medians.shift();
}

function isGrowing() {
  if (medians.length < 2) return false;
  const [[then, before], [now, last]] = [medians[0], medians.at(-1)];
  return now - then > GROWTH_MS / 3 && last > 1000 && last > 1.2 * before;
}

function showState(state, text, said = text) {
  at("state").className = state;
  write(at("state"), text);
  if (said !== lastState) say(lastState = said);
}

function judge(stats, fresh) {
  const all = Object.entries(stats.stages || {}), many = (list, what) => `${list.length} ${what}${list.length > 1 ? "s" : ""}`;
  const down = all.filter(([, stage]) => stage.source?.up === false).map(([name]) => name);
  const broken = all.filter(([, stage]) => stage.failing || stage.stuck_s).map(([name]) => name);
  const named = `in trouble: ${[...down, ...broken].join(", ")}`;
  if (down.length && broken.length) showState("waiting", `${down.length + broken.length} in trouble`, named);
  else if (down.length) showState("waiting", `${many(down, "camera")} down`, `down: ${down.join(", ")}`);
  else if (broken.length) showState("waiting", `${many(broken, "stage")} in trouble`, named);
  else if (!fresh) showState("waiting", "waiting for frames");
  else if (isGrowing()) showState("waiting", `${lasting(medians.at(-1)[1]).join(" ")} late, growing`, "results come ever later");
  else showState("live", "live");
}
