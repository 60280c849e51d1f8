// The log viewer: a ring of lines in memory, of which only those in view are in the page.
import { parts, plain } from "./ansi.js";
import { subscribe } from "./live.js";
import { toast } from "./toast.js";

const MAX_LINES = 50000;
const MAX_CHARACTERS = 16 * 1024 * 1024;
const FIRST_LINES = 500;
const MAX_NODES = 200;
const MARGIN_LINES = 20;
const WRAPPED_LINES = 500;
const BATCH_LINES = 5000;
const SEARCH_LIMIT_MS = 1000;
const LEVELS = ["error", "warn", "info", "debug"];
const bytesOf = (text) => new TextEncoder().encode(text);
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
  lines = []; // { raw, text, level, at, isNote }: `at` is the offset in the file; a note is no line of the log
  first = 0; // the number of the first line kept
  start = 0; // its index in `lines`
  characters = 0;
  notes = 0;

  get end() { return this.first + this.lines.length - this.start; }

  at(number) { return this.lines[this.start + number - this.first]; }

  push(raw, at = -1, isNote = false) {
    const text = plain(raw);
    const level = isNote ? -1 : levelOf(text);
    this.notes += isNote;
    const before = this.end > this.first ? this.at(this.end - 1).level : -1;
    this.lines.push({ raw, text, level: level < 0 ? before : level, at, isNote });
    this.characters += raw.length;
    while (this.end - this.first > MAX_LINES || this.characters > MAX_CHARACTERS) {
      this.characters -= this.lines[this.start].raw.length;
      this.notes -= this.lines[this.start].isNote;
      this.lines[this.start] = undefined;
      this.start++;
      this.first++;
    }
    if (this.start > MAX_LINES) { this.lines.splice(0, this.start); this.start = 0; }
  }

  clear() { this.first = this.end; this.lines = []; this.start = this.characters = this.notes = 0; }

  // The number of the line that holds an offset; -1 where it is not kept.
  find(offset) {
    let found = -1;
    for (let number = this.first; number < this.end; number++) {
      const { at, isNote } = this.at(number);
      if (!isNote && at >= 0 && at <= offset && (found < 0 || at >= this.at(found).at)) found = number;
    }
    return found;
  }
}

class Viewer {
  #box; #spacer; #rows; #count; #search; #level; #pause; #wrap; #ring = new Ring();
  #expression; #link;
  #matches = null; // line numbers that match the filter; null: all lines
  #checked = 0; // lines before this number are in #matches
  #ranges = new Map(); // line number -> what of it to highlight
  #filterId = 0;
  #worker = null;
  #isSearching = false;
  #problem = "";
  #isWaiting = true; // for the first chunk after a subscription
  #cursor = ""; // the place after the last chunk, as the server names it
  #wantedAt = -1; // the offset of a link to a line
  #nodes = new Map(); // line number -> element
  #following = true;
  #newLines = 0;
  #frame = 0;
  #lineHeight = 18;
  #leave = null;
  #current = -1; // the match that "next" and "previous" have selected
  #frozenEnd = null; // while paused, lines from this number on are not shown

  constructor(box) {
    this.#box = box;
    const control = (name) => document.getElementById(`log-${name}`);
    [this.#count, this.#search, this.#level, this.#pause, this.#wrap, this.#expression, this.#link] = ["count", "search", "level", "pause", "wrap", "expression", "link"].map(control);
    this.#spacer = document.createElement("div");
    this.#rows = document.createElement("div");
    this.#spacer.className = "log-space";
    this.#rows.className = "log-rows";
    this.#spacer.append(this.#rows);
    box.replaceChildren(this.#spacer);
    this.#lineHeight = parseFloat(getComputedStyle(box).lineHeight) || 18;
    this.#search.addEventListener("input", () => this.#filter());
    this.#level.addEventListener("change", () => this.#filter());
    this.#expression.addEventListener("change", () => this.#filter());
    this.#pause.addEventListener("change", () => { this.#frozenEnd = this.#pause.checked ? this.#ring.end : null; this.#renderSoon(); });
    this.#wrap.addEventListener("change", () => { box.classList.toggle("wrap", this.#wrap.checked); this.#reset(); });
    box.addEventListener("scroll", () => this.#onScroll());
    control("next").onclick = () => this.#step(1);
    control("previous").onclick = () => this.#step(-1);
    control("copy").onclick = () => navigator.clipboard?.writeText(this.#shownText());
    this.#link.onclick = () => this.#copyLink();
    this.#rows.addEventListener("click", ({ target }) => this.#onClick(target));
    addEventListener("hashchange", () => this.#openLink());
    control("new").onclick = () => { this.#following = true; this.#renderSoon(); };
    document.addEventListener("visibilitychange", () => this.#connect());
    addEventListener("pagehide", () => this.#leave?.());
    this.#wantedAt = this.#linkedOffset();
    this.#connect();
  }

  // A hidden tab is not subscribed; when it is shown again, the lines follow without a gap or are read anew.
  #connect() {
    this.#leave?.();
    this.#isWaiting = true;
    const place = this.#wantedAt >= 0 ? `&at=${this.#wantedAt}` : this.#cursor ? `&after=${this.#cursor}` : "";
    this.#leave = document.hidden ? null : subscribe(`${this.#box.dataset.topic}?lines=${FIRST_LINES}${place}`, (event) => this.#receive(event));
  }

  #receive({ data, refused }) {
    if (refused) { this.#count.textContent = refused === 401 ? "log in to read this log" : "the log cannot be read"; return; }
    const chunk = JSON.parse(data);
    if (chunk.beginning) { // for a tab that has just begun, or for all after a reconnect
      const goesOn = chunk.after !== null && chunk.after === this.#cursor;
      if (!this.#isWaiting && !goesOn) return;
      if (!goesOn) this.#clear();
      this.#isWaiting = false;
    } else if (this.#isWaiting) return;
    this.#cursor = chunk.cursor;
    if (chunk.dropped) this.#add(`… ${chunk.dropped.toLocaleString("en")} lines not shown …`, -1, true);
    this.#addLines(chunk);
    if (this.#wantedAt >= 0) this.#goTo(this.#wantedAt);
    this.#renderSoon();
  }

  // Adds the lines of a chunk with their offsets, and between them the starts and exits of the process.
  #addLines({ from, to, text, marks, lengths }) {
    const lines = text ? text.split("\n") : [];
    if (text.endsWith("\n")) lines.pop();
    const isAscii = text.length === to - from;
    const due = [...marks];
    let at = from;
    lines.forEach((line, index) => {
      const length = lengths ? lengths[index] : (isAscii ? line.length : bytesOf(line).length) + 1;
      while (due.length && due[0].at <= at) this.#addNote(due.shift());
      let [start, rest] = [at, line];
      while (due.length && due[0].at < at + length - 1) { // within a line that has no end
        const [bytes, mark] = [bytesOf(rest), due.shift()];
        const decoder = new TextDecoder();
        if (mark.at > start) this.#addLine(decoder.decode(bytes.slice(0, mark.at - start)), start);
        this.#addNote(mark);
        rest = decoder.decode(bytes.slice(mark.at - start));
        start = mark.at;
      }
      this.#addLine(rest, start);
      at += length;
    });
    for (const mark of due) this.#addNote(mark);
  }

  #addLine(line, at) { this.#add(line.replaceAll("\r", ""), at, false); }

  #addNote({ kind, pid, exitCode, at }) {
    const detail = kind === "started" ? (pid ? `, pid ${pid}` : "") : exitCode === null ? "" : `, code ${exitCode}`;
    this.#add(kind + detail, at, true);
  }

  #add(line, at, isNote) {
    this.#ring.push(line, at, isNote);
    if (!this.#following && !isNote) this.#newLines++;
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
    this.#ranges.clear();
    this.#checked = this.#ring.first;
    this.#current = -1;
    this.#count.ariaLive = "polite";
    this.#filterId++;
    this.#problem = "";
    if (this.#expression.checked) {
      try { new RegExp(this.#search.value); } catch (error) { this.#problem = error.message; }
    }
    this.#search.setAttribute("aria-invalid", this.#problem ? "true" : "false");
    this.#reset();
  }

  #hasLevel(line) {
    const most = this.#level.value === "" ? 9 : Number(this.#level.value);
    return most === 9 || line.isNote || (line.level >= 0 && line.level <= most);
  }

  // Adds the lines that match to #matches: those of a search when the worker has answered.
  #extendMatches() {
    let outdated = 0;
    while (this.#matches[outdated] < this.#ring.first) this.#ranges.delete(this.#matches[outdated++]);
    if (outdated) this.#matches.splice(0, outdated);
    this.#checked = Math.max(this.#checked, this.#ring.first);
    if (this.#problem || this.#isSearching) return;
    const numbers = [];
    const until = this.#search.value ? Math.min(this.#limit, this.#checked + BATCH_LINES) : this.#limit;
    for (let number = this.#checked; number < until; number++) if (this.#hasLevel(this.#ring.at(number))) numbers.push(number);
    this.#checked = Math.max(this.#checked, until);
    if (!this.#search.value) for (const number of numbers) this.#matches.push(number);
    else if (numbers.length) this.#searchIn(numbers);
    else if (this.#checked < this.#limit) this.#renderSoon();
  }

  #searchIn(numbers) {
    const [id, isExpression] = [this.#filterId, this.#expression.checked];
    const worker = this.#worker ??= new Worker(new URL("log_filter.js", import.meta.url), { type: "module" });
    const end = (problem) => {
      clearTimeout(limit);
      this.#isSearching = false;
      if (problem) { worker.terminate(); this.#worker = null; }
      if (id === this.#filterId) this.#problem = problem;
      this.#renderSoon();
    };
    const limit = isExpression ? setTimeout(() => end("the expression takes longer than 1 s"), SEARCH_LIMIT_MS) : 0;
    worker.onerror = () => end("the search has failed");
    worker.onmessage = ({ data }) => {
      if (id === this.#filterId) {
        for (const [index, ranges] of data.found) {
          this.#matches.push(numbers[index]);
          this.#ranges.set(numbers[index], ranges);
        }
      }
      end("");
    };
    this.#isSearching = true;
    worker.postMessage({ id, source: this.#search.value, isExpression, texts: numbers.map((number) => this.#ring.at(number).text) });
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
    const all = this.#ring.end - this.#ring.first - this.#ring.notes;
    const lines = (count) => `${count.toLocaleString("en")} ${count === 1 ? "line" : "lines"}`;
    const notes = this.#matches && !this.#search.value ? this.#ring.notes : 0;
    const text = this.#problem || (this.#matches ? `${Math.max(0, total - notes).toLocaleString("en")} of ${lines(all)}` : all ? lines(all) : "no lines yet");
    if (this.#count.textContent !== text) this.#count.textContent = text;
    const button = document.getElementById("log-new");
    button.hidden = this.#following || !this.#newLines;
    if (!button.hidden) button.textContent = `${this.#newLines.toLocaleString("en")} new lines`;
  }

  #lineNode(number) {
    const line = this.#ring.at(number);
    const node = document.createElement("div");
    node.className = `line${line.isNote ? " note-line" : line.level === 0 ? " error" : line.level === 1 ? " warning" : ""}${number === this.#current ? " current" : ""}`;
    const ranges = this.#ranges.get(number) || [];
    let offset = 0;
    for (const [text, classes] of parts(line.raw)) { this.#append(node, text, classes, ranges, offset); offset += text.length; }
    if (!node.firstChild) node.append("\u200b");
    return node;
  }

  // Appends a part of a line that begins at `offset` of it, with the matches highlighted.
  #append(node, text, classes, ranges, offset) {
    let target = node;
    if (classes) { target = document.createElement("span"); target.className = classes; node.append(target); }
    let done = 0;
    for (const [start, end] of ranges) {
      const [from, to] = [Math.max(start - offset, done), Math.min(end - offset, text.length)];
      if (from >= to) continue;
      const mark = document.createElement("mark");
      mark.textContent = text.slice(from, to);
      target.append(text.slice(done, from), mark);
      done = to;
    }
    target.append(text.slice(done) || (text ? "" : "\u200b"));
  }

  #step(direction) {
    if (!this.#matches?.length) return;
    const at = this.#matches.indexOf(this.#current);
    const next = at < 0 ? (direction > 0 ? 0 : this.#matches.length - 1) : (at + direction + this.#matches.length) % this.#matches.length;
    this.#select(this.#matches[next]);
  }

  // Shows a line in the middle of the view and marks it.
  #select(number) {
    const index = this.#matches ? this.#matches.indexOf(number) : number - this.#ring.first;
    this.#current = number;
    this.#following = false;
    this.#spacer.style.setProperty("height", `${(this.#matches?.length ?? this.#ring.end - this.#ring.first) * this.#lineHeight}px`);
    this.#box.scrollTop = Math.max(0, index * this.#lineHeight - this.#box.clientHeight / 2);
    this.#link.disabled = false;
    this.#reset();
  }

  #onClick(target) {
    const node = target.closest(".line");
    const number = [...this.#nodes].find((entry) => entry[1] === node)?.[0];
    if (number === undefined || !getSelection().isCollapsed) return;
    this.#current = number;
    this.#link.disabled = false;
    for (const [at, other] of this.#nodes) other.classList.toggle("current", at === number);
  }

  #copyLink() {
    const line = this.#current >= this.#ring.first ? this.#ring.at(this.#current) : null;
    if (!line || line.at < 0) return;
    const address = new URL(location.href);
    address.searchParams.set("log", this.#box.dataset.topic.split("/").at(-1));
    address.hash = `at=${line.at}`;
    history.replaceState(history.state, "", address);
    navigator.clipboard?.writeText(address.href);
    toast("the link is in the address bar and copied");
  }

  #linkedOffset() { return Number(/^#at=(\d{1,15})$/.exec(location.hash)?.[1] ?? -1); }

  #openLink() {
    const offset = this.#linkedOffset();
    if (offset < 0 || this.#goTo(offset)) return;
    this.#wantedAt = offset;
    this.#cursor = "";
    this.#connect();
  }

  // Shows the line that holds an offset; false where it is not kept.
  #goTo(offset) {
    const number = this.#ring.find(offset);
    if (number < 0) return false;
    this.#wantedAt = -1;
    this.#search.value = this.#level.value = "";
    this.#filter();
    this.#select(number);
    this.#box.scrollIntoView({ block: "nearest" });
    return true;
  }

  #shownText() {
    const numbers = this.#matches ?? Array.from({ length: this.#limit - this.#ring.first }, (_, index) => this.#ring.first + index);
    return numbers.map((number) => this.#ring.at(number).text).join("\n");
  }
}

export { LEVELS };
for (const box of document.querySelectorAll("[data-topic]")) new Viewer(box);
