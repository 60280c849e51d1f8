"""Edge cases of running helm: invalid input without helm, a command line above the limit of the system, and a server
that is killed during a change.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import socket
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from conftest import Answer, Server, wait_for
from http_checks import ready, running_server
from small_charts import FULL, KEY, multipart, post_chart, sample_chart, send_json

from handlers.base import STATUS
from models.charts import helm_errors
from models.config.settings import HelmSettings as Settings
from models.errors import Invalid, TimedOut
from supervisor.charts.helm.runner import Bounds
from supervisor.charts.helm.slots import Helm
from supervisor.children.child import Children

API = "/api/v1"
VERSION = '#!/bin/sh\nif [ "$1" = version ]; then echo v4.1.4; exit 0; fi\n'


def unreachable_cluster(folder: Path) -> str:
    """A kubeconfig of a port without a listener."""
    file = folder / "kubeconfig"
    cluster, context = {"server": "https://127.0.0.1:1"}, {"cluster": "c", "user": "u"}
    file.write_text(yaml.safe_dump({
        "clusters": [{"name": "c", "cluster": cluster}],
        "users": [{"name": "u", "user": {}}],
        "contexts": [{"name": "x", "context": context}],
        "current-context": "x",
    }))  # fmt: skip
    return str(file)


def error_detail(answer: Answer, status: int) -> str:
    """Checks the status and returns the detail of the problem."""
    assert answer.status == status, answer
    return str(answer.json["detail"])


def fake_helm(folder: Path, text: str) -> str:
    """A fake helm program that runs the shell commands in `text`."""
    file = folder / "fake-helm"
    file.write_text(VERSION + text)
    file.chmod(0o755)
    return str(file)


@pytest.fixture(scope="module")
def server_without_helm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server without helm and with an unreachable cluster."""
    folder = tmp_path_factory.mktemp("bare")
    svc = {**FULL, "helm": {"binary": "/no/such/helm"}, "kube": {"kubeconfig": unreachable_cluster(folder)}}
    with running_server(folder, svc=svc) as server:
        yield server


@pytest.mark.parametrize(
    ("method", "path", "fields"),
    [
        ("POST", "/charts/template", {"chartRef": "/etc/passwd"}),
        ("POST", "/charts/template", {"chartRef": "http://example.com/a.tgz"}),
        ("POST", "/charts/template", {"chartRef": "a/b:1.0.0", "version": "2.0.0"}),
        ("POST", "/charts/lint", {"chartRef": "../a/b"}),
        ("POST", "/charts/lint", {"chartRef": "oci://127.0.0.1:1/a"}),
        ("POST", "/releases", {"chartRef": "--help", "releaseName": "r"}),
        ("PUT", "/releases/r", {"chartRef": "oci://[::1]/a"}),
    ],
)
def test_without_helm_invalid_input_is_400(server_without_helm: Server, method: str, path: str, fields: Any) -> None:
    assert error_detail(send_json(server_without_helm, method, API + path, fields), 400)


def test_readyz_reports_releases_as_enabled_without_helm(server_without_helm: Server) -> None:
    result = ready(server_without_helm).json["charts"]
    assert (result["helm"], result["releases"]) == (False, True)


@pytest.mark.parametrize("path", ["/charts/template/upload", "/releases/r/upgrade/upload", "/releases/upload"])
def test_without_helm_an_invalid_archive_is_400(server_without_helm: Server, path: str) -> None:
    request = {} if "upgrade" in path else {"releaseName": "r"}
    assert "archive" in error_detail(
        post_chart(server_without_helm, API + path, KEY, chart=b"no archive", request=request), 400
    )
    assert "svc.helm.binary" in error_detail(
        post_chart(server_without_helm, API + path, KEY, chart=sample_chart(), request=request), 503
    )


@pytest.mark.parametrize("ref", ["unknown/chart", "oci://nowhere.invalid/a"])
def test_without_helm_a_valid_request_is_503_for_every_kind_of_chart_ref(server_without_helm: Server, ref: str) -> None:
    assert "svc.helm.binary" in error_detail(
        send_json(server_without_helm, "POST", f"{API}/charts/template", {"chartRef": ref}), 503
    )


def test_an_unusable_temporary_folder_is_reported_with_its_setting(tmp_path: Path) -> None:
    temp = tmp_path / "temp"
    svc = {**FULL, "helm": {"binary": fake_helm(tmp_path, "")}, "rest": {"temp-dir": str(temp)}}
    with running_server(tmp_path, svc=svc) as server:
        wait_for(lambda: list(temp.glob("*/.lock")), about="the temporary folder")
        shutil.rmtree(temp)
        temp.write_text("a file")
        assert "svc.rest.temp-dir" in error_detail(
            send_json(server, "POST", f"{API}/charts/create", {"name": "a"}), 500
        )
        assert "svc.rest.temp-dir" in error_detail(
            post_chart(server, f"{API}/charts/template/upload", chart=sample_chart()), 500
        )
        temp.unlink()
        assert post_chart(server, f"{API}/charts/template/upload", chart=sample_chart()).status == 200
        assert "Traceback" not in server.log.read_text()


def test_the_first_readyz_response_reports_helm(tmp_path: Path) -> None:
    svc = {"helm": {"binary": fake_helm(tmp_path, "")}}
    with running_server(tmp_path, svc=svc) as server:
        assert ready(server).json["charts"]["helm"] is True


def run_helm(folder: Path, arguments: list[str], bounds: Bounds, text: str = "") -> Any:
    async def inside() -> Any:
        children = Children()
        settings = Settings(binary=fake_helm(folder, text))
        helm = Helm(settings, folder / "data", children, "instance", {"PATH": os.environ["PATH"]})
        work = folder / "work"
        work.mkdir()
        try:
            return await helm.run(arguments, work, bounds)
        finally:
            await helm.close()
            children.close()

    return asyncio.run(inside())


def test_arguments_above_the_limit_of_a_command_line_are_invalid_input(tmp_path: Path) -> None:
    with pytest.raises(Invalid, match="longer than a command"):
        run_helm(tmp_path, ["install", f"--description={'x' * 200_000}"], Bounds(20, "timeout", TimedOut, lambda: None))


def start_install(port: int) -> socket.socket:
    """Sends an install request; the response is not read."""
    body, headers = multipart(chart=sample_chart(), request={"releaseName": "r"})
    head = "".join(f"{name}: {value}\r\n" for name, value in {**headers, **KEY}.items())
    line = f"POST {API}/releases/upload HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(body)}\r\n"
    connection = socket.create_connection(("127.0.0.1", port))
    connection.sendall(f"{line}{head}\r\n".encode() + body)
    return connection


def test_a_helm_process_of_a_killed_server_can_record_its_failure(tmp_path: Path) -> None:
    """helm prints that it was cancelled before it records the failure: a broken pipe would end it too early."""
    result = tmp_path / "is-over"
    text = f"trap 'echo cancelled; echo so >&2; touch {result}; exit 1' TERM; touch {tmp_path}/on; sleep 60 & wait\n"
    temp = tmp_path / "temp"
    svc = {
        **FULL,
        "helm": {"binary": fake_helm(tmp_path, text)},
        "kube": {"kubeconfig": unreachable_cluster(tmp_path)},
        "rest": {"temp-dir": str(temp)},
    }
    with running_server(tmp_path, svc=svc) as server:
        connection = start_install(server.port)
        wait_for(lambda: (tmp_path / "on").exists(), about="helm to run")
        server.kill()
        connection.close()
        assert any(path.name != ".lock" for own in temp.iterdir() for path in own.iterdir())
        server.start()
        wait_for(result.exists, about="helm to record its failure")

        def left() -> list[str]:
            with contextlib.suppress(FileNotFoundError):  # a folder is swept meanwhile
                return [path.name for own in temp.iterdir() for path in own.iterdir()]
            return []

        wait_for(lambda: left() == [".lock"], about="the sweep")


@pytest.mark.parametrize(("dies_of_sigterm", "ends"), [(True, "done"), (False, "cut")])
def test_a_stop_lets_a_rollback_finish_that_sigterm_would_leave_pending(
    tmp_path: Path, dies_of_sigterm: bool, ends: str
) -> None:
    seconds = 1 if ends == "done" else 60  # the stop comes within them, however busy the machine is
    text = f"trap 'touch {tmp_path}/cut; exit 1' TERM; touch {tmp_path}/on; sleep {seconds} & wait; "
    text += f"touch {tmp_path}/done\n"

    async def inside() -> None:
        children = Children()
        settings = Settings(binary=fake_helm(tmp_path, text))
        helm = Helm(settings, tmp_path / "data", children, "instance", {"PATH": os.environ["PATH"]})
        (tmp_path / "work").mkdir()
        bounds = Bounds(60, "timeout", TimedOut, lambda: None, dies_of_sigterm)
        task = asyncio.create_task(helm.run(["rollback"], tmp_path / "work", bounds))
        end = time.monotonic() + 20
        while not (tmp_path / "on").exists() and time.monotonic() < end:
            await asyncio.sleep(0.01)
        await helm.close()
        await task
        children.close()

    asyncio.run(inside())
    assert (tmp_path / ends).exists()
    assert not (tmp_path / ({"done", "cut"} - {ends}).pop()).exists()


@pytest.mark.parametrize(
    ("stderr", "status"),
    [
        ("Error: INSTALLATION FAILED: unable to continue with install: could not get information about the resource "
         "/: resource name may not be empty", 400),
        ("Error: INSTALLATION FAILED: create: failed to create: Request entity too large: limit is 3145728", 400),
        ("Error: INSTALLATION FAILED: create: failed to create: etcdserver: request is too large", 502),
        ("Error: INSTALLATION FAILED: failed to install CRD crds/a.yaml: error parsing : json: offset 2: invalid", 400),
        ('Error: INSTALLATION FAILED: Service in version "v1" cannot be handled: strict decoding error: no', 400),
        ('Error: UPGRADE FAILED: Operation cannot be fulfilled on services "a": the object has been modified', 409),
        ('Error: no revision for release "a"', 404),
        ("Error: UPGRADE FAILED: etcdserver: leader changed", 502),
    ],
)  # fmt: skip
def test_constructed_failures_of_helm_have_their_status(stderr: str, status: int) -> None:
    assert STATUS[helm_errors.kind_of(stderr).problem] == status
