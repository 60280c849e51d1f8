"""A DNS server, a cluster or a helm process that hangs or prints endlessly delays no other caller."""

from __future__ import annotations

import contextlib
import random
import socket
import struct
import subprocess
import threading
from pathlib import Path
from typing import Any

import changed_constants
import pytest
import yaml
from chart_servers import web_server
from conftest import Server, wait_for
from fault_injection import (
    API,
    SLEEPER,
    TEMPLATE,
    UPDATE,
    ParallelRequests,
    PreparedRequest,
    charts_settings,
    check_failure,
    check_no_traceback,
    check_reads,
    create_records,
    json_request,
    resident_mib,
    send_prepared,
    template_request,
    upload_request,
)  # fmt: skip
from http_checks import running_server
from requirements import LOW_PORTS, NAMESPACES, missing_part, require
from small_charts import FULL

VERSION = '#!/bin/sh\nif [ "$1" = version ]; then echo v4.1.4; exit 0; fi\n'


def check_other_requests(server: Server, number: int = 0) -> None:
    """Checks that reads, an upload and a restart succeed."""
    check_reads(server)
    assert send_prepared(server, upload_request(f"meanwhile {number}")).status == 201
    assert server.do("restart", "web").status == 200


# DNS


class SilentNameServer:
    """A name server that does not respond until `answers` is set; then each name is 127.0.0.1.

    It listens at an address that no other server of the machine uses.
    """

    def __init__(self) -> None:
        require(LOW_PORTS)
        self.socket = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self.address = ""
        while not self.address:
            address = f"127.53.{random.randrange(256)}.{random.randrange(1, 255)}"
            with contextlib.suppress(OSError):  # in use
                self.socket.bind((address, 53))
                self.address = address
        self.requests = 0
        self.answers = False
        threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                query, client = self.socket.recvfrom(4096)
                self.requests += 1
                if self.answers:
                    self.socket.sendto(self._answer(query), client)

    @staticmethod
    def _answer(query: bytes) -> bytes:
        """A response with one A record, or with none for a query of another type."""
        end = query.index(b"\0", 12) + 5
        is_ipv4 = query[end - 4 : end - 2] == b"\0\1"
        header = query[:2] + struct.pack("!HHHHH", 0x8180, 1, int(is_ipv4), 0, 0)
        record = b"\xc0\x0c" + struct.pack("!HHIH", 1, 1, 1, 4) + socket.inet_aton("127.0.0.1")
        return header + query[12:end] + (record if is_ipv4 else b"")


def with_name_server(folder: Path, address: str) -> list[str]:
    """A command that starts the server with its own resolv.conf."""
    file = folder / "resolv.conf"
    file.write_text(f"nameserver {address}\noptions timeout:20 attempts:2\n")
    file.chmod(0o644)
    command = ["unshare", "--mount", "sh", "-c", f'mount --bind {file} /etc/resolv.conf && exec "$@"', "sh"]
    require(NAMESPACES)
    if subprocess.run([*command, "true"], capture_output=True).returncode:
        missing_part("the right to mount over /etc/resolv.conf", "not in Debian: run as root")
    return command


def test_unresolved_names_delay_no_other_caller(tmp_path: Path) -> None:
    names = [f"chart{number}.example" for number in range(20)]
    dns = SilentNameServer()
    with web_server() as repository, contextlib.closing(dns.socket):
        svc = charts_settings(repository, tmp_path / "temp", fetch={"timeout": "2s"})
        svc["security"]["allowed-hosts"] += [f"{name}:{repository.port}" for name in names]
        adding = [json_request("POST", "/repos", {"name": name.partition(".")[0], "url": f"http://{name}:{repository.port}"})
                  for name in names]  # fmt: skip
        config = {"supervisor": {"processes": {"web": SLEEPER}}, "svc": svc}
        server = Server(tmp_path, config, {}, with_name_server(tmp_path, dns.address))
        try:
            create_records(server.start(), repository)
            waiting = ParallelRequests(server, adding).start()
            wait_for(lambda: dns.requests > 3)
            assert send_prepared(server, UPDATE).status == 200  # an address needs no name server
            check_other_requests(server)
            assert {"svc.fetch.timeout" in check_failure(answer, 504) for answer in waiting.answers()} == {True}
            assert server.stop() == 0  # while lookups still hang
            server.configure({**config, "svc": {**svc, "fetch": {"timeout": "60s"}}})  # names are resolved from now on
            server.start()
            dns.answers = True
            assert {answer.status for answer in ParallelRequests(server, adding).start().answers()} == {201}
            check_no_traceback(server)
        finally:
            server.close()


# Clusters


class HangingCluster:
    """Accepts every connection and never responds."""

    def __init__(self) -> None:
        self.socket = socket.create_server(("127.0.0.1", 0), backlog=200)
        self.accepted: list[socket.socket] = []
        threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self) -> None:
        with self.socket, contextlib.suppress(OSError):
            while True:
                self.accepted.append(self.socket.accept()[0])

    def close(self) -> None:
        self.socket.shutdown(socket.SHUT_RDWR)  # the thread closes it: see `receivers.listening`
        for one in self.accepted:
            one.close()

    def kubeconfig(self, folder: Path, scheme: str) -> str:
        cluster: dict[str, Any] = {"server": f"{scheme}://127.0.0.1:{self.socket.getsockname()[1]}"}
        cluster |= {"insecure-skip-tls-verify": True} if scheme == "https" else {}
        file = folder / "kubeconfig"
        file.write_text(yaml.safe_dump({
            "clusters": [{"name": "c", "cluster": cluster}], "users": [{"name": "u", "user": {}}],
            "contexts": [{"name": "x", "context": {"cluster": "c", "user": "u"}}], "current-context": "x",
        }))  # fmt: skip
        file.chmod(0o600)
        return str(file)


@pytest.mark.parametrize(("scheme", "statuses"), [("http", [504]), ("https", [502, 504])])
def test_a_hanging_cluster_is_reported_to_many_callers_in_time(
    tmp_path: Path, scheme: str, statuses: list[int]
) -> None:
    """Over TLS no handshake completes: the first requests cannot connect, and the queued ones time out."""
    callers = 100
    with web_server() as repository, contextlib.closing(HangingCluster()) as hanging:
        svc = charts_settings(repository, tmp_path / "temp", kube={"kubeconfig": hanging.kubeconfig(tmp_path, scheme)})
        svc["helm"] = {**svc["helm"], "max-concurrent": 2, "lock-timeout": "1s"}
        module = "supervisor__charts__kube__client__"
        command = changed_constants.server_command(**{f"{module}CONNECT_SECONDS": 2, f"{module}RESPONSE_SECONDS": 2})
        server = Server(tmp_path, {"supervisor": {"processes": {"web": SLEEPER}}, "svc": svc}, {}, command)
        try:
            create_records(server.start(), repository)
            reads: list[PreparedRequest] = [
                ("GET", f"{API}/releases/r{number}?namespace=n", None, {}) for number in range(callers)
            ]
            waiting = ParallelRequests(server, reads).start()
            wait_for(lambda: hanging.accepted)
            check_other_requests(server)
            for answer in waiting.answers():
                assert "cluster" in check_failure(answer, *statuses)
            assert len(hanging.accepted) < callers / 2  # most callers got the error without a connection of their own
            assert send_prepared(server, TEMPLATE).status == 200
            check_no_traceback(server)
        finally:
            server.close()


# helm


def script(folder: Path, text: str) -> dict[str, Any]:
    file = folder / "fake-helm"
    file.write_text(VERSION + text)
    file.chmod(0o755)
    return {
        "binary": str(file),
        "template-timeout": "1s",
        "lock-timeout": "500ms",
        "max-concurrent": 2,
        "max-output": "1MB",
    }


@pytest.mark.parametrize(
    "text",
    [
        "trap '' TERM; while :; do sleep 1; done\n",
        'until [ -e "$0.go" ]; do sleep 0.01; done; exec yes endless output of helm\n',
        "yes endless error output of helm >&2 & sleep 1000\n",
    ],
    ids=["never-ends", "floods", "complains"],
)
def test_endless_helm_processes_are_ended_and_delay_no_other_caller(tmp_path: Path, text: str) -> None:
    svc = {**FULL, "rest": {"temp-dir": str(tmp_path / "temp")}, "helm": script(tmp_path, text)}
    with running_server(tmp_path, {"web": SLEEPER}, svc=svc) as server:
        assert send_prepared(server, upload_request("before")).status == 201
        assert server.do("start", "web").status == 200
        sizes = []
        for _ in range(2):
            (tmp_path / "fake-helm.go").unlink(missing_ok=True)
            waiting = ParallelRequests(server, [template_request() for _ in range(6)]).start()
            wait_for(lambda: "pilothouse_helm_running 2.0" in server.get("/metrics").text)
            (tmp_path / "fake-helm.go").touch()
            check_reads(server, [f"{API}/processes", "/", "/projects/1", f"{API}/repos", "/healthz"])
            answers = waiting.answers()
            assert 422 in {answer.status for answer in answers} <= {422, 503}
            assert all("helm" in check_failure(answer, 422, 503) for answer in answers)
            wait_for(lambda: "pilothouse_helm_running 0.0" in server.get("/metrics").text)
            sizes.append(resident_mib(server))
        assert sizes[1] - sizes[0] < 8
        script(tmp_path, "echo 'kind: ConfigMap'\n")
        assert send_prepared(server, template_request()).status == 200
        check_no_traceback(server)
