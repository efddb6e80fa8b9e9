"use strict";
// The wall of all cameras, over one connection, and the choice of a single one.
const tiles = new Map(), AGAIN_MS = 2000;
const GAP_PX = 12, CAPTION_PX = 35, ASIDE_PX = 340, LEAST_PX = 220, LEAST_ON_PHONES_PX = 165;
const TALL = 1.25, BELOW = 0.6;  // parts of the window's height: for tiles on a phone, and for tiles above the numbers
let chosen = "", names = [], watching = null, tilePx = 0, large = "";

function enlarge(name) {
  location.hash = name ? "#" + encodeURIComponent(name) : "";
}

function tile(name) {
  const button = make("button"), screen = make("span"), canvas = make("canvas"), lost = make("span"), line = make("span");
  button.type = "button";
  button.className = "tile";
  line.className = "dot";
  line.append(make("b", name), make("span"));
  line.lastChild.ariaHidden = "true";  // screen readers read the name of a button in focus whenever it changes
  screen.className = "screen";
  lost.className = "lost";
  screen.append(canvas, lost);
  button.append(screen, line);
  button.addEventListener("click", () => enlarge(name));
  return { button, canvas, lost, line, drawn: 0 };
}

function showTiles(stages, streams, recent) {
  const cameras = Object.entries(stages).filter(isCamera).filter(([, stage]) => !stage.source.up).map(([name]) => name);
  const order = [...Object.keys(stages), ...Object.keys(streams)];
  const found = [...new Set(order)].filter((name) => name in streams || cameras.includes(name));
  if (found.join("\n") !== names.join("\n")) {
    names = found;
    for (const name of tiles.keys()) if (!names.includes(name)) tiles.delete(name);
    for (const name of names) if (!tiles.has(name)) tiles.set(name, tile(name));
    fill(at("wall"), names, (name) => tiles.get(name).button);
    arrange();
  }
  for (const name of names) {
    const { button, lost, line } = tiles.get(name), source = stages[name]?.source || {}, down = source.up === false;
    const age = Number.isFinite(source.frame_age_s) ? source.frame_age_s : streams[name]?.age_s, old = age > 5;
    const fps = recent[name]?.fps, rate = fps === undefined ? "" : `${short(fps)} fps`;
    const image = Number.isFinite(age) ? `${time(age)} ago` : "no image yet";
    line.className = `dot ${down ? "down" : old ? "old" : "up"}`;
    write(line.lastChild, down ? "down" : age > 2 || !rate ? image : rate);
    button.classList.toggle("down", down);
    for (const place of name === chosen ? [lost, at("none")] : [lost]) showLost(place, name, source, down);
    if (name === chosen) at("none").hidden = !down && name in streams;
  }
}

// Says since when and why a camera has no images.
function showLost(place, name, source, down) {
  const since = Date.now() - 1000 * (source.state_s || 0);
  if (!(Math.abs(since - place.dataset.since) < 3000)) place.dataset.since = since;  // nearly the same time is the same moment
  const lines = [`${name} is down`, `since ${clock(new Date(Number(place.dataset.since)))}`, source.reason || ""];
  fill(place, down ? lines : ["No image yet"], (line) => make("span", line));
}

// Returns the number of tiles in each row. Rows differ by at most one, so that none is half empty; the first are large.
function rowsOf(count, columns) {
  const rows = Math.ceil(count / columns), each = Math.floor(count / rows);
  return Array.from({ length: rows }, (_, row) => each + (row >= rows - count % rows ? 1 : 0));
}

function heights(rows, width) {
  const images = rows.reduce((all, one) => all + (width - (one - 1) * GAP_PX) / one * 9 / 16, 0);
  return { images, rest: rows.length * (CAPTION_PX + GAP_PX) };
}

// Returns the arrangement with the largest images in a space, and their area in square pixels.
function fitted(count, width, height) {
  let best = { rows: rowsOf(count, Math.max(1, Math.floor(width / LEAST_PX))), width, area: 0 };
  for (let columns = 1; columns <= count; columns += 1) {
    const rows = rowsOf(count, columns), { images, rest } = heights(rows, width);
    const wide = width * Math.min(1, Math.max(0, height - rest) / images);
    const area = rows.reduce((all, one) => all + wide ** 2 / one, 0);
    if (wide / columns >= LEAST_PX && area > best.area) best = { rows, width: wide, area };
  }
  return best;
}

// Returns the arrangement for a phone, which scrolls: the fewest columns that are not much higher than the screen.
function stacked(count, width, height) {
  const most = Math.max(1, Math.floor(width / LEAST_ON_PHONES_PX));
  for (let columns = 1; ; columns += 1) {
    const rows = rowsOf(count, columns), { images, rest } = heights(rows, width);
    if (columns >= most || images + rest <= TALL * height) return { rows, width, area: 0 };
  }
}

function layOut() {
  const main = document.querySelector("main"), width = main.clientWidth, count = names.length;
  main.classList.toggle("walled", !at("wall").hidden);
  if (at("wall").hidden) return;
  const isNarrow = matchMedia("(max-width: 940px)").matches;
  const beside = isNarrow ? stacked(count, width, innerHeight)
    : fitted(count, width - ASIDE_PX, innerHeight - main.getBoundingClientRect().top - scrollY - GAP_PX);
  const above = fitted(count, width, BELOW * innerHeight), isAbove = !isNarrow && above.area > beside.area;
  const best = isAbove ? above : beside;
  main.classList.toggle("above", isAbove);
  main.style.setProperty("--wall", `${Math.floor(best.width)}px`);
  const shares = best.rows.flatMap((one) => Array(one).fill(one));
  names.forEach((name, number) => tiles.get(name).button.style.setProperty("--in-row", shares[number]));
  tilePx = Math.round(best.width / Math.max(...best.rows));
  large = best.rows[0] === 1 && count > 1 ? names[0] : "";
}

// Shows the wall if there are several cameras and none is chosen, else a single camera.
function arrange(returns = false) {
  const asked = decodeURIComponent(location.hash.slice(1)), many = names.length > 1;
  const one = names.includes(asked) ? asked : many ? "" : names[0] || "";
  at("wall").hidden = !many || Boolean(one);
  at("one").hidden = many && !one;
  at("back").hidden = !many;
  at("bar").hidden = !one;
  at("draw").hidden = at("found").hidden = many && !one;
  at("name").textContent = one;
  image.alt = `Live image of ${one} with detections`;
  video.ariaLabel = `Live video of ${one} with detections`;
  layOut();
  if (one !== chosen) {
    const last = chosen;
    chosen = one;
    leaveEditor();
    image.removeAttribute("src");
    if (returns && one) at("back").focus({ preventScroll: true });
    else if (returns && last) tiles.get(last)?.button.focus();
    if (returns) say(one ? `${one}, alone` : "all cameras");
  }
  look();
}

// Opens and ends the requests for images; there are none for a hidden page.
function look() {
  const seen = !document.hidden, wall = seen && !at("wall").hidden;
  showLarge(seen ? chosen : "");
  if (wall && !watching) {
    const own = watching = new AbortController();
    [own.tilePx, own.large] = [tilePx, large];
    watch(own.signal).catch(() => undefined).finally(() => {
      watching = null;
      setTimeout(look, own.signal.aborted ? 0 : AGAIN_MS);
    });
  } else if (watching && (!wall || large !== watching.large || Math.abs(tilePx / watching.tilePx - 1) > 0.2)) {
    watching.abort();  // labels need another size
  }
}

async function watch(signal) {
  const answer = await fetch(`/wall?tile=${tilePx}&large=${encodeURIComponent(large)}`, { signal });
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
addEventListener("resize", () => {
  layOut();
  image.removeAttribute("src");  // requested again, with labels for this width
  look();
});
document.addEventListener("visibilitychange", look);
