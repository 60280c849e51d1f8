"""A child is said to be in its control group when it is. A plain folder stands for the kernel's: not all have one."""

from __future__ import annotations

import asyncio
import subprocess
from pathlib import Path

import pytest

from supervisor.children.child import Child
from supervisor.children.orphans import Cgroups
from supervisor.children.proc import Identity


@pytest.mark.parametrize("there", [True, False])
def test_who_could_not_be_moved_is_in_no_group(tmp_path: Path, there: bool) -> None:
    async def joined(sleeper: subprocess.Popen[bytes]) -> bool:
        child = Child(Identity(sleeper.pid, 0, ""), -1, sleeper, asyncio.get_running_loop().create_future())
        groups = Cgroups(tmp_path if there else tmp_path / "gone")
        groups.join("web", child)
        groups.close()  # waits for it
        return child.is_grouped

    with subprocess.Popen(["sleep", "1000"]) as sleeper:
        try:
            assert asyncio.run(joined(sleeper)) is there
        finally:
            sleeper.kill()
