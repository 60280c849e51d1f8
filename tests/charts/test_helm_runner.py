"""Running helm: limits, environment, slots and termination, with a shell script in place of helm."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from conftest import is_alive, wait_for

from models.charts.helm_args import HelmVersion
from models.config.settings import HelmSettings as Settings
from models.errors import Conflict, TimedOut, Unavailable, Unprocessable
from models.supervision.process import Seconds, Size
from supervisor.charts.helm.runner import Bounds, Output
from supervisor.charts.helm.slots import Helm
from supervisor.children.child import Children

BEGIN = """#!/bin/sh
if [ "$1" = version ]; then echo ${VERSION:-v4.1.4}; exit 0; fi
"""


class RunnerFixture:
    """Runs the shell script `script` as helm, in its own folders."""

    def __init__(self, folder: Path, script: str, begin: str = BEGIN, **settings: Any) -> None:
        self.folder = folder
        self.binary = folder / "fake-helm"
        self.binary.write_text(begin + script)
        self.binary.chmod(0o755)
        self.settings = Settings(binary=str(self.binary), **settings)
        self.environ = {"PATH": os.environ["PATH"], "SECRET": "s3cret", "HELM_NAMESPACE": "x", "HOME": "/root"}

    def run(self, work: Callable[[Helm], Awaitable[Any]]) -> Any:
        async def inside() -> Any:
            children = Children()
            helm = Helm(self.settings, self.folder / "data", children, "instance", self.environ)
            try:
                return await work(helm)
            finally:
                await helm.close()
                children.close()

        return asyncio.run(inside())

    def new_folder(self) -> Path:
        made = self.folder / f"run{len(list(self.folder.iterdir()))}"
        made.mkdir()
        return made

    def run_once(self, bounds: Bounds = Bounds(20, "test"), values: bytes | None = None) -> Output:  # noqa: B008 (frozen)
        async def work(helm: Helm) -> Output:
            return await helm.run(["do"], self.new_folder(), bounds, values)

        output: Output = self.run(work)
        return output


def test_the_result_has_output_and_exit_code(tmp_path: Path) -> None:
    output = RunnerFixture(tmp_path, "cat; echo err >&2; exit 3").run_once(values=b'{"a":"b"}')
    assert (output.stdout, output.stderr, output.exit.code, output.ok) == (b'{"a":"b"}', "err\n", 3, False)


def test_a_helm_process_ended_by_the_stop_of_the_server_is_unavailable(tmp_path: Path) -> None:
    runner = RunnerFixture(tmp_path, "touch began; exec sleep 600")

    async def work(helm: Helm) -> None:
        folder = runner.new_folder()
        task = asyncio.create_task(helm.run(["do"], folder, Bounds(600, "test")))
        await asyncio.to_thread(wait_for, (folder / "began").exists)
        await helm.close()
        with pytest.raises(Unavailable, match="the server stops"):
            await task

    runner.run(work)


def test_large_output_and_values_are_passed_completely(tmp_path: Path) -> None:
    values = b"x" * 900_000
    assert (
        RunnerFixture(tmp_path, "cat; cat /dev/null; head -c 300000 /dev/zero >&2").run_once(values=values).stdout
        == values
    )


def test_helm_inherits_only_a_few_environment_variables(tmp_path: Path) -> None:
    seen = dict(line.split("=", 1) for line in RunnerFixture(tmp_path, "env").run_once().stdout.decode().splitlines())
    assert "SECRET" not in seen
    assert "HELM_NAMESPACE" not in seen
    data = str(tmp_path / "data")
    assert {name for name in seen if name.startswith("HELM_")} == {
        "HELM_CACHE_HOME", "HELM_CONFIG_HOME", "HELM_DATA_HOME", "HELM_PLUGINS", "HELM_REPOSITORY_CONFIG",
        "HELM_REPOSITORY_CACHE", "HELM_REGISTRY_CONFIG", "HELM_CONTENT_CACHE", "HELM_NO_PLUGINS",
    }  # fmt: skip
    assert all(seen[name].startswith(data) for name in seen if name.startswith("HELM_") and name != "HELM_NO_PLUGINS")
    assert seen["HOME"].startswith(data)
    assert seen["TMPDIR"].startswith(str(tmp_path / "run"))
    assert seen["PILOTHOUSE_CHILD"].startswith("instance:0:")


def test_helm_runs_in_an_empty_folder_and_its_own_process_group(tmp_path: Path) -> None:
    result = (
        RunnerFixture(tmp_path, "pwd; ls -A; cut -d ' ' -f 6 /proc/$$/stat; echo $$").run_once().stdout.decode().split()
    )
    assert result[0].startswith(str(tmp_path / "run"))
    assert result[1] == result[2]


def test_the_memory_of_helm_is_limited(tmp_path: Path) -> None:
    output = RunnerFixture(tmp_path, "ulimit -v; ulimit -c", max_memory=Size(512 * 1024**2)).run_once()
    assert output.stdout.split() == [b"524288", b"0"]


def test_a_read_that_ignores_sigterm_is_killed_at_its_timeout(tmp_path: Path) -> None:
    runner = RunnerFixture(tmp_path, "trap '' TERM; echo $$ > pid; sleep 60 & wait; sleep 60")
    with pytest.raises(Unprocessable, match=r"2 s \(the setting\)"):
        runner.run_once(Bounds(2, "the setting", Unprocessable))
    (pid,) = [int(file.read_text()) for file in tmp_path.glob("run*/pid")]
    wait_for(lambda: not is_alive(pid))


def test_a_change_gets_sigterm_and_time_to_record_the_failure(tmp_path: Path) -> None:
    """helm records on SIGTERM that the change failed. SIGKILL would leave the release pending."""
    runner = RunnerFixture(tmp_path, "trap 'sleep 1; touch is-over; exit 1' TERM; sleep 60 & wait")
    with pytest.raises(TimedOut):
        runner.run_once(Bounds(2, "timeout", TimedOut, lambda: None))
    assert len(list(tmp_path.glob("run*/is-over"))) == 1


def test_a_read_is_ended_at_the_output_limit(tmp_path: Path) -> None:
    runner = RunnerFixture(tmp_path, "yes", max_output=Size(100_000))
    with pytest.raises(Unprocessable, match=r"svc\.helm\.max-output"):
        runner.run_once()


def test_a_change_is_not_ended_at_the_output_limit(tmp_path: Path) -> None:
    runner = RunnerFixture(tmp_path, "head -c 500000 /dev/zero; sleep 0.2; touch is-over", max_output=Size(1000))
    with pytest.raises(Unprocessable, match=r"svc\.helm\.max-output"):
        runner.run_once(Bounds(20, "timeout", TimedOut, lambda: None))
    assert len(list(tmp_path.glob("run*/is-over"))) == 1


def test_a_cancelled_read_ends_its_helm_process(tmp_path: Path) -> None:
    runner = RunnerFixture(tmp_path, "echo $$ > pid; sleep 60")

    async def work(helm: Helm) -> float:
        task = asyncio.create_task(helm.run(["do"], runner.new_folder(), Bounds(60, "test")))
        while not (pids := list(tmp_path.glob("run*/pid"))) or not pids[0].read_text().strip():
            await asyncio.sleep(0.01)
        task.cancel()
        began = time.monotonic()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert not is_alive(int(pids[0].read_text()))
        return time.monotonic() - began

    assert runner.run(work) < 1


def test_concurrent_helm_processes_are_limited(tmp_path: Path) -> None:
    runner = RunnerFixture(
        tmp_path, "touch ../on.$$; ls .. | grep -c on\\\\.; sleep 0.2; rm ../on.$$", max_concurrent=2
    )

    async def work(helm: Helm) -> list[Output]:
        return await asyncio.gather(*(helm.run(["do"], runner.new_folder(), Bounds(20, "test")) for _ in range(6)))

    assert {output.stdout.strip() for output in runner.run(work)} <= {b"1", b"2"}


def test_a_call_that_waits_too_long_for_a_slot_is_refused(tmp_path: Path) -> None:
    runner = RunnerFixture(tmp_path, "sleep 60", max_concurrent=1, lock_timeout=Seconds(0.3))

    async def work(helm: Helm) -> None:
        first = asyncio.create_task(helm.run(["do"], runner.new_folder(), Bounds(60, "test")))
        await asyncio.sleep(0)
        with pytest.raises(Unavailable, match=r"svc\.helm\.max-concurrent"):
            await asyncio.gather(*(helm.run(["do"], runner.new_folder(), Bounds(60, "test")) for _ in range(2)))
        first.cancel()

    runner.run(work)


def test_changes_of_one_release_exclude_each_other(tmp_path: Path) -> None:
    runner = RunnerFixture(tmp_path, "", lock_timeout=Seconds(0.2))

    async def work(helm: Helm) -> None:
        async with helm.exclusive("cluster", "ns", "r"):
            async with helm.exclusive("cluster", "ns", "other"), helm.exclusive("cluster", "elsewhere", "r"):
                pass
            with pytest.raises(Conflict, match="another operation on r is in progress"):
                async with helm.exclusive("cluster", "ns", "r"):
                    raise AssertionError
        async with helm.exclusive("cluster", "ns", "r"):
            pass
        assert helm._locks == {}, "an unused lock is removed"

    runner.run(work)


def test_a_timeout_inside_the_lock_is_not_a_conflict(tmp_path: Path) -> None:
    async def work(helm: Helm) -> None:
        with pytest.raises(TimeoutError):
            async with helm.exclusive("r"):
                raise TimeoutError

    RunnerFixture(tmp_path, "").run(work)


def test_a_change_calls_back_when_it_begins(tmp_path: Path) -> None:
    begun: list[bool] = []
    RunnerFixture(tmp_path, "").run_once(Bounds(20, "timeout", TimedOut, lambda: begun.append(True)))
    assert begun == [True]


@pytest.mark.parametrize(
    ("result", "version"),
    [("v4.1.4", HelmVersion(4, 1, 4)), ("v3.14.0+gabc", HelmVersion(3, 14)), ("v3.19.0", HelmVersion(3, 19))],
)
def test_the_version_of_helm_is_read_once(tmp_path: Path, result: str, version: HelmVersion) -> None:
    runner = RunnerFixture(tmp_path, "", begin=f"#!/bin/sh\necho asked >> {tmp_path}/asked\necho {result}\n")

    async def work(helm: Helm) -> HelmVersion:
        await asyncio.gather(*(helm.version() for _ in range(5)))
        assert helm.is_there
        return await helm.version()

    assert runner.run(work) == version
    assert (tmp_path / "asked").read_text().count("asked") == 1


@pytest.mark.parametrize("result", ["v3.13.9", "v2.17.0", "v5.0.0", "no version", ""])
def test_a_helm_with_an_unknown_version_is_unavailable(tmp_path: Path, result: str) -> None:
    async def work(helm: Helm) -> None:
        with pytest.raises(Unavailable, match=r"svc\.helm\.binary"):
            await helm.version()
        assert not helm.is_there

    RunnerFixture(tmp_path, "", begin=f"#!/bin/sh\necho {result}\n").run(work)


def test_a_helm_installed_later_is_detected(tmp_path: Path) -> None:
    runner = RunnerFixture(tmp_path, "")
    runner.binary.rename(tmp_path / "away")

    async def work(helm: Helm) -> HelmVersion:
        with pytest.raises(Unavailable, match=r"svc\.helm\.binary"):
            await helm.run(["do"], runner.new_folder(), Bounds(20, "test"))
        (tmp_path / "away").rename(runner.binary)
        return await helm.version()

    assert runner.run(work).major == 4


def test_a_replaced_helm_is_detected(tmp_path: Path) -> None:
    runner = RunnerFixture(tmp_path, "exit 0")

    async def work(helm: Helm) -> list[int]:
        majors = [(await helm.version()).major]
        newer = tmp_path / "newer"
        newer.write_text(BEGIN.replace("v4.1.4", "v3.19.0"))
        newer.chmod(0o755)
        newer.replace(runner.binary)
        majors.append((await helm.version()).major)
        runner.binary.unlink()
        with pytest.raises(Unavailable, match="does not exist"):
            await helm.version()
        return majors

    assert runner.run(work) == [4, 3]


def test_a_stop_terminates_changing_helm_processes_and_waits(tmp_path: Path) -> None:
    runner = RunnerFixture(tmp_path, "trap 'sleep 0.5; touch is-over; exit 1' TERM; touch on; sleep 60 & wait")

    async def work(helm: Helm) -> None:
        task = asyncio.create_task(helm.run(["do"], runner.new_folder(), Bounds(60, "timeout", TimedOut, lambda: None)))
        while not list(tmp_path.glob("run*/on")):
            await asyncio.sleep(0.01)
        await helm.close()
        assert list(tmp_path.glob("run*/is-over"))
        assert (await task).exit.code == 1

    runner.run(work)


def test_a_killed_helm_is_reported_with_its_signal(tmp_path: Path) -> None:
    assert RunnerFixture(tmp_path, "kill -SEGV $$").run_once().exit.signal == signal.SIGSEGV
