// What every page needs: live parts, forms, relative times, theme and copy buttons.
import { confirmFirst, filterWhileTyping, sendQuietly } from "./forms.js";
import { keepCurrent } from "./page.js";
import { updateTimes } from "./times.js";

const TIMES_MS = 20000;

function copy(button) {
  const place = document.getElementById(button.dataset.copy);
  const select = () => { getSelection().selectAllChildren(place); button.textContent = "selected, copy it"; };
  if (!navigator.clipboard) { select(); return; } // available on TLS and loopback only
  navigator.clipboard.writeText(place.textContent.trim()).then(() => { button.textContent = "copied"; }, select);
}

function changeTheme() {
  const dark = matchMedia("(prefers-color-scheme: dark)").matches;
  const now = document.documentElement.dataset.theme || (dark ? "dark" : "light");
  const next = now === "dark" ? "light" : "dark";
  document.documentElement.dataset.theme = next;
  localStorage.setItem("theme", next);
}

function changeDensity() {
  const next = document.documentElement.dataset.density === "compact" ? "comfortable" : "compact";
  document.documentElement.dataset.density = next;
  localStorage.setItem("density", next);
}

document.addEventListener("click", (event) => {
  const button = event.target.closest("button");
  if (button?.dataset.copy) copy(button);
  if (button?.id === "theme") changeTheme();
  if (button?.id === "density") changeDensity();
});
document.addEventListener("submit", (event) => { confirmFirst(event); sendQuietly(event); });
document.querySelectorAll("[data-needs-script]").forEach((node) => { node.hidden = false; });
document.documentElement.classList.add("script");
filterWhileTyping();
updateTimes();
setInterval(updateTimes, TIMES_MS);
keepCurrent();
