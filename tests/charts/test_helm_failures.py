"""The status codes and messages for failures of both versions of helm, recorded and constructed."""

# ruff: noqa: E501 (texts as helm prints them)
from __future__ import annotations

import json
import re

import pytest
from conftest import ROOT

from handlers.base import STATUS
from models.charts import helm_errors, releases
from models.children import Exit
from models.errors import Problem

RECORDED = ROOT.parent / "shared" / "reference" / "helm-failures.json"
RENAMED_KINDS = {"repo-unreachable": "upstream-unreachable"}


@pytest.mark.needs(RECORDED)
def test_every_recorded_failure_has_its_kind_and_status() -> None:
    records = json.loads(RECORDED.read_text())
    wrong = []
    for record in records:
        kind = helm_errors.kind_of(record["stderr"], record["stdout"])
        if (RENAMED_KINDS.get(kind.name, kind.name), STATUS[kind.problem]) != (record["kind"], record["status"]):
            wrong.append((record["helm"], record["args"], record["kind"], kind.name))
    assert len(records) > 200
    assert wrong == []


@pytest.mark.parametrize(
    ("stderr", "status"),
    [
        # text of a chart author never decides the status
        ('Error: INSTALLATION FAILED: execution error at (a/templates/b.yaml:1:3): release: not found', 422),
        ('Error: execution error at (a/templates/b.yaml:1:3): Kubernetes cluster unreachable: x', 422),
        ('Error: UPGRADE FAILED: a/templates/b.yaml:9:14\n  executing "a/templates/b.yaml" at <fail "timed out waiting">:\n'
         "    error calling fail: timed out waiting", 422),
        ("Error: INSTALLATION FAILED: template: a/templates/b.yaml:2:3: executing \"x\" at <.y>: cannot re-use a name", 422),
        ("Error: parse error at (a/templates/b.yaml:1): unclosed action", 422),
        # helm 4 prints its log first
        ('level=WARN msg="unable to find exact version"\nlevel=ERROR msg="release: not found"\n'
         "Error: UPGRADE FAILED: another operation (install/upgrade/rollback) is in progress", 409),
        ("Error: INSTALLATION FAILED: failed pre-install: 1 error occurred:\n\t* job failed: BackoffLimitExceeded\n", 422),
        ("Error: UPGRADE FAILED: pre-upgrade hooks failed: 1 error occurred:\n\t* timed out waiting for the condition", 504),
        ("Error: UPGRADE FAILED: resource Deployment/d/x not ready. status: InProgress, message: Available: 0/1\n"
         "context deadline exceeded", 504),
        ('Error: INSTALLATION FAILED: services "a" is forbidden: User "u" cannot create resource "services"', 502),
        ('Error: INSTALLATION FAILED: pods "a" is forbidden: exceeded quota: q', 400),
        ('Error: INSTALLATION FAILED: admission webhook "v.example" denied the request: no', 400),
        ("Error: INSTALLATION FAILED: failed to install CRD crds/b.yaml: resources are empty", 400),
        ("Error: INSTALLATION FAILED: failed to convert new object to proper version: unable to convert unstructured "
         "object to /v1, Kind=Secret: error decoding from json: illegal base64 data at input byte 3", 400),
        ('Error: INSTALLATION FAILED: 1 error occurred:\n\t* ConfigMap in version "v1" cannot be handled as a '
         'ConfigMap: v1.ConfigMap.Data: ReadString: expects " or n, but found t, error found in #10 byte of', 400),
        # the connection to the cluster is lost, or the cluster refuses a request
        ('Error: UPGRADE FAILED: error validating "": error validating data: failed to download openapi: '
         'Get "https://10.0.0.9:6443/openapi/v2?timeout=32s": EOF', 502),
        ("Error: INSTALLATION FAILED: unable to build kubernetes objects from release manifest: "
         'Get "https://10.0.0.9:6443/api?timeout=32s": dial tcp 10.0.0.9:6443: connect: connection refused', 502),
        ("Error: failed to delete release: r", 502),
        ('Error: uninstall: Release not loaded: r: release: not found', 404),
        ('Error: the release named "r" is already deleted', 404),
        ("Error: INSTALLATION FAILED: chart requires kubeVersion: >=9 which is incompatible with Kubernetes v1.20.2", 400),
        ("Error: library charts are not installable", 400),
        ("Error: could not find template templates/x.yaml in chart", 400),
        ("Error: values don't meet the specifications of the schema(s) in the following chart(s):\nx:\n- at '/a': no", 422),
        ("Error: Get \"https://r/v2/\": tls: failed to verify certificate: x509: unknown authority", 502),
        ("an unknown failure", 500),
        ("", 500),
    ],
)  # fmt: skip
def test_constructed_failures_have_their_status(stderr: str, status: int) -> None:
    assert STATUS[helm_errors.kind_of(stderr).problem] == status


CLUSTER = [
    ('Error: UPGRADE FAILED: Get "https://10.1.2.3:6443/api/v1": stream error: stream ID 5; INTERNAL_ERROR; received from peer', "cluster-connection-lost", 502),
    ("Error: UPGRADE FAILED: http2: client connection lost", "cluster-connection-lost", 502),
    ('Error: Post "https://10.1.2.3:6443/apis": http2: server sent GOAWAY and closed the connection', "cluster-connection-lost", 502),
    ('Error: Patch "https://10.1.2.3:6443/x": read tcp 10.0.0.1:5->10.1.2.3:6443: read: connection reset by peer', "cluster-connection-lost", 502),
    ('Error: Put "https://10.1.2.3:6443/x": write: broken pipe', "cluster-connection-lost", 502),
    ('Error: Get "https://10.1.2.3:6443/x": unexpected EOF', "cluster-connection-lost", 502),
    ('Error: Delete "https://10.1.2.3:6443/x": unexpected EOF', "cluster-connection-lost", 502),
    ('Error: INSTALLATION FAILED: Internal error occurred: failed calling webhook "v.example.org": failed to call webhook: Post "https://w.ns.svc:443/v?timeout=10s": dial tcp 10.9.8.7:443: connect: connection refused', "webhook-unavailable", 502),
    ('Error: INSTALLATION FAILED: failed calling webhook "v.example.org": Post "https://w.ns.svc:443/v": context deadline exceeded', "webhook-unavailable", 502),
    ('Error: UPGRADE FAILED: no endpoints available for service "hooks"', "webhook-unavailable", 502),
    ("Error: UPGRADE FAILED: the server has received too many requests and has asked us to try again later", "cluster-busy", 502),
    ('Error: query: failed to query with labels: Too Many Requests', "cluster-busy", 502),
    ("Error: INSTALLATION FAILED: unable to retrieve the complete list of server APIs: metrics.k8s.io/v1beta1: the server is currently unable to handle the request", "discovery-incomplete", 502),
    ("Error: INSTALLATION FAILED: could not get apiVersions from Kubernetes: unable to retrieve the complete list of server APIs: custom.metrics.k8s.io/v1: x", "discovery-incomplete", 502),
    ("Error: INSTALLATION FAILED: could not get server version from Kubernetes: unexpected error when reading response body. Please retry. Original error: unexpected EOF", "cluster-connection-lost", 502),
    ('Error: INSTALLATION FAILED: 2 errors occurred:\n\t* exceeded quota: q\n\t* Post "https://10.0.0.9:6443/api/v1/x": EOF', "cluster-connection-lost", 502),
    ("Error: UPGRADE FAILED: stale GroupVersion discovery: metrics.k8s.io/v1beta1", "discovery-incomplete", 502),
    ("Error: UPGRADE FAILED: etcdserver: leader changed", "cluster-unavailable", 502),
    ("Error: UPGRADE FAILED: etcdserver: request timed out", "cluster-unavailable", 502),
    ("Error: UPGRADE FAILED: the server is currently unable to handle the request", "cluster-unavailable", 502),
    ('Error: Kubernetes cluster unreachable: Get "https://10.1.2.3:6443/version": context deadline exceeded', "cluster-unreachable", 502),
    ("Error: UPGRADE FAILED: the server was unable to return a response in the time allotted, but may still be processing the request", "timeout", 504),
    ('Error: UPGRADE FAILED: Get "https://10.1.2.3:6443/x": net/http: request canceled (Client.Timeout exceeded while awaiting headers)', "timeout", 504),
    ('Error: UPGRADE FAILED: Get "https://10.1.2.3:6443/x": context deadline exceeded', "timeout", 504),
    ('Error: UPGRADE FAILED: no ConfigMap with the name "web-a" found', "object-not-owned", 409),
    ('Error: UPGRADE FAILED: no Deployment with the name "web" found', "object-not-owned", 409),
    ('Error: UPGRADE FAILED: Operation cannot be fulfilled on deployments.apps "web": the object has been modified; please apply your changes to the latest version', "conflict", 409),
    ('Error: INSTALLATION FAILED: ConfigMap "a" in namespace "n" exists and cannot be imported into the current release: x', "conflict", 409),
    ("Error: INSTALLATION FAILED: namespace n because it is being terminated", "conflict", 409),
    ('Error: INSTALLATION FAILED: admission webhook "v.example.org" denied the request: use 10.1.2.3:6443', "rejected-by-cluster", 400),
    ('Error: INSTALLATION FAILED: pods "a" is forbidden: exceeded quota: q', "rejected-by-cluster", 400),
    ("Error: INSTALLATION FAILED: metadata.labels: Invalid value: Too long: must have at most 63 bytes", "rejected-by-cluster", 400),
    ("Error: UPGRADE FAILED: 3 errors occurred:\n\t* exceeded quota: q\n\t* the object has been modified\n\t* etcdserver: leader changed", "cluster-unavailable", 502),
    ("Error: UPGRADE FAILED: 2 errors occurred:\n\t* exceeded quota: q\n\t* the object has been modified", "conflict", 409),
]  # fmt: skip


@pytest.mark.parametrize(("stderr", "code", "status"), CLUSTER)
def test_a_fault_of_the_cluster_has_its_code_without_addresses(stderr: str, code: str, status: int) -> None:
    problem = helm_errors.problem_from_output(stderr)
    assert (problem.code, STATUS[type(problem)]) == (code, status)
    assert not re.search(r"https?://|10\.\d|:6443|\.svc", problem.message)
    assert problem.retry_after == (5 if code == "cluster-busy" else None)


@pytest.mark.parametrize(
    ("stderr", "name"),
    [
        ('Error: failed calling webhook "v.example.org": Post "https://x"', "v.example.org"),
        ('Error: no endpoints available for service "hooks"', "hooks"),
        ("Error: unable to retrieve the complete list of server APIs: metrics.k8s.io/v1beta1: x", "metrics.k8s.io/v1beta1"),
        ("Error: stale GroupVersion discovery: metrics.k8s.io/v1beta1", "metrics.k8s.io/v1beta1"),
        ('Error: UPGRADE FAILED: no ConfigMap with the name "web-a" found', 'ConfigMap with the name "web-a"'),
    ],
)  # fmt: skip
def test_the_message_names_the_webhook_the_api_group_or_the_object(stderr: str, name: str) -> None:
    assert name in helm_errors.problem_from_output(stderr).message


def problem_for(stderr: str) -> Problem:
    return helm_errors.problem_from_output(stderr)


def test_details_have_no_paths_of_the_server() -> None:
    problem = problem_for(
        "Error: file '/tmp/pilothouse-x/abc/chart/chart.tgz' does not appear to be a gzipped archive; got 'x'"
    )
    assert "/tmp" not in problem.message
    assert "chart.tgz" in problem.message
    assert "a/templates/b.yaml" in problem_for("Error: parse error at (a/templates/b.yaml:1): no").message


def test_details_have_no_credentials() -> None:
    problem = problem_for("Error: failed to fetch https://anna:secret@example.org/x.tgz : 404 Not Found")
    assert "secret" not in problem.message
    assert "https://example.org/x.tgz" in problem.message


def test_details_of_an_unreachable_cluster_have_no_addresses() -> None:
    problem = problem_for('Error: Kubernetes cluster unreachable: Get "https://10.1.2.3:6443/version": dial tcp 10.1.2.3:6443: '
                 "connect: connection refused")  # fmt: skip
    assert problem.message == "the cluster cannot be reached: connection refused"


def test_details_of_a_lost_cluster_connection_have_no_addresses() -> None:
    problem = problem_for('Error: UPGRADE FAILED: error validating "": error validating data: failed to download openapi: '
                 'Get "https://10.1.2.3:6443/openapi/v2?timeout=32s": EOF')  # fmt: skip
    assert problem.message == "the cluster cannot be reached"


def test_details_have_no_content_of_a_secret() -> None:
    problem = problem_for(
        'Error: INSTALLATION FAILED: 1 error occurred:\n\t* Secret in version "v1" cannot be handled as a Secret: '
        "Data: decode base64: illegal base64 data at input byte 3, error found in #10 byte of "
        '...|t hidden!"},"kind":"|..., bigger context ...|{"apiVersion":"v1","data":{"a":"not hidden!"}|...'
    )
    assert "cannot be handled as a Secret" in problem.message
    assert "hidden" not in problem.message


def test_details_are_one_line_of_limited_length() -> None:
    problem = problem_for("Error: execution error at (a/b.yaml:1:2): " + "x\n" * 5000 + "y" * 100_000)
    assert len(problem.message) <= 1500
    assert "\n" not in problem.message


@pytest.mark.parametrize(
    ("stderr", "how"),
    [
        ("Error: UPGRADE FAILED: release r failed, and has been rolled back due to atomic being set: timed out", "rolled back"),
        ("level=WARN msg=x\nError: UPGRADE FAILED: release r failed, and has been rolled back due to rollback-on-failure being set: x",
         "rolled back"),
        ("Error: INSTALLATION FAILED: release r failed, and has been uninstalled due to atomic being set: timed out", "uninstalled"),
        ("Error: UPGRADE FAILED: an error occurred while rolling back the release. original upgrade error: timed out", ""),
        ("Error: execution error at (a/b.yaml:1:2): x\n"
         "Error: UPGRADE FAILED: release r failed, and has been rolled back due to atomic being set", ""),
    ],
)  # fmt: skip
def test_an_automatic_rollback_is_recognised(stderr: str, how: str) -> None:
    assert helm_errors.undone_by(stderr) == how


DENIED = 'query: failed to query with labels: secrets is forbidden: User "u" cannot list resource "secrets"'


@pytest.mark.parametrize(
    ("stderr", "is_nothing"),
    [
        (f"Error: UPGRADE FAILED: {DENIED}", True),
        (f"Error: uninstall: Release not loaded: r: {DENIED}", True),
        (f"Error: {DENIED}", True),
        (f"Error: UPGRADE FAILED: an error occurred while rolling back the release. original upgrade error: x: {DENIED}", False),
        ('Error: UPGRADE FAILED: secrets is forbidden: User "u" cannot create resource "secrets"', False),
    ],
)  # fmt: skip
def test_a_change_whose_first_read_is_denied_was_not_started(stderr: str, is_nothing: bool) -> None:
    assert releases.was_not_started(stderr) is is_nothing


def test_a_failure_without_output_has_a_message() -> None:
    assert problem_for("").message.strip() == "helm failed without a message"


@pytest.mark.parametrize(
    ("stderr", "exit", "expected"),
    [
        ("fatal error: runtime: cannot allocate memory", Exit(code=2), True),
        ("runtime: out of memory: cannot allocate 8388608-byte block", Exit(code=2), True),
        ("fatal error: runtime: out of memory", Exit(signal=6), True),
        ("Error: execution error at (a/b.yaml:1:2): fatal error: out of memory", Exit(code=1), False),
        ("", Exit(signal=15), False),
        ("out of memory", Exit(), False),
    ],
)
def test_out_of_memory_is_detected_from_output_and_exit(stderr: str, exit: Exit, expected: bool) -> None:
    assert helm_errors.is_out_of_memory(stderr, exit) is expected


FINDINGS = r"""Error: values don't meet the specifications of the schema(s) in the following chart(s):
odd:
- at '/a/it\'s': 'hunter2 \n \'x' does not match pattern '^x: '
- at '/b': 'oneOf' failed, none matched
  - at '/b': 'hunter2' does not match pattern '^z'
- at '/c': 'http://hunter2:pw@x:y' is not valid uri: parse "http://hunter2:pw@x:y": invalid port ":y" after host
- at '/d': value must be 'x'
"""


def test_schema_error_messages_have_no_values_of_the_caller() -> None:
    assert helm_errors.problem_from_output(FINDINGS).message == (
        "the values do not fit the chart: values don't meet the specifications of the schema(s) in the following chart(s): odd: "
        r"- at '/a/it\'s': the value does not match pattern '^x: ' - at '/b': 'oneOf' failed, none matched "
        "- at '/b': the value does not match pattern '^z' - at '/c': the value is not valid uri - at '/d': value must be 'x'"
    )
    cut = f"{FINDINGS}- at '/e': '{'hunter2' * 1000}' does not match pattern '^x'\n"
    assert "hunter2" not in helm_errors.problem_from_output(cut).message
    head, tail = FINDINGS.split("- at '/a", 1)[0], "- at '/b': 'hunter2' does not match pattern '^z'\n"
    for length in range(3700, 3900):  # the second value ends near the end of the text that is searched
        text = f"{head}- at '/a': '{'x' * length}' does not match pattern '^x'\n{tail}"
        assert "hunter2" not in helm_errors.problem_from_output(text).message
