// What changes the layout of a page: it runs before the first paint, and imports little, for the paint waits for it.
import { updateTimes } from "./times.js";

document.querySelectorAll("[data-needs-script]").forEach((node) => { node.hidden = false; });
document.documentElement.classList.add("script");
updateTimes();
