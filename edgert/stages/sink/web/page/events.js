"use strict";
// Events: a list with images, and a time line for each camera.
const SAY_EVENTS_MS = 10000, LEAST_SPAN_MS = 60000;
let events = null, unsaid = 0, saidEvents = -Infinity;

function eventItem() {
  const item = make("li"), open = make("button");
  open.type = "button";
  open.addEventListener("click", () => enlarge(item.dataset.stream));
  open.append(make("i"), make("b"), make("span"), make("span"));
  item.append(open);
  return item;
}

function showEvents(newest) {
  const known = new Set((events || newest).map((event) => event.id));
  unsaid += newest.filter((event) => !known.has(event.id)).length;
  events = newest;
  at("happened").hidden = !events.length;
  fill(at("events"), events.map((event) => event.id), eventItem).forEach((item, number) => {
    const event = events[number], open = item.firstChild, when = clock(new Date(event.time));
    const length = event.ended ? (event.seconds ? ` · for ${time(event.seconds)}` : "") : " · goes on";
    item.dataset.stream = event.stream;
    item.classList.toggle("now", !event.ended);
    if (event.image && open.firstChild.tagName !== "IMG") {
      const image = make("img");
      image.src = `/events/${event.id}.jpg`;
      image.alt = "";
      image.loading = "lazy";
      open.firstChild.replaceWith(image);
    }
    write(open.children[1], event.rule);
    write(open.children[2], [event.label, event.place, event.way].filter(Boolean).join(" · "));
    write(open.lastChild, `${event.stream} · ${when}${length}`);
    if (event.clip && item.children.length < 2) item.append(clipLink(event.clip));
  });
  showTimes();
}

// Lets screen readers read how many events are new, at most every ten seconds.
function sayEvents() {
  if (!unsaid || !events.length || performance.now() - saidEvents < SAY_EVENTS_MS) return;
  say(`${unsaid} new, ${events[0].rule} on ${events[0].stream}`);
  [unsaid, saidEvents] = [0, performance.now()];
}

function clipLink(address) {
  const link = make("a", "Play the recording");
  link.href = address;
  link.addEventListener("click", (click) => play(click, address));
  return link;
}

// Draws a time line for each camera, from the oldest event until now. A click on a mark focuses the event.
function showTimes() {
  if (!events?.length) return;
  const now = Date.now(), starts = events.map((event) => Date.parse(event.time));
  const from = Math.min(now - LEAST_SPAN_MS, ...starts), left = (ms) => `${Math.max(0, 100 * (ms - from) / (now - from))}%`;
  const streams = [...new Set(events.map((event) => event.stream))].sort(), counted = [];
  const rows = streams.map((stream) => {
    const row = make("div"), track = make("span");
    events.forEach((event, number) => {
      if (event.stream !== stream) return;
      const mark = make("i"), end = event.ended ? starts[number] + 1000 * (event.seconds || 0) : now;
      mark.style.left = left(starts[number]);
      mark.style.width = `${100 * Math.max(0, end - starts[number]) / (now - from)}%`;
      mark.className = event.ended ? "" : "now";
      mark.title = `${event.rule}, ${clock(new Date(event.time))}`;
      mark.addEventListener("click", () => at("events").children[number]?.firstChild.focus());
      track.append(mark);
    });
    counted.push(`${stream} ${track.children.length}`);
    row.append(make("b", stream), track);
    return row;
  });
  const scale = make("div"), span = make("span");
  span.append(make("small", `${time((now - from) / 1000)} ago`), make("small", "now"));
  scale.append(make("b"), span);
  at("times").replaceChildren(...rows, scale);
  at("times").setAttribute("aria-label", `Events of the last ${time((now - from) / 1000)}: ${counted.join(", ")}`);
}

// Plays a recording; lets the browser download one that it cannot play.
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
