"""The log lines that explain the reason of a problem."""

from __future__ import annotations

import socket

from conftest import Serve, wait_for

CRASHER = {"command": ["sh", "-c", "exit 3"], "restart": "on-failure", "restart-delay": "10ms", "restart-limit": 2}


def test_a_process_at_its_limit_is_not_brought_back_by_the_next_start(serve: Serve) -> None:
    server = serve({"crasher": CRASHER})
    server.do("start", "crasher")
    wait_for(lambda: "restart limit reached" in server.log.read_text())
    starts = server.new_statuses("crasher").count("starting")
    assert starts == 3
    server.kill()
    server.start()
    server.do("start", "crasher")  # by hand it may
    wait_for(lambda: server.log.read_text().count("restart limit reached") == 2)
    assert server.new_statuses("crasher").count("starting") == 2 * starts


def test_why_a_process_is_unhealthy_is_in_the_log(serve: Serve) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        check = {"tcp": {"port": taken.getsockname()[1]}, "interval": "10ms", "failure-threshold": 1}
        server = serve({"web": {"command": "sleep 100", "health-check": check}})
        server.do("start", "web")
        server.until("web", "unhealthy")
    wait_for(lambda: "web: unhealthy: " in server.log.read_text())
    reason = server.log.read_text().split("web: unhealthy: ")[1].splitlines()[0]
    assert "refused" in reason.lower()


def test_why_a_request_was_refused_is_in_the_log(serve: Serve) -> None:
    server = serve({"web": {"command": "sleep 1", "directory": "/no/such/folder"}})
    assert server.do("start", "web").status == 400
    wait_for(lambda: "start/web 400" in server.log.read_text())
    assert "there is no directory /no/such/folder" in server.log.read_text()


def test_what_is_left_running_is_reported(serve: Serve) -> None:
    server = serve({"web": {"command": "sleep 100"}}, supervisor={"on-exit": "leave"})
    server.do("start", "web")
    server.stop()
    assert "processes left running: 1" in server.log.read_text()
