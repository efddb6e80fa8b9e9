"use strict";
// Numbers and lists: what the state of the run says, without images.
const HISTORY = 80, WINDOW = 5;
const at = (id) => document.getElementById(id);
const history = { fps: [], drops: [], p50: [], p99: [] };
const seen = [], listed = new Map(), medians = [], GROWTH_MS = 30000;

function make(name, text) {
  const element = document.createElement(name);
  if (text !== undefined) element.textContent = text;
  return element;
}

function short(value) {
  if (!Number.isFinite(value)) return "–";
  if (value >= 100000) return (value / 1000).toFixed(0) + "k";
  return value >= 100 || Number.isInteger(value) ? value.toFixed(0) : value.toFixed(1);
}

// A time in the unit that it is read in: "842 ms", "12.2 s".
function lasting(ms) {
  if (!Number.isFinite(ms)) return ["–", "ms"];
  return ms < 1000 ? [short(ms), "ms"] : [(ms / 1000).toFixed(ms < 100000 ? 1 : 0), "s"];
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
  card.querySelector("strong").textContent = text;
  if (unit) card.querySelector("small").textContent = `${unit}, 1 min`;
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

function showStages(stages, recent) {
  const shown = Object.entries(stages).filter(([, stage]) => !stage.source);
  at("stages").replaceChildren(...shown.map(([name, stage]) => {
    const item = make("li"), now = recent[name] || {}, bar = make("i"), fill = make("b");
    const busy = Math.min(100, Math.max(0, now.busy_percent ?? stage.busy_percent ?? 0));
    const fps = now.fps === undefined ? "" : `${short(now.fps)} fps · `, notes = drops(now.dropped);
    if (stage.stuck_s) notes.unshift(`in one call for ${time(stage.stuck_s)}`);
    if (stage.failing) notes.unshift(`down: ${stage.failing}`);
    fill.style.width = busy + "%";
    bar.append(fill);
    item.classList.toggle("full", busy > 90);
    item.append(make("span", name), make("span", `${fps}${busy.toFixed(0)} % busy`), bar);
    if (notes.length) item.append(make("em", notes.join(" · ")));
    return item;
  }));
}

function time(seconds) {
  for (const [unit, length] of [["d", 86400], ["h", 3600], ["min", 60]]) {
    if (seconds >= 2 * length) return `${Math.floor(seconds / length)} ${unit}`;
  }
  return `${seconds.toFixed(seconds < 10 ? 1 : 0)} s`;
}

function isCamera([, stage]) {
  return typeof stage.source?.up === "boolean";
}

function showCameras(stages, recent) {
  const cameras = Object.entries(stages).filter(([, stage]) => stage.source);
  at("sources").hidden = !cameras.length;
  at("cameras").replaceChildren(...cameras.map(([name, { source, busy_percent: busy }]) => {
    const item = make("li"), line = make("div"), now = recent[name] || {}, parts = [];
    const reason = source.reason ? `: ${source.reason}` : "";
    if (typeof source.up === "boolean") parts.push(`${source.up ? "up" : "down"} for ${time(source.state_s)}${reason}`);
    if (Number.isFinite(source.frame_age_s)) parts.push(`frame ${time(source.frame_age_s)} ago`);
    if (now.latency_ms?.count) parts.push(`p99 ${lasting(now.latency_ms.p99).join(" ")}`);
    parts.push(...drops(now.dropped));
    if (source.reconnects) parts.push(`reconnected ${source.reconnects} times`);
    line.className = source.up === false ? "dot down" : "dot up";
    line.append(make("b", name), make("span", source.up === false ? "" : now.fps === undefined ? `${short(busy)} % busy` : `${short(now.fps)} fps`));
    item.append(line, make("span", parts.join(" · ")));
    return item;
  }));
}

function showObjects(objects) {
  at("rows").hidden = !objects.length;
  document.querySelector(".none").hidden = objects.length > 0;
  document.querySelector("tbody").replaceChildren(...objects.map((object) => {
    const row = make("tr"), label = object.label ?? (object.class === undefined ? "pose" : `class ${object.class}`);
    const score = Number.isFinite(object.score) ? object.score.toFixed(2) : "–";
    row.append(make("td", label), make("td", score), make("td", object.id === undefined ? "" : `#${object.id}`));
    row.title = object.stage;
    return row;
  }));
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

// Whether results come ever later: the median of the last minute rose by a fifth within half a minute, beyond a second.
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

function showState(state, text) {
  at("state").className = state;
  at("state").textContent = text;
}

function judge(stats, fresh) {
  const all = Object.values(stats.stages || {}), many = (count, what) => `${count} ${what}${count > 1 ? "s" : ""}`;
  const down = all.filter((stage) => stage.source?.up === false).length;
  const broken = all.filter((stage) => stage.failing || stage.stuck_s).length;
  if (down && broken) showState("waiting", `${down + broken} in trouble`);
  else if (down) showState("waiting", `${many(down, "camera")} down`);
  else if (broken) showState("waiting", `${many(broken, "stage")} in trouble`);
  else if (!fresh) showState("waiting", "waiting for frames");
  else if (isGrowing()) showState("waiting", `${lasting(medians.at(-1)[1]).join(" ")} late, growing`);
  else showState("live", "live");
}

function showEvents(events) {
  at("happened").hidden = !events.length;
  const known = new Set(events.map((event) => event.id));
  for (const id of listed.keys()) if (!known.has(id)) listed.delete(id);
  at("events").replaceChildren(...events.map((event) => {
    const text = JSON.stringify(event);
    if (listed.get(event.id)?.text === text) return listed.get(event.id).item;
    const item = make("li"), open = make("button"), what = [event.label, event.place, event.way].filter(Boolean);
    const image = make(event.image ? "img" : "i"), when = new Date(event.time);
    if (event.image) {
      image.src = `/events/${event.id}.jpg`;
      image.alt = `${event.rule}, ${event.stream}`;
      image.loading = "lazy";
    }
    open.type = "button";
    open.addEventListener("click", () => enlarge(event.stream));
    open.append(image, make("b", [event.rule, ...what].join(" · ")));
    const day = when.toDateString() === new Date().toDateString() ? "" : `${when.toLocaleDateString()} `;
    item.append(open, make("span", `${event.stream} · ${day}${when.toLocaleTimeString()}`));
    const lasts = make("span", event.ended ? (event.seconds ? `for ${time(event.seconds)}` : "") : "goes on");
    if (!event.ended) lasts.className = "now";
    item.append(lasts);
    if (event.clip) {
      const clip = make("a", "Play the recording");
      clip.href = event.clip;
      clip.addEventListener("click", (click) => play(click, event.clip));
      item.append(clip);
    }
    listed.set(event.id, { text, item });
    return item;
  }));
}

// What a browser cannot play it downloads.
function play(click, address) {
  const film = at("film");
  if (!film.canPlayType(address.endsWith(".mp4") ? "video/mp4" : "video/x-matroska")) return;
  click.preventDefault();
  film.src = address;
  at("cinema").showModal();
  film.play().catch(() => undefined);
}

at("cinema").addEventListener("close", () => at("film").removeAttribute("src"));
at("cinema").addEventListener("click", ({ target }) => { if (target === at("cinema") || target === at("close")) at("cinema").close(); });
