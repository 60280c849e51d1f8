"""Stored releases of helm, unpacked and converted to responses."""

from __future__ import annotations

import base64
import gzip
import json
from datetime import UTC, datetime
from typing import Any

import pytest
import yaml
from release_secrets import TIMESTAMP, encoded_release, made_release, release_secret

from models.charts import releases, yaml_values
from models.charts.releases import BadRelease, ReleaseTooLarge, Revision

# Unpacking


def test_a_secret_is_unpacked() -> None:
    release = made_release("web", "shop", 3)
    assert releases.unpacked(release_secret(release)) == release


def test_an_uncompressed_release_is_unpacked() -> None:
    assert (
        releases.unpacked({"data": {"release": encoded_release(made_release("a", "b"), is_zipped=False)}})["name"]
        == "a"
    )


def base64_twice(data: bytes) -> str:
    return base64.b64encode(base64.b64encode(data)).decode()


@pytest.mark.parametrize(
    "data",
    [
        None,
        {},
        {"release": None},
        {"release": ""},
        {"release": "%%%"},
        {"release": base64_twice(b"no json")},
        {"release": base64_twice(b"[]")},
        {"release": base64_twice(b"{}")},
        {"release": base64_twice(b'{"name":1}')},
        {"release": base64_twice(gzip.compress(b'{"name":"a"}')[:-9])},
        {"release": base64_twice(b"\x1f\x8b\x08 no gzip")},
        {"release": base64_twice(b"[" * 100_000)},
    ],
)
def test_data_that_is_not_a_release_is_refused(data: dict[str, str] | None) -> None:
    with pytest.raises(BadRelease):
        releases.unpacked({"data": data})


def test_a_release_above_the_unpacked_limit_is_refused() -> None:
    bomb = gzip.compress(json.dumps({"name": "a", "manifest": "x" * 1000}).encode())
    with pytest.raises(ReleaseTooLarge, match="larger than 1000 bytes"):
        releases.unpacked({"data": {"release": base64_twice(bomb)}}, 1000)


# Revisions


def secret_metadata(name: str, number: object, uid: str = "u", **labels: str) -> dict[str, Any]:
    marks = {"owner": "helm", "name": name, "version": str(number), **labels}
    own = f"sh.helm.release.v1.{name}.v{number}"
    return {"metadata": {"name": own, "uid": uid, "resourceVersion": "7", "labels": marks}}


def test_the_newest_revision_has_the_highest_number() -> None:
    found = releases.revisions(
        [secret_metadata("a", 9), secret_metadata("a", 10), secret_metadata("b", 1), secret_metadata("a", 2)]
    )
    assert {name: one.number for name, one in releases.latest(found).items()} == {"a": 10, "b": 1}
    assert found[0] == Revision("a", 9, "sh.helm.release.v1.a.v9", "u 7")


@pytest.mark.parametrize(
    "item", [{}, {"metadata": {}}, secret_metadata("a", "x"), secret_metadata("a", 1, version="2")]
)
def test_a_secret_without_the_name_and_labels_of_helm_is_not_a_revision(item: dict[str, Any]) -> None:
    assert releases.revisions([item]) == []


# Times


@pytest.mark.parametrize(
    ("text", "result"),
    [
        (TIMESTAMP, TIMESTAMP),
        ("2026-11-21T12:47:45Z", "2026-11-21T12:47:45Z"),
        ("2026-11-21T12:47:45.100Z", "2026-11-21T12:47:45.1Z"),
        ("2026-11-21T01:00:00.5+02:00", "2026-11-20T23:00:00.5Z"),
        ("2026-11-20 16:53:43.9 +0000 UTC", "2026-11-20T16:53:43.9Z"),
        ("2026-11-20 16:53:43.123456789 +0530 IST", "2026-11-20T11:23:43.123456789Z"),
        ("2026-11-20 16:53:43 -0300 -03", "2026-11-20T19:53:43Z"),
        ("0001-01-01T00:00:00Z", None),
        ("", None),
        ("-", None),
        (None, None),
        (5, None),
    ],
)
def test_times_are_reported_in_utc_with_full_precision(text: object, result: str | None) -> None:
    assert releases.instant(text) == result


# Responses


def test_a_release_is_converted_with_all_fields() -> None:
    release = made_release("web", "shop", 3, manifest="kind: X\n")
    release["info"] |= {"notes": "read me", "deleted": "2026-11-21T13:00:00+01:00", "status": "uninstalled"}
    result = releases.release(release)
    assert (result.name, result.namespace, result.version, result.manifest) == ("web", "shop", 3, "kind: X\n")
    info = result.info
    assert (info.first_deployed, info.last_deployed, info.deleted) == (TIMESTAMP, TIMESTAMP, "2026-11-21T12:00:00Z")
    assert (info.description, info.status, info.notes) == ("revision 3", "uninstalled", "read me")


def test_missing_fields_of_a_release_have_empty_values() -> None:
    result = releases.release({"name": "bare"})
    assert (result.namespace, result.version, result.manifest) == ("", 0, "")
    assert (result.info.first_deployed, result.info.deleted, result.info.status, result.info.notes) == (
        None,
        None,
        "",
        "",
    )
    assert releases.list_row({"name": "bare"}).chart == "MISSING"
    assert releases.hooks({"name": "bare"}) == []
    assert releases.test_results({"name": "bare", "hooks": None}, None) == []


def test_a_row_names_chart_and_version() -> None:
    row = releases.list_row(made_release("web", "shop", 3))
    assert (row.chart, row.app_version, row.revision, row.updated) == ("made-1.2.3", "9", 3, TIMESTAMP)
    assert releases.history_row(made_release("web", "shop", 3)).description == "revision 3"


def hook(name: str, *events: str, phase: str | None = None, **parts: Any) -> dict[str, Any]:
    run = {} if phase is None else {"last_run": {"phase": phase}}
    return {"name": name, "kind": "Pod", "events": list(events), **run, **parts}


def test_hooks_with_and_without_weight_and_policies() -> None:
    plain, full = releases.hooks(
        {"hooks": [hook("a", "test"), hook("b", "pre-install", "post-delete", weight=-5, delete_policies=["p"])]}
    )
    assert (plain.kind, plain.name, plain.phases, plain.weight, plain.delete_policy) == ("Pod", "a", ("test",), 0, ())
    assert (full.phases, full.weight, full.delete_policy) == (("pre-install", "post-delete"), -5, ("p",))


def test_test_results_are_those_of_the_last_run() -> None:
    hooks = [
        hook("ok", "test", phase="Succeeded"),
        hook("bad", "test", "post-install", phase="Failed"),
        hook("now", "test", phase="Running"),
        hook("never", "test", phase=""),
        hook("new", "test"),
        hook("none", "pre-install", phase="Failed"),
    ]
    result = {one.name: one.status for one in releases.test_results({"hooks": hooks}, None)}
    assert result == {"ok": "PASSED", "bad": "FAILED", "now": "RUNNING", "never": "RUNNING", "new": "RUNNING"}
    messages = {one.name: one.message for one in releases.test_results({"hooks": hooks}, None)}
    assert messages["ok"] is None
    assert all(messages[name] for name in ("bad", "now", "never", "new"))


def test_results_from_before_the_test_run_are_not_reported() -> None:
    began = datetime(2026, 11, 22, 3, 0, 1, tzinfo=UTC)
    runs = {"now": "2026-11-22T04:00:01.5+01:00", "before": "2026-11-22T03:00:00Z", "odd": "yesterday"}
    hooks = [hook(name, "test", last_run={"phase": "Succeeded", "started_at": at}) for name, at in runs.items()]
    result = {one.name: one.status for one in releases.test_results({"hooks": hooks}, began)}
    assert result == {"now": "PASSED", "before": "RUNNING", "odd": "RUNNING"}


# Values (the comparison with helm itself is in test_cluster_reads.py)


@pytest.mark.parametrize(
    ("given", "own", "all_of_them"),
    [
        (None, None, {}),
        ({"a": 1}, {"a": 2, "b": 3}, {"a": 1, "b": 3}),
        ({"a": {"x": 1}}, {"a": {"y": 2}}, {"a": {"x": 1, "y": 2}}),
        ({"a": None}, {"a": {"y": 2}}, {}),
        ({"a": {"x": None}}, {"a": {"x": 1, "y": 2}}, {"a": {"y": 2}}),
        ({"a": [1]}, {"a": [2, 3]}, {"a": [1]}),
        ({"a": 1}, {"a": {"y": 2}}, {"a": 1}),
        ({"a": {"x": 1}}, {"a": 5}, {"a": {"x": 1}}),
        ({"b": None}, {}, {"b": None}),
    ],
)
def test_given_values_override_the_values_of_the_chart(given: Any, own: Any, all_of_them: Any) -> None:
    release = made_release("a", "b", config=given)
    release["chart"]["values"] = own
    before = json.dumps(release)
    assert releases.all_values(release) == all_of_them
    assert releases.values(release) == (given or {})
    assert json.dumps(release) == before


# YAML


TEXTS = [
    "plain", "", " lead", "trail ", "1", "1.5", "1e3", "1E-3", "0o17", "0x1F", "0b1", "017", "1_000", "12:30",
    "true", "True", "yes", "on", "off", "n", "y", "~", "null", "Null", "=", "<<", ".inf", "-.Inf", ".nan", "3-1-1",
    "2020-01-01T10:00:00Z", "# no comment", "a: b", "- a", "{a", "[a", "*a", "&a", "!a", "%a", "@a", "`a", "'", '"',
    "a\nb", "a\nb\n", "a\n\n", "\n", " a\nb", "a \nb", "tab\tend\n", "é", "\U0001f600", "\x7f", "\x85", "\u2028",
    "1.2.3", "v1", "-", "?", ":", "1.", ".5", "+1", "-0",
    "12:30:45.5", "2020-01-01", "\t", "\ufeff",
]  # fmt: skip


@pytest.mark.parametrize("text", TEXTS)
def test_a_string_remains_a_string_in_yaml(text: str) -> None:
    assert yaml.safe_load(yaml_values.dump({"key": [text], text: 1})) == {"key": [text], text: 1}


@pytest.mark.parametrize("text", ["1e3", "1E-3", "0o17", "y", "N", "12:30", "1_000", ".5", "2020-1-1"])
def test_ambiguous_strings_are_quoted_in_yaml(text: str) -> None:
    assert yaml_values.dump(text) == f'"{text}"\n'


@pytest.mark.parametrize("text", ["1.2.3", "v1", "plain", "yarn", "10.0.0.0/24"])
def test_unambiguous_strings_are_not_quoted_in_yaml(text: str) -> None:
    assert yaml_values.dump({"a": text}) == f"a: {text}\n"


def test_yaml_is_sorted_in_block_style_without_anchors() -> None:
    reported_twice = {"x": [1, 2.5, None, True]}
    assert yaml_values.dump({}) == "{}\n"
    assert yaml_values.dump({"b": reported_twice, "a": reported_twice}) == (
        "a:\n  x:\n  - 1\n  - 2.5\n  - null\n  - true\nb:\n  x:\n  - 1\n  - 2.5\n  - null\n  - true\n"
    )
    assert yaml_values.dump({"a": "one\ntwo\n"}) == "a: |\n  one\n  two\n"


@pytest.mark.parametrize(
    ("value", "quick"),
    [
        ({}, True),
        ({"a": {"b": [1, None, "x"]}}, True),
        ({"a": "x" * 5000}, False),
        ({"x" * 5000: 1}, False),
        ({"a": list(range(500))}, False),
        ({"a": [{} for _ in range(500)]}, False),
    ],
    ids=range(6),
)
def test_only_small_values_are_dumped_without_a_worker(value: Any, quick: bool) -> None:
    assert yaml_values.is_fast(value) is quick
