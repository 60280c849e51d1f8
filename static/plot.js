// One cursor for all plots of a section: the pointer or the arrow keys read values, a drag zooms by `from` and `to`.
const MIN_DRAG_PX = 12;

function pointsOf(svg) {
  return svg.dataset.values.split(";").map((point) => { const place = point.indexOf(":"); return [Number(point.slice(0, place)), point.slice(place + 1)]; });
}

function timeAt(section, x) {
  const { start, end } = section.dataset;
  return Number(start) + (x / 720) * (end - start);
}

// Shows the values nearest to x in every plot of the section.
function read(section, x) {
  for (const svg of section.querySelectorAll("svg[data-values]")) {
    const points = pointsOf(svg);
    const nearest = points.reduce((best, point) => (Math.abs(point[0] - x) < Math.abs(best[0] - x) ? point : best));
    const cursor = svg.querySelector(".cursor");
    cursor.setAttribute("x1", nearest[0]);
    cursor.setAttribute("x2", nearest[0]);
    cursor.setAttribute("visibility", "visible");
    const at = new Date(timeAt(section, nearest[0]) * 1000).toLocaleTimeString([], { hour: "2-digit", minute: "2-digit" });
    svg.closest("figure").querySelector("output").textContent = `${nearest[1]} at ${at}`;
    svg.dataset.x = nearest[0];
  }
}

function xOf(event, svg) {
  const box = svg.getBoundingClientRect();
  return ((event.clientX - box.left) / box.width) * 720;
}

let drag = null;
const section = document.getElementById("metrics");
section?.addEventListener("pointermove", (event) => {
  const svg = event.target.closest("svg[data-values]");
  if (svg) read(section, xOf(event, svg));
});
section?.addEventListener("pointerdown", (event) => {
  const svg = event.target.closest("svg[data-values]");
  if (svg) { drag = { svg, x: event.clientX }; event.preventDefault(); svg.focus(); }
});
addEventListener("pointerup", (event) => {
  if (!drag) return;
  const { svg, x } = drag;
  drag = null;
  if (Math.abs(event.clientX - x) < MIN_DRAG_PX) return;
  const [from, to] = [xOf({ clientX: x }, svg), xOf(event, svg)].sort((a, b) => a - b).map((place) => timeAt(section, place));
  const url = new URL(location.href);
  const text = (seconds) => new Date(seconds * 1000).toISOString();
  url.searchParams.delete("range");
  url.searchParams.set("from", text(from));
  url.searchParams.set("to", text(Math.max(to, from + 120)));
  location.assign(url);
});
section?.addEventListener("keydown", (event) => {
  const svg = event.target.closest("svg[data-values]");
  const step = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
  if (!svg || !step) return;
  event.preventDefault();
  const points = pointsOf(svg);
  const place = points.findIndex(([x]) => x === Number(svg.dataset.x));
  const next = place < 0 ? points.length - 1 : Math.min(points.length - 1, Math.max(0, place + step));
  read(section, points[next][0]);
});
