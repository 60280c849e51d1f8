"""The server raises its soft limit of descriptors; processes keep the inherited limit."""

from __future__ import annotations

import resource
from pathlib import Path

import pytest
from conftest import Serve, wait_for

from supervisor.children import child


def test_process_has_the_soft_limit_that_the_server_inherited(serve: Serve, tmp_path: Path) -> None:
    names = [f"p{number}" for number in range(40)]
    processes = {
        name: {"command": ["sh", "-c", "ulimit -S -n; ulimit -H -n"], "stdout-logfile": str(tmp_path / name)}
        for name in names
    }
    server = serve(processes, command=["prlimit", "--nofile=900:4000", "--"])
    limits = Path(f"/proc/{server.pid}/limits")  # during a spawn the server has the limit of its children
    wait_for(lambda: limits.read_text().split("Max open files")[1].split()[:2] == ["4000", "4000"])
    assert server.post("/api/v1/processes/group/start").status == 200
    wait_for(lambda: all(server.status(name) == "finished" for name in names))
    assert {(tmp_path / name).read_text() for name in names} == {"900\n4000\n"}


def test_server_with_more_descriptors_than_the_inherited_limit_starts_processes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(child, "_SPARE_DESCRIPTORS", 10_000_000)
    with child._file_limit((900, 4000)):  # must not lower the limit below the number of open descriptors
        assert resource.getrlimit(resource.RLIMIT_NOFILE)[0] != 900
