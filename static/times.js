// Times: relative in the text, exact on hover.

const UNITS = [["year", 31557600], ["month", 2629800], ["week", 604800], ["day", 86400], ["hour", 3600], ["minute", 60], ["second", 1]];
const relative = new Intl.RelativeTimeFormat("en", { numeric: "auto" });
const exact = new Intl.DateTimeFormat(undefined, { dateStyle: "medium", timeStyle: "long" }); // with the zone

export function updateTimes() {
  for (const time of document.querySelectorAll("time[datetime]")) {
    const at = new Date(time.dateTime);
    const seconds = (at - Date.now()) / 1000;
    const [unit, length] = UNITS.find(([, size]) => Math.abs(seconds) >= size) || UNITS.at(-1);
    const text = relative.format(Math.round(seconds / length), unit);
    if (time.textContent !== text) time.textContent = text; // an unchanged node keeps its selection
    time.title = exact.format(at);
  }
}
