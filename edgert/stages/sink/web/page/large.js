"use strict";
// A single camera: its video by WebRTC where the server has it and the network allows it, else MJPEG. Images are shown
// until the video plays, and wherever it does not.
const image = document.querySelector("#view img"), video = document.querySelector("#view video");
let hasVideo = false, playing = null, refused = "";

// Shows a camera, or none. Each call also requests again what was lost.
function showLarge(name) {
  if (playing && playing.name !== name) playing.left.abort();
  if (refused !== name) refused = "";
  if (name && hasVideo && !playing && !refused) startVideo(name);
  const plays = playing?.name === name && playing.plays;
  video.classList.toggle("plays", plays);  // never hidden, because some browsers only play visible videos
  video.ariaHidden = `${!plays}`;
  image.hidden = plays;
  if (!name || plays) image.removeAttribute("src");
  else if (!image.getAttribute("src")) image.src = `/stream.mjpg?stream=${encodeURIComponent(name)}&tile=${at("view").clientWidth}&${Date.now()}`;
}

function startVideo(name) {
  const own = playing = { name, plays: false, left: new AbortController() };
  receive(name, video, () => undefined, own.left.signal).catch(() => undefined).finally(() => {
    playing = null;
    video.srcObject = null;
    if (!own.plays && !own.left.signal.aborted) refused = name;  // images are shown until another camera is chosen
    look();
  });
}

video.addEventListener("playing", () => {
  if (!playing || playing.left.signal.aborted) return;
  playing.plays = true;
  look();
});
image.addEventListener("error", () => image.removeAttribute("src"));
