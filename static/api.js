// Sends the operation that the interface page shows, with the values of its form, and shows the response as it comes.
const MAX_SHOWN = 200000;
const form = document.getElementById("try");
const credential = document.getElementById("credential");
const scheme = document.getElementById("scheme");
let abort = null;

function requestOf() {
  let path = form.dataset.path;
  const [query, headers] = [new URLSearchParams(), { Accept: "application/json, text/plain, */*;q=0.5" }];
  const fields = new FormData();
  for (const field of form.querySelectorAll("[data-in]")) {
    const { in: where } = field.dataset;
    if (field.type === "file") { if (field.files.length) fields.append(field.name, field.files[0]); continue; }
    if (!field.value) continue;
    if (where === "path") path = path.replaceAll(`{${field.name}}`, encodeURIComponent(field.value));
    else if (where === "query") for (const value of field.value.split("\n")) query.append(field.name, value);
    else if (where === "header") headers[field.name] = field.value;
    else fields.append(field.name, field.value);
  }
  if (credential.value) headers[scheme.value] = scheme.value === "Authorization" ? `Bearer ${credential.value}` : credential.value;
  const options = { method: form.dataset.method, headers };
  const text = document.getElementById("in-body");
  if (text) { options.body = text.value; headers["Content-Type"] = form.dataset.mediaType; }
  else if (form.dataset.mediaType === "multipart/form-data") options.body = fields;
  return [query.size ? `${path}?${query}` : path, options];
}

async function show(response, started) {
  document.getElementById("answer").hidden = false;
  document.getElementById("answer-status").textContent = `${response.status} ${response.statusText}`;
  const type = response.headers.get("Content-Type") || "no body";
  document.getElementById("answer-about").textContent = `${type}, ${Math.round(performance.now() - started)} ms, ${decodeURI(response.url)}`;
  const place = document.getElementById("answer-body");
  place.textContent = "";
  if (/json/.test(type)) {
    const text = await response.text();
    try { place.textContent = JSON.stringify(JSON.parse(text), null, 2).slice(0, MAX_SHOWN); } catch { place.textContent = text.slice(0, MAX_SHOWN); }
    return;
  }
  if (!/^(text|application\/(yaml|xml))|svg/.test(type)) { place.textContent = `${(await response.blob()).size} bytes, not text`; return; }
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  for (let part = await reader.read(); !part.done && place.textContent.length < MAX_SHOWN; part = await reader.read()) place.append(part.value);
  reader.cancel();
}

form?.addEventListener("submit", async (event) => {
  event.preventDefault();
  abort?.abort();
  abort = new AbortController();
  const stop = document.getElementById("try-stop");
  stop.hidden = false;
  sessionStorage.setItem("api credential", JSON.stringify([scheme.value, credential.value]));
  try {
    const [url, options] = requestOf();
    const started = performance.now();
    await show(await fetch(url, { ...options, signal: abort.signal }), started);
  } catch (error) {
    document.getElementById("answer").hidden = false;
    if (error.name !== "AbortError") document.getElementById("answer-status").textContent = `not sent: ${error.message}`;
  }
  stop.hidden = true;
});
document.getElementById("try-stop")?.addEventListener("click", () => abort?.abort());
if (credential) [scheme.value, credential.value] = JSON.parse(sessionStorage.getItem("api credential") || "null") || [scheme.value, ""];
const list = document.querySelector(".operations");
const current = list?.querySelector("[aria-current]");
if (current) list.scrollTop = current.offsetTop - list.clientHeight / 2; // without scrolling the page
