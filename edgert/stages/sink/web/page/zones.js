"use strict";
// Zones and lines, drawn over the image of one camera, as YAML for a `zones` stage.
const board = at("places"), NAME = /^[A-Za-z_][A-Za-z0-9_-]*$/, MOST_POINTS = 64, NUDGE = 0.005;
let drawn = [], current = null, adding = false, dragged = null;

function isEditing() {
  return !at("editor").hidden;
}

function enterEditor() {
  drawn = places.map(({ name, kind, points }) => ({ name, kind, points: points.map((point) => [...point]) }));
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
  at("draw").setAttribute("aria-pressed", open);
  at("draw").textContent = open ? "Done" : "Draw zones";
}

function begin(kind) {
  const taken = new Set(drawn.map((one) => one.name));
  let number = 1;
  while (taken.has(`${kind}_${number}`)) number += 1;
  current = { name: `${kind}_${number}`, kind, points: [] };
  drawn.push(current);
  adding = true;
  refresh();
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
    const handle = svg("circle", { cx: x * width, cy: y * height, r: 7 * px, tabindex: 0, "stroke-width": 1.5 });
    handle.setAttribute("aria-label", `Point ${index + 1} of ${current.name}`);
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
  at("wrong").replaceChildren(...wrong.map((line) => make("li", line)));
  at("copied").textContent = "";
}

function hint() {
  if (adding && current.kind === "zone") return "Click or tap the corners in order; Enter, or a click on the first one, ends the zone.";
  if (adding) return "Click or tap the points along the line; Enter ends it. Who crosses it to the right of its direction counts as in.";
  if (current) return "Drag its points, or move them with the arrow keys. Shift-click a border to add one.";
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
  if (!way) return;
  event.preventDefault();
  event.stopPropagation();
  current.points[index] = current.points[index].map((one, axis) => Math.min(1, Math.max(0, one + NUDGE * way[axis])));
  refresh();
  board.querySelectorAll("circle")[index].focus();
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

// What a zones stage would refuse, it says here.
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

function yaml(all, camera) {
  const rounded = all.map((one) => ({ ...one, points: one.points.map((point) => point.map((part) => +part.toFixed(4))) }));
  const wrong = rounded.map((one) => fault(one, rounded)), lines = [];
  for (const kind of ["zone", "line"]) {
    const right = rounded.filter((one, n) => one.kind === kind && !wrong[n]);
    if (right.length) lines.push(`${kind}s:`);
    for (const { name, points } of right) {
      const list = `[${points.map((point) => `[${point.join(", ")}]`).join(", ")}]`;
      lines.push(camera ? `  ${name}: {streams: [${camera}], points: ${list}}` : `  ${name}: ${list}`);
    }
  }
  const head = "# keys of a stage: areas: {stage: zones, from: track, ...}";
  return { text: lines.length ? [head, ...lines, ""].join("\n") : "# nothing drawn yet\n", wrong: wrong.filter(Boolean) };
}

async function copy() {
  const text = at("yaml").textContent;
  try {
    await navigator.clipboard.writeText(text);
    at("copied").textContent = "Copied";
  } catch {  // only pages of this machine or by HTTPS may
    getSelection().selectAllChildren(at("yaml"));
    at("copied").textContent = document.execCommand("copy") ? "Copied" : "Selected: press Ctrl-C";
  }
}

for (const button of document.querySelectorAll("[data-kind]")) {
  button.addEventListener("click", () => {
    finish();
    begin(button.dataset.kind);
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
  refresh();
});
at("label").addEventListener("input", () => {
  if (current) current.name = at("label").value.trim();
  refresh();
});
at("copy").addEventListener("click", copy);
document.addEventListener("keydown", (event) => {
  if (!chosen || event.altKey || event.ctrlKey || event.metaKey) return;
  const writes = event.target.matches("input");
  if (!writes && event.key.toLowerCase() === "z") {
    at("draw").click();
  } else if (!isEditing()) {
    return;
  } else if (event.key === "Enter" && (adding || writes)) {
    finish();
    event.target.blur();
  } else if (event.key === "Escape") {
    if (adding) finish();
    else leaveEditor();
    event.stopImmediatePropagation();
  } else if (!writes && event.key === "Backspace" && current) {
    current.points.pop();
    refresh();
  } else if (!writes && event.key === "Delete" && current) {
    at("remove").click();
  }
});
