"""What changes a release: install, upgrade, uninstall, rollback, test. helm does it, one at a time for a release."""

from __future__ import annotations

import asyncio
import json
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from attrs import evolve

from models.charts import helm_args, helm_errors, releases, requests
from models.charts.helm_args import Version
from models.charts.recovery import Change, is_refused
from models.charts.refs import ChartRef
from models.charts.responses import Release, TestResult
from models.errors import Failed, Invalid, Problem, TimedOut
from supervisor.charts.helm.recovery import about
from supervisor.charts.helm.runner import Bounds, Output
from supervisor.charts.service import Work

_GRACE = 15.0
"""Seconds beyond those that helm is told: for what it does before and after it waits."""
_TEST_GRACE = 3.0
_MIB = 1024 * 1024
_DEAF = ("rollback", "uninstall")
"""Of these helm leaves a release pending where SIGTERM comes; install and upgrade write down that they failed."""


async def install(work: Work, ask: requests.Install | requests.InstallUpload) -> Release:
    helm, chart = await prepared(work, ask)
    arguments = helm_args.install(
        helm,
        ask.release_name,
        ask.namespace,
        str(chart),
        dry_run=ask.dry_run,
        description=ask.description,
        labels=ask.labels,
        wait=ask.wait,
        timeout=_seconds(work, ask.timeout),
        create_namespace=ask.create_namespace,
        atomic=ask.atomic,
    )
    output = await _change(work, ask.namespace, ask.release_name, arguments, ask.timeout, ask.values, ask.atomic)
    return await _release(output)


async def upgrade(work: Work, ask: requests.Upgrade | requests.UpgradeUpload) -> Release:
    helm, chart = await prepared(work, ask)
    arguments = helm_args.upgrade(
        helm,
        ask.name,
        ask.namespace,
        str(chart),
        dry_run=ask.dry_run,
        strategy=ask.value_strategy,
        install=ask.install,
        wait=ask.wait,
        timeout=_seconds(work, ask.timeout),
        atomic=ask.atomic,
        description=ask.description,
    )
    output = await _change(work, ask.namespace, ask.name, arguments, ask.timeout, ask.values, ask.atomic)
    return await _release(output)


async def uninstall(work: Work, ask: requests.Uninstall) -> None:
    arguments = helm_args.uninstall(
        await work.charts.helm.version(),
        ask.name,
        ask.namespace,
        no_hooks=ask.no_hooks,
        keep_history=ask.keep_history,
        dry_run=ask.dry_run,
        wait=ask.wait,
        timeout=_seconds(work, ask.timeout),
        cascade=ask.cascade,
        description=ask.description,
    )
    await _change(work, ask.namespace, ask.name, arguments, ask.timeout)


async def rollback(work: Work, ask: requests.Rollback) -> None:
    arguments = helm_args.rollback(
        await work.charts.helm.version(),
        ask.name,
        ask.namespace,
        ask.revision,
        no_hooks=ask.no_hooks,
        max_history=ask.max_history,
        dry_run=ask.dry_run,
        force=ask.force,
        cleanup_on_fail=ask.cleanup_on_fail,
        wait=ask.wait,
        wait_for_jobs=ask.wait_for_jobs,
        timeout=_seconds(work, ask.timeout),
    )
    await _change(work, ask.namespace, ask.name, arguments, ask.timeout)


async def test(work: Work, ask: requests.Test) -> list[TestResult]:
    """Runs the tests; what each came to is in the release. One whose time ran out is running still.

    helm ends with the first that fails: what the release says of those after it is of an earlier run.
    """
    arguments = helm_args.test(await work.charts.helm.version(), ask.name, ask.namespace, timeout=ask.timeout_seconds)
    bounds = Bounds(ask.timeout_seconds + _TEST_GRACE, "timeoutSeconds", TimedOut, work.begin)
    began, why = datetime.now(UTC), ""
    try:
        output = await _alone(work, ask.namespace, ask.name, arguments, bounds)
    except TimedOut:
        late = True
    else:
        late = not output.ok and helm_errors.kind_of(output.stderr).problem is TimedOut
        if not output.ok and not late:
            failed = helm_errors.problem(output.stderr)
            if b"TEST SUITE:" not in output.stdout:
                raise failed
            why = failed.message
    results = await work.reads.test_results(ask.namespace, ask.name, began)
    if late:
        words = f"not finished within {ask.timeout_seconds} s"
        return [one if one.status == "PASSED" else evolve(one, status="RUNNING", message=words) for one in results]
    told = {"FAILED": why, "RUNNING": "not run: one before it failed"} if why else {}
    return [evolve(one, message=told.get(one.status) or one.message) for one in results]


async def prepared(work: Work, ask: Any, complete: bool = True) -> tuple[Version, Path]:
    """helm and the chart. What is wrong with what was asked is told before that there is no helm; the rest after."""
    try:
        chart = await chart_of(work, ask, complete)
    except Invalid:
        raise
    except Problem:
        await work.charts.helm.version()
        raise
    return await work.charts.helm.version(), chart


async def chart_of(work: Work, ask: Any, complete: bool = True) -> Path:
    """The archive of the chart that is asked for, checked: fetched by us, or uploaded. Raises kinds of `Problem`.

    `complete`: it must have with it what it depends on.
    """
    if (uploaded := getattr(ask, "chart", None)) is not None:
        path = work.subfolder("chart") / "chart.tgz"
        Path(uploaded).rename(path)
        found = await work.charts.sources.checked(path)
    else:
        ref = ChartRef.parse(ask.chart_ref, ask.version)
        found = await work.charts.sources.chart(ref, work.subfolder("chart"))
    if complete:
        found.must_be_complete()
    return found.path


def _seconds(work: Work, asked: int | None) -> int:
    return asked or max(1, round(work.charts.svc.helm.timeout))


async def _change(
    work: Work,
    namespace: str,
    name: str,
    arguments: list[str],
    timeout: int | None,
    values: dict[str, Any] | None = None,
    atomic: bool = False,
) -> Output:
    """Runs a helm that changes a release. Raises what it failed for.

    One that takes everything back where it fails needs its time twice.
    """
    seconds = _seconds(work, timeout) * (2 if atomic else 1)
    setting, is_deaf = "timeout" if timeout else "svc.helm.timeout", arguments[0] in _DEAF
    bounds = Bounds(seconds + _GRACE, setting, TimedOut, work.begin, is_deaf)
    given = helm_args.values(values) if "--values=-" in arguments else None
    change = Change(namespace, name, arguments[0], time.time(), bounds.seconds)
    is_dry = any(word.startswith("--dry-run") for word in arguments)
    output = await _alone(work, namespace, name, arguments, bounds, given, None if is_dry else change)
    if not output.ok:
        raise helm_errors.problem(output.stderr, output.stdout[:_MIB].decode("utf-8", "replace"))
    return output


async def _alone(
    work: Work,
    namespace: str,
    name: str,
    arguments: list[str],
    bounds: Bounds,
    values: bytes | None = None,
    change: Change | None = None,
) -> Output:
    """Runs a helm that nobody of us disturbs; `change` is what is not to be left pending."""
    place, helm = work.place, work.charts.helm
    command, *rest = arguments

    async def run() -> Output:
        whole = [command, *place.arguments, *rest]
        return await helm.run(whole, work.subfolder("run"), bounds, values, place.environment)

    async with helm.alone(*about(place, namespace, name)):
        if change is None:
            return await run()
        async with work.charts.pending.change(place, change) as cut_off:
            try:
                output = await run()
            except BaseException as error:
                if work.begun:
                    cut_off(error.message if isinstance(error, Problem) else "it was ended")
                raise
            if not output.ok and not is_refused(output.stderr):
                cut_off(helm_errors.problem(output.stderr).message if output.stderr else "it was ended")
            return output


async def _release(output: Output) -> Release:
    try:
        return releases.release(await asyncio.to_thread(json.loads, output.stdout))
    except (ValueError, KeyError, TypeError):
        raise Failed("the release was changed, but what helm says of it cannot be read") from None
