// Filters nodes by verdict and text. At first, the refused nodes are shown, or else those in doubt.
for (const part of document.querySelectorAll(".nodes")) {
  const rows = [...part.querySelectorAll("tbody tr")].map((row) => ({
    row,
    verdict: row.querySelector(".verdict").classList[1],
    text: [row.textContent, ...[...row.querySelectorAll(".name[title]")].map((name) => name.title)].join(" ").toLowerCase(),
  }));
  const controls = document.createElement("fieldset");
  controls.className = "choices";
  const counts = part.dataset.counts.split(" ").map((pair) => pair.split(":"));
  const first = ["no", "verify"].find((word) => counts.some(([verdict, count]) => verdict === word && count !== "0"));
  const boxes = counts.map(([verdict, count]) => {
    const box = document.createElement("input");
    box.type = "checkbox";
    box.checked = first === undefined || verdict === first;
    box.value = verdict;
    const label = document.createElement("label");
    label.append(box, ` ${verdict} (${count})`);
    controls.append(label);
    return box;
  });
  const search = document.createElement("input");
  search.type = "search";
  search.className = "filter";
  search.placeholder = "Part of a name, operator, rule or reason";
  search.setAttribute("aria-label", "Show only nodes that contain");
  const shown = document.createElement("output");
  controls.append(search, shown);
  part.prepend(controls);
  const apply = () => {
    const chosen = new Set(boxes.filter((box) => box.checked).map((box) => box.value));
    const wanted = search.value.toLowerCase();
    let count = 0;
    for (const { row, verdict, text } of rows) {
      row.hidden = !chosen.has(verdict) || !text.includes(wanted);
      count += !row.hidden;
    }
    shown.textContent = `${count} of ${rows.length} nodes`;
  };
  controls.addEventListener("input", apply);
  apply();
}
