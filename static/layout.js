// What changes the layout of a page: it runs before the first paint, and imports little, for the paint waits for it.
import { updateTimes } from "./times.js";

document.querySelectorAll("[data-needs-script]").forEach((node) => { node.hidden = false; });
document.documentElement.classList.add("script");
updateTimes();
const here = document.querySelector(".top nav [aria-current]"); // on a phone one row
if (here) here.parentElement.scrollLeft = here.offsetLeft - (here.parentElement.clientWidth - here.offsetWidth) / 2;
