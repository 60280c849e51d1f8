"""Argument lists for helm, as pure functions; what differs between helm 3 and helm 4 is here and nowhere else.

All options come before `--`, so that nothing a caller sends can become one; what a caller sends as the value of an
option is one word with it (`--description=...`). Values go over standard input, always.
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
    """Of helm itself."""

    major: int
    minor: int = 0
    patch: int = 0

    def __str__(self) -> str:
        return f"{self.major}.{self.minor}.{self.patch}"


_NOT_IN_YAML = re.compile(r"[\x7f-\x9f\u2028\u2029\ufeff\ufffe\uffff]")


def values(given: Mapping[str, Any] | None) -> bytes:
    """What goes over standard input: JSON, which is YAML but for characters that YAML refuses or breaks lines at."""
    text = json.dumps(given or {}, ensure_ascii=False)
    return _NOT_IN_YAML.sub(lambda found: f"\\u{ord(found[0]):04x}", text).encode()


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
        *_dry(dry_run),
        *_text("--description", description),
        *_labels(labels),
        *_wait(helm, wait),
        *_atomic(helm, atomic),
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
    how = STRATEGIES[strategy]
    return [
        "upgrade",
        f"--namespace={namespace}",
        "--output=json",
        "--values=-",
        f"--timeout={timeout}s",
        *_dry(dry_run),
        *([how] if how else []),
        *_flag("--install", install),
        *_text("--description", description),
        *_wait(helm, wait),
        *_atomic(helm, atomic),
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
        *_wait(helm, wait),
        *_text("--cascade", cascade),
        *_text("--description", description),
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
        *_force(helm, force),
        *_flag("--cleanup-on-fail", cleanup_on_fail),
        *_wait(helm, wait or wait_for_jobs),
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
) -> list[str]:
    return [
        "template",
        f"--namespace={namespace}",
        "--values=-",
        *(f"--show-only={file}" for file in show_only),
        *_flag("--skip-tests", skip_tests),
        *_flag("--include-crds", include_crds),
        *_flag("--is-upgrade", is_upgrade),
        "--",
        name,
        chart,
    ]


def lint(helm: Version, chart: str, *, strict: bool = False) -> list[str]:
    return ["lint", "--values=-", *_flag("--strict", strict), "--", chart]


def create(helm: Version, name: str) -> list[str]:
    return ["create", "--", name]


def _flag(name: str, given: bool) -> list[str]:
    return [name] if given else []


def _text(name: str, given: str | None) -> list[str]:
    return [f"{name}={given}"] if given else []


def _dry(given: bool) -> list[str]:
    """The cluster is asked (`lookup`, its kinds and versions), and nothing is stored."""
    return ["--dry-run=server"] if given else []


def _wait(helm: Version, given: bool) -> list[str]:
    """helm 4 asks how it is to wait."""
    return _flag("--wait" if helm.major == 3 else "--wait=watcher", given)


def _atomic(helm: Version, given: bool) -> list[str]:
    return _flag("--atomic" if helm.major == 3 else "--rollback-on-failure", given)


def _force(helm: Version, given: bool) -> list[str]:
    """helm 4 replaces only where it does not leave the merging to the server."""
    words = ["--force"] if helm.major == 3 else ["--force-replace", "--server-side=false"]
    return words if given else []


def _labels(labels: Mapping[str, str] | None) -> list[str]:
    """One option for each, so that a comma is refused and not read as the end of one. Raises `Invalid`."""
    if any("," in name + value or "=" in name for name, value in (labels or {}).items()):
        raise Invalid("labels: a name has = or , in it, or a value has a comma")
    return [f"--labels={name}={value}" for name, value in (labels or {}).items()]
