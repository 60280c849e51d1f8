// Forms that change charts. The key is kept for this tab alone and goes in a header; long work shows that it goes on.
"use strict";
{
  const place = "charts key";
  const kept = () => sessionStorage.getItem(place) || "";

  function dress() {
    for (const row of document.querySelectorAll("[data-key-row]")) {
      row.hidden = Boolean(kept());
      row.querySelector("input").required = !kept();
      row.nextElementSibling.hidden = !kept();
    }
  }

  function working(form) {
    const line = document.createElement("p");
    line.className = "working";
    line.innerHTML = '<progress aria-label="Working"></progress><span role="status"></span><span class="faint"></span>'
      + '<button type="button">Stop waiting</button>';
    form.append(line);
    const since = Date.now();
    const tell = () => { line.querySelector(".faint").textContent = `${Math.round((Date.now() - since) / 1000)} s`; };
    const timer = setInterval(tell, 1000);
    tell();
    say("", "");
    line.querySelector("[role=status]").textContent = "working …";
    return { stop: line.querySelector("button"), end: () => { clearInterval(timer); line.remove(); } };
  }

  async function send(event) {
    const form = event.target.closest("form[data-keyed]");
    if (!form || event.defaultPrevented) return;
    event.preventDefault();
    const body = new URLSearchParams(new FormData(form, event.submitter));
    const key = form.dataset.keyed ? body.get("key") || kept() : "";
    body.delete("key");
    const headers = { Accept: "text/html" };
    if (/^[ -~\u00a0-\u00ff]+$/.test(key)) headers[form.dataset.keyed] = key;
    else if (key) body.set("key", key); // no header can bear it
    const buttons = [...form.querySelectorAll("button")];
    const leaving = new AbortController();
    const sign = working(form);
    buttons.forEach((one) => { one.disabled = true; });
    sign.stop.onclick = () => leaving.abort();
    try {
      const answer = await fetch(form.action, { method: "POST", body, headers, signal: leaving.signal });
      const page = await answer.text();
      sign.end();
      if (answer.status === 401) sessionStorage.removeItem(place);
      else if (key && answer.status !== 403) sessionStorage.setItem(place, key);
      if (answer.redirected) location.assign(answer.url);
      else show(page);
    } catch (error) {
      sign.end();
      if (error.name === "AbortError") say("Nobody waits for it any more. A change that had begun is finished all the same: the history tells.", "warn");
      else say("the server cannot be reached", "bad");
    }
    buttons.forEach((one) => { one.disabled = false; });
    if (document.activeElement === document.body) event.submitter?.focus({ preventScroll: true });
  }

  function show(text) {
    const fresh = new DOMParser().parseFromString(text, "text/html").getElementById("main");
    document.getElementById("main").replaceChildren(...fresh.childNodes);
    version = ""; // what is shown is no answer to the question that is asked again and again
    dress();
    tellTimes();
    const outcome = document.getElementById("outcome");
    outcome?.focus({ preventScroll: true });
    outcome?.scrollIntoView({ block: "start" });
  }

  document.addEventListener("submit", send);
  document.addEventListener("click", (event) => {
    if (!event.target.closest("[data-forget-key]")) return;
    sessionStorage.removeItem(place);
    dress();
    event.target.closest("form").querySelector("[name=key]").focus();
  });
  dress();
}
