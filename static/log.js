// The log viewer: a ring of lines in memory, of which only those in view are in the page.
import { parts, plain } from "./ansi.js";
import { subscribe } from "./live.js";

const MAX_LINES = 50000;
const MAX_CHARACTERS = 16 * 1024 * 1024;
const FIRST_LINES = 500;
const MAX_NODES = 200;
const MARGIN_LINES = 20;
const WRAPPED_LINES = 500;
const LEVELS = ["error", "warn", "info", "debug"];
const WORDS = { emerg: 0, alert: 0, crit: 0, critical: 0, fatal: 0, panic: 0, error: 0, err: 0, severe: 0, warning: 1, warn: 1, notice: 2, info: 2, debug: 3, trace: 3 };
const LEVEL_WORD = /(?:\blevel["']?\s*[=:]\s*["']?|^\W{0,40}|\s|\[)(emerg|alert|crit(?:ical)?|fatal|panic|err(?:or)?|severe|warn(?:ing)?|notice|info|debug|trace)\b/i;
const SYSLOG = /^<([0-7])>/;

// The level of a line, 0 (error) to 3 (debug); -1 for none.
export function levelOf(text) {
  const priority = SYSLOG.exec(text);
  if (priority) return [0, 0, 0, 0, 1, 2, 2, 3][priority[1]];
  const word = LEVEL_WORD.exec(text.slice(0, 300));
  return word ? WORDS[word[1].toLowerCase()] : -1;
}

export class Ring {
  lines = []; // { raw, text, level }
  first = 0; // the number of the first line kept
  start = 0; // its index in `lines`
  characters = 0;

  get end() { return this.first + this.lines.length - this.start; }

  at(number) { return this.lines[this.start + number - this.first]; }

  push(raw) {
    const text = plain(raw);
    const level = levelOf(text);
    const before = this.end > this.first ? this.at(this.end - 1).level : -1;
    this.lines.push({ raw, text, level: level < 0 ? before : level });
    this.characters += raw.length;
    while (this.end - this.first > MAX_LINES || this.characters > MAX_CHARACTERS) {
      this.characters -= this.lines[this.start].raw.length;
      this.lines[this.start] = undefined;
      this.start++;
      this.first++;
    }
    if (this.start > MAX_LINES) { this.lines.splice(0, this.start); this.start = 0; }
  }

  clear() { this.first = this.end; this.lines = []; this.start = 0; this.characters = 0; }
}

class Viewer {
  #box; #spacer; #rows; #count; #search; #level; #pause; #wrap; #ring = new Ring();
  #matches = null; // line numbers that match the filter; null: all lines
  #checked = 0; // lines before this number are in #matches
  #nodes = new Map(); // line number -> element
  #following = true;
  #newLines = 0;
  #frame = 0;
  #lineHeight = 18;
  #leave = null;
  #end = -1; // byte offset after the last line received
  #current = -1; // the match that "next" and "previous" have selected
  #frozenEnd = null; // while paused, lines from this number on are not shown

  constructor(box) {
    this.#box = box;
    const control = (name) => document.getElementById(`log-${name}`);
    [this.#count, this.#search, this.#level, this.#pause, this.#wrap] = ["count", "search", "level", "pause", "wrap"].map(control);
    this.#spacer = document.createElement("div");
    this.#rows = document.createElement("div");
    this.#spacer.className = "log-space";
    this.#rows.className = "log-rows";
    this.#spacer.append(this.#rows);
    box.replaceChildren(this.#spacer);
    this.#lineHeight = parseFloat(getComputedStyle(box).lineHeight) || 18;
    this.#search.addEventListener("input", () => this.#filter());
    this.#level.addEventListener("change", () => this.#filter());
    this.#pause.addEventListener("change", () => { this.#frozenEnd = this.#pause.checked ? this.#ring.end : null; this.#renderSoon(); });
    this.#wrap.addEventListener("change", () => { box.classList.toggle("wrap", this.#wrap.checked); this.#reset(); });
    box.addEventListener("scroll", () => this.#onScroll());
    control("next").onclick = () => this.#step(1);
    control("previous").onclick = () => this.#step(-1);
    control("copy").onclick = () => navigator.clipboard?.writeText(this.#shownText());
    control("new").onclick = () => { this.#following = true; this.#renderSoon(); };
    document.addEventListener("visibilitychange", () => this.#connect());
    addEventListener("pagehide", () => this.#leave?.());
    this.#connect();
  }

  // A hidden tab is not subscribed; when it is shown again, the lines follow without a gap or are read anew.
  #connect() {
    this.#leave?.();
    const kept = this.#ring.end - this.#ring.first;
    this.#leave = document.hidden ? null : subscribe(`${this.#box.dataset.topic}?lines=${Math.min(Math.max(FIRST_LINES, kept + 500), 10000)}`, (event) => this.#receive(event));
  }

  #receive({ data, refused }) {
    if (refused) { this.#count.textContent = refused === 401 ? "log in to read this log" : "the log cannot be read"; return; }
    const chunk = JSON.parse(data);
    let text = chunk.text;
    if (this.#end >= 0 && chunk.from !== this.#end) { // after a reconnect or a rotation
      if (chunk.from < this.#end && chunk.to >= this.#end) {
        const bytes = new TextEncoder().encode(text);
        text = new TextDecoder().decode(bytes.slice(this.#end - chunk.from));
      } else if (chunk.from === 0 || chunk.to < this.#end || chunk.dropped === 0) this.#clear();
    }
    if (chunk.dropped) this.#add(`… ${chunk.dropped.toLocaleString()} lines not shown …`);
    this.#end = chunk.to;
    if (text.endsWith("\n")) text = text.slice(0, -1);
    if (text) for (const line of text.split("\n")) this.#add(line.replaceAll("\r", ""));
    this.#renderSoon();
  }

  #add(line) {
    this.#ring.push(line);
    if (!this.#following) this.#newLines++;
  }

  #clear() {
    this.#ring.clear();
    this.#reset();
  }

  #reset() {
    this.#rows.replaceChildren();
    this.#nodes.clear();
    this.#renderSoon();
  }

  get #limit() { return Math.min(this.#frozenEnd ?? Infinity, this.#ring.end); }

  #filter() {
    const isActive = this.#search.value || this.#level.value;
    this.#matches = isActive ? [] : null;
    this.#checked = this.#ring.first;
    this.#current = -1;
    this.#count.ariaLive = "polite";
    this.#reset();
  }

  #extendMatches() {
    const needle = this.#search.value.toLowerCase();
    const most = this.#level.value === "" ? 9 : Number(this.#level.value);
    for (let number = Math.max(this.#checked, this.#ring.first); number < this.#limit; number++) {
      const line = this.#ring.at(number);
      const hasLevel = most === 9 || (line.level >= 0 && line.level <= most);
      if (hasLevel && (!needle || line.text.toLowerCase().includes(needle))) this.#matches.push(number);
    }
    this.#checked = Math.max(this.#checked, this.#limit);
    let outdated = 0;
    while (this.#matches[outdated] < this.#ring.first) outdated++;
    if (outdated) this.#matches.splice(0, outdated);
  }

  #onScroll() {
    const atEnd = this.#box.scrollTop + this.#box.clientHeight >= this.#box.scrollHeight - this.#lineHeight;
    this.#following = atEnd;
    if (atEnd) this.#newLines = 0;
    this.#renderSoon();
  }

  #renderSoon() { this.#frame ||= requestAnimationFrame(() => { this.#frame = 0; this.#render(); }); }

  #render() {
    if (this.#matches) this.#extendMatches();
    const total = this.#matches ? this.#matches.length : Math.max(0, this.#limit - this.#ring.first);
    const numberAt = (index) => (this.#matches ? this.#matches[index] : this.#ring.first + index);
    const isWrapped = this.#wrap.checked;
    if (!isWrapped) this.#spacer.style.setProperty("height", `${total * this.#lineHeight}px`);
    else this.#spacer.style.removeProperty("height");
    if (this.#following && !isWrapped) this.#box.scrollTop = this.#box.scrollHeight;
    const inView = Math.ceil(this.#box.clientHeight / this.#lineHeight);
    const from = isWrapped ? Math.max(0, total - WRAPPED_LINES) : Math.max(0, Math.min(Math.floor(this.#box.scrollTop / this.#lineHeight) - MARGIN_LINES, total - inView));
    const to = isWrapped ? total : Math.min(total, from + Math.min(MAX_NODES, inView + 2 * MARGIN_LINES));
    const wanted = new Set();
    for (let index = from; index < to; index++) wanted.add(numberAt(index));
    for (const [number, node] of this.#nodes) if (!wanted.has(number)) { node.remove(); this.#nodes.delete(number); }
    let place = this.#rows.firstChild;
    for (const number of wanted) {
      let node = this.#nodes.get(number);
      if (!node) { node = this.#lineNode(number); this.#nodes.set(number, node); this.#rows.insertBefore(node, place); }
      else if (node === place) place = place.nextSibling;
      else this.#rows.insertBefore(node, place);
    }
    if (!isWrapped) this.#rows.style.setProperty("transform", `translateY(${from * this.#lineHeight}px)`);
    else this.#rows.style.removeProperty("transform");
    if (this.#following && isWrapped) this.#box.scrollTop = this.#box.scrollHeight;
    this.#showCount(total);
  }

  #showCount(total) {
    const all = this.#ring.end - this.#ring.first;
    const lines = (count) => `${count.toLocaleString("en")} ${count === 1 ? "line" : "lines"}`;
    const text = this.#matches ? `${total.toLocaleString("en")} of ${lines(all)}` : all ? lines(all) : "no lines yet";
    if (this.#count.textContent !== text) this.#count.textContent = text;
    const button = document.getElementById("log-new");
    button.hidden = this.#following || !this.#newLines;
    if (!button.hidden) button.textContent = `${this.#newLines.toLocaleString("en")} new lines`;
  }

  #lineNode(number) {
    const line = this.#ring.at(number);
    const node = document.createElement("div");
    node.className = `line${line.level === 0 ? " error" : line.level === 1 ? " warning" : ""}${number === this.#current ? " current" : ""}`;
    for (const [text, classes] of parts(line.raw)) this.#append(node, text, classes);
    return node;
  }

  #append(node, text, classes) {
    const needle = this.#search.value.toLowerCase();
    let target = node;
    if (classes) { target = document.createElement("span"); target.className = classes; node.append(target); }
    let rest = text;
    while (needle) {
      const at = rest.toLowerCase().indexOf(needle);
      if (at < 0) break;
      const mark = document.createElement("mark");
      mark.textContent = rest.slice(at, at + needle.length);
      target.append(rest.slice(0, at), mark);
      rest = rest.slice(at + needle.length);
    }
    target.append(rest || (text ? "" : "\u200b"));
  }

  #step(direction) {
    if (!this.#matches?.length) return;
    const at = this.#matches.indexOf(this.#current);
    const next = at < 0 ? (direction > 0 ? 0 : this.#matches.length - 1) : (at + direction + this.#matches.length) % this.#matches.length;
    this.#current = this.#matches[next];
    this.#following = false;
    this.#box.scrollTop = Math.max(0, next * this.#lineHeight - this.#box.clientHeight / 2);
    this.#reset();
  }

  #shownText() {
    const numbers = this.#matches ?? Array.from({ length: this.#limit - this.#ring.first }, (_, index) => this.#ring.first + index);
    return numbers.map((number) => this.#ring.at(number).text).join("\n");
  }
}

export { LEVELS };
for (const box of document.querySelectorAll("[data-topic]")) new Viewer(box);
