"use strict";
// Editor of zones and lines over the image of a camera. They are applied to the run, if the page has a token, or YAML.
const board = at("places"), NAME = /^[A-Za-z_][A-Za-z0-9_-]*$/, MOST_POINTS = 64, NUDGE = 0.005;
const isCoarse = matchMedia("(pointer: coarse)").matches;
let given = [], drawn = [], current = null, adding = false, dragged = null;  // given: zones and lines of the run

function isEditing() {
  return !at("editor").hidden;
}

function enterEditor() {
  given = places;
  drawn = given.map((one) => ({ ...one, from: one, points: one.points.map((point) => [...point]) }));
  current = null;
  adding = false;
  openEditor(true);
  refresh();
}

function leaveEditor() {
  openEditor(false);
}

function openEditor(open) {
  at("editor").hidden = !open;
  board.toggleAttribute("hidden", !open);
  at("draw").classList.toggle("on", open);
  at("draw").textContent = open ? "Done" : "Draw zones";
}

const FIRST = { zone: [[0.3, 0.3], [0.7, 0.3], [0.7, 0.7], [0.3, 0.7]], line: [[0.5, 0.8], [0.5, 0.2]] };

// Begins a zone or line: without points for a pointer, with some to move for the keyboard.
function begin(kind, byKey) {
  const taken = new Set(drawn.map((one) => one.name));
  let number = 1;
  while (taken.has(`${kind}_${number}`)) number += 1;
  current = { name: `${kind}_${number}`, kind, points: byKey ? FIRST[kind].map((point) => [...point]) : [] };
  drawn.push(current);
  adding = !byKey;
  refresh();
  if (byKey) focusPoint(0);
}

function focusPoint(index) {
  board.querySelectorAll("circle")[index]?.focus();
}

function finish() {
  if (current && current.points.length < 2) drawn = drawn.filter((one) => one !== current);
  if (!drawn.includes(current)) current = null;
  adding = false;
  refresh();
}

function svg(name, attributes) {
  const element = document.createElementNS("http://www.w3.org/2000/svg", name);
  for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, value);
  return element;
}

function refresh() {
  const [width, height] = size, px = width / Math.max(1, board.clientWidth);
  board.setAttribute("viewBox", `0 0 ${width} ${height}`);
  const shapes = drawn.flatMap((one) => {
    const shape = svg(one.kind === "zone" && one.points.length > 2 ? "polygon" : "polyline", {
      points: one.points.map(([x, y]) => `${x * width},${y * height}`).join(" "),
      class: one === current ? "chosen" : "",
      tabindex: 0, role: "button", "aria-pressed": one === current, "aria-label": `${one.kind} ${one.name}`,
    });
    shape.addEventListener("keydown", (event) => {
      if (event.key !== "Enter" && event.key !== " ") return;
      event.preventDefault();
      finish();
      if (drawn.includes(one)) current = one;
      refresh();
      focusPoint(0);
    });
    shape.addEventListener("pointerdown", (event) => {
      if (adding) return;
      event.stopPropagation();
      current = one;
      refresh();
    });
    if (!one.points.length) return [shape];
    const [x, y] = one.points[0], label = svg("text", { x: x * width + 6 * px, y: y * height - 8 * px, "font-size": 14 * px });
    label.textContent = one.kind === "line" ? `${one.name} (in: to the right)` : one.name;
    return [shape, label];
  });
  const handles = (current?.points || []).map(([x, y], index) => {
    const handle = svg("circle", { cx: x * width, cy: y * height, r: (isCoarse ? 13 : 7) * px, tabindex: 0, role: "button" });
    handle.setAttribute("aria-label", `Point ${index + 1} of ${current.name}: ${x.toFixed(2)}, ${y.toFixed(2)}`);
    handle.addEventListener("pointerdown", (event) => grab(event, index));
    handle.addEventListener("keydown", (event) => nudge(event, index));
    return handle;
  });
  board.replaceChildren(...shapes, ...handles);
  at("undo").disabled = at("remove").disabled = at("label").disabled = !current;
  if (document.activeElement !== at("label")) at("label").value = current?.name || "";
  at("hint").textContent = hint();
  const { text, wrong } = yaml(drawn, names.length > 1 ? chosen : "");
  at("yaml").textContent = text;
  fill(at("wrong"), wrong, (line) => make("li", line));
  report("");
}

// Shows the outcome of a button.
function report(text, isWrong = false) {
  write(at("done"), text);
  at("done").classList.toggle("wrong", isWrong);
}

function hint() {
  if (adding && current.kind === "zone") return "Click or tap the corners in order; Enter, or a click on the first one, ends the zone.";
  if (adding) return "Click or tap the points along the line; Enter ends it. Who crosses it to the right of its direction counts as in.";
  if (current) return "Drag its points, or move them with the arrow keys; + adds one behind, Delete removes it. Shift-click a border to add one there.";
  return drawn.length ? "Choose a zone or line to change it." : "Begin with a new zone or line.";
}

function where(event) {
  const at = new DOMPoint(event.clientX, event.clientY).matrixTransform(board.getScreenCTM().inverse());
  return [at.x / size[0], at.y / size[1]].map((part) => Math.min(1, Math.max(0, part)));
}

function apart([x, y], [u, v]) {
  const px = board.getScreenCTM().a;
  return Math.hypot((x - u) * size[0], (y - v) * size[1]) * px;
}

function grab(event, index) {
  event.stopPropagation();
  if (adding && index === 0 && current.points.length > 2) {
    finish();
  } else if (!adding || index < current.points.length - 1) {
    dragged = { index, pointer: event.pointerId };
    board.setPointerCapture(event.pointerId);
  }
}

function nudge(event, index) {
  const way = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1] }[event.key];
  const { points, kind } = current, least = kind === "zone" ? 3 : 2, next = points[(index + 1) % points.length];
  if (way) {
    const step = event.shiftKey ? 10 * NUDGE : NUDGE;
    points[index] = points[index].map((one, axis) => Math.min(1, Math.max(0, one + step * way[axis])));
  } else if (event.key === "+" && points.length < MOST_POINTS) {
    points.splice(index + 1, 0, points[index].map((one, axis) => (one + next[axis]) / 2));
    index += 1;
  } else if (event.key === "Delete" && points.length > least) {
    points.splice(index, 1);
    index %= points.length;
  } else {
    return;
  }
  event.preventDefault();
  event.stopPropagation();
  refresh();
  focusPoint(index);
}

board.addEventListener("pointerdown", (event) => {
  const point = where(event);
  if (adding && current.points.length < MOST_POINTS) {
    const [first] = current.points;
    if (current.kind === "zone" && current.points.length > 2 && apart(first, point) < 12) finish();
    else current.points.push(point);
  } else if (current && event.shiftKey) {
    current.points.splice(nearestEdge(current, point), 0, point);
  } else {
    current = null;
  }
  refresh();
});
board.addEventListener("pointermove", (event) => {
  if (!dragged || dragged.pointer !== event.pointerId) return;
  current.points[dragged.index] = where(event);
  refresh();
});
board.addEventListener("pointerup", () => { dragged = null; });

function nearestEdge({ points, kind }, point) {
  const edges = points.map((one, n) => [one, points[(n + 1) % points.length]]).slice(0, kind === "zone" ? undefined : -1);
  const far = edges.map(([a, b]) => apart(a, point) + apart(b, point) - apart(a, b));
  return far.indexOf(Math.min(...far)) + 1;
}

// Returns whether a border crosses itself, which a zones stage refuses.
function crosses(points) {
  const side = ([a, b], [c, d], [e, f]) => Math.sign((c - a) * (f - b) - (d - b) * (e - a));
  const edges = points.map((one, n) => [one, points[(n + 1) % points.length]]);
  return edges.some(([a, b], n) => edges.some(([c, d], m) => m > n + 1 && (n || m < edges.length - 1)
    && side(a, b, c) !== side(a, b, d) && side(c, d, a) !== side(c, d, b)));
}

function area(points) {
  return Math.abs(points.reduce((all, [x, y], n) => {
    const [u, v] = points[(n + 1) % points.length];
    return all + x * v - u * y;
  }, 0)) / 2;
}

function fault({ name, kind, points }, all) {
  if (!NAME.test(name)) return `"${name}" is no name: letters, digits, _ and -, not a digit first`;
  if (all.filter((one) => one.name === name).length > 1) return `two are called ${name}`;
  if (kind === "line") return points.length < 2 ? `${name} needs two points` : "";
  if (points.length < 3) return `${name} needs three points`;
  if (crosses(points)) return `the border of ${name} crosses itself`;
  return area(points) < 1e-5 ? `${name} has no area` : "";
}

function rounded({ points }) {
  return points.map((point) => point.map((part) => +part.toFixed(4)));
}

function yaml(all, camera) {
  const wrong = all.map((one) => fault({ ...one, points: rounded(one) }, all)), lines = [];
  for (const kind of ["zone", "line"]) {
    const right = all.filter((one, n) => one.kind === kind && !wrong[n]);
    if (right.length) lines.push(`${kind}s:`);
    for (const one of right) {
      const list = `[${rounded(one).map((point) => `[${point.join(", ")}]`).join(", ")}]`;
      lines.push(camera ? `  ${one.name}: {streams: [${camera}], points: ${list}}` : `  ${one.name}: ${list}`);
    }
  }
  const head = "# keys of a stage: areas: {stage: zones, from: track, ...}";
  return { text: lines.length ? [head, ...lines, ""].join("\n") : "# nothing drawn yet\n", wrong: [...new Set(wrong)].filter(Boolean) };
}

async function copy() {
  const text = at("yaml").textContent;
  try {
    await navigator.clipboard.writeText(text);
    report("Copied");
  } catch {  // only allowed for pages of this machine, or by HTTPS
    getSelection().selectAllChildren(at("yaml"));
    report(document.execCommand("copy") ? "Copied" : "Selected: press Ctrl-C");
  }
}

// Changes the run, as `edgert ctl` does. The token stays in its input and is stored nowhere.
async function control(verb, ...words) {
  const headers = { "Content-Type": "application/json", Authorization: `Bearer ${at("token").value}` };
  const body = JSON.stringify({ verb, words });
  // Without the browser's password, for which it would ask again after a wrong token.
  const answer = await fetch("/control", { method: "POST", headers, body, credentials: "omit" });
  const text = await answer.text();
  let found = {};
  try {
    found = JSON.parse(text);
  } catch {  // the server refused the request
    throw new Error(answer.status === 401 ? "this is not the page's token" : text.trim());
  }
  if (!found.ok) throw new Error([found.error.what, found.error.why].filter(Boolean).join(": "));
  return found.result;
}

// Returns the zones or lines of a stage, in their order, with those of this camera replaced by the drawn ones.
function merged(kind, before) {
  const mine = drawn.filter((one) => one.kind === kind), isGiven = (name) => given.some((one) => one.kind === kind && one.name === name);
  const kept = Object.entries(before).flatMap(([name, old]) => {
    const one = mine.find(({ from }) => from?.name === name);
    if (!one) return isGiven(name) ? [] : [[name, old]];  // deleted, or of another camera
    const keys = Array.isArray(old) ? {} : old;
    return [[one.name, JSON.stringify(one.from.points) === JSON.stringify(one.points) ? old : { ...keys, points: rounded(one) }]];
  });
  const camera = names.length > 1 ? { streams: [chosen] } : {};
  const added = mine.filter(({ from }) => !(from?.name in before)).map((one) => [one.name, { ...camera, points: rounded(one) }]);
  return Object.fromEntries([...kept, ...added]);
}

async function applyDrawn() {
  const { live } = await control("show");
  const stages = Object.keys(live).filter((key) => key.endsWith(".zones")).map((key) => key.slice(0, -6));
  const holds = (stage) => given.filter(({ name, kind }) => name in (live[`${stage}.${kind}s`] || {})).length;
  const [stage] = stages.sort((one, other) => holds(other) - holds(one));
  if (!stage) throw new Error("the pipeline has no zones stage: add the YAML to its file");
  const wanted = ["zone", "line"].map((kind) => [`${stage}.${kind}s`, merged(kind, live[`${stage}.${kind}s`] || {})]);
  const changed = wanted.filter(([key, value]) => JSON.stringify(value) !== JSON.stringify(live[key] || {}));
  if (changed.length) await control("set", ...changed.map(([key, value]) => `${key}=${JSON.stringify(value)}`));
  drawn.forEach((one) => { one.from = { ...one, points: one.points.map((point) => [...point]) }; });
  given = drawn.map((one) => one.from);
  if (!changed.length) return "Nothing has changed";
  const everywhere = changed.flatMap(([key, value]) => Object.entries(value)
    .filter(([name, one]) => !one.streams?.length && JSON.stringify(one) !== JSON.stringify(live[key]?.[name])));
  const shared = names.length > 1 && everywhere.length ? `, on every camera: ${everywhere.map(([name]) => name).join(", ")}` : "";
  return `Applied${shared}. Counts begin anew`;
}

async function pressed(button, work) {
  if (button.ariaDisabled) return;  // not disabled: that would take the focus away
  button.ariaDisabled = "true";
  try {
    const text = await work();
    at("save").hidden = false;
    report(text);
  } catch (error) {
    report(error.message, true);
  }
  button.ariaDisabled = null;
}

at("applying").addEventListener("submit", (event) => {
  event.preventDefault();
  if (at("wrong").children.length) report("Nothing is applied: see above", true);
  else pressed(at("apply"), applyDrawn);
});
at("save").addEventListener("click", () => pressed(at("save"), async () => {
  const { path } = await control("save");
  return path ? `Written to ${path}` : "Nothing differs from the file";
}));
for (const button of document.querySelectorAll("[data-kind]")) {
  button.addEventListener("click", ({ detail }) => {
    finish();
    begin(button.dataset.kind, !detail);  // 0: pressed by a key
  });
}
at("draw").addEventListener("click", () => (isEditing() ? leaveEditor() : enterEditor()));
at("undo").addEventListener("click", () => {
  current?.points.pop();
  refresh();
});
at("remove").addEventListener("click", () => {
  drawn = drawn.filter((one) => one !== current);
  current = null;
  adding = false;
  document.querySelector("[data-kind]").focus();  // the point in focus and this button cannot have it any longer
  refresh();
});
at("label").addEventListener("input", () => {
  if (current) current.name = at("label").value.trim();
  refresh();
});
at("copy").addEventListener("click", copy);
document.addEventListener("keydown", (event) => {
  if (!isEditing() || event.altKey || event.ctrlKey || event.metaKey) return;
  const writes = event.target.matches("input");
  if (event.key === "Enter" && (adding || event.target === at("label"))) {
    finish();
    event.target.blur();
    focusPoint(0);
  } else if (event.key === "Escape") {
    if (adding) {
      finish();
    } else {
      leaveEditor();
      at("draw").focus();
    }
    event.stopImmediatePropagation();
  } else if (!writes && event.key === "Backspace" && current) {
    current.points.pop();
    refresh();
  } else if (!writes && event.key === "Delete" && current) {
    at("remove").click();
  }
});
