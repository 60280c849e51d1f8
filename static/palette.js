// The palette: one field that finds pages, processes, projects, runs, tests, releases, charts and actions.
import { ask } from "./ask.js";
import { toast } from "./toast.js";
import { refreshSoon } from "./page.js";

const SEARCH_MS = 80;
const ICONS = document.body.dataset.icons;
const base = document.body.dataset.base;
let dialog = null;
let results = [];
let query = null; // that of the results
let entered = null; // the Enter that was pressed before the results of its text were there
let chosen = 0;
let request = null;
let timer = null;

function build() {
  dialog = document.createElement("dialog");
  dialog.className = "palette";
  dialog.ariaLabel = "Search";
  dialog.innerHTML = '<div class="palette-field"><input type="search" role="combobox" aria-label="Search everything" aria-expanded="true" aria-controls="palette-results"'
    + ' aria-autocomplete="list" autocomplete="off" spellcheck="false" placeholder="Name, run number, commit, or “restart web”"></div>'
    + '<ul id="palette-results" role="listbox" aria-label="Results"></ul><p class="faint" role="status"></p>';
  document.body.append(dialog);
  const field = dialog.querySelector("input");
  field.addEventListener("input", () => { entered = null; clearTimeout(timer); timer = setTimeout(find, SEARCH_MS); });
  field.addEventListener("keydown", onKey);
  dialog.addEventListener("close", () => { entered = null; });
  dialog.addEventListener("click", (event) => {
    const item = event.target.closest("[role=option]");
    if (item) open(Number(item.dataset.index), event);
    else if (event.target === dialog) dialog.close();
  });
}

export function openPalette(text = "") {
  if (!dialog) build();
  if (dialog.open) { dialog.close(); return; }
  dialog.showModal();
  const field = dialog.querySelector("input");
  field.value = text;
  field.focus();
  find();
}

const typed = () => dialog.querySelector("input").value.trim();

async function find() {
  request?.abort();
  request = new AbortController();
  const text = typed();
  const status = dialog.querySelector("[role=status]");
  try {
    const response = await fetch(`${base}/api/v1/search?${new URLSearchParams({ q: text })}`, { headers: { Accept: "application/json" }, signal: request.signal });
    const body = await response.json();
    if (!response.ok) throw new Error(body.message || body.detail || response.statusText);
    [results, query, chosen] = [body, text, 0];
    render();
    status.textContent = results.length ? `${results.length} ${results.length === 1 ? "result" : "results"}` : "Nothing matches.";
    if (entered) open(0, entered);
    entered = null;
  } catch (error) {
    if (error.name === "AbortError") return;
    [results, query, entered] = [[], null, null];
    render();
    status.textContent = `The search failed: ${error.message}`;
  }
}

function render() {
  const list = dialog.querySelector("ul");
  list.replaceChildren(...results.map((result, index) => {
    const item = document.createElement("li");
    item.role = "option";
    item.id = `palette-${index}`;
    item.dataset.index = index;
    item.ariaSelected = String(index === chosen);
    item.innerHTML = `<svg class="icon" aria-hidden="true"><use href="${ICONS}#${result.kind}"/></svg><span></span><small></small><small class="kind"></small>`;
    item.querySelector("span").textContent = result.title;
    item.querySelector("small").textContent = result.detail;
    item.querySelector(".kind").textContent = result.state ? `${result.kind}, ${result.kind === "run" ? "tests " : ""}${result.state.replaceAll("_", " ")}` : result.kind;
    return item;
  }));
  dialog.querySelector("input").setAttribute("aria-activedescendant", results.length ? `palette-${chosen}` : "");
}

function choose(index) {
  if (!results.length) return;
  chosen = (index + results.length) % results.length;
  for (const item of dialog.querySelectorAll("[role=option]")) item.ariaSelected = String(Number(item.dataset.index) === chosen);
  const item = dialog.querySelector(`#palette-${chosen}`);
  item.scrollIntoView({ block: "nearest" });
  dialog.querySelector("input").setAttribute("aria-activedescendant", item.id);
}

// Opens the chosen result, or the first one of a text that is not searched yet.
function enter(event) {
  if (query === typed()) { open(chosen, event); return; }
  clearTimeout(timer);
  entered = event;
  find();
}

function onKey(event) {
  if (event.isComposing) return; // Enter ends the input of a composed character
  if (event.key === "ArrowDown") choose(chosen + 1);
  else if (event.key === "ArrowUp") choose(chosen - 1);
  else if (event.key === "Enter") enter(event);
  else if (event.key === "Escape") dialog.close(); // the browser would only empty the field
  else return;
  event.preventDefault();
}

async function open(index, event) {
  const result = results[index];
  if (!result) return;
  const target = base + result.href;
  if (result.kind !== "action") {
    dialog.close();
    if (event.ctrlKey || event.metaKey) window.open(target, "_blank", "noopener");
    else location.assign(target);
    return;
  }
  if (!await ask(`${result.title}?`, result.title.split(" ")[0])) return;
  dialog.close();
  const started = performance.now();
  try {
    const response = await fetch(target, { method: "POST", headers: { Accept: "application/json" } });
    const body = await response.json();
    const seconds = ((performance.now() - started) / 1000).toFixed(1);
    if (response.ok) toast(`${body.message || result.title}, ${seconds} s`, "good", "action");
    else toast(body.message || response.statusText, "bad", "action");
    refreshSoon();
  } catch { toast("the server cannot be reached", "bad", "offline"); }
}
