// Forms that change charts. The API key is kept for this tab alone and sent in a header; long work shows its progress.
import { forgetVersion } from "./page.js";
import { updateTimes } from "./times.js";
import { toast, toastNext } from "./toast.js";

const STORAGE_KEY = "charts key";
const storedKey = () => sessionStorage.getItem(STORAGE_KEY) || "";

function showKeyFields() {
  for (const row of document.querySelectorAll("[data-key-row]")) {
    row.hidden = Boolean(storedKey());
    row.querySelector("input").required = !storedKey();
    row.nextElementSibling.hidden = !storedKey();
  }
}

function working(form) {
  const line = document.createElement("p");
  line.className = "working";
  line.innerHTML = '<progress aria-label="Working"></progress><span role="status"></span><span class="faint"></span>'
    + '<button type="button">Stop waiting</button>';
  form.append(line);
  const since = Date.now();
  const update = () => { line.querySelector(".faint").textContent = `${Math.round((Date.now() - since) / 1000)} s`; };
  const timer = setInterval(update, 1000);
  update();
  line.querySelector("[role=status]").textContent = "working …";
  return { stop: line.querySelector("button"), end: () => { clearInterval(timer); line.remove(); } };
}

async function send(event) {
  const form = event.target.closest("form[data-keyed]");
  if (!form || event.defaultPrevented) return;
  event.preventDefault();
  const body = new URLSearchParams(new FormData(form, event.submitter));
  const key = form.dataset.keyed ? body.get("key") || storedKey() : "";
  body.delete("key");
  const headers = { Accept: "text/html" };
  if (/^[ -~\u00a0-\u00ff]+$/.test(key)) headers[form.dataset.keyed] = key;
  else if (key) body.set("key", key); // a header cannot hold it
  const buttons = [...form.querySelectorAll("button")];
  const abort = new AbortController();
  const progress = working(form);
  buttons.forEach((button) => { button.disabled = true; });
  progress.stop.onclick = () => abort.abort();
  try {
    const response = await fetch(form.action, { method: "POST", body, headers, signal: abort.signal });
    const page = await response.text();
    progress.end();
    if (response.status === 401) sessionStorage.removeItem(STORAGE_KEY);
    else if (key && response.status !== 403) sessionStorage.setItem(STORAGE_KEY, key);
    if (response.redirected) {
      const done = new DOMParser().parseFromString(page, "text/html").getElementById("done");
      if (done) toastNext(done.textContent);
      location.assign(response.url);
    }
    else show(page);
  } catch (error) {
    progress.end();
    if (error.name === "AbortError") toast("Stopped waiting. A change that had begun is finished: see the history.", "warn");
    else toast("the server cannot be reached", "bad", "offline");
  }
  buttons.forEach((button) => { button.disabled = false; });
  if (document.activeElement === document.body) event.submitter?.focus({ preventScroll: true });
}

function show(text) {
  const fresh = new DOMParser().parseFromString(text, "text/html").getElementById("main");
  document.getElementById("main").replaceChildren(...fresh.childNodes);
  forgetVersion(); // the page shown is not the one that is polled
  showKeyFields();
  updateTimes();
  const outcome = document.getElementById("outcome");
  const refused = document.querySelector("[name=key][aria-invalid=true]");
  const field = refused?.checkVisibility() ? refused : document.querySelector("textarea[aria-invalid=true]");
  const place = field ?? outcome;
  place?.focus({ preventScroll: true });
  place?.scrollIntoView({ block: field ? "center" : "start" });
}

document.addEventListener("submit", send);
document.addEventListener("input", ({ target }) => { // the previewed version is not that of the form any more
  const button = ["chartRef", "version"].includes(target.name) && target.form?.querySelector("[data-plain]");
  if (button) button.textContent = button.dataset.plain;
});
document.addEventListener("click", (event) => {
  if (!event.target.closest("[data-forget-key]")) return;
  sessionStorage.removeItem(STORAGE_KEY);
  showKeyFields();
  event.target.closest("form").querySelector("[name=key]").focus();
});
showKeyFields();
