"""Differences of manifests, entered values, and labels on the pages of releases."""

from __future__ import annotations

import json
from typing import Any

import pytest

from models.charts import releases, yaml_values
from models.charts.diff import MAX_LINES, MAX_SHOWN_LINES, Difference, by_object, difference, documents
from models.errors import Invalid


def shown_lines(found: Difference) -> list[str]:
    return [line.text for line in found.lines]


def test_equal_texts_have_no_difference() -> None:
    assert difference("a\nb\n", "a\nb") == Difference(())


def test_a_difference_has_line_numbers_and_context() -> None:
    lines = [f"line {number}" for number in range(1, 101)]
    found = difference("\n".join(lines), "\n".join([*lines[:50], "new", *lines[51:]]))
    assert shown_lines(found) == [
        "@@ -48,7 +48,7 @@", " line 48", " line 49", " line 50", "-line 51", "+new", " line 52", " line 53", " line 54",
    ]  # fmt: skip
    assert (found.added, found.removed, found.is_cut) == (1, 1, False)
    assert [line.kind for line in found.lines[4:6]] == ["del", "add"]


def test_a_changed_line_that_begins_with_dashes_is_counted_once() -> None:
    found = difference("--- x\nsame\n", "+++ y\nsame\n")
    assert shown_lines(found)[1:3] == ["---- x", "++++ y"]
    assert (found.added, found.removed) == (1, 1)


def test_added_lines_are_reported_for_new_and_longer_texts() -> None:
    assert shown_lines(difference("", "a\nb")) == ["@@ -0,0 +1,2 @@", "+a", "+b"]
    assert (difference("a\na", "a\na\na").added, difference("a\na\na", "a\na").removed) == (1, 1)


def test_a_difference_above_the_limits_is_cut_or_omitted() -> None:
    many = "\n".join(map(str, range(MAX_SHOWN_LINES + 100)))
    found = difference("", many)
    assert (len(found.lines), found.is_cut, found.added) == (MAX_SHOWN_LINES, True, MAX_SHOWN_LINES + 100)
    found = difference("", "\n".join(map(str, range(MAX_LINES + 1))))
    assert (found.lines, found.is_cut) == ((), True)
    found = difference("x\n" + many * 10, "y\n" + many * 10)  # common lines do not count towards the limit
    assert (found.added, found.removed, found.is_cut) == (1, 1, False)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("", None),
        ("  \n", None),
        ("{}", {}),
        ("# nothing", {}),
        ('{"a": [1, null]}', {"a": [1, None]}),
        ("a: 1e3\nb: 1:30\nc: 2026-11-21\nd: 0x1F\ne: 022\nf: 1.50\ng: yes", {
            "a": 1000.0, "b": "1:30", "c": "2026-11-21", "d": 31, "e": 18, "f": 1.5, "g": True,
        }),
        ("2: a\ntrue: b\n1.5: c", {"2": "a", "true": "b", "1.5": "c"}),
        ("a: '1'\nb: |\n  x\n  y\n", {"a": "1", "b": "x\ny\n"}),
    ],
)  # fmt: skip
def test_values_are_read_as_helm_reads_them(text: str, value: dict[str, Any] | None) -> None:
    found = yaml_values.parse(text)
    assert found == value
    json.dumps(found, allow_nan=False)


@pytest.mark.parametrize(
    "text",
    ["- a", "text", "a: [", "a: &b 1\nc: *b", "a: .nan", "a: .inf", "? [1]\n: a",
     'a: "\\0"', "a: " + "[" * 5000, "a: " + "[" * 150 + "]" * 150,
     "a: b\n---\nc: d", "x: " + "y" * 600_000],
)  # fmt: skip
def test_invalid_values_are_refused(text: str) -> None:
    with pytest.raises(Invalid, match=r"values|a:"):
        yaml_values.parse(text)


def secret(namespace: str, name: str, number: int, status: str, **labels: str) -> dict[str, Any]:
    marks = {"owner": "helm", "name": name, "version": str(number), "status": status, **labels}
    about = {"name": f"sh.helm.release.v1.{name}.v{number}", "namespace": namespace, "labels": marks}
    return {"metadata": {**about, "creationTimestamp": "2026-11-21T10:00:00Z"}}


def test_labels_determine_the_newest_revision_of_each_release() -> None:
    found = releases.briefs([
        secret("b", "web", 9, "deployed"),
        secret("b", "web", 10, "pending-upgrade", modifiedAt="1763700000"),
        secret("a", "web", 1, "failed", modifiedAt="never"),
        {"metadata": {"name": "another", "labels": {"owner": "helm"}}},
    ])  # fmt: skip
    assert [(one.namespace, one.name, one.revision.number, one.status, one.updated) for one in found] == [
        ("a", "web", 1, "failed", "2026-11-21T10:00:00Z"),
        ("b", "web", 10, "pending-upgrade", "2025-11-21T04:40:00Z"),
    ]
    row = releases.row_of_brief(found[1])
    assert (row.name, row.namespace, row.revision, row.chart) == ("web", "b", 10, "")
    assert releases.row_of_brief(releases.brief_of_row(row)) == row


def manifest(*objects: tuple[str, str, str]) -> str:
    return "".join(
        f"---\n# Source: a.yaml\napiVersion: v1\nkind: {kind}\nmetadata:\n  name: {name}\nspec: {spec}\n"
        for kind, name, spec in objects
    )


def test_manifests_are_compared_object_by_object() -> None:
    old = manifest(("Service", "a", "1"), ("Deployment", "b", "2"), ("Secret", "c", "3"))
    new = manifest(("Deployment", "b", "9"), ("Service", "a", "1"), ("ConfigMap", "d", "4"))
    found = by_object(old, new)
    assert [(one.title, one.change) for one in found.objects] == [
        ("Deployment b", "changed"),
        ("ConfigMap d", "added"),
        ("Secret c", "removed"),
    ]
    assert (found.added, found.removed, found.is_cut) == (7, 7, False)
    assert by_object(old, old).objects == ()


@pytest.mark.parametrize(
    ("text", "titles"),
    [
        ("", []),
        ("# only a comment\n---\n\n", []),
        ("kind: A\nmetadata: {name: x, namespace: y}\n", ["A x in y"]),
        ("metadata:\n  labels: {name: other}\n  name: x\nkind: A\n", ["A x"]),
        ("no: kind\n---\nkind: B\n", ["document 1", "B"]),
        ('kind: "A"\nmetadata:\n  namespace: n\n  name: "q"\n', ["A q in n"]),
    ],
)
def test_the_documents_of_a_manifest_have_titles(text: str, titles: list[str]) -> None:
    assert [title for title, _ in documents(text)] == titles


def test_lines_of_one_kind_form_one_block_and_both_sides_align() -> None:
    found = difference("a\nb\nc\nd\n", "a\nx\nd\n")
    assert [(block.kind, block.text) for block in found.blocks if block.kind != "hunk"] == [
        ("", " a\n"), ("del", "-b\n-c\n"), ("add", "+x\n"), ("", " d\n"),
    ]  # fmt: skip
    left, right = found.sides
    assert [block.text.count("\n") for block in left] == [1, 1, 2, 1]
    assert sum(block.text.count("\n") for block in left) == sum(block.text.count("\n") for block in right)
