// A worker that searches lines of a log, so that an expensive expression does not stop the page.
const MAX_MARKS = 50;

self.onmessage = ({ data: { id, source, isExpression, texts } }) => {
  self.postMessage({ hasBegun: true });
  const pattern = new RegExp(isExpression ? source : source.replace(/[.*+?^${}()|[\]\\]/g, "\\$&"), "gi");
  const found = []; // [index, [start, end]...]
  texts.forEach((text, index) => {
    const marks = [];
    let isFound = false;
    for (const match of text.matchAll(pattern)) {
      isFound = true;
      if (match[0]) marks.push([match.index, match.index + match[0].length]);
      if (marks.length >= MAX_MARKS) break;
    }
    if (isFound) found.push([index, marks]);
  });
  self.postMessage({ id, found });
};
