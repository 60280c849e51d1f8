// Forms: data-quiet ones are sent without leaving the page; filters are applied while typing.
import { ask, questionOf } from "./ask.js";
import { firstVisible, forgetVersion, refreshSoon, show } from "./page.js";
import { toast } from "./toast.js";
import { updateTimes } from "./times.js";

const FILTER_MS = 150;

export async function sendQuietly(event) {
  const form = event.target.closest("form[data-quiet]");
  if (!form) return;
  event.preventDefault();
  const button = event.submitter;
  const body = new URLSearchParams(new FormData(form, button));
  const row = button?.closest("tr, .head"); // keeps the focus although the button may become another
  const label = button?.textContent.trim() || "Action";
  const place = button?.closest("tr[data-key], [data-process]"); // the button may be gone afterwards
  const [verb, name] = [button?.value, place?.dataset.key || place?.dataset.process];
  button?.closest("[popover]:popover-open")?.hidePopover();
  button?.setAttribute("disabled", "");
  const started = performance.now();
  const close = toast(`${label} …`, "", "action");
  try {
    const url = button?.hasAttribute("formaction") ? button.formAction : form.action;
    const response = await fetch(url, { method: "POST", body, headers: { Accept: "text/html" } });
    close();
    if (response.ok && new URL(response.url).pathname !== location.pathname) location.assign(response.url); // to the login
    else if (response.ok) {
      const seconds = ((performance.now() - started) / 1000).toFixed(1);
      const page = new URL(response.url).search === location.search ? await show(response) : null;
      toast(`${outcome(verb, name, label, page)}, ${seconds} s`, "good", "action");
      refreshSoon();
    } else {
      const page = new DOMParser().parseFromString(await response.text(), "text/html");
      toast(page.querySelector("#reason")?.textContent || `${response.status} ${response.statusText}`, "bad", "action");
    }
  } catch { close(); toast("the server cannot be reached", "bad", "offline"); }
  button?.removeAttribute("disabled");
  if (document.activeElement === document.body) (button?.isConnected && button.checkVisibility() ? button : firstVisible(row, "button"))?.focus({ preventScroll: true });
}

const DONE = { start: "started", stop: "stopped", restart: "restarted" };

// What an action did, as in `web restarted, pid 4711`.
function outcome(verb, name, label, page) {
  if (!name || !DONE[verb]) return `${label}: done`;
  const pid = [...(page?.querySelectorAll("[data-pid]") || [])].find((node) => (node.dataset.key || node.dataset.process) === name)?.dataset.pid;
  return `${name} ${DONE[verb]}${pid ? `, pid ${pid}` : ""}`;
}

// Asks before an action with a question; the form is sent again once it is confirmed.
export function confirmFirst(event) {
  const [form, button] = [event.target, event.submitter];
  const question = questionOf(form, button);
  if (!question || "asked" in form.dataset) { delete form.dataset.asked; return true; }
  event.preventDefault();
  event.stopImmediatePropagation();
  ask(question, button?.textContent.trim() || "Continue", button?.classList.contains("danger")).then((isSure) => {
    if (!isSure) { button?.focus(); return; }
    form.dataset.asked = "";
    form.requestSubmit(button);
  });
  return false;
}

// Applies a filter without a history entry per key.
export function filterWhileTyping() {
  for (const form of document.querySelectorAll("form[data-filter]")) {
    let timer = null;
    form.addEventListener("input", () => {
      clearTimeout(timer);
      timer = setTimeout(() => apply(form), FILTER_MS);
    });
  }
}

async function apply(form) {
  const query = new URLSearchParams([...new FormData(form)].filter(([name, value]) => value && !(name === "size" && value === "50")));
  const url = new URL(form.getAttribute("action"), location.href);
  url.search = query;
  url.hash = "";
  history.replaceState(null, "", url);
  forgetVersion();
  try {
    const response = await fetch(url, { headers: { Accept: "text/html" } });
    if (response.ok && url.href === location.href) await show(response);
    updateTimes();
  } catch { toast("the server cannot be reached", "bad", "offline"); }
}
