"""Argument lists for helm 3 and helm 4; no value of a caller becomes an option."""

from __future__ import annotations

import json
from typing import Any

import pytest
from conftest import ROOT
from small_charts import HELMS, helm_path

from models.charts import helm_args, requests
from models.charts.helm_args import HelmVersion
from models.errors import Invalid

THREE, FOUR = HelmVersion(3, 19), HelmVersion(4, 1, 4)
INSTALL = ["install", "--namespace=ns", "--output=json", "--values=-", "--timeout=9s"]
UPGRADE = ["upgrade", *INSTALL[1:]]


RELEASE: dict[str, Any] = {"name": "r", "namespace": "ns"}
TEST = requests.TestRequest(**RELEASE, timeout_seconds=9)
NEW: dict[str, Any] = {"release_name": "r", "namespace": "ns", "chart_ref": "repo/c"}


def install(version: HelmVersion, **options: Any) -> list[str]:
    return helm_args.install(version, requests.InstallRequest(**NEW, **options), "/c.tgz", 9)


def upgrade(version: HelmVersion, **options: Any) -> list[str]:
    return helm_args.upgrade(version, requests.UpgradeRequest(**RELEASE, chart_ref="repo/c", **options), "/c.tgz", 9)


def uninstall(version: HelmVersion, **options: Any) -> list[str]:
    return helm_args.uninstall(version, requests.UninstallRequest(**RELEASE, **options), 9)


def rollback(version: HelmVersion, **options: Any) -> list[str]:
    return helm_args.rollback(version, requests.RollbackRequest(**RELEASE, revision=2, **options), 9)


def template(_: HelmVersion, **options: Any) -> list[str]:
    return helm_args.template(requests.TemplateRequest(**NEW, **options), "/c.tgz")


def lint(**options: Any) -> list[str]:
    return helm_args.lint(requests.LintRequest(chart_ref="repo/c", **options), "/c.tgz")


CASES: list[tuple[Any, dict[str, Any], list[str], list[str] | None]] = [
    (install, {"dry_run": True}, ["--dry-run=server"], None),
    (install, {"description": "-x --debug"}, ["--description=-x --debug"], None),
    (install, {"labels": {"a": "1", "b": "2"}}, ["--labels=a=1", "--labels=b=2"], None),
    (install, {"wait": True}, ["--wait"], ["--wait=watcher"]),
    (install, {"atomic": True}, ["--atomic"], ["--rollback-on-failure"]),
    (install, {"create_namespace": True}, ["--create-namespace"], None),
    (upgrade, {"dry_run": True}, ["--dry-run=server"], None),
    (upgrade, {"value_strategy": "RESET"}, ["--reset-values"], None),
    (upgrade, {"value_strategy": "REUSE"}, ["--reuse-values"], None),
    (upgrade, {"value_strategy": "RESET_THEN_REUSE"}, ["--reset-then-reuse-values"], None),
    (upgrade, {"install": True}, ["--install"], None),
    (upgrade, {"description": "d"}, ["--description=d"], None),
    (upgrade, {"wait": True}, ["--wait"], ["--wait=watcher"]),
    (upgrade, {"atomic": True}, ["--atomic"], ["--rollback-on-failure"]),
    (uninstall, {"no_hooks": True}, ["--no-hooks"], None),
    (uninstall, {"keep_history": True, "description": "d"}, ["--keep-history", "--description=d"], None),
    (uninstall, {"dry_run": True}, ["--dry-run"], None),
    (uninstall, {"wait": True}, ["--wait"], ["--wait=watcher"]),
    (uninstall, {"cascade": "orphan"}, ["--cascade=orphan"], None),
    (rollback, {"no_hooks": True}, ["--no-hooks"], None),
    (rollback, {"max_history": 0}, ["--history-max=0"], None),
    (rollback, {"dry_run": True}, ["--dry-run"], ["--dry-run=server"]),
    (rollback, {"force": True}, ["--force"], ["--force-replace", "--server-side=false"]),
    (rollback, {"cleanup_on_fail": True}, ["--cleanup-on-fail"], None),
    (rollback, {"wait": True}, ["--wait"], ["--wait=watcher"]),
    (rollback, {"wait_for_jobs": True}, ["--wait", "--wait-for-jobs"], ["--wait=watcher", "--wait-for-jobs"]),
    (template, {"show_only": ["templates/a.yaml", "b"]}, ["--show-only=templates/a.yaml", "--show-only=b"], None),
    (template, {"skip_tests": True}, ["--skip-tests"], None),
    (template, {"include_crds": True}, ["--include-crds"], None),
    (template, {"is_upgrade": True}, ["--is-upgrade"], None),
]


@pytest.mark.parametrize(("build", "options", "three", "four"), CASES)
def test_each_option_adds_exactly_its_arguments(
    build: Any, options: dict[str, Any], three: list[str], four: list[str] | None
) -> None:
    for version, arguments in ((THREE, three), (FOUR, four or three)):
        plain, given = build(version), build(version, **options)
        assert [argument for argument in given if argument not in plain] == arguments
        assert given[given.index("--") :] == plain[plain.index("--") :]


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (install(FOUR), [*INSTALL, "--", "r", "/c.tgz"]),
        (upgrade(THREE), [*UPGRADE, "--", "r", "/c.tgz"]),
        (uninstall(THREE), ["uninstall", "--namespace=ns", "--timeout=9s", "--", "r"]),
        (rollback(FOUR), ["rollback", "--namespace=ns", "--timeout=9s", "--", "r", "2"]),
        (helm_args.test(TEST), ["test", "--namespace=ns", "--timeout=9s", "--", "r"]),
        (template(FOUR), ["template", "--namespace=ns", "--values=-", "--", "r", "/c.tgz"]),
        (lint(), ["lint", "--values=-", "--", "/c.tgz"]),
        (lint(strict=True), ["lint", "--values=-", "--strict", "--", "/c.tgz"]),
        (helm_args.create(requests.CreateRequest(name="-x")), ["create", "--", "-x"]),
    ],
)
def test_positional_arguments_follow_the_options(arguments: list[str], expected: list[str]) -> None:
    assert arguments == expected


@pytest.mark.parametrize("labels", [{"a": "1,b=2"}, {"a,b": "1"}, {"a=b": "1"}])
def test_a_label_cannot_contain_a_second_label(labels: dict[str, str]) -> None:
    with pytest.raises(Invalid, match="labels"):
        install(FOUR, labels=labels)


def test_values_are_json_and_absent_values_an_empty_object() -> None:
    assert json.loads(helm_args.values(None)) == {}
    assert json.loads(helm_args.values({"a": [1, None, "ü"]})) == {"a": [1, None, "ü"]}


@pytest.mark.parametrize("name", HELMS)
@pytest.mark.parametrize(("build", "options", "three", "four"), CASES)
def test_every_flag_is_in_the_help_of_both_helm_versions(
    name: str, build: Any, options: dict[str, Any], three: list[str], four: list[str] | None
) -> None:
    """Compares the flags with `helm COMMAND --help` of each version."""
    version = THREE if name == "helm3" else FOUR
    command, *arguments = build(version, **options)
    known = known_flags(helm_path(name), command)
    assert {argument.partition("=")[0] for argument in arguments[: arguments.index("--")]} <= known


_FLAGS: dict[tuple[str, str], set[str]] = {}


def known_flags(binary: str, command: str) -> set[str]:
    import re
    import subprocess

    if (binary, command) not in _FLAGS:
        run = subprocess.run([binary, command, "--help"], check=True, capture_output=True, text=True, cwd=ROOT)
        _FLAGS[binary, command] = set(re.findall(r"--[a-z-]+", run.stdout))
    return _FLAGS[binary, command]
