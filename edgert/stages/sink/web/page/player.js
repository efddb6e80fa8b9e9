"use strict";
// Videos of all streams of the server, played without a delay beyond the network's.

const players = document.getElementById("players");
const note = document.getElementById("note");
const shown = new Set();
const wait = (ms) => new Promise((resolve) => setTimeout(resolve, ms));

function figure(name) {
  const box = document.createElement("figure");
  const video = document.createElement("video");
  Object.assign(video, { muted: true, autoplay: true, playsInline: true, controls: true });
  video.dataset.stream = name;
  const caption = document.createElement("figcaption");
  const label = document.createElement("b");
  const state = document.createElement("span");
  label.textContent = video.ariaLabel = name;
  state.role = "status";
  caption.append(label, state);
  box.append(video, caption);
  players.append(box);
  return { video, state };
}

async function keep(name) {
  const { video, state } = figure(name);
  for (;;) {
    try {
      await receive(name, video, (now) => { state.textContent = now === "connected" ? "" : now; });
      state.textContent = "ended";
    } catch (error) {
      state.textContent = error.message;
    }
    video.classList.add("lost");
    await wait(2000);
    video.classList.remove("lost");
  }
}

async function look() {
  for (;;) {
    try {
      const names = await (await fetch("/streams.json")).json();
      for (const name of names) if (!shown.has(name)) { shown.add(name); keep(name); }
      note.textContent = "No stream has begun yet.";
      note.hidden = names.length > 0;
    } catch (error) {
      note.textContent = "The server does not answer.";
      note.hidden = false;
    }
    await wait(2000);
  }
}

look();
