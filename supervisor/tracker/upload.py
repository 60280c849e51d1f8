"""`run.py upload`: the reports of a CI job go to a server, wherever that is. It needs no configuration of one."""

from __future__ import annotations

import argparse
import glob
import os
import signal
import sys
import urllib.parse
import uuid
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from models import values
from models.errors import Denied, Invalid, Problem, Unavailable
from supervisor.tracker import ci
from supervisor.tracker.delivery import Server, packed, why

PASSED, GATE_FAILED = 0, 1
EXITS: Mapping[type[Problem], int] = {Invalid: 2, Unavailable: 3, Denied: 4}
"""Exit codes: what was asked for cannot be; the server cannot be reached or is broken; it refused."""

_FIELDS = ("branch", "commit", "flag", "runKey", "baseBranch", "prNumber", "buildUrl", "buildName", "repoUrl", "module")


def add_to(parser: argparse.ArgumentParser) -> None:
    """Adds what is to be said behind the verb."""
    parser.epilog = (
        "A token is taken from PILOTHOUSE_TOKEN. Exit codes: 0 passed, 1 the gate failed, 2 usage, "
        "3 unreachable, 4 refused."
    )
    parser.set_defaults(alone=main)
    parser.add_argument("--url", help="where it serves (default: PILOTHOUSE_URL, else http://127.0.0.1:8080)")
    parser.add_argument("--token-file", type=Path, help="a file with the token, instead of PILOTHOUSE_TOKEN")
    parser.add_argument("--project", required=True)
    for name, metavar in {"junit": "test reports", "jacoco": "coverage reports"}.items():
        told = f"{metavar}; ** goes through folders; may be repeated"
        parser.add_argument(f"--{name}", metavar="GLOB", action="append", default=[], help=told)
    for name in _FIELDS:
        parser.add_argument(f"--{_dashed(name)}", dest=name, metavar=name.upper(), help=_HELP.get(name))
    parser.add_argument("--no-gzip", action="store_true", help="send the files as they are")
    parser.add_argument("--gate", action="store_true", help="exit with 1 where the quality gate fails")
    parser.add_argument("--timeout", type=_seconds, default=120.0, metavar="S", help="seconds without an answer (120)")


_HELP = {
    "branch": "this and what follows: default from the CI system's environment, where there is one",
    "runKey": "uploads of one key are one run (default: the CI system's run, else a new one)",
}


def _seconds(raw: str) -> float:
    try:
        return values.some_time(values.seconds(raw))
    except values.Unfit as unfit:
        raise argparse.ArgumentTypeError(str(unfit)) from None


def _dashed(name: str) -> str:
    return "".join(f"-{letter.lower()}" if letter.isupper() else letter for letter in name)


def main(asked: argparse.Namespace) -> int:
    """Returns the exit code. Ctrl-C ends the process at once (130 to a shell): nothing is left of it.

    As an exception it could come between two instructions of ours just before a wait, which would not notice it.
    """
    before = signal.getsignal(signal.SIGINT)
    if before is signal.default_int_handler:  # a script's background job ignores it, and goes on
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    try:
        return _upload(asked)
    except Problem as problem:
        print(f"pilothouse upload: {problem.message}", file=sys.stderr)
        return EXITS[type(problem)]
    finally:
        signal.signal(signal.SIGINT, before)


def _upload(asked: argparse.Namespace) -> int:
    files = [(name, file) for name in ("junit", "jacoco") for file in _matches(name, getattr(asked, name))]
    if not asked.junit:
        raise Invalid("--junit GLOB is needed: a run has test reports")
    server = Server(_base(asked.url), _token(asked.token_file), asked.timeout)
    with packed(_fields(asked), files, not asked.no_gzip) as parcel:
        run = server.post(parcel)
    print(_summary(run, server.base))
    if not asked.gate:
        return PASSED
    for line in server.rules(run["runId"]):
        print(line)
    print(f"gate: {run['gateStatus']}")
    return PASSED if run["gateStatus"] == "PASSED" else GATE_FAILED


def _summary(run: Mapping[str, Any], base: str) -> str:
    covered = run["lineCoveragePct"]
    coverage = "" if covered is None else f", {int(covered * 100) / 100:.2f} % of lines"
    counts = f"{run['tests']} tests, {run['failures']} failed, {run['skipped']} skipped{coverage}"
    return f"{run['project']}: {counts}; {base}{run['runPath']}"


def _fields(asked: argparse.Namespace) -> dict[str, str]:
    """What was given, else what the CI system tells; a flag's run is one of its own."""
    if not asked.project.strip():
        raise Invalid("--project is blank")
    told = ci.facts(os.environ)
    given = {name: value for name in _FIELDS if (value := getattr(asked, name))}
    if "runKey" in told and given.get("flag"):
        told["runKey"] += f"/{given['flag']}"
    return {"project": asked.project, "runKey": f"upload-{uuid.uuid4().hex}", **told, **given}


def _matches(name: str, patterns: Sequence[str]) -> list[Path]:
    found: dict[Path, None] = {}
    for pattern in patterns:
        names = [pattern] if Path(pattern).is_file() else sorted(glob.glob(pattern, recursive=True))  # noqa: PTH207 (absolute ones too)
        files = [path for path in map(Path, names) if path.is_file()]
        if not files:
            why_not = "this is a folder: name its files" if Path(pattern).is_dir() else "there is no such file"
            raise Invalid(f"--{name} {pattern}: {why_not}")
        found |= dict.fromkeys(files)
    return list(found)


def _base(given: str | None) -> str:
    url = (given or os.environ.get("PILOTHOUSE_URL") or "http://127.0.0.1:8080").rstrip("/")
    try:
        parts = urllib.parse.urlsplit(url)
        good = parts.scheme in ("http", "https") and bool(parts.hostname) and (parts.port is None or parts.port > 0)
    except ValueError:
        good = False
    if not good or not url.isascii() or not url.isprintable() or " " in url:
        raise Invalid("--url must be an http or https URL")
    if "@" in parts.netloc or parts.query or parts.fragment:
        raise Invalid("--url has a host, a port and a path alone")
    return url


def _token(file: Path | None) -> str:
    token = os.environ.get("PILOTHOUSE_TOKEN", "")
    if file is not None:
        try:
            token = file.read_text()
        except (OSError, ValueError) as error:
            raise Invalid(f"--token-file {file}: {why(error)}") from None
        if not token.strip():
            raise Invalid(f"--token-file {file}: it is empty")
    token = token.strip()
    if not token.isascii() or not token.isprintable() or " " in token:
        raise Invalid("the token is none: it has characters that a token cannot have")
    return token
