"""YAML aliases in a repository index: they are expanded as by helm, up to a limit."""

from __future__ import annotations

from pathlib import Path

import pytest

from models.charts.repositories import index as repository_index
from models.charts.repositories.index import IndexVersion
from models.errors import Invalid


def read(folder: Path, text: str) -> dict[str, list[IndexVersion]]:
    file = folder / "index.yaml"
    file.write_text(text)
    return {one.name: list(one.versions) for one in repository_index.charts(file)}


EXPECTED = IndexVersion("1.0.0", "7", "a chart", "a.tgz", "ab")


@pytest.mark.parametrize(
    "text",
    [
        "apiVersion: v1\nx: &v {version: 1.0.0, appVersion: '7', description: a chart, urls: [a.tgz], digest: ab}\n"
        "entries: {a: [*v]}\n",
        "apiVersion: v1\nx: &l [{version: 1.0.0, appVersion: '7', description: a chart, urls: [a.tgz], digest: ab}]\n"
        "entries: {a: *l}\n",
        "apiVersion: v1\nx: {deep: [{&u urls: &l [a.tgz], s: &s a chart}]}\n"
        "entries: {a: [{version: 1.0.0, appVersion: '7', description: *s, *u : *l, digest: ab}]}\n",
        "apiVersion: v1\nx: &v {version: 9.0.0, appVersion: '7', description: a chart, urls: [a.tgz]}\n"
        "entries: {a: [{<<: *v, version: 1.0.0, digest: ab}]}\n",
        "apiVersion: v1\nx: {y: &y {appVersion: '7', urls: [a.tgz]}, v: &v {<<: *y, description: a chart}}\n"
        "entries: {a: [{version: 1.0.0, digest: ab, <<: *v}]}\n",
        "apiVersion: v1\nx: &v {version: 2.0.0}\ny: &v {version: 1.0.0, appVersion: '7', description: a chart,"
        " urls: [a.tgz], digest: ab}\nentries: {a: [*v]}\n",
        "apiVersion: v1\nx: &e {a: [{version: 1.0.0, appVersion: '7', description: a chart, urls: [a.tgz],"
        " digest: ab}]}\nentries: *e\n",
    ],
)
def test_aliases_are_expanded(tmp_path: Path, text: str) -> None:
    assert read(tmp_path, text) == {"a": [EXPECTED]}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("apiVersion: v1\nentries: {a: [*v]}\n", "without an anchor"),
        ("apiVersion: v1\nentries: {a: &v [*v]}\n", "without an anchor, or inside"),
        ("apiVersion: v1\nx: &v [x]\nentries: {a: [{description: *v}]}\n", "description is not text"),
    ],
)
def test_invalid_aliases_are_refused(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(Invalid, match=message):
        read(tmp_path, text)


def test_aliases_that_expand_beyond_the_limits_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(repository_index, "_MAX_EXPANDED_EVENTS", 1000)
    one = "{version: 1.0.0, urls: [a]}"
    many = f"apiVersion: v1\nx: &v {one}\nentries: {{a: [{', '.join(['*v'] * 500)}]}}\n"
    with pytest.raises(Invalid, match="expand to too much"):
        read(tmp_path, many)
    monkeypatch.setattr(repository_index, "_MAX_KEPT_EVENTS", 50)
    with pytest.raises(Invalid, match="too many anchored nodes"):
        read(tmp_path, f"apiVersion: v1\nx: &v [{', '.join([one] * 20)}]\nentries: {{}}\n")


def test_aliases_in_ignored_fields_are_not_expanded(tmp_path: Path) -> None:
    """The lines expand to 10^9 strings."""
    lines = "".join(f"{chr(98 + n)}: &{chr(98 + n)} [{', '.join([f'*{chr(97 + n)}'] * 10)}]\n" for n in range(9))
    assert read(tmp_path, f"a: &a [x]\n{lines}apiVersion: v1\nentries: {{a: [{{version: 1.0.0, keywords: *j}}]}}\n")


@pytest.mark.parametrize(
    ("created", "expected"),
    [
        ('"2026-01-31T00:00:00Z"', 1_769_817_600_000_000),
        ("2026-01-31T01:00:00.123456789+01:00", 1_769_817_600_123_456),
        ("2026-01-31", 1_769_817_600_000_000),
        ("0001-01-01T00:00:00Z", 0),
        ("0001-01-01T00:00:00+14:00", 0),
        ("yesterday", 0),
        ("", 0),
        ("{a: 1}", 0),
        ("[1]", 0),
        ('"' + "9" * 5000 + '"', 0),
    ],
)
def test_the_time_of_a_version_is_read_where_it_is_valid(tmp_path: Path, created: str, expected: int) -> None:
    found = read(tmp_path, f"apiVersion: v1\nentries: {{a: [{{version: 1.0.0, created: {created}}}]}}\n")
    assert [one.created for one in found["a"]] == [expected]
