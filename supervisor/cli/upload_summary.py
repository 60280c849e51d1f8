"""The summary of an upload in Markdown, for the page of a CI job.

Names and messages of tests stand in code spans, so that nothing in them is markup. Only the standard library is used:
this is a part of the stand-alone uploader.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from decimal import ROUND_DOWN, Decimal
from typing import Any

_MAX_FAILURES = 10
_MAX_TEXT_CHARACTERS = 200


def summary(
    run: Mapping[str, Any], detail: Mapping[str, Any] | None, verdict: Mapping[str, Any] | None, base: str
) -> str:
    """A summary of the answer to an upload, and of `GET /runs/{id}` and a verdict, where the token may read them."""
    status = verdict["status"] if verdict else run["gateStatus"]
    lines = [f"### Gate {'passed' if status == 'PASSED' else 'failed'}: {code_span(run['project'])}", ""]
    info = detail["run"] if detail else run
    lines.append(_totals_line(info, info.get("total", info.get("tests", 0))))
    delta = detail["gate"]["coverageDelta"] if detail else None
    lines += _coverage_lines(info, None if delta is None else float(delta))
    if verdict:
        lines += _rule_lines(verdict["rules"])
    if detail:
        lines += _failure_lines(detail["failures"], detail["failureCount"])
    lines += ["", f"[Run {run['runId']}]({base}{run['runPath']})" + _commit_text(info.get("commit"))]
    return "\n".join(lines)


def _totals_line(info: Mapping[str, Any], tests: int) -> str:
    counts = [f"{info['passed']} passed", f"{info['failed']} failed"]
    counts += [
        f"{info[name]} {text}" for name, text in (("errors", "with errors"), ("skipped", "skipped")) if info[name]
    ]
    return f"{tests} tests: {', '.join(counts)}"


def _coverage_lines(info: Mapping[str, Any], delta: float | None) -> list[str]:
    covered, changed = info.get("lineCoveragePct"), info.get("patchCoveragePct")
    texts = []
    if covered is not None:
        texts.append(f"Coverage {_rounded_down(covered)}%" + ("" if delta is None else f" ({delta:+.1f})"))
    if changed is not None:
        texts.append(f"changed lines {_rounded_down(changed)}%")
    return ["", "; ".join(texts)] if texts else []


def _rounded_down(value: float) -> str:
    """A percentage as the server shows it: 99.96 does not read 100."""
    return str(Decimal(repr(float(value))).quantize(Decimal("0.1"), ROUND_DOWN))


def _rule_lines(rules: Sequence[Mapping[str, Any]]) -> list[str]:
    if not rules:
        return []
    has_flags = len({rule["flag"] for rule in rules if rule["flag"]}) > 1
    rows = [
        f"| {rule['name']}{' (' + _cell(rule['flag']) + ')' if has_flags and rule['flag'] else ''}"
        f" | {'passed' if rule['passed'] else '**failed**'} | {_cell(rule['detail'])} |"
        for rule in rules
    ]
    return ["", "| Rule | Verdict | Reason |", "|---|---|---|", *rows]


def _failure_lines(failures: Sequence[Mapping[str, Any]], count: int) -> list[str]:
    if not count:
        return []
    shown = failures[:_MAX_FAILURES]
    rows = []
    for failure in shown:
        row = f"- {code_span(' '.join((failure['className'], failure['name'])).strip())}"
        if failure["failureMessage"]:
            row += f": {code_span(failure['failureMessage'])}"
        first = (failure.get("firstFailing") or {}).get("commit")
        rows.append(f"{row}, failing since {code_span(first[:7])}" if first else row)
    more = [f"- and {count - len(shown)} more"] if count > len(shown) else []
    return ["", f"<details><summary>{count} failures</summary>", "", *rows, *more, "", "</details>"]


def _commit_text(commit: str | None) -> str:
    return f", commit {code_span(commit[:12])}" if commit else ""


def _cell(text: str) -> str:
    """A code span in a table, where a vertical bar ends the cell even within a span."""
    return code_span(text.replace("|", "\u00a6"))


def code_span(text: str) -> str:
    """The text as a code span, fenced longer than any fence in it."""
    line = " ".join("".join(c if c.isprintable() else " " for c in text).split())
    line = line if len(line) <= _MAX_TEXT_CHARACTERS else line[: _MAX_TEXT_CHARACTERS - 1] + "\u2026"
    fence = "`" * (1 + max(map(len, re.findall("`+", line)), default=0))
    padding = " " if line.startswith("`") or line.endswith("`") or not line else ""
    return f"{fence}{padding}{line}{padding}{fence}"
