"""Random histories of coverage over HTTP: the rules of a commit on coverage are those of a slow, obvious model.

`PILOTHOUSE_PROOF=1` makes them longer.
"""

from __future__ import annotations

import json
import random
from collections import Counter
from collections.abc import Mapping, Sequence
from fractions import Fraction
from typing import Any
from urllib.parse import quote

import pytest
from attrs import define, field, frozen
from conftest import IS_PROOF, Server
from uploads import junit, upload

pytest_plugins = ["shared_server"]

STEPS = 500 if IS_PROOF else 40
FLAGS = ("a", "b", "c")
FILES = ("src/one.py", "src/two.py", "lib/two.py")
LINES = range(1, 7)
NO_LINES = "no coverable line changed"

Line = tuple[str, int]
Hits = Mapping[Line, bool]


@frozen
class Settings:
    """Settings of a project; each is None where it is off."""

    minimum: float | None
    drop: float
    carried: tuple[str, ...]
    requires_coverage: bool
    patch_minimum: float | None
    patch_lines: int

    def as_json(self) -> dict[str, Any]:
        return {
            "minLineCoverage": self.minimum, "maxCoverageDropPct": self.drop, "carryForwardFlags": [*self.carried],
            "failOnMissingCoverage": self.requires_coverage, "minPatchCoverage": self.patch_minimum,
            "minPatchLines": self.patch_lines, "failOnNewFailures": False,
        }  # fmt: skip


SETTINGS = (
    Settings(50.0, 10.0, ("b",), True, 50.0, 2),
    Settings(60.0, 0.0, ("*",), False, 70.0, 1),
    Settings(None, 25.0, (), True, None, 1),
    Settings(33.3, 1.0, ("a", "c"), True, 100.0, 4),
)


@define
class Upload:
    id: int
    order: int
    commit: str
    branch: str
    flag: str
    key: str
    hits: dict[Line, bool]
    """Covered or not, by the lines of which the run has data; several uploads of a run are united."""
    has_diff: bool


def united(runs: Sequence[Upload]) -> dict[Line, bool]:
    found: dict[Line, bool] = {}
    for run in runs:
        for line, hit in run.hits.items():
            found[line] = found.get(line, False) or hit
    return found


def share(hits: Hits) -> Fraction | None:
    return Fraction(100 * sum(hits.values()), len(hits)) if hits else None


@define
class Model:
    """The runs of a project in the order of their arrival, and the changed lines of each commit."""

    settings: Settings
    runs: list[Upload] = field(factory=list)
    changed: dict[str, list[Line]] = field(factory=dict)

    def place(self, commit: str, branch: str) -> int:
        """The place of a commit on a branch, or on any where it has none there."""
        of_commit = [one for one in self.runs if one.commit == commit]
        return min(one.order for one in [x for x in of_commit if x.branch == branch] or of_commit)

    def latest(self, branch: str, flag: str, commit: str, *, with_lines: bool) -> Upload | None:
        """The newest run of a flag on a branch, of the latest commit before this one."""
        before = self.place(commit, branch)
        found = [
            one
            for one in self.runs
            if (one.branch, one.flag) == (branch, flag) and one.commit != commit and (one.hits or not with_lines)
        ]
        found = [one for one in found if self.place(one.commit, branch) < before]
        return max(found, key=lambda one: (self.place(one.commit, branch), one.order), default=None)

    def verdict(self, commit: str, branch: str) -> tuple[dict[str, bool], Fraction | None, list[str]]:
        """The rules on coverage by name, the coverage of the commit, and the flags that have some."""
        limits = self.settings
        runs = [one for one in self.runs if (one.commit, one.branch) == (commit, branch)]
        newest = {one.flag: one for one in runs}
        carried: dict[str, Upload] = {}
        for flag in FLAGS:
            if flag not in newest and (flag in limits.carried or "*" in limits.carried):
                for other in dict.fromkeys([branch, "main"]):
                    lender = self.latest(other, flag, commit, with_lines=True)
                    if lender is not None:
                        carried.setdefault(flag, lender)
        own, lent = [newest[flag] for flag in sorted(newest)], [carried[flag] for flag in sorted(carried)]
        now = share(united([*own, *lent]))
        bases = [self.latest("main", one.flag, commit, with_lines=False) for one in own]
        found = [one for one in bases if one is not None]
        before = share(united([*found, *lent])) if any(one.hits for one in found) else None
        rules: dict[str, bool] = {}
        if limits.minimum is not None:
            rules["min-coverage"] = now is None or now >= Fraction(str(limits.minimum))
        if now is not None and before is not None:
            rules["coverage-drop"] = before - now <= Fraction(str(limits.drop))
        if limits.patch_minimum is not None:
            rules["min-patch-coverage"] = self.judge_changed_lines(commit, own)
        if limits.requires_coverage:
            rules["missing-coverage"] = any(one.hits for one in own) or any(flag in limits.carried for flag in carried)
        return rules, now, [one.flag for one in [*own, *lent] if one.hits]

    def judge_changed_lines(self, commit: str, runs: Sequence[Upload]) -> bool:
        limits = self.settings
        if not any(one.has_diff for one in runs):
            return not limits.requires_coverage
        hits, changed = united(runs), self.changed[commit]
        measured = [hits[line] for line in changed if line in hits]
        unknown = {file for file, _ in changed} - {file for file, _ in hits}
        # Coverage of a Python file has been seen once any run had some, so a file without data is unknown.
        is_silent = bool(unknown) and any(one.hits for one in self.runs)
        if len(measured) < max(1, limits.patch_lines):
            return not (is_silent and limits.requires_coverage)
        return Fraction(100 * sum(measured), len(measured)) >= Fraction(str(limits.patch_minimum))


class History:
    """Uploads at random, to the server and to the model."""

    def __init__(self, server: Server, project: str, seed: int) -> None:
        self.server, self.project = server, project
        self.random = random.Random(seed)
        self.model = Model(SETTINGS[seed])
        self.commits = {"main": ["m0"], "topic": ["t0"]}
        self.keys = 0

    def step(self) -> Upload:
        draw = self.random
        branch = draw.choice([*self.commits])
        commits = self.commits[branch]
        if draw.random() < 0.4:
            commits.append(f"{branch[0]}{len(commits)}")
        commit = draw.choice([commits[-1]] * 4 + commits[-3:])
        changed = self.model.changed.setdefault(commit, self.lines(0.3) or [(FILES[0], 1)])
        late = [one for one in self.model.runs if one.commit == commit]
        if late and draw.random() < 0.3:
            run = draw.choice(late)
        else:
            self.keys += 1
            run = Upload(0, 0, commit, branch, draw.choice(FLAGS), f"run {self.keys}", {}, False)
        is_new = not run.id
        hits = {line: draw.random() < 0.6 for line in self.lines(0.6)} if draw.random() < 0.7 else {}
        diff = changed if draw.random() < 0.6 else None
        run.id = self.send(run, hits, diff)
        for line, hit in hits.items():
            run.hits[line] = run.hits.get(line, False) or hit
        run.has_diff |= diff is not None
        if is_new:
            run.order = len(self.model.runs)
            self.model.runs.append(run)
        return run

    def lines(self, chance: float) -> list[Line]:
        files = self.random.sample(FILES, self.random.randint(1, 3))
        return [(file, line) for file in files for line in LINES if self.random.random() < chance]

    def send(self, run: Upload, hits: Hits, diff: Sequence[Line] | None) -> int:
        parts = [
            ("project", self.project), ("branch", run.branch), ("commit", run.commit), ("flag", run.flag),
            ("runKey", run.key), ("junit", junit(1, prefix=f"t{self.random.random()}")), ("complete", "true"),
            ("paths", "\n".join(FILES)),
        ]  # fmt: skip
        if hits:
            files = dict.fromkeys(file for file, _ in hits)
            parts += [("coverage", "".join(lcov(file, hits) for file in files))]
        if diff is not None:
            ranges: dict[str, list[list[int]]] = {}
            for file, line in diff:
                ranges.setdefault(file, []).append([line, line])
            parts += [("diff", json.dumps({"base": "0" * 40, "head": run.commit, "files": ranges}))]
        return int(upload(self.server, *parts)["runId"])


def lcov(file: str, hits: Hits) -> str:
    rows = "".join(f"DA:{line},{int(hit)}\n" for (name, line), hit in hits.items() if name == file)
    return f"SF:{file}\n{rows}end_of_record\n"


@pytest.mark.parametrize("seed", range(len(SETTINGS)))
def test_rules_on_coverage_are_those_of_the_model(
    server: Server, admin_header: dict[str, str], project: str, seed: int
) -> None:
    history = History(server, project, seed)
    history.step()
    (id,) = [one["id"] for one in server.get("/api/v1/projects").json if one["name"] == project]
    settings = json.dumps(SETTINGS[seed].as_json()).encode()
    answer = server.ask("PATCH", f"/api/v1/projects/{id}/settings", settings, admin_header)
    assert answer.status == 200, answer
    path = f"/api/v1/gate?project={quote(project)}"
    outcomes: Counter[Any] = Counter()
    for _ in range(STEPS):
        run = history.step()
        about = history.random.choice([run, history.random.choice(history.model.runs)])
        rules, pct, flags = history.model.verdict(about.commit, about.branch)
        found = server.get(f"{path}&commit={about.commit}&branch={about.branch}").json
        shown = {rule["name"]: rule["passed"] for rule in found["rules"]}
        assert (shown, found["passed"]) == (rules, all(rules.values())), (about, found)
        coverage = found["coverage"]
        covered = coverage and Fraction(100 * coverage["covered"], coverage["covered"] + coverage["missed"])
        assert (covered, coverage and coverage["flags"]) == (pct, flags or None), (about, found)
        outcomes.update(rules.items())
    assert {passed for _, passed in outcomes} == {True, False}, outcomes
