"use strict";
// Charts are data in the page; colours of text and lines follow the page's own, light or dark.
const charts = JSON.parse(document.getElementById("charts").textContent);
const dark = window.matchMedia("(prefers-color-scheme: dark)");
function colours() {
  const style = getComputedStyle(document.documentElement);
  const [ink, line] = ["--ink", "--line"].map((name) => style.getPropertyValue(name).trim());
  return { ink, line };
}
function draw() {
  const { ink, line } = colours();
  for (const [id, chart] of Object.entries(charts)) {
    const axes = Object.fromEntries(["xaxis", "yaxis"].map((name) =>
      [name, { gridcolor: line, zerolinecolor: line, automargin: true, ...chart.layout[name] }]));
    const layout = { paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)", font: { color: ink },
      ...chart.layout, ...axes };
    for (const shape of layout.shapes || []) shape.line = { ...shape.line, color: ink };
    Plotly.react(id, chart.data, layout, { responsive: true, displaylogo: false });
  }
}
draw();
dark.addEventListener("change", draw);
window.addEventListener("beforeprint", () => Object.keys(charts).forEach((id) => Plotly.Plots.resize(id)));
// A column's heading sorts by it, once more the other way round; numbers by the value in data-value.
for (const button of document.querySelectorAll("th button")) {
  button.addEventListener("click", () => {
    const head = button.closest("th"), table = head.closest("table"), body = table.tBodies[0];
    const down = head.getAttribute("aria-sort") !== "descending";
    for (const other of head.parentNode.children) other.removeAttribute("aria-sort");
    head.setAttribute("aria-sort", down ? "descending" : "ascending");
    const key = (row) => row.cells[head.cellIndex].dataset.value ?? row.cells[head.cellIndex].textContent;
    const compare = (a, b) => head.classList.contains("number") ? Number(key(a)) - Number(key(b)) : key(a).localeCompare(key(b));
    body.append(...[...body.rows].sort((a, b) => (down ? -1 : 1) * compare(a, b)));
  });
}
