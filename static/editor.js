// YAML in colour, without elements (CSS highlights), and an editor: a text field over a layer with the same text.
const CHECK_MS = 500;
const INDENT = "  ";
const CHART_FIELDS = ["chartRef", "version"];
const KINDS = { comment: /(?:^|\s)#.*$/, key: /^\s*(?:- )*[\w."'/-]+(?=:(?:\s|$))/, text: /(["'])(?:\\.|(?!\1).)*\1/, number: /(?<=[:-]\s)(?:-?\d[\d.e+_]*|true|false|null|~)(?=\s*(?:#|$))/ };
const highlights = "highlights" in CSS ? Object.fromEntries(Object.keys(KINDS).map((kind) => { const made = new Highlight(); CSS.highlights.set(`yaml-${kind}`, made); return [kind, made]; })) : null;

const fault = highlights && new Highlight();
if (fault) CSS.highlights.set("yaml-fault", fault);

export function colour(place) {
  const node = place.firstChild;
  if (!highlights || !node) return [];
  const ranges = [];
  let start = 0;
  for (const line of node.data.split("\n")) {
    for (const [kind, pattern] of Object.entries(KINDS)) {
      const found = pattern.exec(line);
      if (!found) continue;
      const range = new Range();
      range.setStart(node, start + found.index);
      range.setEnd(node, start + found.index + found[0].length);
      highlights[kind].add(range);
      ranges.push([kind, range]);
    }
    start += line.length + 1;
  }
  return ranges;
}

function build(area) {
  const [frame, layer, numbers, status, findings, pair] = ["div", "pre", "pre", "p", "ul", "div"].map((name) => document.createElement(name));
  frame.className = "editor";
  layer.className = "editor-layer";
  numbers.className = "editor-numbers";
  layer.ariaHidden = numbers.ariaHidden = "true";
  status.className = "hint faint";
  status.role = "status";
  findings.className = "plain findings";
  pair.className = "beside";
  area.before(pair);
  const column = document.createElement("div");
  column.append(frame, status, findings);
  pair.append(column, chartValues(area));
  frame.append(numbers, layer, area);
  let [ranges, timer, running] = [[], null, null];
  const update = () => {
    for (const [kind, range] of ranges) highlights[kind].delete(range);
    layer.textContent = `${area.value}\n`;
    ranges = colour(layer);
    const count = area.value.split("\n").length;
    numbers.textContent = Array.from({ length: count }, (_, line) => line + 1).join("\n");
    mark();
    scroll();
  };
  // The line of the fault is red; the message stands right below the editor.
  const mark = () => {
    const count = numbers.textContent.split("\n").length;
    const line = Math.min(Number(numbers.dataset.line), count); // a fault may lie behind the last line
    fault?.clear();
    if (!line || !fault) return;
    for (const { firstChild: node } of [numbers, layer]) {
      const before = node.data.split("\n").slice(0, line - 1);
      const range = new Range();
      const start = before.join("\n").length + (line > 1);
      range.setStart(node, start);
      range.setEnd(node, start + node.data.slice(start).split("\n")[0].length);
      fault.add(range);
    }
  };
  const scroll = () => { layer.scrollTop = numbers.scrollTop = area.scrollTop; layer.scrollLeft = area.scrollLeft; };
  const check = async () => {
    running?.abort(); // the check of older values
    running = new AbortController();
    try {
      const response = await fetch(addressOf(area), { method: "POST", headers: { "Content-Type": "text/plain" }, body: area.value, signal: running.signal });
      if (!response.ok) throw new Error();
      const { message, line, findings: found } = await response.json();
      document.getElementById(area.getAttribute("aria-describedby"))?.remove(); // what the server found before
      const errors = found.filter(({ level }) => level === "error").length;
      status.textContent = message || (errors ? `valid YAML, but lint finds ${errors} ${errors === 1 ? "fault" : "faults"}` : area.value.trim() ? "valid YAML" : "");
      area.ariaInvalid = String(Boolean(message || errors));
      status.classList.toggle("bad", area.ariaInvalid === "true");
      numbers.dataset.line = line || "";
      mark();
      findings.replaceChildren(...found.map(({ level, text }) => Object.assign(document.createElement("li"), { className: level, textContent: `${level === "unknown" ? "" : `${level}: `}${text}` })));
    } catch (error) { if (error.name !== "AbortError") status.textContent = "not checked: the server cannot be reached"; }
  };
  const checkSoon = () => { clearTimeout(timer); timer = setTimeout(check, CHECK_MS); };
  area.addEventListener("input", () => { update(); checkSoon(); });
  for (const name of CHART_FIELDS) area.form?.elements[name]?.addEventListener("change", checkSoon);
  area.addEventListener("scroll", scroll);
  area.addEventListener("keydown", (event) => {
    if (!(event.ctrlKey || event.metaKey) || !["[", "]"].includes(event.key)) return; // Tab leaves the field
    event.preventDefault();
    indent(area, event.key === "]");
    area.dispatchEvent(new Event("input"));
  });
  area.title = "Ctrl+] indents, Ctrl+[ the other way";
  update();
  if (area.ariaInvalid === "true") check(); // the server has refused it
}

// The address of the check, with the chart that the form names.
function addressOf(area) {
  const url = new URL(area.dataset.editor, location.href);
  for (const name of CHART_FIELDS) {
    const value = area.form?.elements[name]?.value.trim();
    if (value) url.searchParams.set(name, value);
  }
  return url;
}

// The default values of the chart, to copy from; fetched when they are opened or the chart changes.
function chartValues(area) {
  const [details, summary, text, copy] = ["details", "summary", "pre", "button"].map((name) => document.createElement(name));
  summary.textContent = "Values of the chart";
  text.className = "yaml";
  text.tabIndex = 0;
  text.ariaLabel = "Default values of the chart";
  copy.type = "button";
  copy.textContent = "Copy all";
  copy.onclick = () => navigator.clipboard?.writeText(text.textContent).then(() => { copy.textContent = "copied"; });
  details.append(summary, text, copy);
  const load = async () => {
    if (!details.open) return;
    const url = addressOf(area);
    copy.hidden = true;
    if (!url.searchParams.has("chartRef")) { text.textContent = "Name a chart above to see its values."; return; }
    text.textContent = "loading …";
    try {
      const response = await fetch(url);
      text.textContent = await response.text();
      copy.hidden = !response.ok;
      if (response.ok) colour(text);
    } catch { text.textContent = "the server cannot be reached"; }
  };
  details.addEventListener("toggle", load);
  for (const name of CHART_FIELDS) area.form?.elements[name]?.addEventListener("change", load);
  return details;
}

function indent(area, isIn) {
  const from = area.value.lastIndexOf("\n", area.selectionStart - 1) + 1;
  const to = area.selectionEnd;
  const lines = area.value.slice(from, to).split("\n").map((line) => (isIn ? INDENT + line : line.replace(/^ {1,2}/, "")));
  area.setRangeText(lines.join("\n"), from, to, "end");
}

function start() {
  document.querySelectorAll("pre.yaml").forEach(colour);
  document.querySelectorAll("textarea[data-editor]").forEach((area) => { if (!area.closest(".editor")) build(area); });
}

document.addEventListener("click", (event) => {
  const fold = event.target.closest("[data-fold]");
  const copy = event.target.closest("[data-copy-all]");
  if (fold) {
    const all = [...document.querySelectorAll("main details.group")];
    const isOpen = all.some((item) => item.open);
    all.forEach((item) => { item.open = !isOpen; });
    fold.textContent = isOpen ? "Unfold all" : "Fold all";
  }
  if (copy) navigator.clipboard?.writeText([...document.querySelectorAll(copy.dataset.copyAll)].map((node) => node.textContent).join("\n---\n")).then(() => { copy.textContent = "copied"; });
});
new MutationObserver(start).observe(document.getElementById("main"), { childList: true });
start();
