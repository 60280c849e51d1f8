"""What is published of the claims: the small table of README.md, and why each missed target is missed."""

from collections.abc import Mapping, Sequence

from benchmarks.claims import Claim
from benchmarks.report import table

SUMMARY: Mapping[str, Sequence[str]] = {
    "a process is killed → its replacement runs, of 500": [
        "supervision: kill -9 of one of 500 processes → its replacement executes / runit",
        "supervision: kill -9 of one of 500 processes → its replacement executes / supervisord",
    ],
    "status of 500 processes, 8 clients": ["supervision: status of all 500 processes, 8 clients / supervisord"],
    "JUnit report of 25 MB: upload → stored and judged": [
        "reports: JUnit report of 25 MB: upload → stored and judged / junitparser and peewee"
    ],
    "status of a release": ["charts: status of the only release / helm"],
    "report posted → the last of 10,000 streams has the event": [
        "streams: report posted → the last client has the event, 10000 streams / nchan"
    ],
    "memory with 500 processes (PSS)": ["supervision: memory (PSS), 500 processes / pm2"],
}
"""The rows of the table in README.md: the beginnings of the keys of their claims."""

REASONS: Mapping[str, str] = {
    "supervision: kill -9": "runit has a small C process for each service; here one Python process reads the pidfd, "
    "decides and starts. The exit is stored afterwards.",
    "supervision: launch": "More than half is the start of the server (modules, stores, 500 definitions), the rest are "
    "the 500 starts.",
    "supervision: processor time when idle": "The target is older than the metrics: CPU and memory of each process are "
    "sampled every 5 s. `supervisor.metrics.interval: 0` turns that off.",
    "supervision: memory (RSS)": "The target is older than the metrics, the schedules and the log forwarding.",
    "reports: JUnit": "The bare parser only parses. Pilothouse also receives, cleans, stores and judges the tests.",
    "charts: ": "A read is one request to the API server, which helm needs too. helm's own start, 60 ms, is all that "
    "can be saved where there is one release; with 200 the target is met.",
    "browser: slowest or largest page: LCP": "Within 1 % of the target, less than two runs on a shared machine differ.",
}
"""By the beginning of a claim's key, why its target is missed."""


def reason(claim: Claim) -> str:
    """Why the target is missed; empty without a stated reason."""
    return next((text for key, text in REASONS.items() if claim.key.startswith(key)), "")


def missed_table(claims: Sequence[Claim]) -> str:
    """The missed targets with their reasons, as Markdown."""
    missed = [claim for claim in claims if claim.verdict.startswith("*")]
    rows = [[f"{claim.area}: {claim.text}", *claim.cells()[2:6], reason(claim)] for claim in missed]
    return table(["measured", "Pilothouse", "compared with", "ratio", "target", "why"], rows)


def summary_table(claims: Sequence[Claim]) -> str:
    """The table of README.md. Raises `StopIteration` if a claim of `SUMMARY` was not measured."""
    rows = []
    for label, keys in SUMMARY.items():
        found = [next(claim for claim in claims if claim.key.startswith(key)).cells() for key in keys]
        rows.append([label, found[0][2], "; ".join(cells[3] for cells in found)])
    return table(["", "Pilothouse: median (range)", "compared with"], rows)
