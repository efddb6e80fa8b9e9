"use strict";
// Images of networks: zoom by buttons or Ctrl and the wheel, and look for a name.
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
  const input = document.createElement("input");
  input.type = "search";
  input.placeholder = "Part of a name";
  input.setAttribute("aria-label", "Show units whose name contains");
  const units = [...svg.querySelectorAll(".unit")];
  input.addEventListener("input", () => {
    const wanted = input.value.toLowerCase();
    const found = units.filter((unit) => {
      const here = wanted !== "" && unit.dataset.name.includes(wanted);
      unit.classList.toggle("found", here);
      return here;
    });
    found[0]?.scrollIntoView({ block: "center", inline: "center" });
  });
  bar.append(input);
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
  const folded = viewport.closest("details:not([open])"); // what is not shown has no width to fit
  if (folded) folded.addEventListener("toggle", begin, { once: true });
  else begin();
}
