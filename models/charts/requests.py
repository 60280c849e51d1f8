"""Request types for releases and rendering: the inputs of each operation with their rules."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

from models.charts import refs
from models.charts.refs import check_version
from models.inputs import body, file, path, query
from models.json_format import http_message

_SECONDS: dict[str, Any] = {"low": 1, "high": 3600}


def _labels(labels: Any) -> None:
    for name, value in labels.items():
        refs.label(name, value)


# The inputs that several requests have; attrs makes an attribute of its own of each.
_CHART_REF = body("repo/chart, repo/chart:version or oci://host/path[:tag]", required=True)
_VERSION = body("an exact version or a range; the newest by default", check=check_version)
_VALUES = body("values that override those of the chart")
_KUBE_VERSION = body("the assumed version of Kubernetes, such as 1.31 or v1.31.2", check=refs.kube_version)
_NAMESPACE = query("the namespace of the release", "default", check=refs.namespace)
_CONTEXT = query("one of `svc.kube.contexts`; the server's own by default")
_NAME = path("the release's name", check=refs.release)
_TIMEOUT = body("seconds that helm may take; `svc.helm.timeout` by default", **_SECONDS)


@http_message(kw_only=True)
class _InstallOptions:
    release_name: str = body("the name of the new release", required=True, check=refs.release)
    namespace: str = body("its namespace", "default", check=refs.namespace, or_query=True)
    context: str | None = body("one of `svc.kube.contexts`; the server's own by default", or_query=True)
    values: dict[str, Any] | None = _VALUES
    dry_run: bool = body("render against the cluster, change nothing", False)
    description: str | None = body("description stored in the history")
    labels: dict[str, str] | None = body("labels of the stored release", check=_labels)
    wait: bool = body("wait until every object is ready", False)
    timeout: int | None = _TIMEOUT
    create_namespace: bool = body("create the namespace if it does not exist", False)
    atomic: bool = body("undo everything if it fails", False)


@http_message(kw_only=True)
class InstallRequest(_InstallOptions):
    chart_ref: str = _CHART_REF
    version: str | None = _VERSION


@http_message(kw_only=True)
class InstallUpload(_InstallOptions):
    chart: Path = file("the chart archive")


@http_message(kw_only=True)
class _UpgradeOptions:
    name: str = _NAME
    namespace: str = _NAMESPACE
    context: str | None = _CONTEXT
    values: dict[str, Any] | None = _VALUES
    value_strategy: Literal["DEFAULT", "RESET", "REUSE", "RESET_THEN_REUSE"] = body(
        "how new values combine with the stored ones; DEFAULT keeps the stored ones if none are given", "DEFAULT"
    )
    dry_run: bool = body("render against the cluster, change nothing", False)
    install: bool = body("install the release if it does not exist", False)
    wait: bool = body("wait until every object is ready", False)
    timeout: int | None = _TIMEOUT
    atomic: bool = body("roll back if it fails", False)
    description: str | None = body("description stored in the history")


@http_message(kw_only=True)
class UpgradeRequest(_UpgradeOptions):
    chart_ref: str = _CHART_REF
    version: str | None = _VERSION


@http_message(kw_only=True)
class DiffUpgradeRequest(UpgradeRequest):
    lines: int = query("unchanged lines around each change", 3, low=0, high=50)
    show_secrets: bool = query("show the values of Secrets", False)


@http_message(kw_only=True)
class UpgradeUpload(_UpgradeOptions):
    chart: Path = file("the chart archive")


@http_message(kw_only=True)
class UninstallRequest:
    name: str = _NAME
    namespace: str = _NAMESPACE
    context: str | None = _CONTEXT
    no_hooks: bool = query("do not run hooks", False)
    keep_history: bool = query("keep the stored revisions", False)
    dry_run: bool = query("change nothing", False)
    wait: bool = query("wait until every object is deleted", False)
    timeout: int | None = query("seconds that helm may take; `svc.helm.timeout` by default", **_SECONDS)
    cascade: Literal["background", "foreground", "orphan"] | None = query("deletion of dependents")
    description: str | None = query("description stored in the history")


@http_message(kw_only=True)
class RollbackRequest:
    name: str = _NAME
    namespace: str = _NAMESPACE
    context: str | None = _CONTEXT
    revision: int = body("the revision to go back to", required=True, low=1)
    no_hooks: bool = body("do not run hooks", False)
    max_history: int | None = body("number of revisions kept; 0 keeps all", low=0)
    dry_run: bool = body("change nothing", False)
    force: bool = body("replace objects that cannot be updated", False)
    cleanup_on_fail: bool = body("delete new objects if it fails", False)
    wait: bool = body("wait until every object is ready", False)
    wait_for_jobs: bool = body("also wait for jobs", False)
    timeout: int | None = _TIMEOUT


@http_message(kw_only=True)
class TestRequest:
    name: str = _NAME
    namespace: str = _NAMESPACE
    context: str | None = _CONTEXT
    timeout_seconds: int = query("seconds that the tests may take", 300, **_SECONDS)

    __test__ = False  # not a pytest class


@http_message(kw_only=True)
class _TemplateOptions:
    release_name: str = body("the name of the release", "release-name", check=refs.release)
    namespace: str = body("its namespace", "default", check=refs.namespace)
    values: dict[str, Any] | None = _VALUES
    show_only: tuple[str, ...] = body("only these templates: paths within the chart", (), check=refs.template_file)
    skip_tests: bool = body("leave out test manifests", False)
    include_crds: bool = body("include custom resource definitions", False)
    is_upgrade: bool = body("render as an upgrade instead of an install", False)
    kube_version: str | None = _KUBE_VERSION
    api_versions: tuple[str, ...] = body(
        "API versions of the assumed cluster: group/version or group/version/Kind", (), check=refs.api_version, high=200
    )


@http_message(kw_only=True)
class TemplateRequest(_TemplateOptions):
    chart_ref: str = _CHART_REF
    version: str | None = _VERSION


@http_message(kw_only=True)
class TemplateUpload(_TemplateOptions):
    chart: Path = file("the chart archive")


@http_message(kw_only=True)
class _LintOptions:
    values: dict[str, Any] | None = _VALUES
    strict: bool = body("warnings are errors", False)
    kube_version: str | None = _KUBE_VERSION
    with_subcharts: bool = body("check the charts in charts/ too", False)


@http_message(kw_only=True)
class LintRequest(_LintOptions):
    chart_ref: str = _CHART_REF
    version: str | None = _VERSION


@http_message(kw_only=True)
class LintUpload(_LintOptions):
    chart: Path = file("the chart archive")


@http_message(kw_only=True)
class CreateRequest:
    name: str = body("the name of the new chart", required=True, check=refs.new_chart)
