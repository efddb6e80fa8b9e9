"use strict";
// The wall: every camera by itself, all of them by one connection; and which of them is shown alone.
const tiles = new Map(), AGAIN_MS = 2000;
let chosen = "", names = [], watching = null;

function enlarge(name) {
  location.hash = name ? "#" + encodeURIComponent(name) : "";
}

function tile(name) {
  const button = make("button"), screen = make("div"), canvas = make("canvas"), line = make("div");
  button.type = "button";
  button.className = "tile";
  line.className = "dot";
  line.append(make("b", name), make("span", ""));
  screen.className = "screen";
  screen.append(canvas);
  button.append(screen, line);
  button.addEventListener("click", () => enlarge(name));
  return { button, canvas, line, drawn: 0 };
}

function showTiles(stages, streams, recent) {
  const cameras = Object.entries(stages).filter(isCamera).filter(([, stage]) => !stage.source.up).map(([name]) => name);
  const order = [...Object.keys(stages), ...Object.keys(streams)];
  const found = [...new Set(order)].filter((name) => name in streams || cameras.includes(name));
  if (found.join("\n") !== names.join("\n")) {
    names = found;
    for (const name of tiles.keys()) if (!names.includes(name)) tiles.delete(name);
    for (const name of names) if (!tiles.has(name)) tiles.set(name, tile(name));
    at("wall").replaceChildren(...names.map((name) => tiles.get(name).button));
    at("wall").classList.toggle("few", names.length <= 6);
    at("wall").style.setProperty("--tile", names.length > 9 ? "220px" : names.length > 4 ? "290px" : "400px");
    arrange();
  }
  for (const name of names) {
    const { button, line } = tiles.get(name), source = stages[name]?.source || {}, down = source.up === false;
    const age = Number.isFinite(source.frame_age_s) ? source.frame_age_s : streams[name]?.age_s;
    const fps = recent[name]?.fps, old = age > 5, parts = [];
    if (down) parts.push(`down${source.reason ? `: ${source.reason}` : ""}`);
    else if (fps !== undefined && !old) parts.push(`${short(fps)} fps`);
    if (Number.isFinite(age)) parts.push(`${time(age)} ago`);
    line.className = `dot ${down ? "down" : old ? "old" : "up"}`;
    line.lastChild.textContent = line.lastChild.title = parts.join(" · ");
    const text = button.firstChild.dataset.text = down ? `Down${source.reason ? `: ${source.reason}` : ""}` : "No image yet";
    if (name === chosen) [at("none").textContent, at("none").hidden] = [text, name in streams];
    button.classList.toggle("down", down);
  }
}

// What is to be seen: the wall where there are several cameras and none is chosen.
function arrange(returns = false) {
  const asked = decodeURIComponent(location.hash.slice(1)), many = names.length > 1;
  const one = names.includes(asked) ? asked : many ? "" : names[0] || "";
  at("wall").hidden = !many || Boolean(one);
  at("one").hidden = many && !one;
  at("back").hidden = !many;
  at("bar").hidden = !one;
  at("draw").hidden = at("found").hidden = many && !one;
  at("name").textContent = one;
  if (one !== chosen) {
    const last = chosen;
    chosen = one;
    leaveEditor();
    image.removeAttribute("src");
    if (returns && last && !one) tiles.get(last)?.button.focus();
  }
  look();
}

// Opens and ends what brings images: nothing where nobody sees them.
function look() {
  const seen = !document.hidden, wall = seen && !at("wall").hidden;
  showLarge(seen ? chosen : "");
  if (wall && !watching) {
    watching = new AbortController();
    watch(watching.signal).catch(() => undefined).finally(() => {
      watching = null;
      setTimeout(look, AGAIN_MS);
    });
  } else if (!wall && watching) {
    watching.abort();
  }
}

async function watch(signal) {
  const answer = await fetch("/wall", { signal });
  if (!answer.ok) {
    at("stream").textContent = await answer.text();
    return;
  }
  const reader = answer.body.getReader(), text = new TextDecoder();
  for (let held = new Uint8Array(0), about = null; ;) {
    const { done, value } = await reader.read();
    if (done) return;
    const all = new Uint8Array(held.length + value.length);
    all.set(held);
    all.set(value, held.length);
    for (held = all; ;) {
      if (!about) {
        const end = held.indexOf(10);
        if (end < 0) break;
        about = JSON.parse(text.decode(held.subarray(0, end)));
        held = held.subarray(end + 1);
      }
      if (held.length < about.bytes) break;
      draw(about, held.slice(0, about.bytes));
      held = held.subarray(about.bytes);
      about = null;
    }
  }
}

async function draw({ stream, number }, jpeg) {
  const bitmap = await createImageBitmap(new Blob([jpeg], { type: "image/jpeg" })), one = tiles.get(stream);
  if (one && number >= one.drawn) {
    const { canvas } = one;
    one.drawn = number;
    one.button.classList.add("seen");
    if (canvas.width !== bitmap.width || canvas.height !== bitmap.height) {
      [canvas.width, canvas.height] = [bitmap.width, bitmap.height];
    }
    canvas.getContext("2d").drawImage(bitmap, 0, 0);
  }
  bitmap.close();
}

function moved(key) {
  const all = names.map((name) => tiles.get(name).button), at = all.indexOf(document.activeElement);
  const across = all.filter((one) => one.offsetTop === all[0]?.offsetTop).length;
  const step = { ArrowLeft: -1, ArrowRight: 1, ArrowUp: -across, ArrowDown: across }[key];
  const next = all[at < 0 ? 0 : at + step];
  next?.focus();
  return Boolean(next);
}

document.addEventListener("keydown", (event) => {
  if (event.altKey || event.ctrlKey || event.metaKey || event.target.matches("input, #places *")) return;
  const sideways = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
  if (isEditing()) return;
  if (!at("wall").hidden && event.key.startsWith("Arrow")) {
    if (moved(event.key)) event.preventDefault();
  } else if (event.key === "Escape" && names.length > 1) {
    enlarge("");
  } else if (chosen && names.length > 1 && sideways) {
    enlarge(names[(names.indexOf(chosen) + sideways + names.length) % names.length]);
  }
});
at("back").addEventListener("click", () => enlarge(""));
addEventListener("hashchange", () => arrange(true));
document.addEventListener("visibilitychange", look);
