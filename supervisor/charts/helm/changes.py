"""Changes of releases by helm: install, upgrade, uninstall, rollback, test. One at a time per release."""

from __future__ import annotations

import asyncio
import logging
import re
from contextlib import nullcontext
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from attrs import evolve

from models.charts import helm_args, helm_errors, releases, requests
from models.charts.archives.archive import ChartArchive
from models.charts.helm_args import HelmVersion
from models.charts.refs import ChartRef
from models.charts.releases import StartedChange, was_not_started
from models.charts.responses import Release, TestResult
from models.errors import Failed, Invalid, Problem, TimedOut, Unavailable, Upstream
from models.times import SECOND
from supervisor.charts.helm.recovery import release_key
from supervisor.charts.helm.runner import Bounds, Output
from supervisor.charts.service import Work

log = logging.getLogger("charts")

_GRACE_SECONDS = 15.0
"""Added to helm's own timeout, for the work before and after its waiting."""
_TEST_GRACE_SECONDS = 3.0
_REVISION_TIMEOUT_SECONDS = 2.0
_MAX_STDOUT_BYTES = 1024 * 1024
_DIES_OF_SIGTERM = ("rollback", "uninstall")
"""After SIGTERM these leave a release pending; install and upgrade record that they failed."""


async def install(work: Work, request: requests.InstallRequest | requests.InstallUpload) -> Release:
    helm, chart = await prepare_chart(work, request)
    arguments = helm_args.install(helm, request, str(chart), _seconds(work, request.timeout))
    output = await _change(
        work, request.namespace, request.release_name, arguments, request.timeout, request.values, request.atomic
    )
    if not request.dry_run:
        await _remember_source(work, request.namespace, request.release_name, getattr(request, "chart_ref", None))
    return await _release(work, output)


async def upgrade(work: Work, request: requests.UpgradeRequest | requests.UpgradeUpload) -> Release:
    helm, chart = await prepare_chart(work, request)
    arguments = helm_args.upgrade(helm, request, str(chart), _seconds(work, request.timeout))
    output = await _change(
        work, request.namespace, request.name, arguments, request.timeout, request.values, request.atomic
    )
    if not request.dry_run:
        await _remember_source(work, request.namespace, request.name, getattr(request, "chart_ref", None))
    return await _release(work, output)


async def _remember_source(work: Work, namespace: str, name: str, chart_ref: str | None) -> None:
    """Stores where the release's chart came from. The release has changed, so a failure is only logged."""
    try:
        await work.charts.upgrades.remember(work.place, namespace, name, chart_ref)
    except Problem as problem:
        log.warning("the reference of release %s/%s was not stored: %s", namespace, name, problem.message)


async def uninstall(work: Work, request: requests.UninstallRequest) -> None:
    helm = await work.charts.helm.version()
    arguments = helm_args.uninstall(helm, request, _seconds(work, request.timeout))
    await _change(work, request.namespace, request.name, arguments, request.timeout)
    if not request.dry_run and not request.keep_history:
        await _remember_source(work, request.namespace, request.name, None)


async def rollback(work: Work, request: requests.RollbackRequest) -> None:
    helm = await work.charts.helm.version()
    arguments = helm_args.rollback(helm, request, _seconds(work, request.timeout))
    await _change(work, request.namespace, request.name, arguments, request.timeout)


async def test(work: Work, request: requests.TestRequest) -> list[TestResult]:
    """Runs the tests and returns the result of each from the release. A test whose time ran out is RUNNING.

    helm stops at the first failure, so the stored results of later tests are from an earlier run.
    """
    bounds = Bounds(request.timeout_seconds + _TEST_GRACE_SECONDS, "timeoutSeconds", TimedOut, work.begin)
    began, reason = datetime.fromtimestamp(work.charts.clock.now() / SECOND, UTC), ""
    try:
        output = await _run_exclusively(work, request.namespace, request.name, helm_args.test(request), bounds)
    except TimedOut:
        timed_out = True
    else:
        timed_out = not output.ok and helm_errors.kind_of(output.stderr).problem is TimedOut
        if not output.ok and not timed_out:
            failed = helm_errors.problem_from_output(output.stderr)
            if b"TEST SUITE:" not in output.stdout:
                raise failed
            reason = failed.message
    results = await work.reads.test_results(request.namespace, request.name, began)
    if timed_out:
        message = f"not finished within {request.timeout_seconds} s"
        return [
            result if result.status == "PASSED" else evolve(result, status="RUNNING", message=message)
            for result in results
        ]
    messages = {"FAILED": reason, "RUNNING": "not run: an earlier test failed"} if reason else {}
    return [evolve(result, message=messages.get(result.status) or result.message) for result in results]


async def prepare_chart(work: Work, request: Any, is_for_lint: bool = False) -> tuple[HelmVersion, Path]:
    """helm's version and the chart's archive. A fault of the request is raised before a missing helm."""
    try:
        chart = await chart_of(work, request, is_for_lint)
    except Invalid:
        raise
    except Problem:
        await work.charts.helm.version()
        raise
    version = await work.charts.helm.version()
    chart.check_helm((version.major, version.minor))
    return version, chart.path


async def chart_of(work: Work, request: Any, is_for_lint: bool = False) -> ChartArchive:
    """The checked archive of the requested chart, fetched or uploaded. Raises kinds of `Problem`.

    For lint a safe archive is enough; otherwise all its dependencies must be in charts/ too.
    """
    if (uploaded := getattr(request, "chart", None)) is not None:
        path = work.subfolder("chart") / "chart.tgz"
        Path(uploaded).rename(path)
        chart = await work.charts.sources.checked(path, is_for_lint, is_evaluated=True)
    else:
        ref = ChartRef.parse(request.chart_ref, request.version)
        folder = work.subfolder("chart")
        chart = await work.charts.sources.chart(ref, folder, is_safe_only=is_for_lint, is_evaluated=True)
    if not is_for_lint:
        chart.must_be_complete()
    return chart


def _seconds(work: Work, requested: int | None) -> int:
    return requested or max(1, round(work.charts.svc.helm.timeout))


async def _change(
    work: Work,
    namespace: str,
    name: str,
    arguments: list[str],
    timeout: int | None,
    values: dict[str, Any] | None = None,
    atomic: bool = False,
) -> Output:
    """Runs helm to change a release. Raises the problem it failed with.

    With `atomic` helm may need its timeout twice.
    """
    seconds = _seconds(work, timeout) * (2 if atomic else 1)
    setting, dies_of_sigterm = "timeout" if timeout else "svc.helm.timeout", arguments[0] in _DIES_OF_SIGTERM
    bounds = Bounds(seconds + _GRACE_SECONDS, setting, TimedOut, work.begin, dies_of_sigterm)
    stdin = helm_args.values(values) if "--values=-" in arguments else None
    change = StartedChange(namespace, name, arguments[0], work.charts.clock.now() / SECOND, bounds.seconds)
    is_dry_run = any(argument.startswith("--dry-run") for argument in arguments)
    observed = nullcontext() if is_dry_run else work.charts.observe(namespace, name, arguments[0])
    async with observed:
        return await _run_change(work, change, arguments, bounds, stdin, is_dry_run)


async def _run_change(
    work: Work, change: StartedChange, arguments: list[str], bounds: Bounds, stdin: bytes | None, is_dry_run: bool
) -> Output:
    namespace, name, output = change.namespace, change.name, None
    try:
        output = await _run_exclusively(work, namespace, name, arguments, bounds, stdin, None if is_dry_run else change)
        if not output.ok:
            stdout = output.stdout[:_MAX_STDOUT_BYTES].decode("utf-8", "replace")
            problem = helm_errors.problem_from_output(output.stderr, stdout)
            if work.charts.helm.runner.is_closed:
                raise Unavailable(f"pilothouse is stopping, and has ended the change: {problem.message}")
            raise problem
    except Problem as problem:
        stderr = output.stderr if output is not None else ""
        if how := helm_errors.undone_by(stderr):
            problem.code = helm_errors.ROLLED_BACK
            problem.message += f"; the release has been {await _undone(work, namespace, name, how)}"
        elif _is_uncertain(problem, output) and not is_dry_run and not was_not_started(stderr):
            problem.message += f"; {await _uncertainty(work, namespace, name)}"
        raise
    return output


def _is_uncertain(problem: Problem, output: Output | None) -> bool:
    """Whether a change that failed may have been applied. Without output an `Unavailable` is one that did not begin."""
    return isinstance(problem, Upstream | TimedOut) or (isinstance(problem, Unavailable) and output is not None)


async def _undone(work: Work, namespace: str, name: str, how: str) -> str:
    """States how helm has undone a failed change, with the revision it returned to if it can be read."""
    if how != "rolled back":
        return how
    try:
        async with asyncio.timeout(_REVISION_TIMEOUT_SECONDS):
            release = await work.reads.release(namespace, name)
    except (Problem, TimeoutError):
        return how
    match = re.fullmatch(r"Rollback to (\d+)", release.info.description or "")
    return f"{how} to revision {match[1]}" if match else how


async def _uncertainty(work: Work, namespace: str, name: str) -> str:
    """States that a change may have been applied, with the newest stored revision if it can be read."""
    text = "the change may have been applied"
    try:
        async with asyncio.timeout(_REVISION_TIMEOUT_SECONDS):
            release = await work.reads.release(namespace, name)
    except (Problem, TimeoutError):
        return text
    return f"{text}: revision {release.version} is {release.info.status}"


async def _run_exclusively(
    work: Work,
    namespace: str,
    name: str,
    arguments: list[str],
    bounds: Bounds,
    values: bytes | None = None,
    change: StartedChange | None = None,
) -> Output:
    """Runs helm while holding the release's lock; `change` is recorded for recovery."""
    place, helm = work.place, work.charts.helm
    command, *rest = arguments

    async def run() -> Output:
        command_line = [command, *place.arguments, *rest]
        return await helm.run(command_line, work.subfolder("run"), bounds, values, place.environment)

    async with helm.exclusive(*release_key(place, namespace, name)):
        if change is None:
            return await run()
        async with work.charts.recovery.change(place, change) as record_interruption:
            try:
                output = await run()
            except BaseException as error:
                if work.begun:
                    record_interruption(error.message if isinstance(error, Problem) else "helm was killed")
                raise
            if not output.ok and not was_not_started(output.stderr):
                record_interruption(
                    helm_errors.problem_from_output(output.stderr).message if output.stderr else "helm was killed"
                )
            return output


async def _release(work: Work, output: Output) -> Release:
    try:
        return releases.release(await work.charts.workers.parse_json(output.stdout))
    except (Invalid, KeyError, TypeError, AttributeError):
        raise Failed("the release was changed, but helm's output cannot be parsed") from None
