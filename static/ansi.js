// ANSI escape sequences: colours and styles become classes, all other sequences are removed.

const SEQUENCE = /\x1b(?:\[([0-9;:?]*)([@-~])|\][^\x07\x1b]*(?:\x07|\x1b\\)?|[PX^_][^\x1b]*(?:\x1b\\)?|[ -/]*[0-~])|[\x00-\x08\x0b-\x1a\x1c-\x1f\x7f]/g;

export function plain(text) { return text.replace(SEQUENCE, ""); }

// Splits a line into [text, classes] pairs.
export function parts(text) {
  if (!text.includes("\x1b")) return [[text.replace(SEQUENCE, ""), ""]];
  const found = [];
  const style = new Map();
  let last = 0;
  for (const match of text.matchAll(SEQUENCE)) {
    if (match.index > last) found.push([text.slice(last, match.index), [...style.values()].join(" ")]);
    last = match.index + match[0].length;
    if (match[2] === "m") apply(style, match[1].split(";"));
  }
  if (last < text.length) found.push([text.slice(last), [...style.values()].join(" ")]);
  return found;
}

function apply(style, parameters) {
  for (let at = 0; at < parameters.length; at++) {
    const [code, ...rest] = parameters[at].split(":").map(Number);
    if (code === 0) style.clear();
    else if (code === 1) style.set("bold", "ansi-bold");
    else if (code === 2) style.set("dim", "ansi-dim");
    else if (code === 4 && rest[0] !== 0) style.set("underline", "ansi-underline");
    else if (code === 22) { style.delete("bold"); style.delete("dim"); }
    else if (code === 4 || code === 24) style.delete("underline");
    else if (code >= 30 && code <= 37) style.set("colour", `ansi-${code - 30}`);
    else if (code >= 90 && code <= 97) style.set("colour", `ansi-${code - 82}`);
    else if (code === 39) style.delete("colour");
    else if (code === 38 || code === 48) {
      if (rest.length > 4) rest.splice(1, 1); // 38:2:SPACE:RED:GREEN:BLUE
      const [kind, ...values] = rest.length ? rest : parameters.slice(at + 1, at + 5).map(Number);
      if (!rest.length) at += kind === 5 ? 2 : kind === 2 ? 4 : 1;
      const index = kind === 5 ? values[0] : kind === 2 ? nearest(values.slice(0, 3)) : -1;
      if (code === 38 && index >= 0 && index < 256) style.set("colour", classOf(index));
    }
  }
}

const LEVELS = [0, 95, 135, 175, 215, 255];

// The colours 16 to 255 as red, green, blue.
function fromPalette(index) {
  if (index > 231) return new Array(3).fill(8 + (index - 232) * 10);
  const cube = index - 16;
  return [Math.floor(cube / 36), Math.floor(cube / 6) % 6, cube % 6].map((level) => LEVELS[level]);
}

// The nearest of the colours 16 to 255: the first 16 are the theme's own.
function nearest(values) {
  const colour = [0, 1, 2].map((place) => Math.min(255, Math.max(0, values[place] || 0)));
  const distance = (index) => fromPalette(index).reduce((sum, value, place) => sum + (value - colour[place]) ** 2, 0);
  const levels = colour.map((value) => LEVELS.reduce((best, level, place) => (Math.abs(level - value) < Math.abs(LEVELS[best] - value) ? place : best), 0));
  const cube = 16 + 36 * levels[0] + 6 * levels[1] + levels[2];
  const mean = (colour[0] + colour[1] + colour[2]) / 3;
  const grey = 232 + Math.min(23, Math.max(0, Math.round((mean - 8) / 10)));
  return distance(grey) < distance(cube) ? grey : cube;
}

// A contrast of 4.5 with the ground of the log is reached up to, and from, these luminances.
const MAX_ON_LIGHT = 0.15, MIN_ON_DARK = 0.28;
const defined = new Set();
let sheet = null;

// The class of a colour; those after the first 16 are defined when they are first used.
function classOf(index) {
  if (index > 15 && !defined.has(index)) {
    defined.add(index);
    if (!sheet) {
      sheet = new CSSStyleSheet();
      document.adoptedStyleSheets = [...document.adoptedStyleSheets, sheet];
    }
    const linear = fromPalette(index).map((value) => (value / 255 <= 0.04045 ? value / 3294.6 : ((value / 255 + 0.055) / 1.055) ** 2.4));
    const luminance = 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2];
    const darker = linear.map((value) => value * Math.min(1, MAX_ON_LIGHT / luminance));
    const lighter = linear.map((value) => value + (1 - value) * Math.max(0, (MIN_ON_DARK - luminance) / (1 - luminance)));
    sheet.insertRule(`.ansi-${index} { color: light-dark(${rgb(darker)}, ${rgb(lighter)}); }`);
  }
  return `ansi-${index}`;
}

function rgb(linear) {
  const encoded = linear.map((value) => (value <= 0.0031308 ? value * 12.92 : 1.055 * value ** (1 / 2.4) - 0.055));
  return `rgb(${encoded.map((value) => Math.round(255 * value)).join(" ")})`;
}
