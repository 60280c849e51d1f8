"""The log lines that explain the reason of a problem."""

from __future__ import annotations

import socket

from conftest import Serve, wait_for

CRASHER = {"command": ["sh", "-c", "exit 3"], "restart": "on-failure", "restart-delay": "10ms", "restart-limit": 2}


def test_server_start_does_not_restart_a_process_at_its_restart_limit(serve: Serve) -> None:
    server = serve({"crasher": CRASHER})
    server.do("start", "crasher")
    wait_for(lambda: "restart limit reached" in server.log.read_text())
    starts = server.new_statuses("crasher").count("starting")
    assert starts == 3
    server.kill()
    server.start()
    server.do("start", "crasher")  # a start by name is possible
    wait_for(lambda: server.log.read_text().count("restart limit reached") == 2)
    assert server.new_statuses("crasher").count("starting") == 2 * starts


def test_reason_of_an_unhealthy_process_is_logged(serve: Serve) -> None:
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        check = {"tcp": {"port": bound.getsockname()[1]}, "interval": "10ms", "failure-threshold": 1}
        server = serve({"web": {"command": "sleep 100", "health-check": check}})
        server.do("start", "web")
        server.until("web", "unhealthy")
    wait_for(lambda: "web: unhealthy: " in server.log.read_text())
    reason = server.log.read_text().split("web: unhealthy: ")[1].splitlines()[0]
    assert "refused" in reason.lower()


def test_reason_of_a_refused_request_is_logged(serve: Serve) -> None:
    server = serve({"web": {"command": "sleep 1", "directory": "/no/such/folder"}})
    assert server.do("start", "web").status == 400
    wait_for(lambda: "start/web 400" in server.log.read_text())
    assert "there is no directory /no/such/folder" in server.log.read_text()


def test_number_of_processes_left_running_is_logged(serve: Serve) -> None:
    server = serve({"web": {"command": "sleep 100"}}, supervisor={"on-exit": "leave"})
    server.do("start", "web")
    server.stop()
    assert "processes left running: 1" in server.log.read_text()
