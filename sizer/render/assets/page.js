// A column's heading sorts by it, once more the other way round; numbers by the value in data-value, empty cells last.
for (const button of document.querySelectorAll("th button")) {
  button.addEventListener("click", () => {
    const head = button.closest("th"), body = head.closest("table").tBodies[0];
    const down = head.getAttribute("aria-sort") !== "descending";
    for (const other of head.parentNode.children) other.removeAttribute("aria-sort");
    head.setAttribute("aria-sort", down ? "descending" : "ascending");
    const number = head.dataset.sort === "value", sign = down ? -1 : 1;
    const key = ({ cells }) => (number ? cells[head.cellIndex].dataset.value : cells[head.cellIndex].textContent);
    const compare = (a, b) => (number ? (a === undefined) - (b === undefined) || sign * (a - b) : sign * a.localeCompare(b));
    body.append(...[...body.rows].sort((a, b) => compare(key(a), key(b))));
  });
}
// A text has room to be read, however many columns of numbers are next to it: a short one on one line.
const narrow = innerWidth < 640, room = narrow ? 16 : 26;
for (const { style, textContent } of document.querySelectorAll("td:not(.number)")) {
  if (textContent.length > room) style.minWidth = `${room}ch`;
  else style.whiteSpace = "nowrap";
}
// Charts are data in the page; the library above draws them one after the other, so that the page can be read at once.
const { config, charts } = JSON.parse(document.getElementById("charts").textContent);
if (narrow) Object.assign(config.legend, { columns: 2, layout: { bottom: { direction: "vertical" } } });
const options = { mode: "vega-lite", renderer: "svg", ast: true, actions: false, config };
const rest = () => new Promise((done) => setTimeout(done));
for (const [at, chart] of charts.entries()) {
  await rest();
  const place = document.getElementById(`chart-${at + 1}`);
  await window.vegaEmbed(place, { ...chart, autosize: { type: "fit-x", contains: "padding" } }, options);
  place.style.minHeight = "";
}
document.documentElement.dataset.drawn = charts.length;
