// Messages about actions: successes close after 6 seconds unless hovered or focused, failures stay until closed.

const SHOWN_MS = 6000;
const MAX_HISTORY = 20;
const HISTORY = "toasts";
const NEXT = "toast next";

// The latest messages of this tab, the newest first.
export function toastHistory() {
  try { return JSON.parse(sessionStorage.getItem(HISTORY) || "[]"); } catch { return []; }
}

function region() {
  let place = document.getElementById("toasts");
  if (!place) {
    place = document.createElement("div");
    place.id = "toasts";
    place.className = "toasts";
    document.body.append(place);
  }
  return place;
}

// Shows a message; `kind` is good, bad, warn or empty. Returns a function that closes it.
export function toast(text, kind = "", key = "") {
  if (key) region().querySelector(`[data-key="${CSS.escape(key)}"]`)?.remove();
  const item = document.createElement("div");
  item.className = `toast ${kind}`;
  item.dataset.key = key;
  item.role = kind === "bad" ? "alert" : "status";
  const body = document.createElement("span");
  const close = document.createElement("button");
  close.type = "button";
  close.ariaLabel = "Close message";
  close.textContent = "×";
  close.onclick = () => item.remove();
  item.append(body, close);
  region().append(item);
  body.textContent = text; // after the element is in the page, so that screen readers announce it
  if (kind) sessionStorage.setItem(HISTORY, JSON.stringify([{ text, kind, at: Date.now() }, ...toastHistory()].slice(0, MAX_HISTORY)));
  if (kind === "good") closeLater(item);
  return () => item.remove();
}

export function closeToast(key) { region().querySelector(`[data-key="${CSS.escape(key)}"]`)?.remove(); }

function closeLater(item) {
  let timer = null;
  const start = () => { clearTimeout(timer); timer = setTimeout(() => item.remove(), SHOWN_MS); };
  const stop = () => clearTimeout(timer);
  item.addEventListener("mouseenter", stop);
  item.addEventListener("focusin", stop);
  item.addEventListener("mouseleave", start);
  item.addEventListener("focusout", start);
  start();
}

// Shows a message on the page that is opened next.
export function toastNext(text) { sessionStorage.setItem(NEXT, text); }

// Shows what the action before this page has done.
export function toastDone() {
  const [done, next] = [document.getElementById("done"), sessionStorage.getItem(NEXT)];
  sessionStorage.removeItem(NEXT);
  if (done) { done.parentElement.hidden = true; done.parentElement.classList.remove("good"); }
  const text = next || done?.textContent;
  done?.remove();
  if (text) toast(text, "good", "action");
}
