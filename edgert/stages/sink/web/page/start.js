"use strict";
// Polls the state and shows it.
const PERIOD_MS = 500, PERIOD_OF_MANY_MS = 1000;
let lastFrame = null, lastChange = 0, knownEvents = null, places = [], size = [16, 9];

async function fetched(path) {
  const answer = await fetch(path, { signal: AbortSignal.timeout(4000) });
  if (!answer.ok) throw new Error(answer.status);
  return answer.json();
}

async function update({ stats, latest, streams, events: count, video: has, control }) {
  const now = performance.now(), recent = stats.recent || {}, stages = stats.stages || {};
  showNumbers(stats, now);
  showStages(stages, recent.stages || {});
  showCameras(stages, recent.streams || {});
  showTiles(stages, streams, recent.streams || {});
  document.title = stats.name ? `${stats.name} · edgert` : "edgert live";
  write(document.querySelector("h1"), stats.name || "edgert");
  const isAnother = chosen && latest.stream !== chosen;  // the chosen camera has no image yet
  showObjects(isAnother ? [] : latest.objects);
  places = isAnother ? [] : latest.places;
  size = streams[chosen]?.size || size;
  hasVideo = has && typeof RTCPeerConnection === "function";
  at("applying").hidden = !control;
  const state = `${latest.stream} ${latest.frame}`;
  if (state !== lastFrame) [lastFrame, lastChange] = [state, now];
  at("stream").textContent = chosen ? (isAnother ? chosen : `${chosen} · frame ${latest.frame}`) : names.length ? `${names.length} cameras` : "";
  judge(stats, latest.stream !== null && now - lastChange < 3000);
  look();
  if (count !== knownEvents) {
    showEvents((await fetched("/events.json")).events);
    knownEvents = count;
  } else {
    showTimes();
  }
  sayEvents();
}

async function poll() {
  try {
    await update(await fetched(`/stats.json?stream=${encodeURIComponent(chosen)}`));
  } catch (error) {
    showState("lost", error.message === "401" ? "token wanted" : "connection lost");
    image.removeAttribute("src");  // requested again after the next answer
    refused = "";
    seen.length = medians.length = 0;
  }
  setTimeout(poll, document.hidden ? 5000 : names.length > 4 ? PERIOD_OF_MANY_MS : PERIOD_MS);
}

poll();
