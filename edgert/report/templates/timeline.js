// The time line: one row for each track, drawn on a canvas, and the path of one frame through them.
const source = document.getElementById("timeline-data");
if (source) {
  const data = JSON.parse(source.textContent);
  const root = document.querySelector(".traced");
  const box = root.querySelector(".lines");
  const canvas = box.querySelector("canvas");
  const pen = canvas.getContext("2d");
  const way = root.querySelector(".way");
  const [chooser, number] = [root.querySelector("select"), root.querySelector("input")];
  const ROW = 18, PART = 7, GAP = 4, HEAD = 22, LEAST_US = 2;
  root.hidden = false;
  document.querySelector(".traced-off").remove();

  // Rows: the spans of each track with their depth of nesting; lanes of one row follow each other.
  const BEGIN = 0, LASTS = 1, NAME = 2, CATEGORY = 3, FRAMES = 4;
  const rows = data.tracks.map((track, at) => {
    const ends = [];
    const deep = track.spans.map((span) => {
      while (ends.length && ends[ends.length - 1] <= span[BEGIN]) ends.pop();
      const depth = ends.length;
      if (span[LASTS] > 0) ends.push(span[BEGIN] + span[LASTS]);
      return depth;
    });
    const isLane = at > 0 && data.tracks[at - 1].title === track.title;
    return { ...track, deep, isLane };
  });
  let top = HEAD;
  for (const row of rows) {
    row.top = top;
    top += row.isLane || row.kind === "frame" ? ROW : ROW + 14;
    if (!row.isLane && row.kind === "frame") { top += 14; }
    row.bars = row.isLane ? row.top : row.top + 14;
    if (row.deep.some((depth) => depth > 0)) top += PART;
    top += GAP;
  }
  const height = top;

  // Frames: begin and end of each, and its spans.
  const frames = data.frames.map(([stream, index]) => ({ stream, index, begin: Infinity, end: -Infinity, spans: [], lost: false }));
  const LOST = new Set(["drop", "fail"].map((name) => data.categories.indexOf(name)));
  for (const row of rows) for (const span of row.spans) for (const one of span.slice(FRAMES)) {
    const frame = frames[one - 1];
    frame.begin = Math.min(frame.begin, span[BEGIN]);
    frame.end = Math.max(frame.end, span[BEGIN] + span[LASTS]);
    frame.lost ||= LOST.has(span[CATEGORY]);
    frame.spans.push([row, span]);
  }
  const drawnFrames = frames.filter((frame) => frame.spans.length);
  data.streams.forEach((stream, at) => chooser.add(new Option(stream, at)));

  let [from, to] = [data.from_us, data.end_us];
  let chosen = null;
  const css = getComputedStyle(document.documentElement);
  const color = (name) => css.getPropertyValue(name).trim();
  const short = (value) => value >= 99.5 ? String(Math.round(value)) : String(Number(value.toPrecision(3)));
  const text = (us) => us >= 1e6 ? `${short(us / 1e6)} s` : us >= 1e3 ? `${short(us / 1e3)} ms` : us ? `${short(us)} µs` : "0";
  const category = (span) => data.categories[span[CATEGORY]];
  const ofChosen = (span) => chosen && span.indexOf(chosen.at, FRAMES) >= 0;

  const draw = () => {
    const [width, scale] = [box.clientWidth, devicePixelRatio || 1];
    canvas.width = Math.round(width * scale);
    canvas.height = Math.round(height * scale);
    canvas.style.height = `${height}px`;
    pen.setTransform(scale, 0, 0, scale, 0, 0);
    pen.clearRect(0, 0, width, height);
    pen.font = `12px ${getComputedStyle(document.body).fontFamily}`;
    pen.textBaseline = "middle";
    const perUs = width / (to - from);
    const x = (us) => (us - from) * perUs;
    const [ink, soft, line, card] = ["--ink", "--soft", "--line", "--card"].map(color);
    // Times since the capture of the chosen frame, or since the beginning.
    const zero = chosen ? chosen.begin : 0;
    const step = [1, 2, 5].flatMap((n) => [n, n * 10, n * 100, n * 1e3, n * 1e4, n * 1e5, n * 1e6, n * 1e7, n * 1e8]).sort((a, b) => a - b).find((n) => n * perUs >= 90) ?? 1e9;
    pen.lineWidth = 1;
    for (let at = Math.ceil((from - zero) / step) * step + zero; at <= to; at += step) {
      pen.fillStyle = line;
      pen.fillRect(Math.round(x(at)), 0, 1, height);
      pen.fillStyle = soft;
      const label = at === zero ? "0" : text(at - zero < 0 ? zero - at : at - zero);
      pen.fillText(`${at < zero ? "−" : ""}${label}`, Math.round(x(at)) + 4, 10);
    }
    for (const row of rows) {
      if (!row.isLane) {
        pen.fillStyle = row.kind === "thread" ? ink : soft;
        pen.fillText(row.title, 6, row.top + 7);
      }
      let [low, high] = [0, row.spans.length];
      if (row.kind !== "thread") {  // spans on a lane do not overlap
        while (low < high) {
          const middle = (low + high) >> 1;
          if (row.spans[middle][BEGIN] + row.spans[middle][LASTS] < from) low = middle + 1; else high = middle;
        }
      }
      const last = [];  // right end of the drawn spans, by depth
      for (let at = low; at < row.spans.length; at++) {
        const span = row.spans[at];
        if (span[BEGIN] > to) break;
        const left = x(span[BEGIN]), right = x(span[BEGIN] + span[LASTS]);
        const depth = Math.min(row.deep[at], 1);
        const isMine = ofChosen(span);
        if (right < 0 || (right <= (last[depth] ?? -1) + .5 && !isMine && !LOST.has(span[CATEGORY]))) continue;
        last[depth] = Math.max(right, left + 1);
        bar(span, left, Math.max(right - left, 1), depth ? row.bars + ROW - 1 : row.bars, depth ? PART : ROW - 2, isMine, { ink, card });
      }
    }
    const shown = `${text(to - from)} shown`, output = root.querySelector(".zoom output");
    if (output.textContent !== shown) output.textContent = shown;
  };

  const bar = (span, left, width, y, tall, isMine, { ink, card }) => {
    const kind = category(span);
    const hue = color(`--t-${{ fail: "drop", governor: "control", copy: "part" }[kind] ?? kind}`);
    pen.globalAlpha = chosen && !isMine && kind !== "part" ? .28 : 1;
    pen.fillStyle = pen.strokeStyle = hue;
    if (LOST.has(span[CATEGORY]) && width <= 2) {
      pen.beginPath();
      pen.arc(left, y + tall / 2, 4, 0, 7);
      pen.fill();
    } else if (kind === "wait" || kind === "drop") {  // a hollow bar, because no work is done
      pen.lineWidth = kind === "drop" ? 2 : 1.5;
      pen.strokeRect(left + .75, y + .75, Math.max(width - 1.5, .5), tall - 1.5);
    } else if (kind === "room" && width > 4) {
      pen.save();
      pen.beginPath();
      pen.rect(left, y, width, tall);
      pen.clip();
      pen.lineWidth = 2;
      pen.beginPath();
      for (let at = Math.max(left - tall, -tall); at < Math.min(left + width, canvas.width); at += 5) { pen.moveTo(at, y + tall); pen.lineTo(at + tall, y); }
      pen.stroke();
      pen.restore();
    } else {
      pen.fillRect(left, y, width, tall);
    }
    const shown = Math.min(left + width, box.clientWidth) - Math.max(left, 0);
    if (shown > 34 && tall > 12) {
      const words = data.names[span[NAME]];
      pen.save();
      pen.beginPath();
      pen.rect(left, y, width - 2, tall);
      pen.clip();
      pen.fillStyle = kind === "wait" || kind === "frame" || kind === "drop" || kind === "room" ? ink : card;
      pen.fillText(words, Math.max(left, 0) + 4, y + tall / 2 + .5);
      pen.restore();
    }
    if (isMine && kind !== "frame" && width > 2) {
      pen.lineWidth = 1.5;
      pen.strokeStyle = ink;
      pen.strokeRect(left, y - .5, width, tall + 1);
    }
    pen.globalAlpha = 1;
  };

  let isDue = false;
  const redraw = () => {
    if (isDue) return;
    isDue = true;
    requestAnimationFrame(() => { isDue = false; draw(); });
  };
  const show = (low, high) => {
    const wide = Math.min(Math.max(high - low, LEAST_US), data.end_us - data.from_us || LEAST_US);
    from = Math.max(Math.min(low, data.end_us - wide), Math.min(data.from_us, low));
    to = from + wide;
    redraw();
  };
  const zoom = (by, at = .5) => {
    const middle = from + (to - from) * at, wide = (to - from) / by;
    show(middle - wide * at, middle + wide * (1 - at));
  };

  // The path of one frame.
  const choose = (frame) => {
    if (!frame) return;
    chosen = frame;
    frame.at = frames.indexOf(frame) + 1;
    chooser.value = frame.stream;
    number.value = frame.index;
    const pad = Math.max((frame.end - frame.begin) * .15, 50);
    show(frame.begin - pad, frame.end + pad);
    const list = frame.spans.filter(([row]) => row.kind !== "frame").sort((a, b) => a[1][BEGIN] - b[1][BEGIN]);
    const head = document.createElement("h3");
    head.textContent = `${data.streams[frame.stream]} ${frame.index}: ${text(frame.end - frame.begin)} from capture to its end${frame.lost ? ", lost" : ""}`;
    const table = document.createElement("table");
    const titles = table.createTHead().insertRow();
    for (const [title, look] of [["at", "number"], ["takes", "number"], ["what", ""], ["where", "minor"]]) {
      const cell = document.createElement("th");
      cell.scope = "col";
      cell.className = look;
      cell.textContent = title;
      titles.append(cell);
    }
    const body = table.createTBody();
    for (const [row, span] of list) {
      const isWait = row.kind === "queue";
      const what = isWait ? (category(span) === "drop" ? data.names[span[NAME]] : `waits in the ${row.title}`) : data.names[span[NAME]];
      const line = body.insertRow();
      for (const [words, look] of [[`+${text(Math.max(span[BEGIN] - frame.begin, 0))}`, "number"], [span[LASTS] ? text(span[LASTS]) : "", "number"], [what, "prose"], [row.title, "minor"]]) {
        const cell = line.insertCell();
        cell.className = look;
        cell.textContent = words;
      }
    }
    way.firstElementChild.replaceChildren(head);  // read aloud, unlike the table
    way.querySelector("table")?.remove();
    way.append(table);
  };
  const ofStream = () => drawnFrames.filter((frame) => frame.stream === Number(chooser.value));
  const beside = (by) => {
    const list = ofStream(), at = list.indexOf(chosen);
    choose(at < 0 ? list[0] : list[Math.max(0, Math.min(at + by, list.length - 1))]);
  };
  const actions = {
    in: () => zoom(2), out: () => zoom(.5),
    all: () => { chosen = null; way.querySelectorAll("h3, table").forEach((one) => one.remove()); show(data.from_us, data.end_us); },
    before: () => beside(-1), after: () => beside(1),
    slowest: () => {
      const list = ofStream(), whole = list.filter((frame) => !frame.lost);
      choose((whole.length ? whole : list).reduce((a, b) => (b.end - b.begin > a.end - a.begin ? b : a), list.find((frame) => !frame.lost) ?? list[0]));
    },
    lost: () => {
      const list = ofStream().filter((frame) => frame.lost);
      choose(list.find((frame) => !chosen || frame.begin > chosen.begin) ?? list[0]);
    },
  };
  root.addEventListener("click", (event) => actions[event.target.dataset?.do]?.());
  chooser.addEventListener("change", () => choose(ofStream()[0]));
  number.addEventListener("change", () => choose(ofStream().find((frame) => frame.index >= Number(number.value))));
  if (!drawnFrames.some((frame) => frame.lost)) root.querySelector("[data-do=lost]").remove();

  // Pointers: one moves the view, two zoom, a click on a bar chooses its frame.
  const found = (event) => {
    const place = canvas.getBoundingClientRect();
    const [us, y] = [from + (event.clientX - place.left) / place.width * (to - from), event.clientY - place.top];
    const slack = (to - from) / place.width * 3;
    for (const row of rows) {
      if (y < row.bars - 1 || y > row.bars + ROW + PART) continue;
      let best = null;
      for (const [at, span] of row.spans.entries()) {
        if (span[BEGIN] > us + slack) break;
        if (span[BEGIN] + span[LASTS] >= us - slack && (!best || row.deep[at] === (y > row.bars + ROW - 1 ? 1 : 0))) best = span;
      }
      if (best) return [row, best];
    }
    return null;
  };
  const pointers = new Map();
  let travelled = 0;
  box.addEventListener("pointerdown", (event) => {
    pointers.set(event.pointerId, event);
    if (event.pointerType !== "touch") box.setPointerCapture(event.pointerId);
    travelled = 0;
  });
  box.addEventListener("pointermove", (event) => {
    const before = pointers.get(event.pointerId);
    if (!before) {
      const hit = found(event);
      tip.textContent = hit ? `${data.names[hit[1][NAME]]}\n${hit[0].title}\n${text(hit[1][LASTS])}` : "";
      tip.style.left = `${Math.max(4, Math.min(event.clientX + 14, innerWidth - tip.offsetWidth - 4))}px`;
      tip.style.top = `${Math.max(4, event.clientY - tip.offsetHeight - 12)}px`;
      return;
    }
    const others = [...pointers.values()].filter((one) => one.pointerId !== event.pointerId);
    const wide = box.clientWidth;
    if (others.length) {
      const apart = (one) => Math.max(Math.abs(one.clientX - others[0].clientX), 8);
      zoom(apart(event) / apart(before), ((event.clientX + others[0].clientX) / 2 - box.getBoundingClientRect().left) / wide);
    } else {
      const by = (before.clientX - event.clientX) / wide * (to - from);
      travelled += Math.abs(before.clientX - event.clientX);
      if (travelled > 3) box.classList.add("moved");
      show(from + by, to + by);
    }
    pointers.set(event.pointerId, event);
  });
  const release = (event) => {
    if (pointers.delete(event.pointerId) && event.type === "pointerup" && travelled < 4) {
      const hit = found(event);
      if (hit && hit[1].length > FRAMES) choose(frames[hit[1][FRAMES] - 1]);
    }
    box.classList.remove("moved");
  };
  for (const type of ["pointerup", "pointercancel"]) box.addEventListener(type, release);
  box.addEventListener("pointerleave", () => { tip.textContent = ""; });
  box.addEventListener("wheel", (event) => {
    const place = box.getBoundingClientRect();
    if (event.ctrlKey || event.metaKey) {
      event.preventDefault();
      zoom(Math.exp(-event.deltaY / 300), (event.clientX - place.left) / place.width);
    } else if (event.deltaX) {
      event.preventDefault();
      const by = event.deltaX / place.width * (to - from);
      show(from + by, to + by);
    }
  }, { passive: false });
  box.addEventListener("keydown", (event) => {
    const by = (to - from) / 8;
    const action = {
      ArrowLeft: () => show(from - by, to - by), ArrowRight: () => show(from + by, to + by),
      "+": actions.in, "=": actions.in, "-": actions.out, Home: actions.all,
    }[event.key];
    if (!action) return;
    event.preventDefault();
    action();
  });
  new ResizeObserver(redraw).observe(box);
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", redraw);
  if (drawnFrames.length) {
    const streams = data.streams.map((_, at) => drawnFrames.filter((frame) => frame.stream === at));
    const slow = streams.map((list) => list.reduce((sum, frame) => sum + frame.end - frame.begin, 0) / (list.length || 1));
    chooser.value = slow.indexOf(Math.max(...slow));
  }
  draw();
}
