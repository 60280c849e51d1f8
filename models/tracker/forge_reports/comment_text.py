"""The text of the comment on a pull request and of the check of a commit, in Markdown.

All text of reports stands in code spans, so no mention, reference, HTML or link in it is live.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Sequence
from urllib.parse import quote

from models.outbound.formats import plain
from models.percentages import change, rounded_down
from models.times import DAY
from models.tracker.coverage.file_coverage import percent
from models.tracker.forge_reports.comment_facts import MAX_FILES, CommitFacts
from models.tracker.forge_reports.commit_reports import SHORT_SHA_DIGITS
from models.tracker.gate.commit_gate import FlagStatus

MAX_CHARACTERS = 60_000
_MAX_SPAN, _MAX_RULES, _MAX_RANGES = 300, 30, 20
_MAX_FLAGS = 50
_URL = re.compile(r"https?://[A-Za-z0-9._~:/?#@!$&*+,;=%-]{1,2000}")
"""Of a link in Markdown: without brackets and quotes."""


def marker(project_id: int, public_url: str | None) -> str:
    """What shows that a comment is of this server and project. Hidden in the page."""
    server = hashlib.sha256((public_url or "").encode()).hexdigest()[:12]
    return f"<!-- pilothouse {server} {project_id} -->"


def code(text: str | None, most: int = _MAX_SPAN) -> str:
    """A code span: on one line, cut, with a fence that is longer than any in the text."""
    line = " ".join(plain((text or "")[: 4 * most]).split()) or "-"
    line = line if len(line) <= most else f"{line[: most - 1]}…"
    fence = "`" * (max((len(run) for run in re.findall("`+", line)), default=0) + 1)
    space = " " if line[0] == "`" or line[-1] == "`" else ""
    return f"{fence}{space}{line}{space}{fence}"


def render(facts: CommitFacts, public_url: str | None) -> str:
    """The whole comment, of at most `MAX_CHARACTERS`."""
    return page(facts, public_url, marker(facts.project.id, public_url))


def page(facts: CommitFacts, public_url: str | None, *first: str) -> str:
    """The text after what comes `first`: sections at the end are left out where it is longer than `MAX_CHARACTERS`."""
    head = [*first, _title(facts), _totals(facts)]
    foot = _foot(facts, public_url)
    sections = [text for make in _SECTIONS if (text := make(facts))]
    more = ""
    while sum(len(part) + 2 for part in (*head, *sections, more, foot)) > MAX_CHARACTERS and sections:
        sections.pop()
        more = "*More is on the page of the commit.*"
    return "\n\n".join(part for part in (*head, *sections, more, foot) if part)[:MAX_CHARACTERS]


def _title(facts: CommitFacts) -> str:
    word = "failed" if facts.has_failed else "passed"
    title = f"### Gate {word}: {code(facts.project.name)}"
    warning = "> **Unverified:** an upload of this commit had no credential of the project."
    return f"{title}\n\n{warning}" if facts.is_unverified else title


def _totals(facts: CommitFacts) -> str:
    runs = [flag.status.run for flag in facts.detail.flags]
    passed, skipped = sum(run.passed for run in runs), sum(run.skipped for run in runs)
    parts = [f"{passed} passed", f"{sum(run.failed + run.errors for run in runs)} failed", f"{skipped} skipped"]
    found = facts.failures
    parts += [f"{found.new_count} new failures"] if found.new_count else []
    parts += [f"{found.fixed_count} fixed"] if found.fixed_count else []
    parts += [f"{found.flaky_count} flaky"] if found.flaky_count else []
    return f"**Tests:** {', '.join(parts)}"


def _coverage(facts: CommitFacts) -> str:
    judged, patch, lines = facts.detail.commit.judged, facts.detail.patch, []
    if judged.coverage is not None:
        lines.append(f"**Coverage:** {rounded_down(judged.coverage.pct)}%{change(judged.verdict.coverage_delta)}")
    share = percent(patch.covered, patch.missed)
    if share is not None:
        lines.append(f"**Changed lines:** {rounded_down(share)}%, {patch.covered} of {patch.covered + patch.missed}")
    return "\n\n".join(lines)


def _rules(facts: CommitFacts) -> str:
    rules = sorted(facts.detail.commit.judged.verdict.rules, key=lambda rule: rule.passed)
    lines = []
    for rule in rules[:_MAX_RULES]:
        flag = f" ({code(rule.flag)})" if rule.flag is not None else ""
        lines.append(f"- {'passed' if rule.passed else '**failed**'}: {code(rule.name)}{flag}: {code(rule.detail)}")
    return "\n".join([*lines, *_and_more(len(rules), _MAX_RULES)])


def _and_more(count: int, shown: int) -> list[str]:
    return [f"- and {count - shown} more"] if count > shown else []


def _flags(facts: CommitFacts) -> str:
    flags = facts.detail.commit.judged.flags
    if len(flags) < 2:
        return ""
    lines = [_flag(flag, facts.detail.commit.newest.created_at) for flag in flags[:_MAX_FLAGS]]
    return "\n".join(["**Flags:**", "", *lines, *_and_more(len(flags), _MAX_FLAGS)])


def _flag(flag: FlagStatus, at: int) -> str:
    run, share = flag.run, flag.coverage
    coverage = f"coverage {rounded_down(share)}%" if share is not None else "no coverage"
    if flag.verdict is None:
        days = max(0, at - run.created_at) // DAY
        return f"- {code(flag.flag)}: {coverage}, carried from {_sha(run.commit_sha)}, {days} days"
    delta = change(flag.verdict.coverage_delta) if share is not None else ""
    return f"- {code(flag.flag)}: {run.tests} tests, {run.failed + run.errors} failed, {coverage}{delta}"


def _sha(commit: str | None) -> str:
    return code((commit or "-")[:SHORT_SHA_DIGITS])


def _new_failures(facts: CommitFacts) -> str:
    lines = []
    for one in facts.failures.new:
        owner = f", owner {code(one.owner)}" if one.owner else ""
        since = f", since {_sha(one.first_commit)}" if one.first_commit else ""
        lines.append(f"- {code(one.name)}{owner}{since}" + (f"<br>{code(one.message)}" if one.message else ""))
    return _collapsed("New failures", facts.failures.new_count, lines)


def _fixed(facts: CommitFacts) -> str:
    return _collapsed("Fixed", facts.failures.fixed_count, [f"- {code(name)}" for name in facts.failures.fixed])


def _flaky(facts: CommitFacts) -> str:
    return _collapsed("Flaky", facts.failures.flaky_count, [f"- {code(name)}" for name in facts.failures.flaky])


def _uncovered(facts: CommitFacts) -> str:
    files = sorted((file for file in facts.detail.patch.files if file.missed), key=lambda file: -file.missed)
    lines = []
    for file in files[:MAX_FILES]:
        ranges = [str(first) if first == last else f"{first}-{last}" for first, last in file.missed_ranges]
        more = f" and {len(ranges) - _MAX_RANGES} more ranges" if len(ranges) > _MAX_RANGES else ""
        lines.append(f"- {code(file.path)}: lines {', '.join(ranges[:_MAX_RANGES])}{more}")
    return _collapsed("Changed lines without coverage", facts.detail.patch.missed, lines, len(files))


def _collapsed(title: str, count: int, lines: Sequence[str], entries: int | None = None) -> str:
    if not lines:
        return ""
    more = _and_more(count if entries is None else entries, len(lines))
    body = "\n".join([*lines, *more])
    return f"<details><summary>{title} ({count})</summary>\n\n{body}\n\n</details>"


def _foot(facts: CommitFacts, public_url: str | None) -> str:
    """The links, the commit and the attempt."""
    newest, links = facts.detail.commit.newest, []
    if public_url is not None:
        commit = quote(facts.commit, safe="")
        links.append(f"[commit]({public_url}/projects/{facts.project.id}/commits/{commit})")
        links.append(f"[run]({public_url}/runs/{newest.id})")
    baseline = facts.detail.commit.judged.verdict.baseline
    compared = facts.pages.comparison(baseline.commit, facts.commit) if facts.pages and baseline else None
    job = None if facts.is_unverified else newest.build_url
    links += [f"[{name}]({url})" for name, url in (("compare", compared), ("CI job", job)) if _is_link(url)]
    attempt = max((one.attempt for flag in facts.detail.flags for one in flag.attempts), default=0)
    more = f", attempt {attempt}" if attempt > 1 else ""
    return f"{' · '.join(links)}\n\n<sub>Commit {_sha(facts.commit)}{more}</sub>".strip()


def _is_link(url: str | None) -> bool:
    return url is not None and _URL.fullmatch(url) is not None


_SECTIONS: Sequence[Callable[[CommitFacts], str]] = (
    _coverage, _rules, _flags, _new_failures, _fixed, _flaky, _uncovered,
)  # fmt: skip
"""From the most important one to that which is left out first."""
