// YAML in colour, without elements (CSS highlights), and an editor: a text field over a layer with the same text.
const CHECK_MS = 500;
const INDENT = "  ";
const KINDS = { comment: /(?:^|\s)#.*$/, key: /^\s*(?:- )*[\w."'/-]+(?=:(?:\s|$))/, text: /(["'])(?:\\.|(?!\1).)*\1/, number: /(?<=[:-]\s)(?:-?\d[\d.e+_]*|true|false|null|~)(?=\s*(?:#|$))/ };
const highlights = "highlights" in CSS ? Object.fromEntries(Object.keys(KINDS).map((kind) => { const made = new Highlight(); CSS.highlights.set(`yaml-${kind}`, made); return [kind, made]; })) : null;

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
  const [frame, layer, numbers, status] = ["div", "pre", "pre", "p"].map((name) => document.createElement(name));
  frame.className = "editor";
  layer.className = "editor-layer";
  numbers.className = "editor-numbers";
  layer.ariaHidden = numbers.ariaHidden = "true";
  status.className = "hint faint";
  status.role = "status";
  area.before(frame);
  frame.append(numbers, layer, area);
  frame.after(status);
  let [ranges, timer] = [[], null];
  const update = () => {
    for (const [kind, range] of ranges) highlights[kind].delete(range);
    layer.textContent = `${area.value}\n`;
    ranges = colour(layer);
    const count = area.value.split("\n").length;
    numbers.textContent = Array.from({ length: count }, (_, line) => line + 1).join("\n");
    scroll();
  };
  const scroll = () => { layer.scrollTop = numbers.scrollTop = area.scrollTop; layer.scrollLeft = area.scrollLeft; };
  const check = async () => {
    try {
      const response = await fetch(area.dataset.editor, { method: "POST", headers: { "Content-Type": "text/plain" }, body: area.value });
      const { message, line } = await response.json();
      status.textContent = message || (area.value.trim() ? "valid YAML" : "");
      area.ariaInvalid = String(Boolean(message));
      numbers.dataset.line = line || "";
    } catch { status.textContent = "not checked: the server cannot be reached"; }
  };
  area.addEventListener("input", () => { update(); clearTimeout(timer); timer = setTimeout(check, CHECK_MS); });
  area.addEventListener("scroll", scroll);
  area.addEventListener("keydown", (event) => {
    if (!(event.ctrlKey || event.metaKey) || !["[", "]"].includes(event.key)) return; // Tab leaves the field
    event.preventDefault();
    indent(area, event.key === "]");
    area.dispatchEvent(new Event("input"));
  });
  area.title = "Ctrl+] indents, Ctrl+[ the other way";
  update();
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
