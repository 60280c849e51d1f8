"""The lifecycle of one process, over HTTP."""

from __future__ import annotations

from conftest import Serve, is_alive


def test_a_process_is_started_watched_and_stopped(serve: Serve) -> None:
    server = serve({"sleeper": {"command": "sleep 1000"}})
    assert server.status("sleeper") == "not_started"

    started = server.do("start", "sleeper")
    assert started.status == 200
    info = server.info("sleeper")
    assert info["status"] == "running"
    assert str(info["pid"]) in started.json["message"]
    assert is_alive(info["pid"])

    assert server.do("stop", "sleeper").status == 200
    assert not is_alive(info["pid"])
    assert server.info("sleeper")["exitCode"] == 143
    assert server.new_statuses("sleeper") == ["starting", "running", "stopping", "stopped"]
