// The log viewer: a ring of lines in memory, of which only those in view are in the page.
import { parts, plain } from "./ansi.js";
import { placeOf, linesBefore, searchBefore } from "./log_history.js";
import { subscribe } from "./live.js";
import { EARLIER_LINES, Ring, levelOf, linesOf } from "./log_lines.js";
import { toast } from "./toast.js";

const FIRST_LINES = 500;
const MAX_NODES = 200;
const MARGIN_LINES = 20;
const WRAPPED_LINES = 500;
const BATCH_LINES = 5000;
const SEARCH_LIMIT_MS = 1000;
const TYPING_MS = 250;
const [MIN_FITTED_LINES, MAX_FITTED_LINES] = [5, 200];
const MARKED_CHARACTERS = 2000;
const FOUND = -1e9; // the number of the first of the lines that the server has found
const LEVELS = ["error", "warning", "info"];

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
  #current = NaN; // the line that "next" and "previous" have selected
  #earlier = []; // matching lines before those in memory, as the server has found them
  #earlierCounts = null; // { lines, matches } of the part before those in memory
  #earlierSearch = null; // its AbortController
  #typing = 0;
  #unread = null; // the line before which nothing can be read
  #isLoading = false; // earlier lines
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
    if (chunk.problem) { this.#count.textContent = chunk.problem; return; } // it goes on when the file can be read
    if (chunk.beginning) { // for a tab that has just begun, or for all after a reconnect
      const goesOn = chunk.after !== null && chunk.after === this.#cursor;
      if (!this.#isWaiting && !goesOn) return;
      if (!goesOn) this.#clear();
      this.#isWaiting = false;
    } else if (this.#isWaiting) return;
    this.#cursor = chunk.cursor;
    if (chunk.dropped) this.#add(`… ${chunk.dropped.toLocaleString("en")} lines not shown …`, -1, true);
    const place = placeOf(chunk.cursor);
    for (const [line, at, isNote] of linesOf(chunk)) this.#add(line, at, isNote, place);
    if (this.#wantedAt >= 0) this.#goTo(this.#wantedAt);
    this.#renderSoon();
  }

  #add(line, at, isNote, place) {
    this.#ring.push(line, at, isNote, place);
    if (!this.#following && !isNote) this.#newLines++;
  }

  // Lines are loaded before the first one when it comes near.
  async #loadEarlier() {
    const line = this.#ring.firstLine;
    if (this.#isLoading || this.#isWaiting || this.#matches || this.#wrap.checked || !line?.at || line === this.#unread || this.#ring.isFull) return;
    this.#isLoading = true;
    try {
      const chunk = await linesBefore(this.#box.dataset.topic, line, EARLIER_LINES);
      if (line !== this.#ring.firstLine) return; // the log was read anew
      const before = this.#ring.first;
      this.#ring.unshift(linesOf(chunk), line.place);
      const top = this.#box.scrollTop + (before - this.#ring.first) * this.#lineHeight;
      this.#setHeight(this.#total);
      if (!this.#following) this.#box.scrollTop = top;
      this.#renderSoon();
    } catch (error) {
      this.#unread = line; // it is not tried again
      toast(error.message, "bad", "log");
    } finally {
      this.#isLoading = false;
    }
  }

  // Searches what the file has before the lines in memory.
  async #searchEarlier() {
    const [line, id] = [this.#ring.firstLine, this.#filterId];
    if (!this.#matches || this.#problem || !line?.at || id !== this.#filterId) return;
    this.#earlierSearch = new AbortController();
    const level = LEVELS[this.#level.value] ?? "all";
    const wanted = { q: this.#search.value, level, ...(this.#expression.checked && { regex: "true" }) };
    try {
      const { lines, matches, found } = await searchBefore(this.#box.dataset.topic, line, wanted, this.#earlierSearch.signal);
      if (id !== this.#filterId) return;
      this.#earlierCounts = { lines, matches };
      this.#earlier = found.map(({ at, text }) => ({ raw: text, text: plain(text), level: levelOf(text), at, isNote: false, place: line.place }));
      this.#reset();
    } catch (error) {
      if (id === this.#filterId && error.name !== "AbortError") { this.#problem = error.message; this.#renderSoon(); }
    }
  }

  #line(number) { return number < FOUND / 2 ? this.#earlier[number - FOUND] : this.#ring.at(number); }

  // How many lines are shown, and the number of each of them.
  get #total() { return this.#matches ? this.#earlier.length + this.#matches.length : Math.max(0, this.#limit - this.#ring.first); }

  #numberAt(index) {
    if (!this.#matches) return this.#ring.first + index;
    return index < this.#earlier.length ? FOUND + index : this.#matches[index - this.#earlier.length];
  }

  #indexOf(number) {
    if (!this.#matches) return number - this.#ring.first;
    if (number < FOUND / 2) return number - FOUND;
    const index = this.#matches.indexOf(number);
    return index < 0 ? -1 : index + this.#earlier.length;
  }

  #setHeight(total) {
    if (!this.#wrap.checked) this.#spacer.style.setProperty("height", `${total * this.#lineHeight}px`);
    else this.#spacer.style.removeProperty("height");
    this.#fitBox();
  }

  // The box is as high as the lines of the log, up to what the style sheet says; a filter does not change it.
  #fitBox() {
    const lines = this.#ring.end - this.#ring.first;
    if (this.#isWaiting || this.#wrap.checked || lines > MAX_FITTED_LINES) { this.#box.style.removeProperty("max-height"); return; }
    this.#box.style.setProperty("max-height", `${Math.max(MIN_FITTED_LINES, lines + 2) * this.#lineHeight}px`);
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
    const chosen = !isActive && this.#current < FOUND / 2 ? this.#line(this.#current) : null;
    this.#matches = isActive ? [] : null;
    this.#earlierSearch?.abort();
    [this.#earlier, this.#earlierCounts] = [[], null];
    clearTimeout(this.#typing);
    if (isActive) this.#typing = setTimeout(() => this.#searchEarlier(), TYPING_MS);
    this.#ranges.clear();
    this.#checked = this.#ring.first;
    this.#current = NaN;
    this.#count.ariaLive = "polite";
    this.#filterId++;
    this.#problem = "";
    if (this.#expression.checked) {
      try { new RegExp(this.#search.value); } catch (error) { this.#problem = error.message; }
    }
    this.#search.setAttribute("aria-invalid", this.#problem ? "true" : "false");
    this.#reset();
    if (chosen) this.#open(chosen.at); // in its place among the other lines
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
    let limit = 0; // set when the worker runs: its start may take longer
    const end = (problem) => {
      clearTimeout(limit);
      this.#isSearching = false;
      if (problem) { worker.terminate(); this.#worker = null; }
      if (id === this.#filterId) this.#problem = problem;
      this.#renderSoon();
    };
    worker.onerror = () => end("the search has failed");
    worker.onmessage = ({ data }) => {
      if (data.hasBegun) {
        if (isExpression) limit = setTimeout(() => end("the expression takes longer than 1 s"), SEARCH_LIMIT_MS);
        return;
      }
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
    if (this.#box.scrollTop < MARGIN_LINES * this.#lineHeight) this.#loadEarlier();
    this.#renderSoon();
  }

  #renderSoon() { this.#frame ||= requestAnimationFrame(() => { this.#frame = 0; this.#render(); }); }

  #render() {
    if (this.#matches) this.#extendMatches();
    const total = this.#total;
    const isWrapped = this.#wrap.checked;
    this.#setHeight(total);
    if (this.#following && !isWrapped) this.#box.scrollTop = this.#box.scrollHeight;
    const inView = Math.ceil(this.#box.clientHeight / this.#lineHeight);
    const from = isWrapped ? Math.max(0, total - WRAPPED_LINES) : Math.max(0, Math.min(Math.floor(this.#box.scrollTop / this.#lineHeight) - MARGIN_LINES, total - inView));
    const to = isWrapped ? total : Math.min(total, from + Math.min(MAX_NODES, inView + 2 * MARGIN_LINES));
    const wanted = new Set();
    for (let index = from; index < to; index++) wanted.add(this.#numberAt(index));
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
    const count = (number, word) => `${number.toLocaleString("en")} ${word}${number === 1 ? "" : "s"}`;
    const hasEarlier = Boolean(this.#ring.firstLine?.at);
    const notes = this.#matches && !this.#search.value ? this.#ring.notes : 0;
    let text = all ? count(all, "line") : "no lines yet";
    if (this.#problem) text = this.#problem;
    else if (this.#matches) {
      const { lines, matches } = this.#earlierCounts ?? { lines: 0, matches: 0 };
      const found = Math.max(0, this.#matches.length - notes) + matches;
      text = `${found.toLocaleString("en")} of ${count(all + lines, "line")}`;
      if (hasEarlier && !this.#earlierCounts) text += ", searching the rest of the file";
      else if (matches > this.#earlier.length) text += `, the newest ${total.toLocaleString("en")} shown`;
    } else if (hasEarlier) text += this.#ring.isFull ? ", a search finds earlier ones" : ", earlier ones load at the top";
    if (this.#count.textContent !== text) this.#count.textContent = text;
    const button = document.getElementById("log-new");
    button.hidden = this.#following || !this.#newLines;
    if (!button.hidden) button.textContent = `${this.#newLines.toLocaleString("en")} new lines`;
  }

  #lineNode(number) {
    const line = this.#line(number);
    const node = document.createElement("div");
    node.className = `line${line.isNote ? " note-line" : line.level === 0 ? " error" : line.level === 1 ? " warning" : ""}${number === this.#current ? " current" : ""}`;
    const ranges = this.#ranges.get(number) || (number < FOUND / 2 ? this.#rangesIn(line.text) : []);
    let offset = 0;
    for (const [text, classes] of parts(line.raw)) { this.#append(node, text, classes, ranges, offset); offset += text.length; }
    if (!node.firstChild) node.append("\u200b");
    return node;
  }

  // What a search has found in a line that the server has sent.
  #rangesIn(text) {
    const source = this.#search.value;
    if (!source || this.#problem) return [];
    const pattern = new RegExp(this.#expression.checked ? source : source.replace(/[.*+?^${}()|[\]\\]/g, "\\$&"), "gi");
    return [...text.slice(0, MARKED_CHARACTERS).matchAll(pattern)].filter((match) => match[0]).map((match) => [match.index, match.index + match[0].length]);
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
    const total = this.#matches ? this.#total : 0;
    if (!total) return;
    const at = this.#indexOf(this.#current);
    const next = at < 0 ? (direction > 0 ? 0 : total - 1) : (at + direction + total) % total;
    this.#select(this.#numberAt(next));
  }

  // Shows a line in the middle of the view and marks it.
  #select(number) {
    this.#current = number;
    this.#following = false;
    this.#setHeight(this.#total);
    this.#box.scrollTop = Math.max(0, this.#indexOf(number) * this.#lineHeight - this.#box.clientHeight / 2);
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
    const line = this.#current < FOUND / 2 || this.#current >= this.#ring.first ? this.#line(this.#current) : null;
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
    if (offset >= 0) this.#open(offset);
  }

  // Shows the line at an offset; the log is read anew where it is not kept.
  #open(offset) {
    if (this.#goTo(offset)) return;
    this.#wantedAt = offset;
    this.#cursor = "";
    this.#connect();
  }

  // Shows the line that holds an offset; false where it is not kept.
  #goTo(offset) {
    const number = this.#ring.find(offset);
    if (number === null) return false;
    this.#wantedAt = -1;
    this.#search.value = this.#level.value = "";
    this.#filter();
    this.#select(number);
    this.#box.scrollIntoView({ block: "nearest" });
    return true;
  }

  #shownText() { return Array.from({ length: this.#total }, (_, index) => this.#line(this.#numberAt(index)).text).join("\n"); }
}

for (const box of document.querySelectorAll("[data-topic]")) new Viewer(box);
