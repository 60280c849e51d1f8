"""What helm makes of a chart without a cluster: templates rendered, a chart looked over, a new one made."""

from __future__ import annotations

import asyncio
import gzip
import re
import tarfile
from pathlib import Path
from typing import Any

from models.charts import helm_args, helm_errors, requests
from models.charts.responses import Download, Lint
from models.errors import Unprocessable
from supervisor.charts.helm.changes import prepared
from supervisor.charts.helm.runner import Bounds, Output
from supervisor.charts.service import Work

_FINDING = re.compile(r"\[(ERROR|WARNING|INFO)\] ?(.*)")
_END = re.compile(r"==> |\d+ chart\(s\) linted")


async def template(work: Work, ask: requests.Template | requests.TemplateUpload) -> bytes:
    """The rendered manifests as YAML."""
    helm, chart = await prepared(work, ask)
    arguments = helm_args.template(
        helm,
        ask.release_name,
        ask.namespace,
        str(chart),
        show_only=ask.show_only,
        skip_tests=ask.skip_tests,
        include_crds=ask.include_crds,
        is_upgrade=ask.is_upgrade,
    )
    output = await _bounded(work, arguments, helm_args.values(ask.values))
    if not output.ok:
        raise helm_errors.problem(output.stderr)
    return output.stdout


async def lint(work: Work, ask: requests.Lint) -> Lint:
    helm, chart = await prepared(work, ask, complete=False)
    arguments = helm_args.lint(helm, str(chart), strict=ask.strict)
    output = await _bounded(work, arguments, helm_args.values(ask.values))
    told = output.stdout.decode("utf-8", "replace")
    if "==> Linting" not in told:
        raise helm_errors.problem(output.stderr)
    errors, warnings = _findings(told, "ERROR"), _findings(told, "WARNING")
    ok = output.ok and not errors and not (ask.strict and warnings)
    return Lint(ask.chart_ref, ok, errors, warnings)


async def create(work: Work, ask: requests.Create) -> Download:
    """A new chart as helm would lay it out, as an archive."""
    helm = await work.charts.helm.version()
    output = await _bounded(work, helm_args.create(helm, ask.name), None)
    if not output.ok:
        raise helm_errors.problem(output.stderr)
    file = work.folder / "made.tgz"
    await asyncio.to_thread(_packed, work.folder / "run" / ask.name, file)
    return Download(file, f"{ask.name}.tgz")


async def _bounded(work: Work, arguments: list[str], values: bytes | None) -> Output:
    bounds = Bounds(work.charts.svc.helm.template_timeout, "svc.helm.template-timeout", Unprocessable)
    return await work.charts.helm.run(arguments, work.subfolder("run"), bounds, values)


def _findings(told: str, wanted: str) -> tuple[str, ...]:
    """What was found of one severity; a finding may go on over several lines."""
    found: list[list[str]] = []
    taking = False
    for line in told.splitlines():
        begins = _FINDING.match(line)
        if begins:
            taking = begins[1] == wanted
            if taking:
                found.append([begins[2]])
        elif _END.match(line):
            taking = False
        elif taking:
            found[-1].append(line)
    return tuple(helm_errors.clean("\n".join(lines)) for lines in found)


def _packed(folder: Path, file: Path) -> None:
    """The folder as the archive of a chart; nobody's name and no time of this machine is in it."""

    def anonymous(entry: tarfile.TarInfo) -> tarfile.TarInfo | None:
        entry.uid = entry.gid = 0
        entry.uname = entry.gname = ""
        entry.mtime, entry.mode = 0, 0o644
        return entry if entry.isfile() else None

    def names(path: Path) -> Any:
        return path != folder / "Chart.yaml", str(path)  # helm wants it first, and so do readers

    with gzip.GzipFile(file, "wb", mtime=0) as packed, tarfile.open(fileobj=packed, mode="w") as archive:
        for path in sorted(folder.rglob("*"), key=names):
            archive.add(path, f"{folder.name}/{path.relative_to(folder)}", recursive=False, filter=anonymous)
