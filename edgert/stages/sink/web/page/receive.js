"use strict";
// Plays a stream by WebRTC and WHEP in a video, until it ends or the signal aborts it. Throws where it is refused.
async function receive(name, video, onState, signal) {
  const connection = new RTCPeerConnection();
  const { receiver } = connection.addTransceiver("video", { direction: "recvonly" });
  if ("jitterBufferTarget" in receiver) receiver.jitterBufferTarget = 0;
  connection.ontrack = ({ track }) => { video.srcObject = new MediaStream([track]); };
  const over = new Promise((resolve) => {
    connection.onconnectionstatechange = () => {
      onState(connection.connectionState);
      if (["failed", "closed", "disconnected"].includes(connection.connectionState)) resolve();
    };
    signal?.addEventListener("abort", resolve);
  });
  let session = null;
  const leave = () => session && fetch(session, { method: "DELETE", keepalive: true }).catch(() => undefined);
  addEventListener("pagehide", leave);
  try {
    await connection.setLocalDescription();
    const headers = { "Content-Type": "application/sdp" };
    const body = connection.localDescription.sdp;
    const answer = await fetch(`/whep/${encodeURIComponent(name)}`, { method: "POST", headers, body });
    const text = await answer.text();
    if (!answer.ok) throw new Error(text.trim() || answer.statusText);
    session = answer.headers.get("Location");
    if (signal?.aborted) return;
    await connection.setRemoteDescription({ type: "answer", sdp: text });
    await over;
  } finally {
    await leave();  // before the connection is closed, which also ends the session
    removeEventListener("pagehide", leave);
    connection.close();
  }
}
