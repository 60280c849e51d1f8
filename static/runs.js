// One cursor for the plots of a project: the pointer or the arrow keys read a run in all of them, Enter opens it.
let shown = -1;

const sectionOf = (node) => node.closest?.("#trend-plots");

function read(section, index) {
  const count = section.dataset.runs.split(" ").length;
  shown = Math.min(count - 1, Math.max(0, index));
  const outputs = section.querySelectorAll("output");
  section.querySelectorAll("svg.plot").forEach((svg, place) => {
    const slots = svg.querySelectorAll(":scope > g");
    slots.forEach((slot, number) => slot.classList.toggle("at", number === shown));
    outputs[place].textContent = slots[shown]?.querySelector("title").textContent ?? "";
  });
}

document.addEventListener("pointermove", ({ target, clientX }) => {
  const [section, svg] = [sectionOf(target), target.closest?.("svg.plot")];
  if (!section || !svg) return;
  const box = svg.getBoundingClientRect();
  read(section, Math.floor(((clientX - box.left) / box.width) * section.dataset.runs.split(" ").length));
});
document.addEventListener("keydown", (event) => {
  const section = event.target.matches?.("svg.plot") && sectionOf(event.target);
  if (!section) return;
  const runs = section.dataset.runs.split(" ");
  const step = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
  if (step) read(section, shown < 0 ? runs.length - 1 : shown + step);
  else if (event.key === "Enter" && shown >= 0) location.assign(section.dataset.href + runs[shown]);
  else return;
  event.preventDefault();
});
document.addEventListener("click", ({ target }) => {
  const section = target.closest?.("svg.plot") && sectionOf(target);
  if (section && shown >= 0) location.assign(section.dataset.href + section.dataset.runs.split(" ")[shown]);
});
document.querySelectorAll("form[data-at-once]").forEach((form) => {
  form.querySelector(":scope > button").hidden = true;
  form.addEventListener("change", () => form.requestSubmit());
});
