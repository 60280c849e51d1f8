"""`run.py upload`: posts the reports of a CI job, and exits with the verdict of the quality gate.

Only the standard library is used: this is a part of the stand-alone uploader.
"""

from __future__ import annotations

import argparse
import glob
import os
import re
import signal
import sys
import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from supervisor.cli.attached_files import attached_files, source_archive
from supervisor.cli.changed_lines import (
    NoDiff,
    changed_lines,
    checked_out,
    diff_file,
    pushed_commit,
    repository_paths,
    work_tree,
)
from supervisor.cli.ci_systems import facts
from supervisor.cli.streams import discard_output, prepare_streams
from supervisor.cli.upload_request import REFUSED, UNREACHABLE, USAGE, RemoteServer, UploadError, packed, reason_of
from supervisor.cli.upload_server import server_of
from supervisor.cli.upload_summary import summary

_OWN_KEY = "upload-"
"""The prefix of generated keys, for a run of one upload."""

PASSED, GATE_FAILED = 0, 1
"""Exit codes, in addition to those of `UploadError`."""

_FIELDS = (
    "branch", "commit", "flag", "runKey", "jobKey", "attempt", "baseBranch", "prNumber", "buildUrl", "buildName",
    "repoUrl", "module",
)  # fmt: skip
_MAX_POLL_SECONDS = 15.0
_MAX_DURATION_SECONDS = 36_500 * 86_400.0
"""As in the configuration: beyond it the timers of the system overflow."""
_PERF_FLAG = "perf"
_RECURSIVE = re.compile(r"(?:(.*?)/)?\*\*(?:/+(.*))?", re.DOTALL)
"""A pattern with `**`: what stands before and after."""
_MAX_PATHS = 50_000
"""The files of a repository that the server reads."""


def add_to(parser: argparse.ArgumentParser) -> None:
    """Adds the options of the verb."""
    parser.epilog = (
        f"The token is read from PILOTHOUSE_TOKEN. Exit codes: 0 passed, 1 the gate failed, {USAGE} usage, "
        f"{UNREACHABLE} the server is unreachable or fails, {REFUSED} it refused."
    )
    parser.set_defaults(alone=main)
    parser.add_argument("verb", nargs="?", choices=["finish"], help="finish: close the run of the key")
    parser.add_argument("--partial", action="store_true", help="finish: fewer uploads than expected are enough")
    parser.add_argument(
        "--url", help="the server (default: PILOTHOUSE_URL, else the one of this machine, as ctl finds it)"
    )
    parser.add_argument("--token-file", type=Path, help="a file with the token, instead of PILOTHOUSE_TOKEN")
    parser.add_argument("--project", required=True)
    for name, kind in _KINDS.items():
        text = f"{kind}; ** matches folders; may be repeated"
        options: dict[str, Any] = {"nargs": "?", "const": _NAMED} if name == "attachments" else {}
        parser.add_argument(f"--{name}", metavar="GLOB", action="append", default=[], help=text, **options)
    for name in _FIELDS:
        parser.add_argument(f"--{_dashed(name)}", dest=name, metavar=name.upper(), help=_HELP.get(name))
    parser.add_argument("--expect", type=_count, metavar="N", help="the run is complete when N jobs have uploaded")
    parser.add_argument("--complete", action="store_true", help="the run is complete with this upload")
    parser.add_argument(
        "--reruns",
        choices=["worst", "last"],
        help="which outcome counts of a test that passed and failed in one suite (worst)",
    )
    _add_repository_options(parser)
    parser.add_argument("--no-gzip", action="store_true", help="send the files as they are")
    _add_verdict_options(parser)
    parser.add_argument("--timeout", type=_seconds, default=120.0, metavar="S", help="seconds without an answer (120)")
    parser.add_argument(
        "--retry-for", type=_duration, metavar="S",
        help="try again so long while the server cannot be reached or is overloaded (120s; 0: once); "
        "a server that was neither named nor found is tried again only with this option",
    )  # fmt: skip


def _add_verdict_options(parser: argparse.ArgumentParser) -> None:
    """Adds the options on the quality gate."""
    parser.add_argument(
        "--gate", nargs="?", choices=["commit", "flag"], const="commit",
        help="exit with 1 if the quality gate fails: for all of the commit so far (commit), or for the flag alone",
    )  # fmt: skip
    parser.add_argument(
        "--wait", type=_duration, nargs="?", const=600.0, metavar="S",
        help="wait until the run is complete, at most so long (10m), then exit as --gate does",
    )  # fmt: skip


def _add_repository_options(parser: argparse.ArgumentParser) -> None:
    """Adds the options on the repository and the summary."""
    parser.add_argument(
        "--diff",
        default="auto",
        metavar="auto|off|FILE",
        help="the changed lines: by default from git, where there is a base branch",
    )
    parser.add_argument(
        "--codeowners", nargs="?", const="auto", metavar="FILE",
        help="send the CODEOWNERS file, by default that of the repository",
    )  # fmt: skip
    parser.add_argument(
        "--summary", type=Path, nargs="?", const=Path(), metavar="FILE",
        help="append a summary in Markdown to FILE (default: GITHUB_STEP_SUMMARY, else standard output)",
    )  # fmt: skip


_KINDS = {
    "junit": "test reports",
    "jacoco": "coverage reports",
    "perf": "performance reports",
    "source": "source files, which are shown with their coverage where the server stores them",
    "attachments": "files within the work tree, without GLOB those that the test reports name",
}
_NAMED = "auto"
"""`--attachments` without a pattern."""
_CODEOWNERS = ("CODEOWNERS", ".github/CODEOWNERS", ".gitlab/CODEOWNERS", "docs/CODEOWNERS")
_HELP = {
    "branch": "this and what follows: by default from the environment of the CI system",
    "jobKey": "a later attempt of the same job replaces its reports (default: the CI system's job)",
    "attempt": "a number that grows with each retry of the job (default: the CI system's)",
    "runKey": "uploads of one key are one run (default: the CI system's run, else a new one)",
}


def _count(raw: str) -> int:
    if not raw.isdigit() or not 1 <= int(raw) <= 10_000:
        raise argparse.ArgumentTypeError("must be a number from 1 to 10000")
    return int(raw)


def _seconds(raw: str) -> float:
    seconds = _duration(raw)
    if not seconds:
        raise argparse.ArgumentTypeError("must be more than 0")
    return seconds


def _duration(raw: str) -> float:
    """Seconds, from `90`, `90s`, `2m` or `1h`; at most a hundred years."""
    match = re.fullmatch(r"(\d{1,9}(?:\.\d{1,3})?)\s*(s|m|h|)", raw.strip())
    if match is None:
        raise argparse.ArgumentTypeError(f"{raw!r} is no duration: write 90, 90s, 2m or 1h")
    if (seconds := float(match[1]) * {"m": 60, "h": 3600}.get(match[2], 1)) > _MAX_DURATION_SECONDS:
        raise argparse.ArgumentTypeError(f"{raw!r} is longer than 36500 days")
    return seconds


def _dashed(name: str) -> str:
    return "".join(f"-{letter.lower()}" if letter.isupper() else letter for letter in name)


def main(arguments: argparse.Namespace) -> int:
    """Returns the exit code. Ctrl-C ends the process at once (130 in a shell).

    As an exception, Ctrl-C could be raised just before a wait that would not notice it.
    """
    before = signal.getsignal(signal.SIGINT)
    if before is signal.default_int_handler:  # a background job of a script ignores it
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    prepare_streams()
    try:
        return _upload(arguments)
    except UploadError as error:
        print(f"pilothouse upload: {error}", file=sys.stderr)
        return error.exit_code
    except OSError as error:  # of a file, or of the temporary folder
        name = f"{error.filename}: " if error.filename else ""
        print(f"pilothouse upload: {name}{reason_of(error)}", file=sys.stderr)
        return USAGE
    finally:
        signal.signal(signal.SIGINT, before)


def _upload(arguments: argparse.Namespace) -> int:
    server = server_of(arguments)
    if arguments.verb == "finish":
        return _finish(server, _fields(arguments), arguments.gate, arguments.partial)
    if arguments.partial:
        raise UploadError(USAGE, "--partial belongs to finish")
    if not arguments.junit and not arguments.perf:
        raise UploadError(USAGE, "--junit GLOB or --perf GLOB is needed: a run has test or performance reports")
    files = _files(arguments)
    fields = _with_commit(_fields(arguments))
    if not arguments.commit:
        fields["commit"] = pushed_commit(fields["commit"], os.environ)
    texts = _diff_parts(arguments.diff, fields.get("baseBranch", ""), fields["commit"])
    if arguments.jacoco and not texts and arguments.diff == "auto":
        texts = _paths_part()
    if arguments.codeowners:
        texts.update(_codeowners_parts(arguments.codeowners))
    reports = [file for name, file in files if name == "junit"]
    attachments = attached_files(reports) if _NAMED in arguments.attachments else {}
    with packed(fields, files, texts, not arguments.no_gzip, attachments) as body:
        run = server.post("/api/v1/ingest", body, 201)
    _print(_summary(run, server.base))
    for warning in run.get("warnings", ()):
        print(f"pilothouse upload: warning: {warning}", file=sys.stderr)
    waits = arguments.wait is not None
    if waits and run.get("state") == "PENDING":
        _wait_until_complete(server, run["runId"], arguments.wait)
    verdict = _verdict(server, run["runId"], arguments.gate) if waits or arguments.gate else None
    status = verdict["status"] if verdict else run["gateStatus"]
    if arguments.summary is not None:
        _write_summary(server, run, verdict, arguments.summary)
    if verdict is None:
        return PASSED
    for line in _rules(verdict["rules"]):
        _print(line)
    _print(f"gate: {status}")
    return PASSED if status == "PASSED" else GATE_FAILED


def _print(text: str) -> None:
    """Prints a line. The exit code does not depend on who reads it."""
    try:
        print(text, flush=True)
    except OSError:  # its reader has gone, or the disk is full
        discard_output()


def _files(arguments: argparse.Namespace) -> list[tuple[str, Path]]:
    """The files to send, with the names of their parts. Attachments outside of the work tree are left out."""
    files = [(name, file) for name in ("junit", "jacoco", "perf") for file in _matches(name, getattr(arguments, name))]
    top = work_tree() if arguments.attachments else Path()
    for file in _matches("attachments", [pattern for pattern in arguments.attachments if pattern != _NAMED]):
        place = file.resolve()
        if top not in place.parents or ".git" in place.relative_to(top).parts:
            print(f"pilothouse upload: warning: {file} is not a file of the work tree: not sent", file=sys.stderr)
        else:
            files.append(("attachment", file))
    return files + (source_archive(_matches("source", arguments.source)) if arguments.source else [])


def _codeowners_parts(source: str) -> dict[str, str]:
    """The parts `codeowners` and `paths`. A repository without the file is a warning."""
    top = work_tree()
    places = [Path(source)] if source != "auto" else [top / name for name in _CODEOWNERS]
    place = next((place for place in places if place.is_file()), None)
    if place is None and source != "auto":
        raise UploadError(USAGE, f"--codeowners {source}: no such file")
    if place is None:
        print("pilothouse upload: warning: the repository has no CODEOWNERS file", file=sys.stderr)
        return {}
    try:
        parts = {"codeowners": place.read_bytes().decode("utf-8", "surrogateescape")}
    except OSError as error:
        raise UploadError(USAGE, f"--codeowners {place}: {reason_of(error)}") from None
    try:
        parts["paths"] = repository_paths()
    except NoDiff as problem:
        print(f"pilothouse upload: warning: the files of tests are not found: {problem}", file=sys.stderr)
    return parts


def _write_summary(server: RemoteServer, run: Mapping[str, Any], verdict: Mapping[str, Any] | None, file: Path) -> None:
    """Appends a summary to a file, else prints it. A token of scope INGEST gets one without the details."""
    detail: Mapping[str, Any] | None = None
    try:
        verdict = verdict or _verdict(server, run["runId"], None)
        detail = server.get(f"/api/v1/runs/{run['runId']}")
    except UploadError as error:
        if error.exit_code != REFUSED:
            raise
    text = summary(run, detail, verdict, server.base)
    target = os.environ.get("GITHUB_STEP_SUMMARY", "") if file == Path() else str(file)
    if not target:
        _print(text)
        return
    try:
        with Path(target).open("a", encoding="utf-8", errors="replace") as output:
            output.write(text + "\n")
    except OSError as error:
        raise UploadError(USAGE, f"--summary {target}: {reason_of(error)}") from None


def _diff_parts(source: str, base_branch: str, commit: str) -> dict[str, str]:
    """The parts of the changed lines. `auto` without a base is a warning for pull requests, and nothing else."""
    if source == "off":
        return {}
    try:
        if source != "auto":
            return {"diff": diff_file(Path(source))}
        if not base_branch:
            return {}
        diff, paths = changed_lines(base_branch, commit, os.environ)
    except NoDiff as problem:
        if source != "auto":
            raise UploadError(USAGE, str(problem)) from None
        print(f"pilothouse upload: warning: no changed lines are sent: {problem}", file=sys.stderr)
        return {}
    return {"diff": diff, "paths": paths}


def _paths_part() -> dict[str, str]:
    """The part `paths`, by which the server finds the covered files on a forge; nothing outside of a repository."""
    try:
        paths = repository_paths()
    except NoDiff:
        return {}
    return {"paths": paths} if paths.count("\n") <= _MAX_PATHS else {}


def _finish(server: RemoteServer, fields: Mapping[str, str], gate: str | None, partial: bool) -> int:
    """Closes the run of the key. With `gate` the exit code is the verdict."""
    if not fields.get("runKey") or fields["runKey"].startswith(_OWN_KEY):
        raise UploadError(USAGE, "finish needs --run-key, or the run of a CI system")
    body = {"project": fields["project"], "runKey": fields["runKey"], "flag": fields.get("flag"), "partial": partial}
    run = server.post_json("/api/v1/runs/finish", body)
    state = "complete" if run["state"] == "COMPLETE" else "closed, but not complete"
    status = _verdict(server, run["runId"], gate)["status"] if gate == "flag" else run["gateStatus"]
    _print(f"{fields['project']}: run {run['runId']} is {state}; gate: {status}; {server.base}{run['runPath']}")
    return GATE_FAILED if gate and status != "PASSED" else PASSED


def _wait_until_complete(server: RemoteServer, run_id: int, seconds: float) -> None:
    """Waits until nothing more is expected of a run. Raises `UploadError` where that takes too long."""
    end, pause = time.monotonic() + seconds, 1.0
    while (state := server.get(f"/api/v1/runs/{run_id}/quality-gate")["state"]) == "PENDING":
        if time.monotonic() + pause > end:
            raise UploadError(UNREACHABLE, f"run {run_id} is not complete after {seconds:g} s ({state})")
        time.sleep(pause)
        pause = min(2 * pause, _MAX_POLL_SECONDS)


def _verdict(server: RemoteServer, run_id: int, scope: str | None) -> Mapping[str, Any]:
    """The verdict on all of the commit so far, or with `flag` on the run alone."""
    of_commit = "" if scope == "flag" else "?commit=true"
    verdict: Mapping[str, Any] = server.get(f"/api/v1/runs/{run_id}/quality-gate{of_commit}")
    return verdict


def _rules(rules: Sequence[Mapping[str, Any]]) -> list[str]:
    """A line for each rule, which names its flag where there are several."""
    has_flags = len({rule["flag"] for rule in rules if rule["flag"]}) > 1
    return [
        f"{'passed' if rule['passed'] else 'FAILED'} {rule['name']}"
        f"{' (' + rule['flag'] + ')' if has_flags and rule['flag'] else ''}: {rule['detail']}"
        for rule in rules
    ]


def _summary(run: Mapping[str, Any], base: str) -> str:
    covered = run["lineCoveragePct"]
    coverage = "" if covered is None else f", {int(covered * 100) / 100:.2f} % of lines"
    counts = f"{run['tests']} tests, {run['failures']} failed, {run['skipped']} skipped{coverage}"
    return f"{run['project']}: {counts}; {base}{run['runPath']}"


def _fields(arguments: argparse.Namespace) -> dict[str, str]:
    """The text parts: options, else the CI system's facts. Each flag has a run of its own."""
    if not arguments.project.strip():
        raise UploadError(USAGE, "--project is blank")
    known = facts(os.environ)
    given = {name: value for name in _FIELDS if (value := (getattr(arguments, name) or "").strip())}
    if arguments.perf and not arguments.junit:
        given.setdefault("flag", _PERF_FLAG)
    if "jobKey" in given and known.get("ciProvider") == "circleci" and os.environ.get("CIRCLE_PIPELINE_ID"):
        known["runKey"] = f"circleci-{os.environ['CIRCLE_PIPELINE_ID']}"  # a rerun is another workflow of it
    if "runKey" in known and given.get("flag"):
        known["runKey"] += f"/{given['flag']}"
    fields = {"project": arguments.project, **known, **given}
    if "runKey" not in fields:
        fields.update({"runKey": f"{_OWN_KEY}{uuid.uuid4().hex}", "complete": "true"})
    if arguments.expect is not None:
        fields["expectedUploads"] = str(arguments.expect)
    if arguments.complete:
        fields["complete"] = "true"
    if arguments.reruns:
        fields["reruns"] = arguments.reruns
    return fields


def _with_commit(fields: Mapping[str, str]) -> dict[str, str]:
    """The fields with commit and branch, from git where they are not known. Raises `UploadError` without them.

    A run without them is compared with nothing, and no gate finds it.
    """
    known = {name: fields.get(name, "").strip() or checked_out(name, os.environ) for name in ("commit", "branch")}
    missing = " and ".join(f"--{name}" for name, value in known.items() if not value)
    if missing:
        is_known = bool(fields.get("ciProvider"))
        reason = "the CI system does not name it" if is_known else "no known CI system"
        place = "the checkout here is on no branch" if known["commit"] and not is_known else "no git checkout here"
        verb = "are" if "and" in missing else "is"
        raise UploadError(USAGE, f"{missing} {verb} needed: {reason} and {place}")
    return {**fields, **known}


def _matches(name: str, patterns: Sequence[str]) -> list[Path]:
    matches: dict[Path, None] = {}
    for pattern in patterns:
        names = [pattern] if Path(pattern).is_file() else sorted(_paths(pattern))
        files = [path for path in map(Path, names) if path.is_file()]
        if not files:
            problem = "this is a folder: name its files" if Path(pattern).is_dir() else "no such file"
            raise UploadError(USAGE, f"--{name} {pattern}: {problem}")
        matches.update(dict.fromkeys(files))
    return list(matches)


def _paths(pattern: str) -> set[str]:
    """The paths that match a pattern. As with `glob`, `**` matches folders, but no hidden ones."""
    match = _RECURSIVE.fullmatch(re.sub(r"\*\*(?:/+\*\*)+", "**", pattern.replace(os.sep, "/")))
    if match is None:
        return set(glob.glob(pattern))  # noqa: PTH207 (absolute ones too)
    head, tail = match[1], "*" if match[2] is None else match[2]
    starts = [""] if head is None else [f"{path}/" for path in sorted(_paths(head))] if head else ["/"]
    return {path for folder in _folders(starts) for path in _paths(glob.escape(folder) + tail)}


def _folders(starts: Sequence[str]) -> Iterator[str]:
    """Each folder below these once, with a slash at its end: the links of workspaces to each other form loops."""
    folders, links, seen = list(starts), list[str](), set[tuple[int, int]]()
    while folders or links:
        folder = (folders or links).pop()
        try:
            status = os.stat(folder or ".")  # noqa: PTH116 (one call for a path that is a text)
            entries = [entry for entry in os.scandir(folder or ".") if not entry.name.startswith(".")]
        except OSError:
            continue
        if (status.st_dev, status.st_ino) in seen:
            continue
        seen.add((status.st_dev, status.st_ino))
        yield folder
        folders += [f"{folder}{entry.name}/" for entry in entries if entry.is_dir(follow_symlinks=False)]
        links += [f"{folder}{entry.name}/" for entry in entries if entry.is_symlink()]


if __name__ == "__main__":
    _parser = argparse.ArgumentParser(prog="upload.py", description="Uploads reports to Pilothouse.")
    add_to(_parser)
    sys.exit(main(_parser.parse_args()))
