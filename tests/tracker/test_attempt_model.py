"""Random uploads of the jobs of a run, with attempts and matrix legs: its totals and state are those of a slow model.

`PILOTHOUSE_PROOF=1` makes them longer.
"""

from __future__ import annotations

import random
from collections import Counter, defaultdict
from collections.abc import Collection, Sequence
from typing import Any

import pytest
from attrs import define, field, frozen
from conftest import IS_PROOF, Server
from uploads import junit, upload

pytest_plugins = ["shared_server"]

ROUNDS = 60 if IS_PROOF else 5
UPLOADS = 14
FILES = [(1, 0), (2, 0), (0, 1), (3, 1), (1, 2), (2, 2), (4, 0)]
"""Passed and failed tests; each file has tests of its own."""


@frozen
class Sent:
    job: str
    instance: str
    attempt: int
    files: frozenset[int]
    is_complete: bool

    def about(self) -> object:
        """Its job, leg and attempt; where it names none, what it has."""
        return (self.job, self.instance, self.attempt) if self.job else self.files


@define
class Run:
    """A run and all of its uploads. `expected`: how many, None where nothing is expected."""

    key: str
    expected: int | None
    uploads: list[Sent] = field(factory=list)
    state: str = "PENDING"

    def counted(self) -> Sequence[Sent]:
        """All uploads but those of earlier attempts of jobs whose attempts have one instance each."""
        instances = defaultdict[tuple[str, int], set[str]](set)
        for sent in self.uploads:
            instances[sent.job, sent.attempt].add(sent.instance)
        ambiguous = {job for (job, _), found in instances.items() if len(found) > 1}
        last = {job: max(attempt for name, attempt in instances if name == job) for job, _ in instances}
        return [
            sent for sent in self.uploads if not sent.job or sent.job in ambiguous or sent.attempt == last[sent.job]
        ]

    def totals(self) -> tuple[int, int]:
        """The tests and those that fail; a file that came twice counts once."""
        files = {file for sent in self.counted() for file in sent.files}
        return sum(sum(FILES[file]) for file in files), sum(FILES[file][1] for file in files)

    def arrived(self) -> int:
        """Of how many jobs an upload came: matrix legs count each, retries do not, nor what is sent again."""
        legs = defaultdict[str, dict[int, set[str]]](lambda: defaultdict(set))
        for sent in self.uploads:
            if sent.job:
                legs[sent.job][sent.attempt].add(sent.instance)
        anonymous = {frozenset(sent.files) for sent in self.uploads if not sent.job}
        return len(anonymous) + sum(max(map(len, attempts.values())) for attempts in legs.values())

    def states_after(self, sent: Sent) -> Collection[str]:
        """The states that an upload may lead to. One that is sent again reopens nothing.

        One of a known job and attempt, with a report that only superseded attempts have, may reopen the run or not.
        """
        known = {file for one in self.uploads for file in one.files}
        counted = {file for one in self.counted() for file in one.files}
        is_first = sent.about() not in [one.about() for one in self.uploads]
        self.uploads.append(sent)
        has_all = self.arrived() >= self.expected if self.expected is not None else sent.is_complete
        if has_all or sent.is_complete:
            return ("COMPLETE",) if has_all else ("INCOMPLETE",)
        if is_first or not sent.files <= known:
            return ("PENDING",)
        return (self.state,) if sent.files <= counted else (self.state, "PENDING")


def draw_upload(draw: random.Random) -> Sent:
    job = draw.choice(["", "unit", "unit", "e2e", "lint"])
    instance = draw.choice(["", "", "", "", "one"]) if job == "lint" else ""
    attempt = draw.randrange(4) if job else 0
    files = frozenset(draw.sample(range(len(FILES)), draw.choice([1, 1, 2, 3])))
    return Sent(job, instance, attempt, files, draw.random() < 0.1)


def send(server: Server, project: str, run: Run, sent: Sent) -> Any:
    parts = [("project", project), ("branch", "main"), ("commit", run.key), ("runKey", run.key)]
    parts += [("junit", junit(*FILES[file], prefix=f"f{file}-")) for file in sent.files]
    parts += [("jobKey", sent.job), ("attempt", str(sent.attempt))] if sent.job else []
    parts += [("jobInstance", sent.instance)] if sent.instance else []
    parts += [("expectedUploads", str(run.expected))] if run.expected is not None else []
    parts += [("complete", "true")] if sent.is_complete else []
    return upload(server, *parts)


@pytest.mark.parametrize("seed", range(3))
def test_totals_and_state_of_a_run_are_those_of_the_model(server: Server, project: str, seed: int) -> None:
    draw = random.Random(seed)
    seen: Counter[Any] = Counter()
    for number in range(ROUNDS):
        run = Run(f"{seed}-{number}", draw.choice([None, 2, 4, 6]))
        for _ in range(UPLOADS):
            sent = draw_upload(draw)
            states = run.states_after(sent)
            answer = send(server, project, run, sent)
            found = answer["tests"], answer["failures"], answer["state"]
            assert found[:2] == run.totals(), run
            run.state = found[2]
            assert run.state in states, run
            listed = server.get(f"/api/v1/runs/{answer['runId']}").json["run"]
            assert (listed["total"], listed["failed"], listed["state"]) == found, (run, listed)
            names = server.get(f"/api/v1/runs/{answer['runId']}/tests?limit=500").json["items"]
            assert len(names) == found[0], run
            seen[run.state, len(run.counted()) < len(run.uploads)] += 1
    assert len(seen) > 3, seen
