"""Selectors as a pure function of names, labels and groups."""

from __future__ import annotations

import pytest
from attrs import evolve

from models.errors import Invalid, NotFound
from models.supervision.process import ProcessSpec
from models.supervision.selectors import Group, groups_of, select


def spec(name: str, *labels: str, groups: tuple[str, ...] = ()) -> ProcessSpec:
    return ProcessSpec(name, ("true",), labels=labels, groups=groups)


SPECS = [
    spec("web", "env=prod", "critical"),
    spec("worker-1", "env=prod", groups=("jobs",)),
    spec("worker-2", "env=dev", groups=("jobs",)),
    spec("db", "env="),
    spec("a,b"),
    spec("[x]"),
    spec("tools:run"),
    spec("!odd"),
    spec("k=v"),
]
GROUPS = groups_of(SPECS, {"backend": ["web", "worker-*"], "tools": ["db"], "none": ["nothing*"]})
ALL = [one.name for one in SPECS]


@pytest.mark.parametrize(
    ("values", "names"),
    [
        (["web"], ["web"]),
        (["db,web"], ["web", "db"]),
        (["db", "web"], ["web", "db"]),
        ([" db , web ,"], ["web", "db"]),
        (["all"], ALL),
        (["worker-*"], ["worker-1", "worker-2"]),
        (["worker-?,!worker-1"], ["worker-2"]),
        (["!worker-1", "worker-*"], ["worker-2"]),
        (["[dw][be]*"], ["web", "db"]),
        (["@backend"], ["web", "worker-1", "worker-2"]),
        (["backend:*"], ["web", "worker-1", "worker-2"]),
        (["@jobs"], ["worker-1", "worker-2"]),
        (["tools:*"], ["db"]),
        (["tools:r*"], ["tools:run"]),
        (["env=prod"], ["web", "worker-1"]),
        (["env=*"], ["web", "worker-1", "worker-2", "db"]),
        (["env="], ["db"]),
        (["critical="], ["web"]),
        (["*=dev"], ["worker-2"]),
        (["a,b"], ["a,b"]),
        (["[x]"], ["[x]"]),
        (["!odd"], ["!odd"]),
        (["all,!!odd,!@jobs,!env=*"], ["a,b", "[x]", "tools:run", "k=v"]),
        (["k=v"], ["k=v"]),
        (["web,!web"], []),
        (["web,!db"], ["web"]),
        (["web"] * 100, ["web"]),
    ],
)
def test_select_returns_the_matching_names(values: list[str], names: list[str]) -> None:
    assert select(values, SPECS, GROUPS) == names


def test_words_are_compared_by_their_letters() -> None:
    """Texts of a request are no constants of the program."""
    replicas = [evolve(spec("pool-0"), template="pool")]
    assert select(["POOL".lower()], replicas, {}) == ["pool-0"]
    assert select(["ALL".lower()], [], {}) == []


@pytest.mark.parametrize(
    "values",
    [
        [],
        [""],
        [","],
        ["!web"],
        ["!web", "!db"],
        ["!"],
        ["all", "!"],
        ["web"] * 101,
        ["web,!"],
        ["web", "*" * 257],
        ["web," + "=" * 257],
        ["web", " " * 4094],
        ["web", "\u20ac" * 1365],
    ],
)
def test_invalid_selector_is_refused(values: list[str]) -> None:
    with pytest.raises(Invalid) as caught:
        select(values, SPECS, GROUPS)
    assert caught.value.code == "INVALID_SELECTOR"


def test_a_selector_that_is_too_long_is_refused_with_its_limit() -> None:
    for values, limit in ((["a?" * 200], "256 characters"), ([",".join(["web"] * 90)] * 12, "4096 bytes")):
        with pytest.raises(Invalid, match=f"longer than {limit}"):
            select(values, SPECS, GROUPS)
    assert select(["web" + " " * 200, "*" * 256], SPECS, GROUPS) == ALL


@pytest.mark.parametrize(
    "term", ["wbe", "Web", "x*", "@nothing", "@none", "env=test", "=", "!wbe", "!@nothing", "nothing:*", "@"]
)
def test_term_without_match_is_not_found_even_beside_a_matching_term(term: str) -> None:
    with pytest.raises(NotFound) as caught:
        select(["web", term], SPECS, GROUPS)
    assert caught.value.code == "PROCESS_NOT_FOUND"
    assert repr(term) in caught.value.message


def test_all_without_processes_is_empty() -> None:
    assert select(["all"], [], {}) == []


def test_groups_join_configured_members_and_processes_in_the_order_of_the_processes() -> None:
    specs = [spec("late", groups=("own", "both")), spec("early"), spec("w1"), spec("w2", groups=("both",))]
    assert groups_of(specs, {"both": ["w*", "early"], "empty": ["x*"]}) == {
        "both": Group("both", ("late", "early", "w1", "w2")),
        "empty": Group("empty", ()),
        "own": Group("own", ("late",)),
    }
