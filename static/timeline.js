// One cursor through all lanes: at the pointer, or at the row of the table that has the focus or the pointer.
const WIDTH = 900;

function show(x) {
  for (const line of document.querySelectorAll(".happenings .cursor")) {
    line.toggleAttribute("hidden", x === null);
    if (x !== null) line.setAttribute("d", `M${x} 0V26`);
  }
}

function follow({ target, clientX }) {
  const svg = target.closest?.(".happenings svg");
  const row = target.closest?.(".happened tr[data-x]");
  if (svg) {
    const box = svg.getBoundingClientRect();
    const x = ((clientX - box.left) / box.width) * WIDTH;
    show(x);
    const rows = [...document.querySelectorAll(".happened tr[data-x]")];
    const near = rows.reduce((best, one) => (Math.abs(one.dataset.x - x) < Math.abs(best.dataset.x - x) ? one : best), rows[0]);
    rows.forEach((one) => one.classList.toggle("at", one === near));
  } else show(row ? Number(row.dataset.x) : null);
}

document.addEventListener("pointermove", follow);
document.addEventListener("focusin", follow);
