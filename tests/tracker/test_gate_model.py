"""Random histories of a project: each verdict is the one of a slow model, which is written from the rules alone.

`PILOTHOUSE_PROOF=1` makes them longer.
"""

from __future__ import annotations

import os
import random
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
import records
from attrs import define, evolve, field
from conftest import IS_PROOF
from records import FAILED, NOW, PASSED, SECOND
from tracker_rows import Report, Suite

from models.config.settings import QualityGate, Quarantine
from models.errors import NotFound
from models.supervision.process import Seconds
from models.tracker.failures import flaky, quarantine, quarantine_policy
from models.tracker.failures.flaky import Triage
from models.tracker.gate import commit_gate
from models.tracker.runs import retention
from models.tracker.tables import Project, Run, Test, reports

GATES = (
    QualityGate(),
    QualityGate(fail_on_any_failure=True, max_test_drop_pct=20.0),
    QualityGate(required_flags=("unit", "e2e"), max_test_drop_pct=0.0),
)
POLICIES = (
    Quarantine(after_flaky=2, within=Seconds(150), expires=Seconds(20), max_pct=100.0),
    Quarantine(after_flaky=1, within=Seconds(40), expires=Seconds(60), max_pct=40.0),
    Quarantine(after_flaky=3, within=Seconds(10**6), expires=Seconds(5), max_pct=60.0),
)
FLAGS = ("unit", "e2e")
TESTS = ("a", "b", "c")
Leg = tuple[str | None, str | None]
Failing = tuple[str | None, str | None, str]
LEGS: Sequence[Leg] = ((None, "linux"), (None, "windows"), ("core", "linux"), ("core", None))


@pytest.fixture
def project(tmp_path: Path, database_url: str | None) -> Iterator[Project]:
    with records.open_store(tmp_path / "tracker.db", database_url):
        yield records.create_project("demo")


# The model


@define
class Upload:
    """A run. `failing`, `passing` and `marked` (as flaky) have its results as triples of module, suite and test."""

    id: int
    at: int
    commit: str | None
    branch: str
    flag: str
    base_branch: str | None
    pr: int | None
    fork: str | None
    complete: bool
    legs: Collection[Leg]
    failing: Sequence[Failing]
    passing: Sequence[Failing]
    marked: Collection[Failing]
    bases: list[str]
    superseded_by: int | None = None

    @property
    def tests(self) -> int:
        return len(self.legs) + len(self.failing) + len(self.passing)

    def quarantined(self, tests: Collection[str]) -> int:
        return sum(one[2] in tests for one in (*self.failing, *self.passing))


@define
class Model:
    """All runs of a project, and its quarantined tests."""

    rules: QualityGate
    all_runs: list[Upload] = field(factory=list)
    quarantined: dict[str, int | None] = field(factory=dict)
    """The quarantined tests, and when they count again."""
    changed: dict[str, int] = field(factory=dict)
    """When the status of a test was set last."""
    firsts: dict[tuple[str, str, bool], tuple[int, int]] = field(factory=dict)
    """The first run of each commit on each branch; it stays when the run is deleted, but not when all are."""

    @property
    def runs(self) -> list[Upload]:
        return [one for one in self.all_runs if one.superseded_by is None]

    def add(self, run: Upload) -> None:
        self.all_runs.append(run)
        if run.commit is not None:
            key, place = (run.branch, run.commit, run.fork is None), (run.at, run.id)
            self.firsts[key] = min(self.firsts.get(key, place), place)

    def place(self, run: Upload) -> tuple[int, int]:
        """The place of a run's commit on the run's own branch."""
        return (run.at, run.id) if run.commit is None else self.firsts[run.branch, run.commit, run.fork is None]

    def base_of(self, run: Upload) -> str:
        named = run.base_branch
        return named if any(one.branch == named and one.fork is None for one in self.runs) and named else "main"

    def baseline(self, run: Upload) -> Upload | None:
        base = self.base_of(run)
        on_base = [one for one in self.runs if one.branch == base and one.fork is None]
        usable = [one for one in on_base if one.flag == run.flag and one.complete and one.pr is None]
        for commit in run.bases:
            of_commit = [one for one in usable if one.commit == commit and commit != run.commit]
            if of_commit:
                return max(of_commit, key=lambda one: (one.at, one.id))
        own = [self.place(one) for one in on_base if run.commit is not None and one.commit == run.commit]
        elsewhere = [self.place(one) for one in self.runs if run.commit is not None and one.commit == run.commit]
        limit = min(own or elsewhere or [(run.at, run.id)])
        before = [one for one in usable if self.place(one) < limit]
        return max(before, key=lambda one: (self.place(one), one.at, one.id), default=None)

    def new_failures(self, run: Upload) -> list[str]:
        base = self.baseline(run)
        now, then = run.failing, base.failing if base else []
        both = {*run.legs} & {*base.legs} if base else set()
        modules = {leg[0] for leg in run.legs} & {leg[0] for leg in base.legs} if base else set()
        found = []
        for test in TESTS:
            more = sum(one[2] == test for one in now) > sum(one[2] == test for one in then)
            for leg in both - {(None, None)}:
                if leg[1] is not None:
                    more |= sum(one == (*leg, test) for one in now) > sum(one == (*leg, test) for one in then)
            for module in modules - {None}:
                counts = [sum(one[0] == module and one[2] == test for one in ones) for ones in (now, then)]
                more |= counts[0] > counts[1]
            if more and test not in self.quarantined:
                found.append(f"c {test}")
        return found

    def passes(self, run: Upload) -> bool:
        """Whether a run passes the rules of its own."""
        if self.new_failures(run):
            return False
        if self.rules.fail_on_any_failure and {one[2] for one in run.failing} - self.quarantined.keys():
            return False
        base = self.baseline(run)
        if self.rules.max_test_drop_pct is None or base is None:
            return True
        before, now = (one.tests - one.quarantined(self.quarantined) for one in (base, run))
        return 100 * max(0, before - now) <= self.rules.max_test_drop_pct * base.tests

    def flaky_on(self, test: str, since: int) -> dict[object, int]:
        """Where a test was flaky, a commit or a run without one, and the newest run that shows it."""
        runs = [one for one in self.all_runs if one.fork is None and one.at >= since]
        found: dict[object, int] = {}
        for run in runs:
            others = [one for one in runs if (one.commit, one.flag) == (run.commit, run.flag) and one.id != run.id]
            for failing in {one for one in run.failing if one[2] == test}:
                if run.commit and any(failing in one.passing and failing not in one.failing for one in others):
                    found[run.commit] = max(found.get(run.commit, 0), run.at)
            if any(one[2] == test for one in run.marked):
                place = run.commit or run.id
                found[place] = max(found.get(place, 0), run.at)
        return found

    def apply(self, policy: Quarantine, now: int, known: Sequence[str]) -> None:
        """Quarantines flaky tests. `known`: its tests, oldest first, without that which always passes."""
        flaky_tests = {test: self.flaky_on(test, now - round(policy.within * SECOND)) for test in known}
        due = [
            test
            for test, places in flaky_tests.items()
            if len(places) >= (policy.after_flaky or 0)
            and test not in self.quarantined
            and max(places.values()) > self.changed.get(test, 0)
        ]
        due.sort(key=lambda test: -len(flaky_tests[test]))
        room = max(0, int((len(known) + 1) * policy.max_pct / 100) - len(self.quarantined))
        for test in due[:room]:
            self.quarantined[test], self.changed[test] = now + round(policy.expires * SECOND), now

    def expire(self, now: int) -> None:
        for test, end in [*self.quarantined.items()]:
            if end is not None and end <= now:
                del self.quarantined[test]
                self.changed[test] = now

    def gate(self, commit: str | None, branch: str | None, flag: str | None) -> Any:
        """The id of the run and whether the gate passes; None without a run."""
        runs = self.runs
        if commit is not None:
            runs = [one for one in runs if one.commit == commit]
            if branch is not None and any(one.branch == branch for one in runs):
                runs = [one for one in runs if one.branch == branch]
        else:
            runs = [one for one in runs if one.branch == branch]
            matching = [one for one in runs if flag in (None, one.flag)]
            matching = [one for one in matching if one.fork is None] or matching
            if not matching:
                return None
            newest = max(matching, key=lambda one: (self.place(one), one.at, one.id))
            runs = [one for one in runs if one.commit == newest.commit] if newest.commit else [newest]
        runs = [one for one in runs if flag in (None, one.flag)]
        if not runs:
            return None
        newest_of_flags = {one.flag: one for one in sorted(runs, key=lambda one: (one.at, one.id))}
        newest = max(newest_of_flags.values(), key=lambda one: (one.at, one.id))
        passed = all(self.passes(one) for one in newest_of_flags.values())
        present = {one.flag for one in newest_of_flags.values()}
        return newest.id, passed and (flag is not None or present >= {*self.rules.required_flags})


# The history


class History:
    """Makes random uploads in the store and in the model."""

    def __init__(self, project: Project, seed: int) -> None:
        self.project = project
        self.random = random.Random(seed)
        self.rules, self.policy = GATES[seed % len(GATES)], POLICIES[seed % len(POLICIES)]
        self.model = Model(self.rules)
        self.commits = {"main": ["m0"], "feature": ["f0"], "release": ["m0"], "topic": ["t0"]}
        self.at = NOW

    def step(self) -> None:
        draw = self.random
        kinds = {"commit": 3, "upload": 10, "merge": 1, "quarantine": 1, "policy": 2, "retry": 1, "clock": 1}
        kind = draw.choices([*kinds], [*kinds.values()])[0]
        branch = draw.choice([*self.commits])
        if kind == "commit":
            self.commits[branch].append(f"{branch}-{len(self.commits[branch])}-{draw.randrange(10**6)}")
        elif kind == "merge":
            self.commits[draw.choice(["main", "release"])].append(draw.choice(self.commits[branch]))
        elif kind == "quarantine":
            self.quarantine(draw.choice(TESTS))
        elif kind == "policy":
            self.apply_policy()
        elif kind == "retry":
            self.retry()
        elif kind == "clock":
            self.at -= draw.choice([0, 5]) * SECOND
        else:
            self.upload(branch)

    def quarantine(self, test: str) -> None:
        """As a member does, for a time or for ever; the time of a mark is that of the newest upload."""
        status = Triage.ACTIVE if test in self.model.quarantined else Triage.QUARANTINED
        end = self.random.choice([None, self.at + 10 * SECOND])
        try:
            flaky.set_triage(self.project.id, "c", test, status, None, None, self.at, end)
        except NotFound:
            return
        self.model.changed[test] = self.at
        if status is Triage.ACTIVE:
            del self.model.quarantined[test]
        else:
            self.model.quarantined[test] = end

    def apply_policy(self) -> None:
        known = [one.name for one in Test.select().order_by(Test.id) if one.name in TESTS]
        quarantine.expire(self.at)
        self.model.expire(self.at)
        quarantine_policy.apply(self.project.id, self.policy, self.at)
        if known:
            self.model.apply(self.policy, self.at, known)
        listed = {one.name: one.expires_at for one in quarantine.listing(self.project.id)}
        assert listed == self.model.quarantined

    def retry(self) -> None:
        """A run becomes an earlier attempt of a later one: it stays, and counts only for what is flaky."""
        late = self.random.choice(self.model.runs or [None])
        of_commit = [one for one in self.model.runs if late and _of_upload(one) == _of_upload(late)]
        if late is not None and late.commit is not None and len(of_commit) > 1:
            first, last = sorted(self.random.sample(of_commit, 2), key=lambda one: (one.at, one.id))
            Run.update(superseded_by=last.id).where(Run.id == first.id).execute()
            first.superseded_by = last.id

    def upload(self, branch: str) -> None:
        """Newest commits mostly; old ones as re-runs, of any flag; pull requests, forks, late shards."""
        draw = self.random
        commits = self.commits[branch]
        commit = draw.choice([commits[-1]] * 3 + commits[-4:] + [draw.choice(commits), None])
        legs = {LEGS[place] for place in draw.choice([(0,), (0, 1), (0, 1), (2,), (0, 3)])}
        failing = [(*leg, test) for leg in sorted(legs, key=str) for test in TESTS if draw.random() < 0.2]
        passing = [(*leg, test) for leg in sorted(legs, key=str) for test in TESTS if draw.random() < 0.9]
        passing = [one for one in passing if one not in failing or draw.random() < 0.05]
        marked = {one for one in passing if draw.random() < 0.03}
        failing += draw.choice([[], [], failing[:1]])
        self.at += draw.choice([0, 1, 1]) * SECOND
        main = self.commits["main"]
        base = draw.randrange(len(main))
        bases = main[max(0, base - 2) : base + 1][::-1] if draw.random() < 0.3 else []
        run = Upload(
            0, self.at, commit, branch, draw.choice(FLAGS), draw.choice([None, None, "release", "nowhere", branch]),
            draw.choice([None, None, None, 7]) if branch != "main" else draw.choice([None] * 9 + [8]),
            draw.choice([None] * 9 + ["fork/demo"]), draw.random() < 0.8, legs, failing, passing, marked,
            bases,
        )  # fmt: skip
        run = evolve(run, id=store(self.project, run))
        self.model.add(run)
        late = draw.choice(self.model.runs)
        if not late.complete and draw.random() < 0.3:
            Run.update(state="COMPLETE").where(Run.id == late.id).execute()
            late.complete = True

    def retain(self) -> None:
        """Deletes expired runs in both, which must change no verdict on another run."""
        before = self.at - 60 * SECOND
        expired = set(retention.expired(before, 0, self.rules))
        gone = set(expired)
        while more := {run.id for run in self.model.all_runs if run.superseded_by in gone} - gone:
            gone |= more
        kept = [run for run in self.model.all_runs if run.id not in gone]
        wanted = {run.id: self.model.new_failures(run) for run in kept if run.at >= before}
        for id in expired:
            while retention.delete_some(id):
                pass
        self.model.all_runs = kept
        present = {(run.branch, run.commit, run.fork is None) for run in kept}
        self.model.firsts = {key: place for key, place in self.model.firsts.items() if key in present}
        assert {run.id: self.model.new_failures(run) for run in kept if run.at >= before} == wanted


def _of_upload(run: Upload) -> tuple[object, ...]:
    """What all attempts of a job have in common."""
    return run.commit, run.branch, run.flag, run.fork, run.pr


def store(project: Project, run: Upload) -> int:
    facts: dict[str, Any] = {
        "commit_sha": run.commit,
        "branch": run.branch,
        "flag": run.flag,
        "base_branch": run.base_branch,
    }
    facts["flaky"] = len(run.marked)
    facts |= {"pr_number": run.pr, "head_repo": run.fork, "state": "COMPLETE" if run.complete else "PENDING"}
    made = records.create_run(
        project, created_at=run.at, failed=len(run.failing), status="FAILED" if run.failing else "PASSED", **facts
    )
    Run.update(tests=run.tests).where(Run.id == made.id).execute()
    for module, name in sorted(run.legs, key=str):
        report = Report.create(
            run=made, kind="junit", hash=os.urandom(8).hex(), name="a.xml", format="junit", module=module,
            created_at=run.at, tests=1, passed=0, failed=0, errors=0, skipped=0, flaky=0, duration_ms=0,
        )  # fmt: skip
        suite = None
        if name is not None:
            counts = {"tests": 3, "failed": 0, "errors": 0, "skipped": 0, "duration_ms": 0}
            suite = Suite.create(report=report, run_id=made.id, name=name, **counts)
        records.create_result(project, made, report, "c always", PASSED, suite_id=suite and suite.id)
        results = [(one, FAILED) for one in run.failing] + [(one, PASSED) for one in run.passing]
        for one, status in results:
            if one[:2] == (module, name):
                is_marked = status is PASSED and one in run.marked
                records.create_result(
                    project, made, report, f"c {one[2]}", status, suite_id=suite and suite.id, flaky=is_marked
                )
    if run.bases:
        records.create_base_commits(made, run.bases)
    return int(made.id)


def check(history: History) -> None:
    """Compares the verdicts on a few requests, and the baseline of the newest run."""
    model, draw = history.model, history.random
    if not model.runs:
        return
    newest = draw.choice([model.runs[-1], draw.choice(model.runs)])
    commit, branch, flag = newest.commit, newest.branch, draw.choice([None, None, *FLAGS])
    for name, on in ((commit, None), (commit, branch), (None, branch), (commit, draw.choice([*history.commits]))):
        if name is not None or on is not None:
            assert gate(history, name, on, flag) == model.gate(name, on, flag), (name, on, flag)
    verdict = commit_gate.judge(Run.get_by_id(newest.id), history.project, history.rules, aggregate=False).verdict
    base = model.baseline(newest)
    assert verdict.baseline_id == (base.id if base else None), newest


def gate(history: History, commit: str | None, branch: str | None, flag: str | None) -> tuple[int, bool] | None:
    try:
        found = commit_gate.find(history.project, commit, branch, flag)
    except NotFound:
        return None
    judged = commit_gate.judge(
        found.newest, history.project, history.rules, aggregate=flag is None, branch=found.branch
    )
    return judged.newest.id, judged.verdict.passed


@pytest.mark.parametrize("seed", range(3))
def test_verdicts_on_random_histories_are_those_of_the_model(
    project: Project, database_url: str | None, seed: int
) -> None:
    history = History(project, seed)
    outcomes: Counter[Any] = Counter()
    count = 2000 if IS_PROOF else 100 if database_url else 300  # a step takes twice as long on PostgreSQL
    with reports.atomic():
        for step in range(count):
            history.step()
            check(history)
            if step % 50 == 49:
                history.retain()
            if history.model.runs:
                newest = history.model.runs[-1]
                outcomes[history.model.baseline(newest) is None, bool(history.model.new_failures(newest))] += 1
    assert len(outcomes) == 4, outcomes  # the histories have both verdicts, with and without a baseline


def test_the_model_itself_refuses_a_red_commit_that_is_uploaded_again() -> None:
    model = Model(QualityGate())
    plain: Mapping[str, Any] = {"branch": "main", "flag": "unit", "base_branch": None, "pr": None, "fork": None}
    for id, commit, failing in ((1, "a", []), (2, "b", [(None, "s", "a")]), (3, "b", [(None, "s", "a")])):
        model.add(
            Upload(
                id,
                id,
                commit,
                complete=True,
                legs={(None, "s")},
                failing=failing,
                passing=[],
                marked=[],
                bases=[],
                **plain,
            )
        )
    assert model.gate(None, "main", None) == (3, False)
