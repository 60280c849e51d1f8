"""Metrics have the correct values, and all are documented."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

import pytest
from conftest import ROOT, Server, wait_for
from http_checks import running_server
from prometheus_client.metrics_core import Metric
from prometheus_client.parser import text_string_to_metric_families
from small_charts import MAP, chart_archive, helm_path, post_chart
from uploads import junit, post, upload

DOCUMENT = ROOT / "docs" / "operations.md"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    charts = {"svc": {"helm": {"binary": helm_path("helm")}}}
    with running_server(
        tmp_path_factory.mktemp("metrics"), {"logger": {"command": "true", "stdout-logfile": "l"}}, **charts
    ) as one:
        yield one


def families(server: Server) -> Sequence[Metric]:
    return list(text_string_to_metric_families(server.get("/metrics").text))


def value(server: Server, name: str, label: str = "") -> float:
    """The value of a sample, by its name and its label's value."""
    found = [
        sample.value
        for family in families(server)
        for sample in family.samples
        if sample.name == f"pilothouse_{name}" and next(iter(sample.labels.values()), "") == label
    ]
    assert len(found) == 1, (name, label, found)
    return found[0]


def test_uploads_are_counted_by_result(server: Server) -> None:
    before = {label: value(server, "uploads_total", label) for label in ("stored", "refused", "failed")}
    for _ in range(2):
        upload(server, ("project", "p"), ("junit", junit(1)))
    for parts in ([("junit", junit(1))], [("project", "p"), ("junit", "<a")], [("project", "p")]):
        assert post(server, *parts).status == 400
    after = {label: value(server, "uploads_total", label) for label in before}
    assert {label: after[label] - before[label] for label in before} == {"stored": 2, "refused": 3, "failed": 0}
    assert value(server, "uploads_waiting") == 0


def test_failed_logins_are_counted(server: Server) -> None:
    before = value(server, "logins_failed_total")
    for name in ("admin", "nobody"):
        assert server.post("/login", f"username={name}&password=wrong".encode(), **FORM).status == 401
    assert value(server, "logins_failed_total") - before == 2


FORM = {"Content_Type": "application/x-www-form-urlencoded"}


def test_streams_are_counted_by_kind(server: Server) -> None:
    server.do("start", "logger")
    server.until("logger", "finished")
    paths = ["/api/v1/processes/stream", "/api/v1/processes/logs/logger", "/api/v1/events", "/api/v1/events"]
    streams = [server.stream(path) for path in paths]
    assert [stream.status for stream in streams] == [200] * 4
    assert {kind: value(server, "streams", kind) for kind in ("processes", "logs", "runs")} == {
        "processes": 1,
        "logs": 1,
        "runs": 2,
    }
    assert value(server, "streams_open") == 4
    for stream in streams:
        stream.close()
    wait_for(lambda: value(server, "streams_open") == 0, about="the streams to be closed")
    assert value(server, "streams", "runs") == 0


def test_helm_runs_are_counted_by_result(server: Server) -> None:
    wait_for(lambda: server.get("/readyz").json["charts"]["helm"], about="the version of helm")
    before = {label: value(server, "helm_runs_total", label) for label in ("ok", "failed")}
    for template, status in ((MAP, 200), ("{{ fail `no` }}", 422)):
        answer = post_chart(server, "/api/v1/charts/template/upload", chart=chart_archive(templates__map=template))
        assert answer.status == status, answer
    after = {label: value(server, "helm_runs_total", label) for label in before}
    assert {label: after[label] - before[label] for label in before} == {"ok": 1, "failed": 1}
    assert value(server, "helm_running") == 0


def test_the_document_has_every_metric_and_no_other(server: Server) -> None:
    own = {
        f"{family.name}_total" if family.type == "counter" else family.name
        for family in families(server)
        if family.name.startswith("pilothouse_")
    }
    result = set(re.findall(r"^\| `(pilothouse_\w+)", DOCUMENT.read_text(), re.MULTILINE))
    assert result == own
