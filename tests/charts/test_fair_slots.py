"""Slots for helm processes over HTTP, with a script in place of helm that waits until the test lets it end."""

from __future__ import annotations

import http.client
from collections.abc import Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextlib import closing
from pathlib import Path

import pytest
from attrs import frozen
from conftest import Server, wait_for
from http_checks import running_server
from small_charts import FULL, KEY, multipart, sample_chart

SCRIPT = """#!/bin/sh
if [ "$1" = version ]; then echo v4.1.4; exit 0; fi
: > "$FOLDER/started-$$"
until [ -e "$FOLDER/end" ]; do sleep 0.05; done
printf 'apiVersion: v1\\nkind: ConfigMap\\nmetadata: {name: a}\\n'
"""
SETTINGS = {
    "max-concurrent": 2, "queue-per-caller": 2, "queue": 3, "lock-timeout": "10m", "template-timeout": "10m",
    "open-template-timeout": "10m",
}  # fmt: skip


@frozen
class Lab:
    server: Server
    folder: Path

    def started(self) -> int:
        """How many helm processes have begun."""
        return len(list(self.folder.glob("started-*")))

    def template(self, source: str, key: dict[str, str]) -> tuple[int, str | None]:
        """The status and the `Retry-After` of a template that a client at an address of loopback requests."""
        body, headers = multipart(chart=sample_chart())
        address = (source, 0)
        with closing(http.client.HTTPConnection("127.0.0.1", self.server.port, 300, address)) as connection:
            connection.request("POST", "/api/v1/charts/template/upload", body, headers | key)
            response = connection.getresponse()
            response.read()
            return response.status, response.headers.get("Retry-After")


@pytest.fixture
def lab(tmp_path: Path) -> Iterator[Lab]:
    marks = tmp_path / "marks"
    marks.mkdir()
    helm = tmp_path / "slow-helm"
    helm.write_text(SCRIPT.replace("$FOLDER", str(marks)))
    helm.chmod(0o755)
    svc = {**FULL, "helm": {"binary": str(helm), **SETTINGS}, "kube": {"kubeconfig": str(tmp_path / "none")}}
    with running_server(tmp_path, svc=svc) as server:
        yield Lab(server, marks)


def test_open_callers_are_bounded_and_the_key_has_a_slot(lab: Lab) -> None:
    with ThreadPoolExecutor(8) as threads:
        calls: set[Future[tuple[int, str | None]]] = set()

        def call(source: str, **key: str) -> None:
            calls.add(threads.submit(lab.template, source, key))

        try:
            call("127.0.0.2")
            wait_for(lambda: lab.started() == 1)
            for _ in range(3):  # two wait, and one is too many for its caller
                call("127.0.0.2")
            refused = wait(calls, return_when=FIRST_COMPLETED).done
            for _ in range(2):  # one waits, and a fourth is too many for all callers
                call("127.0.0.3")
            refused |= wait(calls - refused, return_when=FIRST_COMPLETED).done
            assert sorted(one.result() for one in refused) == [(429, "5"), (503, "5")]
            call("127.0.0.2", **KEY)
            wait_for(lambda: lab.started() == 2, about="the call with the key to run beside those that wait")
            assert not any(one.done() for one in calls - refused)
        finally:
            (lab.folder / "end").touch()
        assert [one.result()[0] for one in calls - refused] == [200] * 5
        assert lab.started() == 5
