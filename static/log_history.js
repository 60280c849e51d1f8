// What a log file has before the lines in memory: read by the server, searched by it in a worker process.
const base = document.body.dataset.base;

// What of a cursor stays the same for all lines of one file.
export function placeOf(cursor) {
  const [run, rotation, , inode] = cursor.split(".");
  return { run, rotation, inode };
}

const cursorOf = ({ at, place }) => `${place.run}.${place.rotation}.${at}.${place.inode}`;

function addressOf(topic, what, line, parameters) {
  const [, name, stream] = topic.split("/");
  return `${base}/api/v1/processes/logs/${name}/${what}?${new URLSearchParams({ stream, before: cursorOf(line), ...parameters })}`;
}

async function read(address, signal) {
  const response = await fetch(address, { headers: { Accept: "application/json" }, signal });
  const answer = await response.json();
  if (!response.ok) throw new Error(answer.message || "the server cannot read the log");
  return answer;
}

// The lines before a line, as a chunk of the live stream.
export async function linesBefore(topic, line, lines) {
  const part = await read(addressOf(topic, "lines", line, { lines }));
  return { ...part, from: part.start, to: part.end };
}

// How many lines before a line match, and the newest of these: { lines, matches, found: [{ at, text }] }.
export const searchBefore = (topic, line, wanted, signal) => read(addressOf(topic, "search", line, wanted), signal);
