"""Joining control groups. A plain folder replaces the cgroup tree, which not every machine has."""

from __future__ import annotations

import asyncio
import subprocess
from pathlib import Path

import pytest

from supervisor.children.child import Child
from supervisor.children.orphans import Cgroups
from supervisor.children.proc import Identity


@pytest.mark.parametrize("exists", [True, False])
def test_child_is_grouped_only_if_it_joined_its_control_group(tmp_path: Path, exists: bool) -> None:
    async def joined(sleeper: subprocess.Popen[bytes]) -> bool:
        child = Child(Identity(sleeper.pid, 0, ""), -1, sleeper, asyncio.get_running_loop().create_future())
        groups = Cgroups(tmp_path if exists else tmp_path / "missing")
        groups.join("web", child)
        groups.close()  # waits until the child has joined
        return child.is_grouped

    with subprocess.Popen(["sleep", "1000"]) as sleeper:
        try:
            assert asyncio.run(joined(sleeper)) is exists
        finally:
            sleeper.kill()
