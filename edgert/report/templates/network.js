"use strict";
// Images of networks: zoom by buttons or Ctrl and the wheel, drag, search for a name, and go from a block to its units.
for (const viewport of document.querySelectorAll(".viewport")) {
  const svg = viewport.querySelector("svg.network");
  const [width, height] = [svg.viewBox.baseVal.width, svg.viewBox.baseVal.height];
  const fit = () => Math.min(1, viewport.clientWidth / (width + 4));
  let scale = 1;
  const zoom = (to) => {
    const middle = [
      (viewport.scrollLeft + viewport.clientWidth / 2) / scale,
      (viewport.scrollTop + viewport.clientHeight / 2) / scale,
    ];
    scale = Math.max(0.01, Math.min(4, to));
    svg.setAttribute("width", width * scale);
    svg.setAttribute("height", height * scale);
    viewport.scrollTo(middle[0] * scale - viewport.clientWidth / 2, middle[1] * scale - viewport.clientHeight / 2);
  };
  const bar = document.createElement("div");
  bar.className = "zoom";
  const button = (text, label, action) => {
    const made = document.createElement("button");
    made.textContent = text;
    made.setAttribute("aria-label", label);
    made.addEventListener("click", action);
    bar.append(made);
  };
  button("+", "larger", () => zoom(scale * 1.4));
  button("−", "smaller", () => zoom(scale / 1.4));
  button("width", "fit the width", () => zoom(fit()));
  button("all", "fit all of it", () => zoom(Math.min(fit(), (viewport.clientHeight - 4) / height)));
  const units = [...svg.querySelectorAll(".unit")];
  const mark = (wanted) => {
    const found = units.filter((unit) => {
      const here = wanted(unit);
      unit.classList.toggle("found", here);
      return here;
    });
    if (found.length) {
      const box = found[0].getBBox();
      viewport.scrollTo((box.x + box.width / 2) * scale - viewport.clientWidth / 2, box.y * scale - 20);
    }
  };
  viewport.addEventListener("units", (event) => {
    zoom(1);
    mark((unit) => unit.dataset.group === event.detail);
  });
  const input = document.createElement("input");
  input.type = "search";
  input.placeholder = "Part of a name";
  input.setAttribute("aria-label", "Show units whose name contains");
  input.addEventListener("input", () => {
    const wanted = input.value.toLowerCase();
    mark((unit) => wanted !== "" && unit.dataset.name.includes(wanted));
  });
  if (units.length) bar.append(input);
  const crossings = [...svg.querySelectorAll(".crosses")], place = document.createElement("output");
  let last = -1;
  const next = () => {
    if (last < 0) crossings.sort((one, other) => one.getBBox().y - other.getBBox().y);
    crossings[last]?.classList.remove("here");
    last = (last + 1) % crossings.length;
    const here = crossings[last], box = here.getBBox();
    here.classList.add("here");
    if (scale < 0.6) zoom(1); // names are readable at this size
    viewport.scrollTo((box.x + box.width / 2) * scale - viewport.clientWidth / 2, (box.y + box.height / 2) * scale - viewport.clientHeight / 2);
    place.textContent = `${last + 1} of ${crossings.length}: ${here.querySelector("title").textContent.replaceAll("\n", ", ")}`;
  };
  if (crossings.length) button("next transition", "next transition", next);
  if (crossings.length) bar.append(place);
  const all = document.getElementById(viewport.closest("figure").dataset.whole);
  for (const block of svg.querySelectorAll(".block")) {
    if (!all) break;
    block.setAttribute("tabindex", "0");
    const go = () => {
      all.open = true;
      // an unfolded image has a size only after it is drawn
      setTimeout(() => {
        const target = all.querySelector(".viewport");
        target.dispatchEvent(new CustomEvent("units", { detail: block.dataset.group }));
        target.scrollIntoView({ block: "nearest" });
      }, 60);
    };
    block.addEventListener("click", go);
    block.addEventListener("keydown", (event) => event.key === "Enter" && go());
  }
  let held = null;
  viewport.addEventListener("pointerdown", (event) => {
    if (event.pointerType !== "mouse" || event.button !== 0) return;
    held = [event.clientX + viewport.scrollLeft, event.clientY + viewport.scrollTop];
  });
  addEventListener("pointermove", (event) => {
    if (held) viewport.scrollTo(held[0] - event.clientX, held[1] - event.clientY);
  });
  addEventListener("pointerup", () => { held = null; });
  viewport.before(bar);
  viewport.addEventListener("wheel", (event) => {
    if (!event.ctrlKey) return;
    event.preventDefault();
    zoom(scale * (event.deltaY < 0 ? 1.15 : 1 / 1.15));
  }, { passive: false });
  const begin = () => {
    zoom(fit());
    viewport.scrollTo(0, 0);
  };
  const folded = viewport.closest("details:not([open])"); // a folded image has no width to fit
  if (folded) folded.addEventListener("toggle", begin, { once: true });
  else begin();
}
