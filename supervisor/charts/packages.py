"""Packages charts: fills charts/ with the dependencies, through the guarded client, and runs `helm package`."""

from __future__ import annotations

import asyncio
import re
from pathlib import Path

from models.charts import helm_args, helm_errors
from models.charts.archives import archive, lock, metadata
from models.charts.archives.archive import ChartArchive
from models.charts.archives.metadata import ResolvedDependency
from models.charts.archives.pack import bundle, pack
from models.charts.refs import OCI, ChartRef
from models.charts.responses import Download
from models.config.settings import PackageSettings
from models.errors import Failed, Invalid
from models.json_format import rfc3339, text_of
from supervisor.charts.helm.rendering import run_bounded
from supervisor.charts.service import Work
from supervisor.charts.sources import repository_url

TAR = "application/x-tar"
_VERSION = re.compile(r"-v?[0-9]+(\.[0-9]+)*([-+].*)?")
"""What stands after the name of a chart in the name of its archive; not the rest of a longer name."""


async def build(work: Work, path: Path, is_update: bool) -> Download:
    """The chart with its dependencies in charts/, by its lock or a fresh one. Raises kinds of `Problem`."""
    chart = await work.charts.sources.checked(path)
    folder = await work.charts.workers.run(archive.unpack, chart.path, work.subfolder("unpacked"))
    await fill(work, chart, folder, is_update)
    file = work.folder / "built.tgz"
    await work.charts.workers.run(pack, folder, file)
    return Download(file, f"{chart.name}-{chart.version}.tgz")


async def fill(work: Work, chart: ChartArchive, folder: Path, is_update: bool) -> None:
    """Fetches the locked dependencies of an unpacked chart into its charts/, and removes other archives from it."""
    stored = None if is_update else await work.charts.workers.run(lock.read, chart.path)
    if stored is None:
        locked = await work.charts.dependencies.resolved(chart, work.subfolder("indexes"))
        if locked:
            _write_lock(work, chart, folder, locked)
    else:
        wanted = [(dependency, repository_url(dependency.repository)) for dependency in chart.dependencies]
        locked = lock.agreed(stored, wanted, text_of(chart.metadata, "apiVersion"))
    fetched = [await _fetched(work, number, one) for number, one in enumerate(locked) if one.repository]
    if locked:
        kept = [one.wanted.name for one in locked if not one.repository]
        await asyncio.to_thread(_replace, folder / "charts", fetched, kept)


def _write_lock(work: Work, chart: ChartArchive, folder: Path, locked: list[ResolvedDependency]) -> None:
    text = metadata.lock_document(locked, rfc3339(work.charts.clock.now()))
    is_v1 = text_of(chart.metadata, "apiVersion") == "v1"
    (folder / (lock.REQUIREMENTS_LOCK if is_v1 else lock.CHART_LOCK)).write_text(text)


async def _fetched(work: Work, number: int, locked: ResolvedDependency) -> Path:
    """The archive of a dependency. Raises `Invalid` for a refused address, `NotFound`, `Upstream`, `TimedOut`."""
    folder, name = work.subfolder(f"dependency{number}"), locked.wanted.name
    try:
        if locked.repository.startswith(OCI):
            ref = ChartRef.parse(f"{locked.repository.rstrip('/')}/{name}", locked.version, "its repository")
            return (await work.charts.sources.chart(ref, folder)).path
        source = await work.charts.repositories.of_url(locked.repository, folder)
        ref = ChartRef.parse(f"repository/{name}", locked.version, "its name")
        return (await work.charts.sources.of_source(source, ref, folder)).path
    except Invalid as problem:
        raise Invalid(f"the dependency {name}: {problem.message}", problem.code) from None


def _replace(charts: Path, fetched: list[Path], kept: list[str]) -> None:
    """Moves archives into charts/, and removes the others but those of the charts `kept`. Raises `Failed`.

    As with helm, folders stay. helm takes a dependency without a repository only from a folder.
    """
    try:
        charts.mkdir(exist_ok=True)
        for path in charts.glob("*.tgz"):
            if not any(_VERSION.fullmatch(path.stem.removeprefix(name)) for name in kept):
                path.unlink()
        for path in fetched:
            path.rename(charts / path.name)
    except OSError as error:
        raise Failed(f"the chart cannot be stored: {error.strerror} (svc.rest.temp-dir)") from None


async def package(
    work: Work, path: Path, version: str | None, app_version: str | None, is_update: bool, is_signed: bool
) -> Download:
    """The archive that `helm package` makes; signed, a tar archive of it and its provenance file."""
    signing = _signing(work.charts.svc.package) if is_signed else {}
    chart = await work.charts.sources.checked(path)
    folder = await work.charts.workers.run(archive.unpack, chart.path, work.subfolder("unpacked"))
    if is_update:
        await fill(work, chart, folder, is_update=True)
    out = work.subfolder("out")
    output = await run_bounded(work, helm_args.package(str(folder), str(out), version, app_version, signing), None)
    if not output.ok:
        raise helm_errors.problem_from_output(output.stderr)
    (made,) = out.glob("*.tgz")
    if not is_signed:
        return Download(made, made.name)
    both = work.folder / "signed.tar"
    await work.charts.workers.run(bundle, [made, made.with_name(f"{made.name}.prov")], both)
    return Download(both, f"{made.stem}.tar", TAR)


def _signing(settings: PackageSettings) -> dict[str, str]:
    """The options of a signature. Raises `Invalid` where the operator configured no key."""
    if settings.keyring is None or settings.key is None:
        raise Invalid("sign needs a key (svc.package.keyring, svc.package.key)")
    if not settings.keyring.is_file():
        raise Invalid("sign: the keyring of svc.package.keyring does not exist")
    options = {"keyring": str(settings.keyring.absolute()), "key": settings.key}
    if settings.passphrase_file is not None:
        options["passphrase-file"] = str(settings.passphrase_file.absolute())
    return options
