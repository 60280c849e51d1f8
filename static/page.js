// Keeps the parts of a page current: fetches the page again on events and exchanges what has changed.
// A part bears data-live="status", "runs" or both; "poll" is for values without events, fetched every few seconds.
import { onState, subscribe } from "./live.js";
import { updateTimes } from "./times.js";
import { closeToast } from "./toast.js";

const TOPICS = { status: ["process", "processName"], runs: ["project", "projectId"] };
const POLL_MS = 5000; // values without events
const CHECK_MS = 30000; // all other pages: only polling detects a silently dead connection
const RETRY_MS = 2500;
const TIMEOUT_MS = 10000;
const MIN_INTERVAL_MS = 1000;
const UNRELATED_MS = 10000; // events of other processes and projects
const SPREAD_MS = 300; // browsers do not fetch all at the same moment

let timer = null;
let due = 0;
let last = 0;
let busy = false;
let missed = false; // a refresh was due while the page was hidden
let version = "";
let offlineSince = 0;
let offlineTimer = null;
let lostFocus = null; // a button that was disabled while it had the focus
const states = new Map();

export function forgetVersion() { version = ""; }
export function refreshSoon() { refreshBy(Date.now()); }

function refreshBy(at) {
  const soonest = Math.max(at, last + MIN_INTERVAL_MS);
  if (timer && due <= soonest + SPREAD_MS) return;
  clearTimeout(timer);
  due = soonest + Math.random() * SPREAD_MS;
  timer = setTimeout(refresh, due - Date.now());
  document.documentElement.dataset.refreshIn = String(Math.round(due - Date.now())); // read by tests
}

async function refresh() {
  timer = null;
  missed = document.hidden;
  document.documentElement.dataset.missed = String(missed);
  if (missed) return;
  if (busy) { refreshBy(Date.now() + MIN_INTERVAL_MS); return; }
  busy = true;
  last = Date.now();
  const url = location.href;
  try {
    if (!document.querySelector("[data-live]")) { await probe(); return; }
    const headers = { Accept: "text/html", "If-None-Match": version };
    const response = await fetch(url, { headers, signal: AbortSignal.timeout(TIMEOUT_MS) });
    if (response.redirected || [401, 403, 404].includes(response.status)) location.reload(); // no longer readable for this caller
    else if (response.ok && url === location.href) await show(response);
    setState("page", response.status < 500 ? "on" : "off");
  } catch { setState("page", "gone"); } finally {
    busy = false;
    if (["off", "gone"].includes(states.get("page"))) refreshBy(Date.now() + RETRY_MS);
  }
}

// Whether the server answers at all, for a page without live parts.
async function probe() {
  await fetch(document.getElementById("icon").href, { cache: "no-store", signal: AbortSignal.timeout(TIMEOUT_MS) });
  setState("page", "on");
}

// Exchanges the live parts with those of a response.
export async function show(response) {
  const fresh = new DOMParser().parseFromString(await response.text(), "text/html");
  exchange(fresh);
  version = response.headers.get("Etag") || "";
  return fresh;
}

export const firstVisible = (place, selector) => [...(place?.querySelectorAll(selector) || [])].find((node) => node.checkVisibility());

const keyOf = (node) => node.dataset?.key ?? node.getAttribute?.("href");

function exchange(fresh) {
  const focused = document.activeElement || document.body;
  const [key, row] = [keyOf(focused), focused.closest("tr, .head")];
  for (const part of document.querySelectorAll("[data-live][id]")) {
    const replacement = fresh.getElementById(part.id);
    if (replacement) patch(part, replacement);
  }
  if (!focused.isConnected) {
    const same = [...document.querySelectorAll("[data-live] :is(a, button)")].find((node) => key && keyOf(node) === key);
    (same || firstVisible(row, "a, button"))?.focus({ preventScroll: true });
  }
  document.title = fresh.title;
  const [icon, newIcon] = [document.getElementById("icon"), fresh.getElementById("icon")];
  if (icon && newIcon && icon.getAttribute("href") !== newIcon.getAttribute("href")) icon.href = newIcon.getAttribute("href");
  updateTimes();
}

// Unchanged nodes stay, and with them focus, selection and scroll position. Rows are matched by their keys.
function patch(old, fresh) {
  if (old.nodeName !== fresh.nodeName || old.id !== fresh.id || keyOf(old) !== keyOf(fresh)) { old.replaceWith(fresh); return; }
  if (old.nodeType !== Node.ELEMENT_NODE) { if (old.data !== fresh.data) old.data = fresh.data; return; }
  if (old === document.activeElement && old.matches("input, select, textarea")) return;
  if (old.matches("time") && old.dateTime === fresh.dateTime) return;
  patchAttributes(old, fresh);
  if (old.nodeName === "TBODY" && old.querySelector(":scope > [data-key]")) patchRows(old, fresh);
  else patchChildren(old, fresh);
}

function patchAttributes(old, fresh) {
  const isLocal = (name) => (name === "open" && old.matches("details")) || (name === "hidden" && "needsScript" in old.dataset) || (name === "title" && old.matches("time"));
  for (const { name, value } of [...fresh.attributes]) if (!isLocal(name) && old.getAttribute(name) !== value) old.setAttribute(name, value);
  for (const { name } of [...old.attributes]) if (!isLocal(name) && !fresh.hasAttribute(name)) old.removeAttribute(name);
}

function patchChildren(old, fresh) {
  const [oldNodes, freshNodes] = [[...old.childNodes], [...fresh.childNodes]];
  freshNodes.forEach((node, index) => { if (index < oldNodes.length) patch(oldNodes[index], node); else old.append(node); });
  oldNodes.slice(freshNodes.length).forEach((node) => node.remove());
}

function patchRows(old, fresh) {
  const known = new Map([...old.children].map((row) => [row.dataset.key, row]));
  let place = old.firstElementChild;
  for (const row of [...fresh.children]) {
    const same = known.get(row.dataset.key);
    known.delete(row.dataset.key);
    if (!same) { old.insertBefore(row, place); continue; }
    if (same === place) place = place.nextElementSibling;
    else old.insertBefore(same, place);
    patch(same, row);
  }
  for (const row of known.values()) row.remove();
}

// A source (the stream, the page) is on, waiting, off (refused) or gone (the server cannot be reached).
function setState(source, state) {
  const [before, after] = [states.get(source), state];
  states.set(source, state);
  if (source === "stream" && before !== after && (before === "off" || after === "off")) { last = 0; refreshSoon(); } // fetches what was missed, or finds that the server is gone
  else if (after === "on" && ["off", "gone"].includes(before)) refreshSoon();
  const now = ["gone", "off", "waiting"].find((name) => [...states.values()].includes(name)) || "on";
  const sign = document.getElementById("live");
  if (now === "on") closeToast("offline");
  showOffline(now === "gone");
  const shown = now === "gone" ? "off" : now;
  if (sign.dataset.is === shown) return; // it would be announced again
  sign.dataset.is = shown;
  sign.textContent = { off: "connection lost, trying again", waiting: "connecting", on: "live" }[shown];
}

// The bar, grey values, and disabled actions with the bar as their reason.
function showOffline(isOffline) {
  document.documentElement.classList.toggle("offline", isOffline);
  const [bar, since] = [document.getElementById("offline"), document.getElementById("offline-since")];
  if (isOffline && !offlineSince) {
    offlineSince = Date.now();
    offlineTimer = setInterval(countDown, 1000);
    since.textContent = `disconnected since ${new Date(offlineSince).toLocaleTimeString([], { hour: "2-digit", minute: "2-digit", hourCycle: "h23" })}`;
    countDown();
  } else if (!isOffline) { offlineSince = 0; clearInterval(offlineTimer); }
  bar.hidden = !isOffline;
  for (const button of document.querySelectorAll("button")) if (button.form?.method === "post") disable(button, isOffline);
  if (!isOffline && document.activeElement === document.body && lostFocus?.isConnected) lostFocus.focus({ preventScroll: true });
  if (!isOffline) lostFocus = null;
}

function countDown() {
  const seconds = Math.ceil((due - Date.now()) / 1000);
  document.getElementById("offline-retry").textContent = timer && seconds > 0 ? `, retry in ${seconds} s` : ", retrying";
}

function disable(button, isOffline) {
  const isOwn = "offline" in button.dataset;
  if (isOffline && !button.disabled) {
    if (button === document.activeElement) lostFocus = button;
    Object.assign(button, { disabled: true, title: "The server cannot be reached" });
    button.setAttribute("aria-describedby", "offline-since");
    button.dataset.offline = "";
  } else if (!isOffline && isOwn) {
    button.disabled = false;
    for (const name of ["title", "aria-describedby", "data-offline"]) button.removeAttribute(name);
  }
}

function onEvent(topic, { data, refused }) {
  if (refused) { setState("stream", "off"); return; }
  const [kind, field] = TOPICS[topic];
  const owner = String(JSON.parse(data)[field]);
  const concerns = [...document.querySelectorAll(`[data-live~="${topic}"]`)].some((part) => (part.dataset[kind] ?? owner) === owner);
  refreshBy(Date.now() + (concerns ? 0 : UNRELATED_MS));
}

export function keepCurrent() {
  const parts = [...document.querySelectorAll("[data-live]")];
  const wanted = new Set(parts.flatMap((part) => part.dataset.live.split(" ").filter(Boolean)));
  if (wanted.size) setInterval(refreshSoon, wanted.delete("poll") ? POLL_MS : CHECK_MS);
  if (parts.length) addEventListener("pageshow", (event) => { if (event.persisted) location.reload(); });
  document.addEventListener("visibilitychange", () => { if (missed && !document.hidden) refreshSoon(); });
  if ("connect" in document.body.dataset) onState((state) => setState("stream", state));
  for (const topic of wanted) subscribe(topic, (event) => onEvent(topic, event));
  if (!wanted.size && "connect" in document.body.dataset) subscribe("status", () => {}); // its state is that of the server
}
