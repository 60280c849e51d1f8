"""Argument lists for helm, as pure functions. Every difference between helm 3 and helm 4 is in this module.

Options come before `--`, so a caller's value can never become an option. The value of an option is part of the same
argument (`--description=...`). Values are always passed on standard input.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any, Literal

from attrs import frozen

from models.errors import Invalid

STRATEGIES = {
    "DEFAULT": None,
    "RESET": "--reset-values",
    "REUSE": "--reuse-values",
    "RESET_THEN_REUSE": "--reset-then-reuse-values",
}
Strategy = Literal["DEFAULT", "RESET", "REUSE", "RESET_THEN_REUSE"]
Cascade = Literal["background", "foreground", "orphan"]


@frozen
class Version:
    """The version of helm."""

    major: int
    minor: int = 0
    patch: int = 0

    def __str__(self) -> str:
        return f"{self.major}.{self.minor}.{self.patch}"


_ESCAPED_FOR_YAML = re.compile(r"[\x7f-\x9f\u2028\u2029\ufeff\ufffe\uffff]")


def values(overrides: Mapping[str, Any] | None) -> bytes:
    """Encodes values for standard input: JSON, with the characters escaped that YAML refuses or breaks lines at."""
    text = json.dumps(overrides or {}, ensure_ascii=False)
    return _ESCAPED_FOR_YAML.sub(lambda character: f"\\u{ord(character[0]):04x}", text).encode()


def install(
    helm: Version,
    name: str,
    namespace: str,
    chart: str,
    *,
    dry_run: bool = False,
    description: str | None = None,
    labels: Mapping[str, str] | None = None,
    wait: bool = False,
    timeout: int,
    create_namespace: bool = False,
    atomic: bool = False,
) -> list[str]:
    return [
        "install",
        f"--namespace={namespace}",
        "--output=json",
        "--values=-",
        f"--timeout={timeout}s",
        *_dry_run_flag(dry_run),
        *_text_option("--description", description),
        *_label_options(labels),
        *_wait_flag(helm, wait),
        *_atomic_flag(helm, atomic),
        *_flag("--create-namespace", create_namespace),
        "--",
        name,
        chart,
    ]


def upgrade(
    helm: Version,
    name: str,
    namespace: str,
    chart: str,
    *,
    dry_run: bool = False,
    strategy: Strategy = "DEFAULT",
    install: bool = False,
    wait: bool = False,
    timeout: int,
    atomic: bool = False,
    description: str | None = None,
) -> list[str]:
    flag = STRATEGIES[strategy]
    return [
        "upgrade",
        f"--namespace={namespace}",
        "--output=json",
        "--values=-",
        f"--timeout={timeout}s",
        *_dry_run_flag(dry_run),
        *([flag] if flag else []),
        *_flag("--install", install),
        *_text_option("--description", description),
        *_wait_flag(helm, wait),
        *_atomic_flag(helm, atomic),
        "--",
        name,
        chart,
    ]


def uninstall(
    helm: Version,
    name: str,
    namespace: str,
    *,
    no_hooks: bool = False,
    keep_history: bool = False,
    dry_run: bool = False,
    wait: bool = False,
    timeout: int,
    cascade: Cascade | None = None,
    description: str | None = None,
) -> list[str]:
    return [
        "uninstall",
        f"--namespace={namespace}",
        f"--timeout={timeout}s",
        *_flag("--no-hooks", no_hooks),
        *_flag("--keep-history", keep_history),
        *_flag("--dry-run", dry_run),
        *_wait_flag(helm, wait),
        *_text_option("--cascade", cascade),
        *_text_option("--description", description),
        "--",
        name,
    ]


def rollback(
    helm: Version,
    name: str,
    namespace: str,
    revision: int,
    *,
    no_hooks: bool = False,
    max_history: int | None = None,
    dry_run: bool = False,
    force: bool = False,
    cleanup_on_fail: bool = False,
    wait: bool = False,
    wait_for_jobs: bool = False,
    timeout: int,
) -> list[str]:
    return [
        "rollback",
        f"--namespace={namespace}",
        f"--timeout={timeout}s",
        *_flag("--no-hooks", no_hooks),
        *([] if max_history is None else [f"--history-max={max_history}"]),
        *([] if not dry_run else ["--dry-run"] if helm.major == 3 else ["--dry-run=server"]),
        *_force_flags(helm, force),
        *_flag("--cleanup-on-fail", cleanup_on_fail),
        *_wait_flag(helm, wait or wait_for_jobs),
        *_flag("--wait-for-jobs", wait_for_jobs),
        "--",
        name,
        str(revision),
    ]


def test(helm: Version, name: str, namespace: str, *, timeout: int) -> list[str]:
    return ["test", f"--namespace={namespace}", f"--timeout={timeout}s", "--", name]


def template(
    helm: Version,
    name: str,
    namespace: str,
    chart: str,
    *,
    show_only: Sequence[str] = (),
    skip_tests: bool = False,
    include_crds: bool = False,
    is_upgrade: bool = False,
    kube_version: str | None = None,
    api_versions: Sequence[str] = (),
) -> list[str]:
    return [
        "template",
        f"--namespace={namespace}",
        "--values=-",
        *_text_option("--kube-version", kube_version),
        *(f"--api-versions={version}" for version in api_versions),
        *(f"--show-only={file}" for file in show_only),
        *_flag("--skip-tests", skip_tests),
        *_flag("--include-crds", include_crds),
        *_flag("--is-upgrade", is_upgrade),
        "--",
        name,
        chart,
    ]


def lint(
    helm: Version, chart: str, *, strict: bool = False, kube_version: str | None = None, with_subcharts: bool = False
) -> list[str]:
    return [
        "lint",
        "--values=-",
        *_flag("--strict", strict),
        *_text_option("--kube-version", kube_version),
        *_flag("--with-subcharts", with_subcharts),
        "--",
        chart,
    ]


def create(helm: Version, name: str) -> list[str]:
    return ["create", "--", name]


def _flag(name: str, is_set: bool) -> list[str]:
    return [name] if is_set else []


def _text_option(name: str, value: str | None) -> list[str]:
    return [f"{name}={value}"] if value else []


def _dry_run_flag(is_set: bool) -> list[str]:
    """A server-side dry run: helm queries the cluster (`lookup`, kinds, versions) and stores nothing."""
    return ["--dry-run=server"] if is_set else []


def _wait_flag(helm: Version, is_set: bool) -> list[str]:
    """helm 4 takes the kind of waiting as a value."""
    return _flag("--wait" if helm.major == 3 else "--wait=watcher", is_set)


def _atomic_flag(helm: Version, is_set: bool) -> list[str]:
    return _flag("--atomic" if helm.major == 3 else "--rollback-on-failure", is_set)


def _force_flags(helm: Version, is_set: bool) -> list[str]:
    """helm 4 replaces objects only when server-side apply is off."""
    flags = ["--force"] if helm.major == 3 else ["--force-replace", "--server-side=false"]
    return flags if is_set else []


def _label_options(labels: Mapping[str, str] | None) -> list[str]:
    """One option per label, so that a comma is refused instead of ending a label. Raises `Invalid`."""
    if any("," in name + value or "=" in name for name, value in (labels or {}).items()):
        raise Invalid("labels: a name contains = or a comma, or a value contains a comma")
    return [f"--labels={name}={value}" for name, value in (labels or {}).items()]
