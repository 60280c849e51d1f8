"""Argument lists for helm, as pure functions. Every difference between helm 3 and helm 4 is in this module.

Options come before `--`, so a caller's value can never become an option. The value of an option is part of the same
argument (`--description=...`). Values are always passed on standard input.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

from attrs import frozen

from models.charts import requests, yaml_values
from models.errors import Invalid
from models.json_format import json_object

STRATEGIES = {
    "DEFAULT": None,
    "RESET": "--reset-values",
    "REUSE": "--reuse-values",
    "RESET_THEN_REUSE": "--reset-then-reuse-values",
}


@frozen
class HelmVersion:
    """The version of helm."""

    major: int
    minor: int = 0
    patch: int = 0

    def __str__(self) -> str:
        return f"{self.major}.{self.minor}.{self.patch}"


_ESCAPED_FOR_YAML = re.compile(r"[\x7f-\x9f\u2028\u2029\ufeff\ufffe\uffff]")


class EncodedValues(dict[str, Any]):
    """Values that a worker has read and encoded, in place of the object that they are."""

    def __init__(self, encoded: bytes) -> None:
        super().__init__()
        self.encoded = encoded


def values(overrides: Mapping[str, Any] | None) -> bytes:
    """Encodes values for standard input: JSON, with the characters escaped that YAML refuses or breaks lines at."""
    if isinstance(overrides, EncodedValues):
        return overrides.encoded
    text = json.dumps(overrides or {}, ensure_ascii=False)
    return _ESCAPED_FOR_YAML.sub(lambda character: f"\\u{ord(character[0]):04x}", text).encode()


def read_body(content: bytes, what: str) -> tuple[dict[str, Any], bytes | None]:
    """The fields of a body, and its values, encoded, if they are an object. Raises as `json_object`."""
    body = json_object(content, what)
    given = body.get("values")
    return ({**body, "values": {}}, values(given)) if isinstance(given, dict) else (body, None)


def read_yaml(text: str) -> bytes:
    """The values that a user typed, encoded. Raises `Invalid`."""
    return values(yaml_values.parse(text))


def install(
    helm: HelmVersion, request: requests.InstallRequest | requests.InstallUpload, chart: str, timeout: int
) -> list[str]:
    return [
        "install",
        f"--namespace={request.namespace}",
        "--output=json",
        "--values=-",
        f"--timeout={timeout}s",
        *_dry_run_flag(request.dry_run),
        *_text_option("--description", request.description),
        *_label_options(request.labels),
        *_wait_flag(helm, request.wait),
        *_atomic_flag(helm, request.atomic),
        *_flag("--create-namespace", request.create_namespace),
        "--",
        request.release_name,
        chart,
    ]


def upgrade(
    helm: HelmVersion, request: requests.UpgradeRequest | requests.UpgradeUpload, chart: str, timeout: int
) -> list[str]:
    flag = STRATEGIES[request.value_strategy]
    return [
        "upgrade",
        f"--namespace={request.namespace}",
        "--output=json",
        "--values=-",
        f"--timeout={timeout}s",
        *_dry_run_flag(request.dry_run),
        *([flag] if flag else []),
        *_flag("--install", request.install),
        *_text_option("--description", request.description),
        *_wait_flag(helm, request.wait),
        *_atomic_flag(helm, request.atomic),
        "--",
        request.name,
        chart,
    ]


def uninstall(helm: HelmVersion, request: requests.UninstallRequest, timeout: int) -> list[str]:
    return [
        "uninstall",
        f"--namespace={request.namespace}",
        f"--timeout={timeout}s",
        *_flag("--no-hooks", request.no_hooks),
        *_flag("--keep-history", request.keep_history),
        *_flag("--dry-run", request.dry_run),
        *_wait_flag(helm, request.wait),
        *_text_option("--cascade", request.cascade),
        *_text_option("--description", request.description),
        "--",
        request.name,
    ]


def rollback(helm: HelmVersion, request: requests.RollbackRequest, timeout: int) -> list[str]:
    return [
        "rollback",
        f"--namespace={request.namespace}",
        f"--timeout={timeout}s",
        *_flag("--no-hooks", request.no_hooks),
        *([] if request.max_history is None else [f"--history-max={request.max_history}"]),
        *([] if not request.dry_run else ["--dry-run"] if helm.major == 3 else ["--dry-run=server"]),
        *_force_flags(helm, request.force),
        *_flag("--cleanup-on-fail", request.cleanup_on_fail),
        *_wait_flag(helm, request.wait or request.wait_for_jobs),
        *_flag("--wait-for-jobs", request.wait_for_jobs),
        "--",
        request.name,
        str(request.revision),
    ]


def test(request: requests.TestRequest) -> list[str]:
    return ["test", f"--namespace={request.namespace}", f"--timeout={request.timeout_seconds}s", "--", request.name]


def template(request: requests.TemplateRequest | requests.TemplateUpload, chart: str) -> list[str]:
    return [
        "template",
        f"--namespace={request.namespace}",
        "--values=-",
        *_text_option("--kube-version", request.kube_version),
        *(f"--api-versions={version}" for version in request.api_versions),
        *(f"--show-only={file}" for file in request.show_only),
        *_flag("--skip-tests", request.skip_tests),
        *_flag("--include-crds", request.include_crds),
        *_flag("--is-upgrade", request.is_upgrade),
        "--",
        request.release_name,
        chart,
    ]


def lint(request: requests.LintRequest | requests.LintUpload, chart: str) -> list[str]:
    return [
        "lint",
        "--values=-",
        *_flag("--strict", request.strict),
        *_text_option("--kube-version", request.kube_version),
        *_flag("--with-subcharts", request.with_subcharts),
        "--",
        chart,
    ]


def package(
    chart: str, destination: str, version: str | None, app_version: str | None, signing: Mapping[str, str]
) -> list[str]:
    """`signing` has the options of a signature; empty: the chart is not signed."""
    return [
        "package",
        f"--destination={destination}",
        *_text_option("--version", version),
        *_text_option("--app-version", app_version),
        *_flag("--sign", bool(signing)),
        *(f"--{name}={value}" for name, value in signing.items()),
        "--",
        chart,
    ]


def create(request: requests.CreateRequest) -> list[str]:
    return ["create", "--", request.name]


def _flag(name: str, is_set: bool) -> list[str]:
    return [name] if is_set else []


def _text_option(name: str, value: str | None) -> list[str]:
    return [f"{name}={value}"] if value else []


def _dry_run_flag(is_set: bool) -> list[str]:
    """A server-side dry run: helm queries the cluster (`lookup`, kinds, versions) and stores nothing."""
    return ["--dry-run=server"] if is_set else []


def _wait_flag(helm: HelmVersion, is_set: bool) -> list[str]:
    """helm 4 takes the kind of waiting as a value."""
    return _flag("--wait" if helm.major == 3 else "--wait=watcher", is_set)


def _atomic_flag(helm: HelmVersion, is_set: bool) -> list[str]:
    return _flag("--atomic" if helm.major == 3 else "--rollback-on-failure", is_set)


def _force_flags(helm: HelmVersion, is_set: bool) -> list[str]:
    """helm 4 replaces objects only when server-side apply is off."""
    flags = ["--force"] if helm.major == 3 else ["--force-replace", "--server-side=false"]
    return flags if is_set else []


def _label_options(labels: Mapping[str, str] | None) -> list[str]:
    """One option per label, so that a comma is refused instead of ending a label. Raises `Invalid`."""
    if any("," in name + value or "=" in name for name, value in (labels or {}).items()):
        raise Invalid("labels: a name contains = or a comma, or a value contains a comma")
    return [f"--labels={name}={value}" for name, value in (labels or {}).items()]
