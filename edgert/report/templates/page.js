"use strict";
// Sorting, filtering, and tips of bars. The page is complete without this script.
for (const table of document.querySelectorAll("table.sortable")) {
  const body = table.tBodies[0];
  const key = (row, column) => {
    const cell = row.cells[column];
    const text = cell.dataset.order ?? cell.textContent;
    const number = text === "inf" ? Infinity : text === "-inf" ? -Infinity : Number(text);
    return Number.isNaN(number) ? text : number;
  };
  const compare = (a, b) =>
    typeof a === "number" && typeof b === "number" ? (a < b ? -1 : a > b ? 1 : 0) : String(a).localeCompare(String(b));
  [...table.tHead.rows[0].cells].forEach((head, column) => {
    const button = document.createElement("button");
    button.append(...head.childNodes);
    head.append(button);
    button.addEventListener("click", () => {
      const up = head.getAttribute("aria-sort") !== "ascending";
      for (const other of table.tHead.rows[0].cells) other.removeAttribute("aria-sort");
      head.setAttribute("aria-sort", up ? "ascending" : "descending");
      const rows = [...body.rows].sort((a, b) => compare(key(a, column), key(b, column)) * (up ? 1 : -1));
      body.append(...rows);
    });
  });
}

for (const details of document.querySelectorAll("details.filtered")) {
  const input = document.createElement("input");
  input.type = "search";
  input.className = "filter";
  input.placeholder = "Part of a name";
  input.setAttribute("aria-label", "Show only tensors whose name contains");
  details.querySelector("summary").after(input);
  input.addEventListener("input", () => {
    const wanted = input.value.toLowerCase();
    for (const card of details.querySelectorAll(".card")) {
      const names = card.dataset.names ?? [...card.querySelectorAll(".name")].map((name) => name.title).join(" ");
      card.hidden = !names.toLowerCase().includes(wanted);
    }
  });
}

// Long tables: a filter of rows by text.
for (const part of document.querySelectorAll(".searchable")) {
  const rows = [...part.querySelectorAll("tbody tr")].map((row) => ({
    row,
    text: [row.textContent, ...[...row.querySelectorAll(".name[title]")].map((name) => name.title)].join(" ").toLowerCase(),
  }));
  const input = document.createElement("input");
  input.type = "search";
  input.className = "filter";
  input.placeholder = "Part of a name or accelerator";
  input.setAttribute("aria-label", `Show only ${part.dataset.what} that contain`);
  const shown = document.createElement("output");
  const apply = () => {
    const wanted = input.value.toLowerCase();
    let count = 0;
    for (const { row, text } of rows) {
      row.hidden = !text.includes(wanted);
      count += !row.hidden;
    }
    shown.textContent = `${count} of ${rows.length} ${part.dataset.what}`;
  };
  input.addEventListener("input", apply);
  part.prepend(input, shown);
  apply();
}

// Time lines: zoom by buttons, and scroll.
for (const box of document.querySelectorAll(".stretched")) {
  const chart = box.firstElementChild;
  let factor = 1;
  const bar = document.createElement("div");
  bar.className = "zoom";
  for (const [name, label, by] of [["+", "longer", 2], ["−", "shorter", 0.5], ["all", "all of it", 0]]) {
    const button = document.createElement("button");
    button.textContent = name;
    button.setAttribute("aria-label", label);
    button.addEventListener("click", () => {
      const middle = (box.scrollLeft + box.clientWidth / 2) / box.scrollWidth;
      factor = by ? Math.max(1, Math.min(64, factor * by)) : 1;
      chart.style.width = `${100 * factor}%`;
      box.scrollLeft = middle * box.scrollWidth - box.clientWidth / 2;
    });
    bar.append(button);
  }
  box.closest(".rows").before(bar);
}

// A link to a folded section unfolds it.
const unfold = () => {
  const section = document.getElementById(decodeURIComponent(location.hash.slice(1)));
  section?.querySelector(":scope > details.whole")?.setAttribute("open", "");
};
addEventListener("hashchange", unfold);
unfold();

const tip = document.createElement("div");
tip.className = "tip";
tip.setAttribute("role", "status");
document.body.append(tip);
for (const chart of document.querySelectorAll("svg.bar")) {
  const bars = [...chart.querySelectorAll(".bars g")];
  const labels = bars.map((bar) => bar.querySelector("title").textContent);
  chart.setAttribute("aria-label", chart.querySelector("title").textContent);
  for (const title of chart.querySelectorAll("title")) title.remove(); // else the browser's tip would cover ours
  let at = -1;
  const leave = () => {
    bars[at]?.classList.remove("at");
    at = -1;
    tip.textContent = "";
  };
  const show = (number, x, y) => {
    bars[at]?.classList.remove("at");
    at = number;
    bars[at].classList.add("at");
    tip.textContent = labels[at];
    tip.style.left = `${Math.max(4, Math.min(x + 14, innerWidth - tip.offsetWidth - 4))}px`;
    tip.style.top = `${Math.max(4, y - tip.offsetHeight - 12)}px`;
  };
  chart.addEventListener("pointermove", (event) => {
    const box = chart.getBoundingClientRect();
    const number = Math.floor(((event.clientX - box.left) / box.width) * bars.length);
    show(Math.max(0, Math.min(number, bars.length - 1)), event.clientX, event.clientY);
  });
  chart.addEventListener("pointerleave", leave);
  chart.addEventListener("blur", leave);
  chart.tabIndex = 0;
  chart.addEventListener("keydown", (event) => {
    const step = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
    if (!step) return;
    event.preventDefault();
    const number = Math.max(0, Math.min(at + step, bars.length - 1));
    const box = bars[number].getBoundingClientRect();
    show(number, box.left, box.top);
  });
}
