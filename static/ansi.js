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
    if (match[2] === "m") apply(style, match[1].split(/[;:]/).map(Number));
  }
  if (last < text.length) found.push([text.slice(last), [...style.values()].join(" ")]);
  return found;
}

function apply(style, codes) {
  for (let at = 0; at < codes.length; at++) {
    const code = codes[at];
    if (code === 0) style.clear();
    else if (code === 1) style.set("bold", "ansi-bold");
    else if (code === 2) style.set("dim", "ansi-dim");
    else if (code === 4) style.set("underline", "ansi-underline");
    else if (code === 22) { style.delete("bold"); style.delete("dim"); }
    else if (code === 24) style.delete("underline");
    else if (code >= 30 && code <= 37) style.set("colour", `ansi-${code - 30}`);
    else if (code >= 90 && code <= 97) style.set("colour", `ansi-${code - 82}`);
    else if (code === 39) style.delete("colour");
    else if (code === 38 || code === 48) {
      const [kind, ...values] = codes.slice(at + 1, at + 5);
      if (code === 38) style.set("colour", `ansi-${nearest(kind === 5 ? fromPalette(values[0]) : values)}`);
      at += kind === 5 ? 2 : 4;
    }
  }
}

// The 256 colours as red, green, blue.
function fromPalette(index = 0) {
  if (index < 16) return index;
  if (index > 231) { const grey = 8 + (index - 232) * 10; return [grey, grey, grey]; }
  const cube = index - 16;
  return [Math.floor(cube / 36), Math.floor(cube / 6) % 6, cube % 6].map((level) => (level ? 55 + level * 40 : 0));
}

// The nearest of the 16 colours, which the theme defines with enough contrast.
function nearest(colour) {
  if (typeof colour === "number") return colour;
  const [red, green, blue] = colour.map((value) => value || 0);
  const [high, low] = [Math.max(red, green, blue), Math.min(red, green, blue)];
  if (high - low < 40) return high > 200 ? 15 : high > 100 ? 7 : 8;
  const middle = (high + low) / 2;
  return (red > middle ? 1 : 0) + (green > middle ? 2 : 0) + (blue > middle ? 4 : 0) + (high > 180 ? 8 : 0);
}
