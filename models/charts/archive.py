"""A chart's archive: whether it may be given to helm at all, and what it tells of itself.

`check` is asked of every archive before anything is done with it, be it uploaded or fetched. What `show` says is read
here too: the files as they are, not as helm writes them anew (it loses comments and what it does not know).
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from io import BytesIO
from pathlib import Path
from typing import IO, Any

import yaml
from attrs import Factory, frozen

from models.charts import yaml_values
from models.charts.schema_refs import check_schema
from models.charts.semver import version
from models.charts.tar_reader import Bounds, Budget, Member, Tarball
from models.errors import Invalid

_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]*")
_READMES = ("readme.md", "readme.txt", "readme")
_LARGEST_METADATA = 1024**2
_METADATA = ("Chart.yaml", "requirements.yaml", "requirements.lock", "Chart.lock")
_VENDORED = re.compile(r"(?:.*/)?charts/[^/_.][^/]*\.tgz")
_CRD = re.compile(r"((?:charts/[^/]+/)*)crds/.+\.(?:yaml|yml|json)")
_SUBCHART = re.compile(r"charts/([^/_.][^/]*)/Chart\.yaml")


@frozen
class Dependency:
    """What a chart says that it needs, in its own words."""

    name: str
    version: str = ""
    repository: str = ""
    facts: Mapping[str, Any] = Factory(dict)
    """All of its fields, as YAML has them."""


@frozen
class ChartArchive:
    """A chart that may be used. `metadata` is Chart.yaml with every scalar as its text."""

    path: Path
    name: str
    version: str
    metadata: Mapping[str, Any]
    dependencies: tuple[Dependency, ...] = ()
    vendored: frozenset[tuple[str, str]] = frozenset()
    """Name and version of each chart that it brings with it in charts/."""

    def must_be_complete(self) -> None:
        """Raises `Invalid` where it lacks what it depends on: nobody fetches that, helm least of all."""
        names = {name for name, _ in self.vendored}
        missing = [one.name for one in self.dependencies if one.name not in names]
        if missing:
            raise Invalid(f"the chart depends on what it has not in its charts/ folder: {', '.join(missing)}")


def check(path: Path, bounds: Bounds | None = None) -> ChartArchive:
    """Reads an archive to its end. For a worker. Raises `Invalid` where it may not be used."""
    bounds = bounds or Bounds()
    if path.stat().st_size > bounds.packed:
        raise Invalid(f"the chart is larger than {bounds.packed} bytes")
    with path.open("rb") as file:
        found, subcharts = _walk(file, Budget(bounds), 0)
    metadata = _metadata(found)
    return ChartArchive(
        path=path,
        name=metadata["name"],
        version=metadata["version"],
        metadata=metadata,
        dependencies=_dependencies(metadata, found),
        vendored=frozenset(subcharts),
    )


def _walk(file: IO[bytes], budget: Budget, depth: int) -> tuple[dict[str, bytes], list[tuple[str, str]]]:
    """Checks an archive and those within it; returns its own metadata files, and the charts that it brings."""
    if depth > budget.bounds.depth:
        raise Invalid(f"the chart has archives within archives, more than {budget.bounds.depth} deep")
    found: dict[str, bytes] = {}
    subcharts: list[tuple[str, str]] = []
    for member in Tarball(file, budget).members():
        name = member.path.rpartition("/")[2]
        if name == "values.schema.json":
            check_schema(member.data, member.path)
        if member.path in _METADATA:
            found[member.path] = member.data
        elif _SUBCHART.fullmatch(member.path):
            subcharts.append(_identity(member.data, member.path))
        elif _VENDORED.fullmatch(member.path):
            inner, _ = _walk(BytesIO(member.data), budget, depth + 1)
            if member.path.count("/") == 1:
                subcharts.append(_identity(inner.get("Chart.yaml", b""), member.path))
    if "Chart.yaml" not in found:
        raise Invalid("the chart has no Chart.yaml in its top folder")
    return found, subcharts


def _identity(text: bytes, path: str) -> tuple[str, str]:
    facts = _mapping(text, path)
    return _text(facts, "name"), _text(facts, "version")


def _mapping(text: bytes, path: str) -> dict[str, Any]:
    """A file of metadata, every scalar as its text. Raises `Invalid`."""
    if len(text) > _LARGEST_METADATA:
        raise Invalid(f"the chart's {path} is larger than {_LARGEST_METADATA} bytes")
    try:
        for _ in yaml_values.events(text, yaml.CBaseLoader):
            pass
        facts = yaml.load(text, yaml.CBaseLoader)  # noqa: S506 (makes nothing but texts, lists and mappings)
    except yaml_values.TooDeep:
        raise Invalid(f"the chart's {path} is nested too deeply") from None
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        where = getattr(error, "problem_mark", None)
        raise Invalid(f"the chart's {path} is not YAML{f' (line {where.line + 1})' if where else ''}") from None
    except TypeError:  # a key that is a mapping
        facts = None
    if not isinstance(facts, dict):
        raise Invalid(f"the chart's {path} must be a mapping")
    return facts


def _metadata(found: Mapping[str, bytes]) -> dict[str, Any]:
    metadata = _mapping(found["Chart.yaml"], "Chart.yaml")
    metadata.setdefault("apiVersion", "v1")  # as helm reads the charts of helm 2, which did not have to say it
    for name in ("apiVersion", "name", "version"):
        if not _text(metadata, name):
            raise Invalid(f"the chart's Chart.yaml must have {name}")
    if metadata["apiVersion"] not in ("v1", "v2"):
        raise Invalid("the chart's Chart.yaml must have apiVersion v1 or v2")
    if not _NAME.fullmatch(metadata["name"]) or ".." in metadata["name"] or len(metadata["name"]) > 250:
        raise Invalid("the chart's name must be letters, digits, '.', '_' and '-'")
    if version(metadata["version"]) is None:
        raise Invalid("the chart's version is no semantic version")
    if _text(metadata, "type") not in ("", "application", "library"):
        raise Invalid("the chart's type must be application or library")
    return metadata


def _text(facts: Mapping[str, Any], name: str) -> str:
    """A field that is text; what is null in YAML is none."""
    value = facts.get(name, "")
    return value if isinstance(value, str) and value not in ("~", "null", "Null", "NULL") else ""


def _dependencies(metadata: Mapping[str, Any], found: Mapping[str, bytes]) -> tuple[Dependency, ...]:
    """What it needs: of an old chart (v1) requirements.yaml says it."""
    facts, path = metadata, "Chart.yaml"
    if metadata["apiVersion"] == "v1" and "requirements.yaml" in found:
        facts, path = _mapping(found["requirements.yaml"], "requirements.yaml"), "requirements.yaml"
    listed = facts.get("dependencies") or []
    if not isinstance(listed, list) or not all(isinstance(one, dict) and _text(one, "name") for one in listed):
        raise Invalid(f"the chart's {path} must list its dependencies, each with a name")
    return tuple(Dependency(one["name"], _text(one, "version"), _text(one, "repository"), one) for one in listed)


# What show says


def show_chart(path: Path) -> str:
    """Chart.yaml, as it is."""
    return _read(path, {"Chart.yaml"}).get("Chart.yaml", "")


def show_values(path: Path) -> str:
    """values.yaml, as it is; empty where there is none."""
    return _read(path, {"values.yaml"}).get("values.yaml", "")


def show_readme(path: Path) -> str:
    """The README; empty where there is none."""
    return _readme(_read(path, set(_READMES)))


def show_crds(path: Path) -> str:
    """The custom resource definitions, those of subcharts too, each after a line `---` of its own or ours."""
    with path.open("rb") as file:
        return _joined(_crds(file, Budget(Bounds())))


def show_all(path: Path) -> str:
    """Metadata, values, README and definitions, parted by lines `---`; what the chart has not is left out."""
    files = _read(path, {"Chart.yaml", "values.yaml", *_READMES})
    parts = [files["Chart.yaml"], files.get("values.yaml", ""), _readme(files)]
    return "---\n".join(_ended(part) for part in parts if part) + show_crds(path)


def _readme(files: Mapping[str, str]) -> str:
    return next((files[name] for name in _READMES if name in files), "")


def _ended(text: str) -> str:
    return text if text.endswith("\n") else f"{text}\n"


def _read(path: Path, names: set[str]) -> dict[str, str]:
    """Some files of the top folder, by their names in lower case where those are asked for."""
    found: dict[str, str] = {}
    with path.open("rb") as file:
        for member in Tarball(file, Budget(Bounds())).members():
            name = member.path if member.path in names else member.path.lower()
            if name in names:
                found.setdefault(name, _decoded(member))
    return found


def _decoded(member: Member) -> str:
    return member.data.decode("utf-8", "replace").removeprefix("\ufeff")


def _crds(file: IO[bytes], budget: Budget) -> Iterator[str]:
    """Its own files below crds/, then those of its subcharts, each in order of their names."""
    texts: dict[tuple[str, str], list[str]] = {}
    for member in Tarball(file, budget).members():
        if _VENDORED.fullmatch(member.path):
            texts[member.path, ""] = list(_crds(BytesIO(member.data), budget))
        elif found := _CRD.fullmatch(member.path):
            texts[found[1], member.path] = [_decoded(member)]
    for key in sorted(texts):
        yield from texts[key]


def _joined(texts: Iterator[str]) -> str:
    return "".join(_ended(text if text.startswith("---") else f"---\n{text}") for text in texts)
