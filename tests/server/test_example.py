"""The example configuration: several copies of it run on one host."""

from __future__ import annotations

from typing import Any

import yaml
from conftest import ROOT, Serve, Server, free_port


def example(serve: Serve, port: int) -> Server:
    processes: dict[str, Any] = yaml.safe_load((ROOT / "examples" / "pilothouse.yaml").read_text())["supervisor"]
    server = serve(processes["processes"], environ={"PORT": str(port)}, wait=False)
    (server.folder / "docs").mkdir()
    return server.start()


def test_copies_with_free_ports_are_healthy_and_one_with_a_used_port_is_not(serve: Serve) -> None:
    port = free_port()
    first = example(serve, port)
    first.until("web", "healthy")
    same = example(serve, port)
    same.until("web", "failed_to_start")
    other = example(serve, free_port())
    other.until("web", "healthy")
    assert "healthy" not in same.new_statuses("web")
    assert [server.status("web") for server in (first, other)] == ["healthy", "healthy"]
