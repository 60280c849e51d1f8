// What script adds to pages that work without it: news without a reload, times that stay true, fewer round trips.
"use strict";

const streams = {
  status: { url: "/supervision/api/v1/processes/stream", names: ["status"], of: "process", field: "processName" },
  runs: { url: "/tracker/api/v1/events", names: ["run", "reset"], of: "project", field: "projectId" },
};

// Parts of a page bear data-live="status", "runs" or both: on news the page is fetched again and they are exchanged.
// "poll" is for what no stream tells of: the page is asked again every few seconds.
// News is gathered: a page is asked for at most about once a second, not all pages at once, and none that nobody sees.
// A part that bears data-process or data-project is soon renewed by news of that one, and by other news at leisure.

const [pollEvery, atMostEvery, leisure, spread] = [5000, 1000, 10000, 300];
let due = null;
let dueAt = 0;
let last = 0;
let busy = false;
let missed = false;
let version = "";

function refreshBy(at) {
  const soonest = Math.max(at, last + atMostEvery);
  if (due && dueAt <= soonest + spread) return;
  clearTimeout(due);
  dueAt = soonest + Math.random() * spread;
  due = setTimeout(refresh, dueAt - Date.now());
}

function refreshSoon() { refreshBy(Date.now()); }

async function refresh() {
  due = null;
  missed = document.hidden;
  if (missed) return;
  if (busy) { refreshBy(Date.now() + atMostEvery); return; }
  busy = true;
  last = Date.now();
  try {
    const answer = await fetch(location.href, { headers: { Accept: "text/html", "If-None-Match": version } });
    if (answer.redirected || [401, 403, 404].includes(answer.status)) location.reload(); // it is not ours to see any more
    else if (answer.ok) {
      exchange(new DOMParser().parseFromString(await answer.text(), "text/html"));
      version = answer.headers.get("Etag") || "";
    }
    polled?.("on");
  } catch { polled?.("off"); /* of a stream the sign of a lost connection says it already */ }
  busy = false;
}

document.addEventListener("visibilitychange", () => { if (missed && !document.hidden) refreshSoon(); });

function exchange(page) {
  const at = document.activeElement;
  for (const part of document.querySelectorAll("[data-live][id]")) {
    const fresh = page.getElementById(part.id);
    if (fresh) patch(part, fresh);
  }
  if (at.dataset.key && !at.isConnected) document.querySelector(`[data-key="${CSS.escape(at.dataset.key)}"]`)?.focus({ preventScroll: true });
  tellTimes();
}

// What is the same stays, and with it the focus, what is selected, and how far a table was moved.

function patch(old, fresh) {
  if (old.nodeName !== fresh.nodeName || old.id !== fresh.id || old.dataset?.key !== fresh.dataset?.key) { old.replaceWith(fresh); return; }
  if (old.nodeType !== Node.ELEMENT_NODE) { if (old.data !== fresh.data) old.data = fresh.data; return; }
  if (old === document.activeElement && old.matches("input, select, textarea")) return;
  if (old.matches("time") && old.dateTime === fresh.dateTime) return;
  const ours = (name) => (name === "open" && old.matches("details")) || (name === "hidden" && "needsScript" in old.dataset) || (name === "title" && old.matches("time"));
  for (const { name, value } of [...fresh.attributes]) if (!ours(name) && old.getAttribute(name) !== value) old.setAttribute(name, value);
  for (const { name } of [...old.attributes]) if (!ours(name) && !fresh.hasAttribute(name)) old.removeAttribute(name);
  const [had, has] = [[...old.childNodes], [...fresh.childNodes]];
  has.forEach((one, place) => { if (place < had.length) patch(had[place], one); else old.append(one); });
  had.slice(has.length).forEach((one) => one.remove());
}

let polled = null;

function poll() {
  polled = (is) => heard({ url: "poll", is });
  polled("on");
  setInterval(refreshSoon, pollEvery);
}

const heardOf = new Map();

function heard({ url, is, name, data }) {
  if (name) { refreshBy(Date.now() + (concerns(name, data) ? 0 : leisure)); return; }
  if (is === "on" && heardOf.get(url) === "off") refreshSoon(); // what was missed meanwhile is on the page now
  heardOf.set(url, is);
  const [all, sign] = [[...heardOf.values()], document.getElementById("live")];
  const now = ["off", "waiting"].find((one) => all.includes(one)) || "on";
  if (sign.dataset.is === now) return; // it would be read aloud again
  sign.dataset.is = now;
  sign.textContent = { off: "connection lost, trying again", waiting: "connecting", on: "live" }[now];
}

function concerns(name, data) {
  const [stream, { names, of, field }] = Object.entries(streams).find(([, one]) => one.names.includes(name));
  if (name !== names[0]) return true;
  const whose = String(JSON.parse(data)[field]);
  return [...document.querySelectorAll(`[data-live~="${stream}"]`)].some((part) => (part.dataset[of] ?? whose) === whose);
}

function listen() {
  const wanted = new Set([...document.querySelectorAll("[data-live]")].flatMap((part) => part.dataset.live.split(" ")));
  const polls = wanted.delete("poll");
  for (const name of wanted) heard({ url: streams[name].url, is: "waiting" });
  if (polls) poll();
  if (!wanted.size) return;
  if ("SharedWorker" in window) {
    const worker = new SharedWorker(document.body.dataset.worker);
    worker.port.onmessage = (message) => heard(message.data);
    for (const name of wanted) worker.port.postMessage(streams[name]);
    addEventListener("pagehide", () => worker.port.postMessage({ leave: true }));
    addEventListener("pageshow", (event) => { if (event.persisted) location.reload(); });
    return;
  }
  wanted.forEach(hear);
}

function hear(stream) {
  const { url, names } = streams[stream];
  const source = new EventSource(url);
  source.onopen = () => heard({ url, is: "on" });
  source.onerror = () => {
    heard({ url, is: "off" });
    if (source.readyState === EventSource.CLOSED) setTimeout(hear, pollEvery, stream); // it was refused: nobody else tries again
  };
  names.forEach((kind) => source.addEventListener(kind, (event) => heard({ url, name: kind, data: event.data })));
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
  const row = button?.closest("tr, .head"); // where the focus stays, though the button may become another
  button?.setAttribute("disabled", "");
  say("working …", "");
  try {
    const answer = await fetch(button?.hasAttribute("formaction") ? button.formAction : form.action, { method: "POST", body, headers: { Accept: "text/html" } });
    const page = new DOMParser().parseFromString(await answer.text(), "text/html");
    if (answer.ok) { say("", ""); exchange(page); refreshSoon(); }
    else say(page.querySelector("#why")?.textContent || `${answer.status} ${answer.statusText}`, "bad");
  } catch { say("the server cannot be reached", "bad"); }
  button?.removeAttribute("disabled");
  if (document.activeElement === document.body) (button?.isConnected ? button : row?.querySelector("button"))?.focus({ preventScroll: true });
}

function askFirst(event) {
  const ask = event.submitter?.dataset.sure || event.target.dataset?.sure;
  if (ask && !event.target.matches("form[data-quiet]") && !confirm(ask)) event.preventDefault();
}

// A log that is followed: at most so many lines are kept; paused, it keeps still and goes on collecting.

const mostLines = 5000;
const colours = /\x1b\[[0-9;?]*[A-Za-z]/g; // what programs say to terminals

function follow(log) {
  const lines = [];
  const search = document.getElementById("log-search");
  const pause = document.getElementById("log-pause");
  const count = document.getElementById("log-count");
  let drawn = true;
  const draw = () => {
    const word = search.value.toLowerCase();
    const shown = word ? lines.filter((line) => line.toLowerCase().includes(word)) : lines;
    const atEnd = log.scrollTop + log.clientHeight >= log.scrollHeight - 8;
    log.textContent = shown.join("\n");
    count.textContent = word ? `${shown.length} of ${lines.length} lines` : `${lines.length} lines`;
    if (atEnd) log.scrollTop = log.scrollHeight;
  };
  const drawSoon = () => { if (drawn && !pause.checked) { drawn = false; requestAnimationFrame(() => { drawn = true; if (!pause.checked) draw(); }); } };
  log.textContent = ""; // what stands there is for who has no script
  const source = new EventSource(log.dataset.follow);
  let first = true;
  source.onopen = () => { lines.length = 0; first = true; count.textContent = "no lines yet"; };
  source.onerror = () => { count.textContent = "connection lost, trying again"; };
  source.addEventListener("log", (event) => {
    lines.push(...event.data.replace(colours, "").split("\n"));
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
