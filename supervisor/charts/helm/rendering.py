"""Runs helm without a cluster: renders templates, lints a chart, creates a chart."""

from __future__ import annotations

import gzip
import re
import tarfile
from pathlib import Path
from typing import Any

from models.charts import helm_args, helm_errors, requests
from models.charts.responses import Download, Lint
from models.errors import Unprocessable
from supervisor.charts.helm.changes import prepare_chart
from supervisor.charts.helm.runner import Bounds, Output
from supervisor.charts.service import Work

_FINDING = re.compile(r"\[(ERROR|WARNING|INFO)\] ?(.*)")
_END = re.compile(r"==> |\d+ chart\(s\) linted")


async def template(work: Work, request: requests.Template | requests.TemplateUpload) -> bytes:
    """The rendered manifests as YAML."""
    helm, chart = await prepare_chart(work, request)
    arguments = helm_args.template(
        helm,
        request.release_name,
        request.namespace,
        str(chart),
        show_only=request.show_only,
        skip_tests=request.skip_tests,
        include_crds=request.include_crds,
        is_upgrade=request.is_upgrade,
    )
    output = await _bounded(work, arguments, helm_args.values(request.values))
    if not output.ok:
        raise helm_errors.problem_from_output(output.stderr)
    return output.stdout


async def lint(work: Work, request: requests.Lint) -> Lint:
    helm, chart = await prepare_chart(work, request, complete=False)
    arguments = helm_args.lint(helm, str(chart), strict=request.strict)
    output = await _bounded(work, arguments, helm_args.values(request.values))
    report = output.stdout.decode("utf-8", "replace")
    if "==> Linting" not in report:
        raise helm_errors.problem_from_output(output.stderr)
    errors, warnings = _findings(report, "ERROR"), _findings(report, "WARNING")
    ok = output.ok and not errors and not (request.strict and warnings)
    return Lint(request.chart_ref, ok, errors, warnings)


async def create(work: Work, request: requests.Create) -> Download:
    """A new chart as helm creates it, as an archive."""
    helm = await work.charts.helm.version()
    output = await _bounded(work, helm_args.create(helm, request.name), None)
    if not output.ok:
        raise helm_errors.problem_from_output(output.stderr)
    file = work.folder / "made.tgz"
    await work.charts.workers.run(_pack, work.folder / "run" / request.name, file)
    return Download(file, f"{request.name}.tgz")


async def _bounded(work: Work, arguments: list[str], values: bytes | None) -> Output:
    bounds = Bounds(work.charts.svc.helm.template_timeout, "svc.helm.template-timeout", Unprocessable)
    return await work.charts.helm.run(arguments, work.subfolder("run"), bounds, values)


def _findings(report: str, wanted: str) -> tuple[str, ...]:
    """The findings of one severity; a finding may span several lines."""
    findings: list[list[str]] = []
    taking = False
    for line in report.splitlines():
        begins = _FINDING.match(line)
        if begins:
            taking = begins[1] == wanted
            if taking:
                findings.append([begins[2]])
        elif _END.match(line):
            taking = False
        elif taking:
            findings[-1].append(line)
    return tuple(helm_errors.clean("\n".join(lines)) for lines in findings)


def _pack(folder: Path, file: Path) -> None:
    """Archives the folder as a chart, without names or times of this machine."""

    def anonymous(entry: tarfile.TarInfo) -> tarfile.TarInfo | None:
        entry.uid = entry.gid = 0
        entry.uname = entry.gname = ""
        entry.mtime, entry.mode = 0, 0o644
        return entry if entry.isfile() else None

    def names(path: Path) -> Any:
        return path != folder / "Chart.yaml", str(path)  # helm and other readers expect it first

    with gzip.GzipFile(file, "wb", mtime=0) as packed, tarfile.open(fileobj=packed, mode="w") as archive:
        for path in sorted(folder.rglob("*"), key=names):
            archive.add(path, f"{folder.name}/{path.relative_to(folder)}", recursive=False, filter=anonymous)
