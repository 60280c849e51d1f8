// What script adds to pages that work without it: news without a reload, times that stay true, fewer round trips.
"use strict";

const streams = {
  status: { url: "/supervision/api/v1/processes/stream", names: ["status"], of: "process", field: "processName" },
  runs: { url: "/tracker/api/v1/events", names: ["run", "reset"], of: "project", field: "projectId" },
};

// Parts of a page bear data-live="status", "runs" or both: on news the page is fetched again and they are exchanged.
// "poll" is for what no stream tells of: the page is asked again every few seconds. All others are at leisure too: a
// connection may die without a sign, and then only a question without an answer tells.
// News is gathered: a page is asked for at most about once a second, not all pages at once, and none that nobody sees.
// A part that bears data-process or data-project is soon renewed by news of that one, and by other news at leisure.

const [pollEvery, lookEvery, patience, atMostEvery, leisure, spread] = [5000, 30000, 10000, 1000, 10000, 300];
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
    const headers = { Accept: "text/html", "If-None-Match": version };
    const answer = await fetch(location.href, { headers, signal: AbortSignal.timeout(patience) });
    if (answer.redirected || [401, 403, 404].includes(answer.status)) location.reload(); // it is not ours to see any more
    else if (answer.ok) await take(answer);
    heard({ url: "page", is: answer.status < 500 ? "on" : "off" });
  } catch { heard({ url: "page", is: "off" }); }
  busy = false;
  if (heardOf.get("page") === "off") refreshBy(Date.now() + pollEvery);
}

async function take(answer) {
  exchange(new DOMParser().parseFromString(await answer.text(), "text/html"));
  version = answer.headers.get("Etag") || "";
}

document.addEventListener("visibilitychange", () => { if (missed && !document.hidden) refreshSoon(); });

const keyOf = (node) => node.dataset?.key ?? node.getAttribute?.("href");

function exchange(page) {
  const at = document.activeElement || document.body;
  const [key, row] = [keyOf(at), at.closest("tr, .head")];
  for (const part of document.querySelectorAll("[data-live][id]")) {
    const fresh = page.getElementById(part.id);
    if (fresh) patch(part, fresh);
  }
  if (!at.isConnected) {
    const again = [...document.querySelectorAll("[data-live] :is(a, button)")].find((one) => key && keyOf(one) === key);
    (again || row?.querySelector("a, button"))?.focus({ preventScroll: true });
  }
  tellTimes();
}

// What is the same stays, and with it the focus, what is selected, and how far a table was moved.

function patch(old, fresh) {
  if (old.nodeName !== fresh.nodeName || old.id !== fresh.id || keyOf(old) !== keyOf(fresh)) { old.replaceWith(fresh); return; }
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
  if (!wanted.size) return;
  setInterval(refreshSoon, wanted.delete("poll") ? pollEvery : lookEvery);
  addEventListener("pageshow", (event) => { if (event.persisted) location.reload(); });
  if (!wanted.size) heard({ url: "page", is: "on" });
  for (const name of wanted) heard({ url: streams[name].url, is: "waiting" });
  const alone = () => wanted.forEach((name) => hear(streams[name].url, streams[name].names, heard));
  if (!("SharedWorker" in window)) { alone(); return; }
  const worker = new SharedWorker(document.body.dataset.worker);
  worker.onerror = alone;
  worker.port.onmessage = (message) => heard(message.data);
  for (const name of wanted) worker.port.postMessage(streams[name]);
  addEventListener("pagehide", () => worker.port.postMessage({ leave: true }));
}

// A stream, heard until what is returned is called. One that was refused nobody else asks for again.

function hear(url, names, tell) {
  let [source, timer] = [null, null];
  const open = () => {
    source = new EventSource(url);
    source.onopen = () => tell({ url, is: "on" });
    source.onerror = () => {
      tell({ url, is: "off" });
      if (source.readyState === EventSource.CLOSED) timer = setTimeout(open, pollEvery);
    };
    names.forEach((name) => source.addEventListener(name, (event) => tell({ url, name, data: event.data })));
  };
  open();
  return () => { clearTimeout(timer); source.close(); };
}

// Times: relative in the text, exact on hover.

const units = [["year", 31557600], ["month", 2629800], ["week", 604800], ["day", 86400], ["hour", 3600], ["minute", 60], ["second", 1]];
const words = new Intl.RelativeTimeFormat("en", { numeric: "auto" });

function tellTimes() {
  for (const time of document.querySelectorAll("time[datetime]")) {
    const at = new Date(time.dateTime);
    const seconds = (at - Date.now()) / 1000;
    const [unit, length] = units.find(([, size]) => Math.abs(seconds) >= size) || units.at(-1);
    const text = words.format(Math.round(seconds / length), unit);
    if (time.textContent !== text) time.textContent = text; // else what is selected there would not be any more
    time.title = at.toLocaleString();
  }
}

// Forms marked data-quiet are sent without leaving the page, unless the answer is another; what failed is said at the top.

function say(text, kind) {
  const place = document.getElementById("message");
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
    if (answer.ok && new URL(answer.url).pathname !== location.pathname) location.assign(answer.url); // to the login, say
    else if (answer.ok) { say("", ""); await take(answer); refreshSoon(); }
    else {
      const page = new DOMParser().parseFromString(await answer.text(), "text/html");
      say(page.querySelector("#reason")?.textContent || `${answer.status} ${answer.statusText}`, "bad");
    }
  } catch { say("the server cannot be reached", "bad"); }
  button?.removeAttribute("disabled");
  if (document.activeElement === document.body) (button?.isConnected ? button : row?.querySelector("button"))?.focus({ preventScroll: true });
}

function askFirst(event) {
  const ask = event.submitter?.dataset.sure || event.target.dataset?.sure;
  if (ask && !event.target.matches("form[data-quiet]") && !confirm(ask)) event.preventDefault();
}

// A log that is followed while somebody sees it: a browser has six connections for all its tabs, and each log takes one.
// At most so many lines are kept; paused, it keeps still and goes on collecting.

const [firstLines, mostLines, slack] = [500, 5000, 500];
const colours = /\x1b\[[0-9;?]*[A-Za-z]/g; // what programs say to terminals

function follow(log) {
  const [search, pause, count] = ["search", "pause", "count"].map((name) => document.getElementById(`log-${name}`));
  const text = document.createTextNode("");
  let [lines, begins, first, asked, leave] = [[], true, true, false, null];
  log.replaceChildren(text); // what stands there is for who has no script

  const draw = () => {
    const word = search.value.toLowerCase();
    const shown = word ? lines.filter((line) => line.toLowerCase().includes(word)) : lines;
    const next = shown.join("\n");
    const atEnd = first || log.scrollTop + log.clientHeight >= log.scrollHeight - 8;
    if (next.startsWith(text.data)) text.appendData(next.slice(text.length)); // what is selected stays
    else text.data = next;
    count.textContent = word ? `${shown.length} of ${lines.length} lines` : lines.length ? `${lines.length} lines` : "no lines yet";
    if (atEnd) log.scrollTop = log.scrollHeight;
    first = !lines.length;
  };
  const drawSoon = () => { if (!asked && !pause.checked) { asked = true; requestAnimationFrame(() => { asked = false; if (!pause.checked) draw(); }); } };
  const told = ({ is, data }) => {
    count.ariaLive = is === "off" ? "polite" : "off"; // not each line is read aloud
    if (is === "off") { count.textContent = "connection lost, trying again"; return; }
    if (is === "on") begins = true; // they come again
    else {
      if (begins) lines = [];
      begins = false;
      lines = lines.concat(data.replace(colours, "").split("\n"));
      if (lines.length > mostLines + slack) lines = lines.slice(-mostLines);
    }
    drawSoon();
  };
  const look = () => {
    leave?.();
    leave = document.hidden ? null : hear(`${log.dataset.follow}&lines=${Math.max(firstLines, lines.length)}`, ["log"], told);
  };
  const chosen = () => { count.ariaLive = "polite"; draw(); };
  search.addEventListener("input", chosen);
  pause.addEventListener("change", chosen);
  document.addEventListener("visibilitychange", look);
  addEventListener("pagehide", () => leave?.());
  look();
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
