// What every page needs: live parts, forms, relative times, theme and copy buttons.
import { confirmFirst, filterWhileTyping, sendQuietly } from "./forms.js";
import { onKey, openHelp } from "./keys.js";
import { keepCurrent } from "./page.js";
import { openPalette } from "./palette.js";
import { updateTimes } from "./times.js";
import { toastDone } from "./toast.js";

const TIMES_MS = 20000;
const { address } = document.body.dataset;

if (address) history.replaceState(null, "", address); // a reload, a refresh and Back need a GET, not the form once more

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
  if (button?.dataset.views) import("./views.js").then(({ openViews }) => openViews(button.dataset.views));
});
document.addEventListener("keydown", onKey);
document.getElementById("search")?.addEventListener("click", (event) => {
  if (event.ctrlKey || event.metaKey || event.shiftKey) return;
  event.preventDefault();
  openPalette();
});
document.getElementById("keys")?.addEventListener("click", openHelp);

// Settings of the profile that this browser keeps.
for (const field of document.querySelectorAll("[data-setting]")) {
  const name = field.dataset.setting;
  field.value = localStorage.getItem(name) || "";
  field.addEventListener("change", () => {
    if (field.value) localStorage.setItem(name, field.value); else localStorage.removeItem(name);
    if (name === "keys") return;
    if (field.value) document.documentElement.dataset[name] = field.value; else delete document.documentElement.dataset[name];
  });
}
document.addEventListener("submit", (event) => { if (confirmFirst(event)) sendQuietly(event); });
filterWhileTyping();
setInterval(updateTimes, TIMES_MS);
toastDone();
keepCurrent();
