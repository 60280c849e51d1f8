"""Statuses, exits, restart policies and `depends-on` as tables, without a process."""

from __future__ import annotations

import signal
from itertools import pairwise

import pytest

from models.children import Exit
from models.supervision.process import (
    ENDED,
    STATUSES,
    TRANSITIONS,
    UP,
    Dependency,
    ProcessSpec,
    Restart,
    Status,
    circle,
    dependents,
    needed_by,
    restarts,
    status_after_exit,
)

WORDS = (
    "not_started", "running", "finished", "unknown", "failed", "failed_to_start", "stopped", "stopping", "aborted",
    "starting", "healthy", "unhealthy",
)  # fmt: skip


def specs(**needs: str) -> dict[str, ProcessSpec]:
    """`specs(web="db cache", db="")`: web depends on db and cache."""
    return {
        name: ProcessSpec(name, ("true",), depends_on=tuple(map(Dependency, others.split())))
        for name, others in needs.items()
    }


def test_the_statuses_are_the_seeds_in_its_order_and_sort_so() -> None:
    assert tuple(status.value for status in STATUSES) == WORDS
    assert [status.rank for status in STATUSES] == list(range(12))


def test_every_status_has_moves_and_none_leads_to_itself_or_back_to_the_beginning() -> None:
    assert set(TRANSITIONS) == set(Status)
    for status, following in TRANSITIONS.items():
        assert following
        assert status not in following
        assert Status.NOT_STARTED not in following


def test_what_has_ended_can_only_be_started_again_and_only_so_does_anything_start() -> None:
    assert all(TRANSITIONS[status] == {Status.STARTING} for status in ENDED | {Status.NOT_STARTED})
    assert {status for status in Status if Status.STARTING in TRANSITIONS[status]} == ENDED | {Status.NOT_STARTED}


def test_what_is_up_may_end_in_every_way_but_by_failing_to_start() -> None:
    for status in UP:
        assert TRANSITIONS[status] >= ENDED - {Status.FAILED_TO_START}
        assert Status.FAILED_TO_START not in TRANSITIONS[status]
    assert TRANSITIONS[Status.STOPPING] == {Status.STOPPED, Status.ABORTED, Status.UNKNOWN}


@pytest.mark.parametrize(
    ("exit", "status", "code"),
    [
        (Exit(0), Status.FINISHED, 0),
        (Exit(1), Status.FAILED, 1),
        (Exit(126), Status.FAILED, 126),
        (Exit(130), Status.FAILED, 130),
        (Exit(143), Status.FAILED, 143),
        (Exit(255), Status.FAILED, 255),
        (Exit(signal=signal.SIGTERM), Status.STOPPED, 143),
        (Exit(signal=signal.SIGINT), Status.STOPPED, 130),
        (Exit(signal=signal.SIGKILL), Status.ABORTED, 137),
        (Exit(signal=signal.SIGHUP), Status.ABORTED, 129),
        (Exit(signal=signal.SIGSEGV), Status.ABORTED, 139),
        (Exit(signal=signal.SIGABRT), Status.ABORTED, 134),
        (Exit(signal=signal.SIGQUIT), Status.ABORTED, 131),
        (Exit(signal=signal.SIGRTMAX), Status.ABORTED, 192),
    ],
    ids=str,
)
def test_the_status_after_an_unrequested_exit(exit: Exit, status: Status, code: int) -> None:
    assert status_after_exit(exit) is status
    assert exit.exit_code == code


def test_an_exit_that_cannot_be_known_is_unknown() -> None:
    assert status_after_exit(None) is Status.UNKNOWN


def test_an_exit_distinguishes_a_code_from_a_signal() -> None:
    assert str(Exit(9)) == "exit code 9"
    assert str(Exit(signal=signal.SIGKILL)) == "signal 9"


@pytest.mark.parametrize(
    ("ended", "never", "on_failure", "always"),
    [
        (Status.FINISHED, False, False, True),
        (Status.FAILED, False, True, True),
        (Status.ABORTED, False, True, True),
        (Status.FAILED_TO_START, False, True, True),
        (Status.STOPPED, False, False, True),
        (Status.UNKNOWN, False, False, True),
    ],
)
def test_each_policy_restarts_its_statuses(ended: Status, never: bool, on_failure: bool, always: bool) -> None:
    assert restarts(Restart.NEVER, ended) is never
    assert restarts(Restart.ON_FAILURE, ended) is on_failure
    assert restarts(Restart.ALWAYS, ended) is always


def test_no_policy_starts_what_has_not_ended() -> None:
    assert not any(restarts(policy, status) for policy in Restart for status in set(Status) - ENDED)


@pytest.mark.parametrize(
    ("all", "of", "found"),
    [
        (specs(a="", b=""), "a", ""),
        (specs(a="", b="a"), "a", "b"),
        (specs(a="", b="a"), "b", ""),
        (specs(a="", b="a", c="b"), "a", "b c"),
        (specs(c="b", b="a", a=""), "a", "b c"),
        (specs(a="", b="a", c="a b"), "a", "b c"),
        (specs(c="a b", b="a", a=""), "a", "b c"),
        (specs(a="", b="a", c="b", d="a c"), "b", "c d"),
        (specs(a="", left="a", right="a", top="left right"), "a", "left right top"),
        (specs(a="", b="a", other=""), "other", ""),
        (specs(a="", b="a"), "nobody", ""),
    ],
)
def test_dependents_are_found_through_others_and_each_stands_before_what_it_needs(
    all: dict[str, ProcessSpec], of: str, found: str
) -> None:
    names = dependents(needed_by(all), of)
    assert sorted(names) == found.split()
    for name in names:
        needed = {dependency.process for dependency in all[name].depends_on}
        assert not needed & set(names[: names.index(name)])


def needs(all: dict[str, ProcessSpec]) -> dict[str, set[str]]:
    return {name: {dependency.process for dependency in spec.depends_on} for name, spec in all.items()}


def test_a_chain_of_dependents_may_be_long() -> None:
    chain = specs(p0="", **{f"p{n}": f"p{n - 1}" for n in range(1, 3000)})
    assert dependents(needed_by(chain), "p0") == [f"p{n}" for n in range(2999, 0, -1)]
    assert circle(needs(chain)) == []


@pytest.mark.parametrize(
    "all",
    [specs(), specs(a="", b="a", c="a b"), specs(a="missing"), specs(top="left right", left="a", right="a", a="")],
)
def test_no_circle_is_seen_where_there_is_none(all: dict[str, ProcessSpec]) -> None:
    assert circle(needs(all)) == []


@pytest.mark.parametrize(
    ("all", "members"),
    [
        (specs(a="a"), "a"),
        (specs(a="b", b="a"), "a b"),
        (specs(a="b", b="c", c="b"), "b c"),
        (specs(a="", b="c", c="d a", d="b"), "b c d"),
    ],
)
def test_a_circle_is_reported_as_a_chain_from_one_name_back_to_it(all: dict[str, ProcessSpec], members: str) -> None:
    found = circle(needs(all))
    assert found[0] == found[-1]
    assert sorted(found[1:]) == members.split()
    for name, needed in pairwise(found):
        assert needed in {dependency.process for dependency in all[name].depends_on}


def test_arguments_follow_the_command_and_stderr_has_a_file_only_of_its_own() -> None:
    spec = ProcessSpec("web", ("run", "-x"), ("y", "z w"), stderr_logfile="e")
    assert spec.argv == ["run", "-x", "y", "z w"]
    assert spec.stderr_file == "e"
    assert ProcessSpec("web", ("run",), stderr_logfile="e", redirect_stderr=True).stderr_file is None
