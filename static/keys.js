// Single keys, off while typing and by a switch: go to pages, move by row, select, show actions; `?` lists them.
import { openPalette } from "./palette.js";
import { toastHistory } from "./toast.js";

const PAGES = { o: "/", p: "/processes", h: "/history", r: "/releases", c: "/repositories", t: "/projects" };
const SEQUENCE_MS = 1500;
const HELP = [
  ["Ctrl K, /", "search everything"], ["g o, g p, g h", "overview, processes, history"], ["g r, g c, g t", "releases, charts, tests"],
  ["j, k", "next and previous row"], ["Enter", "open the row"], ["x", "select the row"], [".", "actions of the row"],
  ["e", "only errors in the log"], ["n", "next missed lines of a file"], ["Esc", "close"], ["?", "this list"],
];
const base = document.body.dataset.base;
let prefixUntil = 0;
let row = null;

export const areKeysOn = () => localStorage.getItem("keys") !== "off";
const isTyping = (node) => node.isContentEditable || node.matches("input:not([type=checkbox], [type=radio], [type=button]), textarea, select");
const rows = () => [...document.querySelectorAll("main tbody tr")].filter((item) => item.checkVisibility() && item.querySelector("a[href]"));

export function onKey(event) {
  if (event.key.toLowerCase() === "k" && (event.ctrlKey || event.metaKey) && !event.altKey) { event.preventDefault(); openPalette(); return; }
  if (event.ctrlKey || event.metaKey || event.altKey || !areKeysOn() || isTyping(event.target) || document.querySelector("dialog[open]")) return;
  if (act(event)) event.preventDefault();
}

function act(event) {
  if (Date.now() < prefixUntil && PAGES[event.key]) { location.assign(base + PAGES[event.key]); return true; }
  prefixUntil = event.key === "g" ? Date.now() + SEQUENCE_MS : 0;
  switch (event.key) {
    case "g": return true;
    case "/": openPalette(); return true;
    case "?": openHelp(); return true;
    case "j": return move(1);
    case "k": return move(-1);
    case "x": return select();
    case ".": return showActions();
    case "e": return onlyErrors();
    case "n": return nextMissed();
    default: return false;
  }
}

function move(step) {
  const all = rows();
  if (!all.length) return false;
  const current = document.activeElement.closest?.("tr") || row;
  const place = all.indexOf(current);
  row = all[Math.min(all.length - 1, Math.max(0, place < 0 ? (step > 0 ? 0 : all.length - 1) : place + step))];
  row.querySelector("th a[href], a[href]").focus();
  row.scrollIntoView({ block: "nearest" });
  return true;
}

function nextMissed() {
  const blocks = [...document.querySelectorAll("table.source tr.missed")].filter((item) => !item.previousElementSibling?.matches(".missed"));
  const current = document.querySelector("table.source tr:target");
  const next = blocks.find((item) => !current || current.compareDocumentPosition(item) & Node.DOCUMENT_POSITION_FOLLOWING) || blocks[0];
  if (!next) return false;
  location.hash = next.id;
  return true;
}

const currentRow = () => document.activeElement.closest?.("tbody tr") || (row?.isConnected ? row : null);

function select() {
  const box = currentRow()?.querySelector("input[type=checkbox]");
  if (!box) return false;
  box.click();
  return true;
}

function showActions() {
  const place = currentRow() || document.querySelector("main .head");
  const menu = place?.querySelector("[popovertarget]");
  if (menu?.checkVisibility()) menu.click();
  const first = [...(place?.querySelectorAll(".actions button, .actions a") || [])].find((node) => node.checkVisibility());
  first?.focus();
  return Boolean(first);
}

function onlyErrors() {
  const level = document.getElementById("log-level");
  if (!level) return false;
  level.value = level.value === "0" ? "" : "0";
  level.dispatchEvent(new Event("input", { bubbles: true }));
  level.dispatchEvent(new Event("change", { bubbles: true }));
  return true;
}

export function openHelp() {
  let dialog = document.getElementById("help");
  if (!dialog) {
    dialog = document.createElement("dialog");
    dialog.id = "help";
    dialog.className = "help";
    dialog.setAttribute("aria-labelledby", "help-title");
    document.body.append(dialog);
    dialog.addEventListener("click", (event) => { if (event.target === dialog || event.target.closest(".close")) dialog.close(); });
  }
  dialog.innerHTML = '<h2 id="help-title">Keys</h2><dl class="facts"></dl><label class="inline"><input type="checkbox"> Single keys (Ctrl K always works)</label>'
    + '<h2>Latest messages</h2><ul class="plain"></ul><p><button type="button" class="close">Close</button></p>';
  for (const [keys, text] of HELP) {
    const [name, about] = [document.createElement("dt"), document.createElement("dd")];
    name.append(...keys.split(", ").flatMap((key, index) => { const node = document.createElement("kbd"); node.textContent = key; return index ? [" ", node] : [node]; }));
    about.textContent = text;
    dialog.querySelector("dl").append(name, about);
  }
  const box = dialog.querySelector("input");
  box.checked = areKeysOn();
  box.onchange = () => localStorage.setItem("keys", box.checked ? "on" : "off");
  const list = dialog.querySelector("ul");
  const history = toastHistory();
  list.replaceChildren(...(history.length ? history : [{ text: "No messages yet.", at: 0 }]).map(({ text, at }) => {
    const item = document.createElement("li");
    item.textContent = at ? `${new Date(at).toLocaleTimeString()}  ${text}` : text;
    return item;
  }));
  dialog.showModal();
}
