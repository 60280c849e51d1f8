// What script adds to pages that work without it: news without a reload, times that stay true, fewer round trips.
"use strict";

const pollEvery = 5000;
const streams = {
  status: { url: "/supervision/api/v1/processes/stream", names: ["status"] },
  runs: { url: "/tracker/api/v1/events", names: ["run", "reset"] },
};

// Parts of a page bear data-live="status", "runs" or both: on news the page is fetched again and they are exchanged.
// "poll" is for what no stream tells of: the page is asked again every few seconds, while somebody sees it.

let due = null;
let busy = false;

function refreshSoon() {
  due ??= setTimeout(refresh, 400);
}

async function refresh() {
  due = null;
  if (busy || document.hidden) { due = setTimeout(refresh, 1000); return; }
  busy = true;
  try {
    const answer = await fetch(location.href, { headers: { Accept: "text/html" } });
    if (answer.redirected || [401, 403, 404].includes(answer.status)) location.reload(); // it is not ours to see any more
    else if (answer.ok) exchange(new DOMParser().parseFromString(await answer.text(), "text/html"));
    polled?.("on");
  } catch { polled?.("off"); /* of a stream the sign of a lost connection says it already */ }
  busy = false;
}

const drawn = new Map();
document.querySelectorAll("[data-live][id]").forEach((part) => drawn.set(part.id, part.innerHTML)); // before times are told

function exchange(page) {
  for (const part of document.querySelectorAll("[data-live][id]")) {
    const fresh = page.getElementById(part.id);
    if (!fresh || fresh.innerHTML === drawn.get(part.id)) continue;
    if (part.contains(document.activeElement) && document.activeElement.matches("input, select, textarea")) continue;
    const held = part.contains(document.activeElement) ? document.activeElement.dataset.key : null;
    const open = [...part.querySelectorAll("details[id]")].map((one) => [one.id, one.open]);
    drawn.set(part.id, fresh.innerHTML);
    part.innerHTML = fresh.innerHTML;
    open.forEach(([id, is]) => { const one = document.getElementById(id); if (one) one.open = is; });
    part.querySelectorAll("[data-needs-script]").forEach((one) => { one.hidden = false; });
    if (held) part.querySelector(`[data-key="${CSS.escape(held)}"]`)?.focus();
  }
  tellTimes();
}

let polled = null;

function poll() {
  polled = (is) => heard({ url: "poll", is });
  polled("on");
  setInterval(() => { if (!document.hidden) refreshSoon(); }, pollEvery);
}

const lost = new Set();

function heard({ url, is, name }) {
  if (name) { refreshSoon(); return; }
  const sign = document.getElementById("live");
  if (is === "off") lost.add(url);
  if (is === "on" && lost.delete(url)) refreshSoon(); // what was missed meanwhile is on the page now
  sign.dataset.is = lost.size ? "off" : is;
  sign.textContent = lost.size ? "connection lost, trying again" : is === "on" ? "live" : "connecting";
}

function listen() {
  const wanted = new Set([...document.querySelectorAll("[data-live]")].flatMap((part) => part.dataset.live.split(" ")));
  if (wanted.delete("poll")) poll();
  if (!wanted.size) return;
  if ("SharedWorker" in window) {
    const worker = new SharedWorker(document.body.dataset.worker);
    worker.port.onmessage = (message) => heard(message.data);
    for (const name of wanted) worker.port.postMessage(streams[name]);
    addEventListener("pagehide", () => worker.port.postMessage({ leave: true }));
    addEventListener("pageshow", (event) => { if (event.persisted) location.reload(); });
    return;
  }
  for (const name of wanted) {
    const { url, names } = streams[name];
    const source = new EventSource(url);
    source.onopen = () => heard({ url, is: "on" });
    source.onerror = () => heard({ url, is: "off" });
    names.forEach((kind) => source.addEventListener(kind, () => heard({ url, name: kind })));
  }
}

// Times: relative in the text, exact on hover.

const units = [["year", 31557600], ["month", 2629800], ["week", 604800], ["day", 86400], ["hour", 3600], ["minute", 60], ["second", 1]];
const words = new Intl.RelativeTimeFormat("en", { numeric: "auto" });

function tellTimes() {
  for (const time of document.querySelectorAll("time[datetime]")) {
    const at = new Date(time.dateTime);
    const seconds = (at - Date.now()) / 1000;
    const [unit, length] = units.find(([, size]) => Math.abs(seconds) >= size) || units.at(-1);
    time.textContent = words.format(Math.round(seconds / length), unit);
    time.title = at.toLocaleString();
  }
}

// Forms marked data-quiet are sent without leaving the page; what failed is said at the top.

function say(text, kind) {
  const place = document.getElementById("told");
  place.className = `note ${kind}`;
  place.textContent = text;
  place.hidden = !text;
}

async function sendQuietly(event) {
  const form = event.target.closest("form[data-quiet]");
  if (!form) return;
  event.preventDefault();
  const button = event.submitter;
  const ask = button?.dataset.sure || form.dataset.sure;
  if (ask && !confirm(ask)) return;
  const body = new URLSearchParams(new FormData(form, button));
  button?.setAttribute("disabled", "");
  say("working …", "");
  try {
    const answer = await fetch(form.action, { method: "POST", body, headers: { Accept: "text/html" } });
    const page = new DOMParser().parseFromString(await answer.text(), "text/html");
    if (answer.ok) { say("", ""); exchange(page); refreshSoon(); }
    else say(page.querySelector("#why")?.textContent || `${answer.status} ${answer.statusText}`, "bad");
  } catch { say("the server cannot be reached", "bad"); }
  button?.removeAttribute("disabled");
}

function askFirst(event) {
  const ask = event.submitter?.dataset.sure || event.target.dataset?.sure;
  if (ask && !event.target.matches("form[data-quiet]") && !confirm(ask)) event.preventDefault();
}

// A log that is followed: at most so many lines are kept; paused, it keeps still and goes on collecting.

const mostLines = 5000;

function follow(log) {
  const lines = [];
  const search = document.getElementById("log-search");
  const pause = document.getElementById("log-pause");
  const count = document.getElementById("log-count");
  let drawn = true;
  const draw = () => {
    drawn = true;
    const word = search.value.toLowerCase();
    const shown = word ? lines.filter((line) => line.toLowerCase().includes(word)) : lines;
    const atEnd = log.scrollTop + log.clientHeight >= log.scrollHeight - 8;
    log.textContent = shown.join("\n");
    count.textContent = word ? `${shown.length} of ${lines.length} lines` : `${lines.length} lines`;
    if (atEnd) log.scrollTop = log.scrollHeight;
  };
  const drawSoon = () => { if (drawn && !pause.checked) { drawn = false; requestAnimationFrame(draw); } };
  const source = new EventSource(log.dataset.follow);
  let first = true;
  source.onopen = () => { lines.length = 0; first = true; };
  source.addEventListener("log", (event) => {
    lines.push(...event.data.split("\n"));
    if (lines.length > mostLines) lines.splice(0, lines.length - mostLines);
    drawSoon();
    if (first) { first = false; requestAnimationFrame(() => { log.scrollTop = log.scrollHeight; }); }
  });
  search.addEventListener("input", draw);
  pause.addEventListener("change", draw);
  addEventListener("pagehide", () => source.close());
}

// Small things

function copy(button) {
  const place = document.getElementById(button.dataset.copy);
  const select = () => { getSelection().selectAllChildren(place); button.textContent = "selected, copy it"; };
  if (!navigator.clipboard) { select(); return; } // browsers have it on TLS and loopback only
  navigator.clipboard.writeText(place.textContent.trim()).then(() => { button.textContent = "copied"; }, select);
}

function changeTheme() {
  const dark = matchMedia("(prefers-color-scheme: dark)").matches;
  const now = document.documentElement.dataset.theme || (dark ? "dark" : "light");
  const next = now === "dark" ? "light" : "dark";
  document.documentElement.dataset.theme = next;
  localStorage.setItem("theme", next);
}

document.addEventListener("click", (event) => {
  const button = event.target.closest("button");
  if (button?.dataset.copy) copy(button);
  if (button?.id === "theme") changeTheme();
});
document.addEventListener("submit", (event) => { askFirst(event); sendQuietly(event); });
document.querySelectorAll("[data-needs-script]").forEach((one) => { one.hidden = false; });
document.querySelectorAll("[data-follow]").forEach(follow);
tellTimes();
setInterval(tellTimes, 20000);
listen();
