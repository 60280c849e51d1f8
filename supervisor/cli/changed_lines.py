"""The changed lines of a CI job's commit, from git: as ranges only, never the text of the lines.

Only the standard library is used: this is a part of the stand-alone uploader.
"""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Mapping
from pathlib import Path

from supervisor.cli.ci_systems import depth_setting, facts

_TIMEOUT_SECONDS = 60.0
_MAX_BASE_COMMITS = 50
"""First parents of the base: the server compares with the first of them that it knows."""
_BASE_COMMITS = (
    "CI_MERGE_REQUEST_DIFF_BASE_SHA",
    "CI_MERGE_REQUEST_TARGET_BRANCH_SHA",
    "BITBUCKET_PR_DESTINATION_COMMIT",
)
"""Variables with a commit of the base branch. A branch of the clone may be an old one."""
_HUNK = re.compile(rb"^@@ -\d+(?:,\d+)? \+(\d+)(?:,(\d+))? @@")
_NULL = b"/dev/null"
_JENKINS_MERGE = re.compile(r"Merge commit '[0-9a-f]{40}' into HEAD")


class NoDiff(Exception):
    """The changed lines are unknown; the message has the reason and a fix."""


def changed_lines(base_branch: str, commit: str, environ: Mapping[str, str]) -> tuple[str, str]:
    """The parts `diff` and `paths` of the work tree in the current folder. Raises `NoDiff`.

    `commit` is the pushed one: CI may have checked out a merge of it.
    """
    head = _git("rev-parse", "HEAD").decode().strip()
    base = _base(base_branch, commit, environ)
    files, renames = ranges_of(_git("-c", "core.quotePath=false", "-c", "diff.relative=false", "diff", "-U0",
                           "--inter-hunk-context=0", "--no-ext-diff", "--no-textconv", "--find-renames=50%",
                           "--no-color", "--src-prefix=a/", "--dst-prefix=b/", base, "HEAD"))  # fmt: skip
    parents = _git("rev-list", "--first-parent", f"--max-count={_MAX_BASE_COMMITS + 1}", base).decode().split()[1:]
    diff = {"base": base, "baseCommits": parents, "head": head, "files": files, "renames": renames}
    return json.dumps(diff), repository_paths()


def repository_paths() -> str:
    """The part `paths`: the files of the repository, one a line. Raises `NoDiff`."""
    return _git("ls-files", "-z", "--full-name", ":/").replace(b"\0", b"\n").decode("utf-8", "replace")


def checked_out(field: str, environ: Mapping[str, str]) -> str:
    """The `commit` or the `branch` of the work tree in the current folder; an empty text if it has none."""
    command = ("rev-parse", "--verify", "HEAD") if field == "commit" else ("symbolic-ref", "--short", "HEAD")
    try:
        return _git(*command).decode("utf-8", "replace").strip()
    except NoDiff:
        return environ.get("GIT_BRANCH", "").removeprefix("origin/") if field == "branch" else ""


def pushed_commit(commit: str, environ: Mapping[str, str]) -> str:
    """The pushed commit where Jenkins has merged the target into it and checked out that merge; else `commit`."""
    if not (environ.get("JENKINS_URL") and environ.get("CHANGE_ID")):
        return commit
    try:
        head, *parents = _git("rev-list", "--parents", "-n", "1", "HEAD").decode().split()
        subject = _git("log", "-1", "--format=%s").decode("utf-8", "replace")
    except NoDiff:
        return commit
    is_merge_of_jenkins = _JENKINS_MERGE.match(subject) is not None and len(parents) == 2
    return parents[0] if is_merge_of_jenkins and commit == head else commit


def work_tree() -> Path:
    """The top folder of the repository, else the current folder."""
    try:
        return Path(_git("rev-parse", "--show-toplevel").decode("utf-8", "surrogateescape").rstrip("\n")).resolve()
    except NoDiff:
        return Path.cwd().resolve()


def _base(base_branch: str, commit: str, environ: Mapping[str, str]) -> str:
    """The merge base with the base branch, or the base branch's parent of the merge that CI has checked out.

    The pushed commit may be a merge too, of the base branch into the pull request.
    """
    merged = _merged_base(commit, environ)
    if merged:
        return merged
    if not base_branch:
        raise NoDiff("the base branch is not known: give --base-branch, or --diff FILE")
    known = (environ.get(name, "") for name in _BASE_COMMITS)
    for name in (*filter(None, known), f"origin/{base_branch}", base_branch):
        try:
            return _git("merge-base", name, "HEAD").decode().strip()
        except NoDiff:
            continue
    setting = depth_setting(facts(environ).get("ciProvider", ""))
    raise NoDiff(f"the clone does not contain the merge base with {base_branch}: fetch more history ({setting})")


def _merged_base(commit: str, environ: Mapping[str, str]) -> str:
    """The parent of the base branch where the merge of `commit`, the pushed one, is checked out; else empty.

    It is the first one, but Bitbucket merges the base branch into the pushed commit.
    """
    head, *parents = _git("rev-list", "--parents", "-n", "1", "HEAD").decode().split()
    if len(parents) == 2 and commit in parents:
        return parents[1 - parents.index(commit)]
    is_test_merge = re.fullmatch(r"refs/pull/\d+/merge", environ.get("GITHUB_REF", "")) is not None
    return parents[0] if is_test_merge and len(parents) > 1 and head == environ.get("GITHUB_SHA") else ""


def _git(*arguments: str) -> bytes:
    try:
        done = subprocess.run(["git", *arguments], capture_output=True, timeout=_TIMEOUT_SECONDS, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise NoDiff(f"git cannot be run: {error}") from None
    if done.returncode:
        lines = done.stderr.decode("utf-8", "replace").strip().splitlines()
        raise NoDiff(f"git {arguments[0]}: {lines[0] if lines else done.returncode}")
    return done.stdout


def ranges_of(diff: bytes) -> tuple[dict[str, list[list[int]]], dict[str, str]]:
    """The changed lines by path, of a diff without context, and the new paths of renamed files by their old ones."""
    files: dict[str, list[list[int]]] = {}
    renames: dict[str, str] = {}
    path: str | None = None
    old = ""
    rest = 0
    for line in diff.split(b"\n"):
        if line.startswith(b"diff --git "):
            path, rest = None, 0
        elif rest == 0 and path is None and line.startswith(b"rename from "):
            old = _unquoted(line[12:])
        elif rest == 0 and path is None and line.startswith(b"rename to "):
            renames[old] = _unquoted(line[10:])
        elif rest == 0 and line.startswith(b"+++ "):
            path = _path(line[4:])
        elif match := _HUNK.match(line):
            first, rest = int(match[1]), 0
            count = int(match[2] or 1)
            if path is not None and count:
                files.setdefault(path, []).append([first, first + count - 1])
                rest = count
        elif rest and line.startswith(b"+"):
            rest -= 1
    return files, renames


def _path(name: bytes) -> str | None:
    name = name.rstrip(b"\t")
    return None if name == _NULL else _unquoted(name)[2:]


def _unquoted(name: bytes) -> str:
    if name.startswith(b'"'):  # git quotes control characters and quotes
        name = name[1:-1].decode("unicode_escape", "replace").encode("latin-1", "replace")
    return name.decode("utf-8", "replace")


def diff_file(file: Path) -> str:
    """A unified diff in a file, as the part `diff`. Raises `NoDiff`."""
    try:
        return file.read_bytes().decode("utf-8", "surrogateescape")
    except OSError as error:
        raise NoDiff(f"--diff {file}: {error.strerror}") from None
