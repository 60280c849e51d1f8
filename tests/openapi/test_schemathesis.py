"""Schemathesis compares a running server with its document: generated requests get documented responses."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import openapi_server
import pytest
from cluster import Cluster
from conftest import IS_PROOF
from openapi_server import CHART, KEY, RELEASE, REPOSITORY, STREAMS, PreparedServer, prepared_server

LEFT_OUT = ("positive_data_acceptance", "allow_header_conformance", "ensure_resource_availability")
"""Checks that fail where all is well: no schema can say that a chart or an archive must be a real one; a release may be
called `upload`, so its path takes more methods than an upload does; what is there may be gone by our own doing."""

ALL = ("supervision", "charts", "tracker", "server")
EXAMPLES = 6 if IS_PROOF else 1
WITHIN = 240.0


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PreparedServer]:
    """A server without a cluster."""
    with prepared_server(tmp_path_factory.mktemp("plain")) as one:
        yield one


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory, cluster: Cluster) -> Iterator[PreparedServer]:
    with prepared_server(tmp_path_factory.mktemp("whole"), cluster.kubeconfig) as one:
        yield one


def known(one: PreparedServer) -> dict[str, list[str | int]]:
    return {
        "processes": ["web", "idle"],
        "projects": ["shop"],
        "project ids": [one.project],
        "runs": list(one.runs),
        "events": [1, 2, 3],
        "repositories": [REPOSITORY],
        "charts": [f"{REPOSITORY}/{CHART}", f"{REPOSITORY}/{CHART}:0.1.0"],
        "releases": [RELEASE],
        "branches": ["main"],
        "tests": ["c0", "c2"],
    }


USED = {
    "processes": ("path.name", ["process_info", "process_start", "process_stop", "process_restart", "process_logs"]),
    "projects": ("query.project", ["gate_verdict"]),
    "branches": ("query.branch", ["gate_verdict"]),
    "project ids": ("path.id", ["project_detail", "run_list", "flaky_tests", "test_history", "flaky_say"]),
    "tests": ("query.name", ["test_history"]),
    "runs": ("path.id", ["run_detail", "run_verdict"]),
    "events": ("path.id", ["event_info"]),
    "repositories": ("path.name", ["helm_repo_charts", "helm_repo_update"]),
    "charts": ("body.chartRef", ["helm_template", "helm_lint", "helm_install", "helm_upgrade"]),
    "releases": (
        "path.name",
        ["helm_status", "helm_history", "helm_get_values", "helm_get_hooks", "helm_get_resources"],
    ),
}
"""Which words go where: a field, and the operations that have it."""


READ_WITH_THE_KEY = ("helm_tree", "helm_object", "helm_events")
"""An account or the key suffices: with the key in a header, an unknown cookie changes nothing."""


def toml(one: PreparedServer) -> str:
    """The configuration of Schemathesis: credentials, and checks that do not apply."""
    lines = ['hooks = "schemathesis_hooks"', "[checks.not_a_server_error]"]
    lines += ['expected-statuses = ["2xx", "3xx", "4xx", "502", "503", "504"]']
    lines += [f"[checks.{name}]\nenabled = false" for name in LEFT_OUT]
    for name, values in known(one).items():
        lines += [f'[dictionaries."{name}"]', f"values = {json.dumps(values)}"]
    names = {result["operationId"] for _, _, result in openapi_server.operations(one.document())}
    for name in sorted(names):
        outcome = [
            f'parameters."{field}" = {{ dictionary = "{words}", probability = 0.7 }}'
            for words, (field, users) in USED.items()
            if name in users
        ]
        if name in ("helm_install", "helm_install_upload"):  # a release of that name may be asked for; or there is none
            outcome.append("checks.unsupported_method.enabled = false")
        if name in READ_WITH_THE_KEY:
            outcome.append("checks.ignored_auth.enabled = false")
        if outcome:
            lines += ["[[operations]]", f'include-operation-id = "{name}"', *outcome]
    return "\n".join(lines) + "\n"


def run(one: PreparedServer, folder: Path, tags: Sequence[str], *headers: str) -> None:
    """Runs Schemathesis on the operations of these tags; fails with its findings."""
    file = folder / "schemathesis.toml"
    file.write_text(toml(one))
    arguments = [
        "--phases=examples,coverage,fuzzing", f"--max-examples={EXAMPLES}",
        "--generation-deterministic", "--continue-on-failure", "--no-color", "--request-timeout=20",
        *(f"--exclude-operation-id={name}" for name in STREAMS),
        *(f"--include-tag={tag}" for tag in tags),
        *(word for header in headers for word in ("--header", header)),
    ]  # fmt: skip
    program = [str(Path(sys.executable).parent / "schemathesis"), f"--config-file={file}", "run", *arguments]
    address = f"http://127.0.0.1:{one.server.port}/v3/api-docs"
    environ = {**os.environ, "PYTHONPATH": str(Path(__file__).parent)}
    done = subprocess.run([*program, address], cwd=folder, env=environ, capture_output=True, text=True, timeout=WITHIN)
    assert done.returncode == 0, done.stdout + done.stderr
    named = [result for _, _, result in openapi_server.operations(one.document()) if set(tags) & set(result["tags"])]
    requested = [result for result in named if result["operationId"] not in STREAMS]
    assert f"Tested: {len(requested)}" in done.stdout, done.stdout


def test_anonymous_requests(plain: PreparedServer, tmp_path: Path) -> None:
    run(plain, tmp_path, ALL)


@pytest.mark.proof
def test_with_the_key_of_the_charts_and_a_cluster(whole: PreparedServer, tmp_path: Path) -> None:
    run(whole, tmp_path, ["charts"], f"X-API-Key: {KEY}")


@pytest.mark.proof
def test_with_a_token_of_an_admin(plain: PreparedServer, tmp_path: Path) -> None:
    run(plain, tmp_path, ["supervision", "tracker"], f"Authorization: Bearer {plain.admin}")
