"use strict";
// One camera, large: its video by WebRTC where the server has it and the network lets it through, else MJPEG. Until the
// video plays, and wherever it does not, there are the images, so that nobody waits for what may never come.
const image = document.querySelector("#view img"), video = document.querySelector("#view video");
let hasVideo = false, playing = null, refused = "";

// Shows a camera, or none; again and again, as whatever was lost is asked for anew.
function showLarge(name) {
  if (playing && playing.name !== name) playing.left.abort();
  if (refused !== name) refused = "";
  if (name && hasVideo && !playing && !refused) startVideo(name);
  const plays = playing?.name === name && playing.plays;
  video.classList.toggle("plays", plays);  // never hidden: some browsers play only what is to be seen
  image.hidden = plays;
  if (!name || plays) image.removeAttribute("src");
  else if (!image.getAttribute("src")) image.src = `/stream.mjpg?stream=${encodeURIComponent(name)}&tile=${at("view").clientWidth}&${Date.now()}`;
}

function startVideo(name) {
  const own = playing = { name, plays: false, left: new AbortController() };
  receive(name, video, () => undefined, own.left.signal).catch(() => undefined).finally(() => {
    playing = null;
    video.srcObject = null;
    if (!own.plays && !own.left.signal.aborted) refused = name;  // the images will do, until another was looked at
    look();
  });
}

video.addEventListener("playing", () => {
  if (!playing || playing.left.signal.aborted) return;
  playing.plays = true;
  look();
});
image.addEventListener("error", () => image.removeAttribute("src"));
