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

STATUS_NAMES = (
    "not_started", "running", "finished", "unknown", "failed", "failed_to_start", "stopped", "stopping", "aborted",
    "starting", "healthy", "unhealthy",
)  # fmt: skip


def specs(**needs: str) -> dict[str, ProcessSpec]:
    """`specs(web="db cache", db="")`: web depends on db and cache."""
    return {
        name: ProcessSpec(name, ("true",), depends_on=tuple(map(Dependency, others.split())))
        for name, others in needs.items()
    }


def test_statuses_have_the_specified_names_and_order() -> None:
    assert tuple(status.value for status in STATUSES) == STATUS_NAMES
    assert [status.rank for status in STATUSES] == list(range(12))


def test_every_status_has_transitions_but_none_to_itself_or_not_started() -> None:
    assert set(TRANSITIONS) == set(Status)
    for status, following in TRANSITIONS.items():
        assert following
        assert status not in following
        assert Status.NOT_STARTED not in following


def test_ended_and_not_started_lead_only_to_starting_and_no_other_status_does() -> None:
    assert all(TRANSITIONS[status] == {Status.STARTING} for status in ENDED | {Status.NOT_STARTED})
    assert {status for status in Status if Status.STARTING in TRANSITIONS[status]} == ENDED | {Status.NOT_STARTED}


def test_up_statuses_lead_to_every_ended_status_except_failed_to_start() -> None:
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


def test_status_without_a_known_exit_is_unknown() -> None:
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


def test_no_policy_restarts_a_process_that_has_not_ended() -> None:
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
def test_dependents_are_transitive_and_precede_their_dependencies(
    all: dict[str, ProcessSpec], of: str, found: str
) -> None:
    names = dependents(needed_by(all), of)
    assert sorted(names) == found.split()
    for name in names:
        needed = {dependency.process for dependency in all[name].depends_on}
        assert not needed & set(names[: names.index(name)])


def dependency_names(all: dict[str, ProcessSpec]) -> dict[str, set[str]]:
    return {name: {dependency.process for dependency in spec.depends_on} for name, spec in all.items()}


def test_a_chain_of_dependents_may_be_long() -> None:
    chain = specs(p0="", **{f"p{n}": f"p{n - 1}" for n in range(1, 3000)})
    assert dependents(needed_by(chain), "p0") == [f"p{n}" for n in range(2999, 0, -1)]
    assert circle(dependency_names(chain)) == []


@pytest.mark.parametrize(
    "all",
    [specs(), specs(a="", b="a", c="a b"), specs(a="missing"), specs(top="left right", left="a", right="a", a="")],
)
def test_circle_is_empty_without_a_cycle(all: dict[str, ProcessSpec]) -> None:
    assert circle(dependency_names(all)) == []


@pytest.mark.parametrize(
    ("all", "members"),
    [
        (specs(a="a"), "a"),
        (specs(a="b", b="a"), "a b"),
        (specs(a="b", b="c", c="b"), "b c"),
        (specs(a="", b="c", c="d a", d="b"), "b c d"),
    ],
)
def test_circle_returns_a_path_that_ends_with_its_first_name(all: dict[str, ProcessSpec], members: str) -> None:
    found = circle(dependency_names(all))
    assert found[0] == found[-1]
    assert sorted(found[1:]) == members.split()
    for name, needed in pairwise(found):
        assert needed in {dependency.process for dependency in all[name].depends_on}


def test_argv_is_command_and_args_and_redirected_stderr_has_no_file() -> None:
    spec = ProcessSpec("web", ("run", "-x"), ("y", "z w"), stderr_logfile="e")
    assert spec.argv == ["run", "-x", "y", "z w"]
    assert spec.stderr_file == "e"
    assert ProcessSpec("web", ("run",), stderr_logfile="e", redirect_stderr=True).stderr_file is None
