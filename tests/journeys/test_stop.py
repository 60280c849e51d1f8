"""SIGTERM with every kind of work under way: within the stated time all is answered or ended, and nothing is left."""

from __future__ import annotations

import http.client
import os
import re
import signal
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

from cluster import Cluster
from conftest import ROOT, Serve, Server, instance_of, is_alive, tags_by_pid, wait_for, workers_of
from small_charts import FULL, KEY, chart_archive, helm_path, multipart, post_chart, sample_chart, temporary_files
from test_interrupted_changes import chart_with_hooks
from uploads import FORM, form, upload

from models.config.settings import Config, ServerSettings
from models.supervision.process import Seconds
from supervisor import services

SHUTDOWN_SECONDS = 3.0
CASES = "".join(f'<testcase classname="c" name="t{number}" time="0.1"/>' for number in range(2000))
JUNIT = f'<testsuite name="s">{CASES}</testsuite>'
SLOW_TEMPLATE = (
    "{{ range until 100000 }}{{ range until 100000 }}{{ sha256sum (toString .) | trunc 0 }}{{ end }}{{ end }}"
)
LOG_BYTES = 8 * 1024**2
LOG = "/api/v1/processes/logs/web?download=true"
Outcome = tuple[int, int] | str
"""The status and the length of a complete response, or why there is none."""


def request(server: Server, method: str, path: str, body: bytes | None = None, **headers: str) -> Outcome:
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=60)
    try:
        connection.request(method, path, body, headers)
        response = connection.getresponse()
        return response.status, len(response.read())
    except http.client.IncompleteRead:
        return "incomplete"
    except (OSError, http.client.HTTPException) as error:
        return type(error).__name__
    finally:
        connection.close()


def stop_workers(server: Server) -> set[int]:
    """Sends SIGSTOP to the warm workers: what they do next never ends by itself."""
    found = set(workers_of(server))
    for pid in found:
        os.kill(pid, signal.SIGSTOP)
    return found


def download(server: Server, path: str, begun: Callable[[], None]) -> Outcome:
    """Reads a response that has begun; `begun` is called after its first bytes."""
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=60)
    try:
        connection.request("GET", path)
        response = connection.getresponse()
        size = len(response.read(1000))
        begun()
        return response.status, size + len(response.read())
    except http.client.IncompleteRead:
        return "incomplete"
    finally:
        connection.close()


def again_and_again(server: Server, path: str) -> list[Outcome]:
    """The outcomes of one request after the other, until there is no answer."""
    outcomes: list[Outcome] = []
    while not outcomes or not isinstance(outcomes[-1], str):
        outcomes.append(request(server, "GET", path))
    return outcomes


def settings(cluster: Cluster, tmp_path: Path) -> dict[str, Any]:
    return {
        **FULL,
        "rest": {"temp-dir": str(tmp_path / "temp")},
        "helm": {"binary": helm_path("helm")},
        "kube": {"kubeconfig": str(cluster.kubeconfig)},
    }


def started(serve: Serve, cluster: Cluster, tmp_path: Path) -> tuple[Server, int]:
    """A server with a run, a log, a warm worker of each kind, all stopped, and the id of the run."""
    server = serve(
        {"web": {"command": ["sh", "-c", f"head -c {LOG_BYTES} /dev/zero | tr '\\0' x; exec sleep 1000"],
                 "stdout-logfile": str(tmp_path / "web.log")},
         "stubborn": {"command": ["sh", "-c", "trap '' TERM; while :; do sleep 1; done"]}},
        svc=settings(cluster, tmp_path),
        server={"shutdown-timeout": f"{SHUTDOWN_SECONDS:g}s", "workers": {"processes": 1}},
    )  # fmt: skip
    for name in ("web", "stubborn"):
        assert server.do("start", name).status == 200
    run = upload(server, ("project", "p"), ("junit", JUNIT))["runId"]
    assert post_chart(server, "/api/v1/charts/show/upload", KEY, chart=sample_chart()).status == 200
    wait_for(lambda: request(server, "GET", LOG) == (200, LOG_BYTES))
    return server, run


def test_a_stop_with_every_kind_of_work_under_way_ends_in_its_time(
    serve: Serve, cluster: Cluster, tmp_path: Path
) -> None:
    server, run = started(serve, cluster, tmp_path)
    namespace = cluster.namespace()
    slow = chart_archive(templates__slow=SLOW_TEMPLATE)
    show, show_headers = multipart(chart=sample_chart(), what="all")
    template, template_headers = multipart(chart=slow, request={})
    fields = {"releaseName": "r", "namespace": namespace, "timeout": 300}
    install, install_headers = multipart(chart=chart_with_hooks("pre-install"), request=fields)
    begun: list[str] = []
    with ThreadPoolExecutor(10) as threads:
        jobs: dict[str, Future[Outcome]] = {
            "template": threads.submit(
                request, server, "POST", "/api/v1/charts/template/upload", template, **template_headers, **KEY
            ),
            "install": threads.submit(
                request, server, "POST", "/api/v1/releases/upload", install, **install_headers, **KEY
            ),
        }
        wait_for(lambda: cluster.ask("GET", f"/api/v1/namespaces/{namespace}/pods")["items"])
        of_helm = f"{instance_of(server.data)}:0:\x01helm"
        wait_for(lambda: list(tags_by_pid().values()).count(of_helm) >= 2)
        stopped = stop_workers(server)
        assert len(stopped) == 2
        jobs["upload"] = threads.submit(
            request,
            server,
            "POST",
            "/api/v1/ingest",
            form([("project", "p"), ("junit", JUNIT)]),
            **{"Content-Type": FORM},
        )
        jobs["show"] = threads.submit(
            request, server, "POST", "/api/v1/charts/show/upload", show, **show_headers, **KEY
        )
        jobs["log"] = threads.submit(download, server, LOG, lambda: begun.append("log"))
        loops = [
            threads.submit(again_and_again, server, path)
            for path in ("/api/v1/search?q=t1", f"/api/v1/runs/{run}/tests?format=ndjson", "/api/v1/releases")
        ]
        wait_for(lambda: begun and len(list((server.data / "incoming").iterdir())) > 0)
        wait_for(lambda: temporary_files(tmp_path / "temp"))
        assert server.process is not None
        began = time.monotonic()
        server.process.send_signal(signal.SIGTERM)
        assert server.process.wait(120) == 0
        seconds = time.monotonic() - began
        outcomes = {name: job.result() for name, job in jobs.items()}
        repeated = [outcome for loop in loops for outcome in loop.result()]
    assert {name: outcome[0] for name, outcome in outcomes.items()} == {
        "template": 503, "install": 503, "upload": 503, "show": 503, "log": 200,
    }  # fmt: skip
    assert outcomes["log"] == (200, LOG_BYTES)
    assert "incomplete" not in repeated
    assert {outcome[0] for outcome in repeated if not isinstance(outcome, str)} <= {200, 503}
    assert seconds < services.longest_stop(Config(server=ServerSettings(shutdown_timeout=Seconds(SHUTDOWN_SECONDS))))
    assert [tag for tag in tags_by_pid().values() if tag.startswith(f"{instance_of(server.data)}:")] == []
    assert not any(is_alive(pid) for pid in stopped)
    assert list((tmp_path / "temp").glob("*")) == []
    assert list((server.data / "incoming").iterdir()) == []
    assert "Traceback" not in server.log.read_text()
    (secret,) = cluster.ask("GET", f"/api/v1/namespaces/{namespace}/secrets")["items"]
    assert secret["metadata"]["labels"]["status"] == "failed"


def test_a_killed_server_leaves_no_worker_and_its_folder_goes_with_the_next_start(
    serve: Serve, cluster: Cluster, tmp_path: Path
) -> None:
    server, _ = started(serve, cluster, tmp_path)
    stopped = stop_workers(server)
    body, headers = multipart(chart=sample_chart(), what="all")
    with ThreadPoolExecutor(1) as threads:
        job = threads.submit(request, server, "POST", "/api/v1/charts/show/upload", body, **headers, **KEY)
        wait_for(lambda: temporary_files(tmp_path / "temp"))
        assert server.process is not None
        server.process.kill()
        server.process.wait()
        assert isinstance(job.result(), str)
    (folder,) = (tmp_path / "temp").iterdir()
    wait_for(lambda: not any(map(is_alive, stopped)))
    server.start()
    wait_for(lambda: not folder.exists())
    assert [pid for pid in workers_of(server) if pid in stopped] == []


def test_the_document_states_the_longest_stop() -> None:
    text = (ROOT / "docs" / "operations.md").read_text()
    found = re.search(r"at most (\d+) s with the default\s+`server.shutdown-timeout`", text)
    assert found is not None
    assert float(found[1]) == services.longest_stop(Config())
