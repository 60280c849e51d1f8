"""Runs helm without a cluster: renders templates, lints a chart, creates a chart."""

from __future__ import annotations

import re

from models.charts import helm_args, helm_errors, requests
from models.charts.archives import archive
from models.charts.archives.pack import pack
from models.charts.responses import Download, Lint
from models.errors import Unprocessable
from supervisor.charts.helm.changes import prepare_chart
from supervisor.charts.helm.runner import Bounds, Output
from supervisor.charts.helm.slots import caller
from supervisor.charts.service import Work

_FINDING = re.compile(r"\[(ERROR|WARNING|INFO)\] ?(.*)")
_FAILURE = "Error "
"""Begins the one line of a chart that helm could not even begin to check."""
_END = re.compile(r"==> |\d+ chart\(s\) linted")


async def template(work: Work, request: requests.TemplateRequest | requests.TemplateUpload) -> bytes:
    """The rendered manifests as YAML."""
    _, chart = await prepare_chart(work, request)
    arguments = helm_args.template(request, str(chart))
    output = await run_bounded(work, arguments, helm_args.values(request.values))
    if not output.ok:
        raise helm_errors.problem_from_output(output.stderr)
    return output.stdout


async def lint(work: Work, request: requests.LintRequest | requests.LintUpload) -> Lint:
    """helm's findings. helm gets a folder, because it does not unpack the archive of a malformed chart."""
    _, chart = await prepare_chart(work, request, is_for_lint=True)
    folder = await work.charts.workers.run(archive.unpack, chart, work.subfolder("unpacked"))
    arguments = helm_args.lint(request, str(folder))
    output = await run_bounded(work, arguments, helm_args.values(request.values))
    report = output.stdout.decode("utf-8", "replace")
    if "==> Linting" not in report:
        raise helm_errors.problem_from_output(output.stderr)
    findings = _findings(report)
    ref = request.chart_ref if isinstance(request, requests.LintRequest) else None
    return Lint(ref, output.ok, findings["ERROR"], findings["WARNING"], findings["INFO"])


async def create(work: Work, request: requests.CreateRequest) -> Download:
    """A new chart as helm creates it, as an archive."""
    output = await run_bounded(work, helm_args.create(request), None)
    if not output.ok:
        raise helm_errors.problem_from_output(output.stderr)
    file = work.folder / "made.tgz"
    await work.charts.workers.run(pack, work.folder / "run" / request.name, file)
    return Download(file, f"{request.name}.tgz")


async def run_bounded(work: Work, arguments: list[str], values: bytes | None) -> Output:
    helm = work.charts.svc.helm
    bounds = Bounds(helm.template_timeout, "svc.helm.template-timeout", Unprocessable)
    if caller.get() is not None and helm.open_template_timeout < helm.template_timeout:
        bounds = Bounds(helm.open_template_timeout, "svc.helm.open-template-timeout", Unprocessable)
    return await work.charts.helm.run(arguments, work.subfolder("run"), bounds, values)


def _findings(report: str) -> dict[str, tuple[str, ...]]:
    """The findings by severity; a finding may span several lines."""
    findings: list[tuple[str, list[str]]] = []
    is_first = True  # of its chart
    for line in report.splitlines():
        if begins := _FINDING.match(line):
            findings.append((begins[1], [begins[2]]))
        elif line.startswith(_FAILURE) and is_first:
            findings.append(("ERROR", [line.removeprefix(_FAILURE)]))
        elif findings and not is_first and not _END.match(line):
            findings[-1][1].append(line)
        if line.strip():
            is_first = line.startswith("==> ")
    return {
        wanted: tuple(helm_errors.clean("\n".join(lines)) for severity, lines in findings if severity == wanted)
        for wanted in ("ERROR", "WARNING", "INFO")
    }
