// The lines of a log in memory: their levels, offsets and the starts and exits between them.
import { plain } from "./ansi.js";

const MAX_LINES = 50000;
const MAX_CHARACTERS = 16 * 1024 * 1024;
export const EARLIER_LINES = 1000;
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

function lineOf(raw, at, isNote, place, before) {
  const text = plain(raw);
  const level = isNote ? -1 : levelOf(text);
  return { raw, text, level: level < 0 ? before : level, at, isNote, place };
}

// The lines of a chunk with their offsets, and between them the starts and exits of the process: [raw, at, isNote] each.
export function* linesOf({ from, to, text, marks, lengths }) {
  const lines = text ? text.split("\n") : [];
  if (text.endsWith("\n")) lines.pop();
  const isAscii = text.length === to - from;
  const due = [...marks];
  let at = from;
  for (const [index, line] of lines.entries()) {
    const length = lengths ? lengths[index] : (isAscii ? line.length : bytesOf(line).length) + 1;
    while (due.length && due[0].at <= at) yield noteOf(due.shift());
    let [start, rest] = [at, line];
    while (due.length && due[0].at < at + length - 1) { // within a line that has no end
      const [bytes, mark] = [bytesOf(rest), due.shift()];
      const decoder = new TextDecoder();
      if (mark.at > start) yield [decoder.decode(bytes.slice(0, mark.at - start)).replaceAll("\r", ""), start, false];
      yield noteOf(mark);
      rest = decoder.decode(bytes.slice(mark.at - start));
      start = mark.at;
    }
    yield [rest.replaceAll("\r", ""), start, false];
    at += length;
  }
  for (const mark of due) yield noteOf(mark);
}

function noteOf({ kind, pid, exitCode, at }) {
  const detail = kind === "started" ? (pid ? `, pid ${pid}` : "") : exitCode === null ? "" : `, code ${exitCode}`;
  return [kind + detail, at, true];
}

export class Ring {
  lines = []; // { raw, text, level, at, isNote, place }: `at` is the offset in the file that `place` names; a note is no line of the log
  first = 0; // the number of the first line kept
  start = 0; // its index in `lines`
  characters = 0;
  notes = 0;

  get end() { return this.first + this.lines.length - this.start; }

  at(number) { return this.lines[this.start + number - this.first]; }

  get isFull() { return this.end - this.first >= MAX_LINES - EARLIER_LINES || this.characters > MAX_CHARACTERS / 2; }

  // The first line of the log; notes are none.
  get firstLine() {
    for (let number = this.first; number < this.end; number++) if (this.at(number).at >= 0 && !this.at(number).isNote) return this.at(number);
    return null;
  }

  push(raw, at = -1, isNote = false, place = null) {
    const before = this.end > this.first ? this.at(this.end - 1).level : -1;
    this.#keep(this.lines.push(lineOf(raw, at, isNote, place, before)) - 1);
    while (this.end - this.first > MAX_LINES || this.characters > MAX_CHARACTERS) {
      this.characters -= this.lines[this.start].raw.length;
      this.notes -= this.lines[this.start].isNote;
      this.lines[this.start] = undefined;
      this.start++;
      this.first++;
    }
    if (this.start > MAX_LINES) { this.lines.splice(0, this.start); this.start = 0; }
  }

  #keep(index) {
    this.characters += this.lines[index].raw.length;
    this.notes += this.lines[index].isNote;
  }

  // Adds lines before the first: [raw, at, isNote] each.
  unshift(lines, place) {
    const added = [];
    for (const [raw, at, isNote] of lines) added.push(lineOf(raw, at, isNote, place, added.at(-1)?.level ?? -1));
    this.lines.splice(0, this.start, ...added);
    this.start = 0;
    this.first -= added.length;
    for (let index = 0; index < added.length; index++) this.#keep(index);
    const last = added.at(-1)?.level ?? -1;
    for (let number = this.first + added.length; number < this.end && this.at(number).level < 0; number++) this.at(number).level = last;
  }

  clear() { this.first = this.end; this.lines = []; this.start = this.characters = this.notes = 0; }

  // The number of the line that holds an offset; null where it is not kept.
  find(offset) {
    let found = null;
    for (let number = this.first; number < this.end; number++) {
      const { at, isNote } = this.at(number);
      if (!isNote && at >= 0 && at <= offset && (found === null || at >= this.at(found).at)) found = number;
    }
    return found;
  }
}
