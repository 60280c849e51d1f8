"""Checks a chart's archive before helm gets it, and reads what `show` answers.

`check` runs for every archive, uploaded or fetched, before anything else. `show` answers the files as they are, not as
helm rewrites them (helm loses comments and unknown fields).
"""

from __future__ import annotations

import errno
import re
from collections.abc import Iterator, Mapping
from contextlib import suppress
from io import BytesIO
from pathlib import Path
from typing import IO, Any

import yaml
from attrs import Factory, define, frozen

from models.charts import yaml_values
from models.charts.archives.schema_refs import Reference, check_schema
from models.charts.archives.tar_reader import ArchiveLimits, Budget, Member, Tarball
from models.charts.repositories.semver import version
from models.errors import Failed, Invalid
from models.json_format import text_of

_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]*")
_ALIAS = re.compile(r"[A-Za-z0-9_-]+")
_READMES = ("readme.md", "readme.txt", "readme")
_MAX_METADATA_BYTES = 1024**2
_EMBEDS_ALL_METASCHEMAS = (3, 18)
_METADATA = ("Chart.yaml", "requirements.yaml", "requirements.lock", "Chart.lock")
_VENDORED = re.compile(r"(?:.*/)?charts/[^/_.][^/]*\.tgz")
_CRD = re.compile(r"((?:charts/[^/]+/)*)crds/.+\.(?:yaml|yml|json)")
_SUBCHART = re.compile(r"charts/([^/_.][^/]*)/Chart\.yaml")
_READ_BY_HELM = re.compile(r"(?:charts/[^/_.][^/]*/)*(?:values\.yaml|Chart\.lock|requirements\.lock)")
"""What helm parses of a chart before its templates, beside the metadata."""


class _Malformed(Exception):
    """A fault of a chart that helm's lint finds too; `Invalid` is a broken rule of safety."""


@frozen
class ChartDependency:
    """A dependency as the chart declares it."""

    name: str
    version: str = ""
    repository: str = ""
    facts: Mapping[str, Any] = Factory(dict)
    """All of its fields as parsed YAML."""


@frozen
class ChartArchive:
    """A chart that passed the checks. `metadata` is Chart.yaml with every scalar as its text."""

    path: Path
    name: str
    version: str
    metadata: Mapping[str, Any]
    dependencies: tuple[ChartDependency, ...] = ()
    vendored: frozenset[tuple[str, str]] = frozenset()
    """Name and version of each chart in charts/."""
    recent_references: tuple[Reference, ...] = ()
    """References of schemas that helm before 3.18 would fetch."""

    def check_helm(self, version: tuple[int, int]) -> None:
        """Raises `Invalid` if this helm version would fetch a reference of a schema."""
        if version < _EMBEDS_ALL_METASCHEMAS and self.recent_references:
            raise self.recent_references[0].problem()

    def check_dependencies(self) -> None:
        """Raises `Invalid` if helm would not load the chart because of an alias, or a name that is used twice."""
        seen = set[str]()
        for dependency in self.dependencies:
            alias = text_of(dependency.facts, "alias")
            if alias and not _ALIAS.fullmatch(alias):
                raise Invalid(f"the dependency {dependency.name}: its alias must be letters, digits, '_' and '-'")
            if (key := alias or dependency.name) in seen:
                raise Invalid(f"the chart has more than one dependency with the name or alias {key}")
            seen.add(key)

    def must_be_complete(self) -> None:
        """Raises `Invalid` if a dependency is missing from charts/; nothing fetches it later."""
        names = {name for name, _ in self.vendored}
        missing = [dependency.name for dependency in self.dependencies if dependency.name not in names]
        if missing:
            raise Invalid(f"the chart's charts/ folder lacks dependencies: {', '.join(missing)}")


def check(
    path: Path,
    limits: ArchiveLimits | None = None,
    is_safe_only: bool = False,
    is_evaluated: bool = True,
) -> ChartArchive:
    """Reads an archive to its end, in a worker. Raises `Invalid` if it may not be used.

    With `is_safe_only`, for lint, a chart that is malformed but safe has an empty name and version. With
    `is_evaluated`, for what helm does with values, its schemas may not refer to other documents, and its values and
    locks, which helm reads then, are within the bounds of YAML; lint reports faults of those as helm does.
    """
    limits = limits or ArchiveLimits()
    if path.stat().st_size > limits.packed:
        raise Invalid(f"the chart is larger than {limits.packed} bytes")
    walk = _ArchiveWalk(Budget(limits), is_safe_only, is_evaluated)
    try:
        with path.open("rb") as file:
            files, subcharts = walk.read(file)
        return _chart(path, files, subcharts, walk.references)
    except _Malformed as fault:
        if not is_safe_only:
            raise Invalid(str(fault)) from None
        return ChartArchive(path, "", "", {}, recent_references=tuple(walk.references))


def _chart(
    path: Path, files: Mapping[str, bytes], subcharts: list[tuple[str, str]], references: list[Reference]
) -> ChartArchive:
    """Raises `_Malformed`."""
    metadata = _metadata(files)
    return ChartArchive(
        path=path,
        name=metadata["name"],
        version=metadata["version"],
        metadata=metadata,
        dependencies=_dependencies(metadata, files),
        vendored=frozenset(subcharts),
        recent_references=tuple(references),
    )


@define
class _ArchiveWalk:
    """Reads an archive and the archives in it."""

    budget: Budget
    is_safe_only: bool
    is_evaluated: bool
    references: list[Reference] = Factory(list)

    def read(self, file: IO[bytes], depth: int = 0) -> tuple[dict[str, bytes], list[tuple[str, str]]]:
        """Returns the archive's own metadata files and the charts in charts/."""
        if depth > self.budget.limits.depth:
            raise Invalid(f"the chart has archives within archives, more than {self.budget.limits.depth} deep")
        files: dict[str, bytes] = {}
        subcharts: list[tuple[str, str]] = []
        for member in Tarball(file, self.budget).members():
            name = member.path.rpartition("/")[2]
            if self.is_evaluated and name == "values.schema.json":
                self.references += check_schema(member.data, member.path)
            if self.is_evaluated and not self.is_safe_only and _READ_BY_HELM.fullmatch(member.path):
                _check_bounds(member.data, member.path)
            if member.path in _METADATA:
                files[member.path] = member.data
            elif _SUBCHART.fullmatch(member.path):
                subcharts += _identity(member.data, member.path, self.is_safe_only)
            elif _VENDORED.fullmatch(member.path):
                inner, _ = self.read(BytesIO(member.data), depth + 1)
                if member.path.count("/") == 1:
                    subcharts += _identity(inner.get("Chart.yaml", b""), member.path, self.is_safe_only)
        if "Chart.yaml" not in files and not self.is_safe_only:
            raise Invalid("the chart has no Chart.yaml in its top folder")
        return files, subcharts


def _identity(text: bytes, path: str, is_safe_only: bool) -> list[tuple[str, str]]:
    """Name and version of a subchart; none of a malformed one if only safety is checked. Raises `_Malformed`."""
    try:
        facts = _mapping(text, path)
    except _Malformed:
        if not is_safe_only:
            raise
        return []
    return [(text_of(facts, "name"), text_of(facts, "version"))]


def identity(text: bytes) -> tuple[str, str]:
    """Name and version in a Chart.yaml; empty if it is malformed. Raises `Invalid` beyond the bounds of YAML."""
    return next(iter(_identity(text, "Chart.yaml", is_safe_only=True)), ("", ""))


def _mapping(text: bytes, path: str, may_be_empty: bool = False) -> dict[str, Any]:
    """Parses the first document of a metadata file, with every scalar as helm's text.

    Raises `Invalid`, and `_Malformed` if it is no mapping; with `may_be_empty` a file without content is an empty one.
    """
    if len(text) > _MAX_METADATA_BYTES:
        raise Invalid(f"the chart's {path} is larger than {_MAX_METADATA_BYTES} bytes")
    try:
        facts = yaml_values.load_first(text, yaml_values.MetadataLoader, f"the chart's {path}")
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        where = getattr(error, "problem_mark", None)
        raise _Malformed(f"the chart's {path} is not YAML{f' (line {where.line + 1})' if where else ''}") from None
    except TypeError:  # a key that is a mapping
        facts = ()
    if facts is None and may_be_empty:
        return {}
    if not isinstance(facts, dict):
        raise _Malformed(f"the chart's {path} must be a mapping")
    return facts


def _check_bounds(text: bytes, path: str) -> None:
    """Raises `Invalid` for YAML beyond its bounds. What is no YAML is reported by helm."""
    with suppress(yaml.YAMLError, UnicodeError):
        yaml_values.check(text, yaml_values.MetadataLoader, f"the chart's {path}")


def _metadata(files: Mapping[str, bytes]) -> dict[str, Any]:
    """Chart.yaml, with the dependencies of requirements.yaml, which replace its own as in helm. Raises `_Malformed`."""
    metadata = _mapping(files.get("Chart.yaml", b""), "Chart.yaml")
    metadata.setdefault("apiVersion", "v1")  # charts of helm 2 have no apiVersion
    for name in ("apiVersion", "name", "version"):
        if not text_of(metadata, name):
            raise _Malformed(f"the chart's Chart.yaml must have {name}")
    if metadata["apiVersion"] not in ("v1", "v2"):
        raise _Malformed("the chart's Chart.yaml must have apiVersion v1 or v2")
    if not _NAME.fullmatch(metadata["name"]) or ".." in metadata["name"] or len(metadata["name"]) > 250:
        raise _Malformed("the chart's name must be letters, digits, '.', '_' and '-'")
    if version(metadata["version"]) is None:
        raise _Malformed("the chart's version is not a semantic version")
    if text_of(metadata, "type") not in ("", "application", "library"):
        raise _Malformed("the chart's type must be application or library")
    if "requirements.yaml" in files:
        requirements = _mapping(files["requirements.yaml"], "requirements.yaml", may_be_empty=True)
        metadata |= {name: value for name, value in requirements.items() if name == "dependencies"}
    return metadata


def _dependencies(metadata: Mapping[str, Any], files: Mapping[str, bytes]) -> tuple[ChartDependency, ...]:
    """The declared dependencies, cleaned as helm cleans them when it loads a chart."""
    listed = clean(metadata.get("dependencies") or [])
    if not isinstance(listed, list) or not all(isinstance(entry, dict) and text_of(entry, "name") for entry in listed):
        path = "requirements.yaml" if "requirements.yaml" in files else "Chart.yaml"
        raise _Malformed(f"the chart's {path} must list its dependencies, each with a name")
    return tuple(
        ChartDependency(entry["name"], text_of(entry, "version"), text_of(entry, "repository"), entry)
        for entry in listed
    )


def clean(value: Any) -> Any:
    """Replaces each kind of space by a space and removes what cannot be printed, as helm does in a chart's metadata.

    Takes a text, or lists and mappings of texts; `import-values` stay as they are.
    """
    if isinstance(value, list):
        return [clean(item) for item in value]
    if isinstance(value, dict):
        return {name: item if name == "import-values" else clean(item) for name, item in value.items()}
    if not isinstance(value, str) or value.isprintable():
        return value
    spaced = (" " if character in _GO_SPACES else character for character in value)
    return "".join(character for character in spaced if character.isprintable())


_GO_SPACES = frozenset("\t\n\v\f\r\x85\xa0\u1680\u2028\u2029\u202f\u205f\u3000") | {
    chr(n) for n in range(0x2000, 0x200B)
}


def unpack(path: Path, folder: Path) -> Path:
    """Writes the files of a checked archive below `folder`; returns its top folder. Raises `Invalid`, `Failed`."""
    with path.open("rb") as file:
        tarball = Tarball(file, Budget(ArchiveLimits()))
        for member in tarball.members():
            target = folder / tarball.top / member.path
            try:
                target.parent.mkdir(parents=True, exist_ok=True)
                target.write_bytes(member.data)
            except OSError as error:
                if error.errno == errno.ENAMETOOLONG:
                    raise Invalid(
                        f"the chart's archive has an entry with a name that is too long: {member.path[:200]}"
                    ) from None
                raise Failed(f"the chart cannot be unpacked: {error.strerror} (svc.rest.temp-dir)") from None
    return folder / tarball.top


# Show


def show_chart(path: Path) -> str:
    """Chart.yaml as it is, with the dependencies of requirements.yaml, if there is one."""
    return _chart_yaml(_read(path, {"Chart.yaml", "requirements.yaml"}))


def _chart_yaml(files: Mapping[str, str]) -> str:
    text = files.get("Chart.yaml", "")
    try:
        requirements = _mapping(files.get("requirements.yaml", "").encode(), "requirements.yaml", may_be_empty=True)
        own = _mapping(text.encode(), "Chart.yaml") if requirements else {}
    except (Invalid, _Malformed):
        return text
    if not requirements.get("dependencies"):
        return text
    if "dependencies" in own:  # they do not count
        return yaml_values.dump({**own, "dependencies": requirements["dependencies"]})
    return _ended(text) + yaml_values.dump({"dependencies": requirements["dependencies"]})


def metadata(path: Path) -> dict[str, Any]:
    """Chart.yaml of a checked archive, with its dependencies, and every scalar as helm's text of it."""
    return _metadata({name: text.encode() for name, text in _read(path, {"Chart.yaml", "requirements.yaml"}).items()})


def lock_facts(path: Path) -> dict[str, Any] | None:
    """The lock file of a chart, `None` without one. Raises `Invalid`."""
    texts = _read(path, set(_LOCKS))
    name = next((name for name in _LOCKS if name in texts), None)
    try:
        return None if name is None else _mapping(texts[name].encode(), name)
    except _Malformed as fault:
        raise Invalid(str(fault)) from None


_LOCKS = ("Chart.lock", "requirements.lock")


def show_values(path: Path) -> str:
    """values.yaml as it is; empty if it is missing."""
    return _read(path, {"values.yaml"}).get("values.yaml", "")


def show_readme(path: Path) -> str:
    """The README; empty if it is missing."""
    return _readme(_read(path, set(_READMES)))


def show_crds(path: Path) -> str:
    """The custom resource definitions, subcharts included, as helm 4 prints them: each after a line `---`, and with a
    line break after it."""
    with path.open("rb") as file:
        return _joined(_crds(file, Budget(ArchiveLimits())))


def show_all(path: Path) -> str:
    """Metadata, values, README and definitions separated by lines `---`; missing parts are left out."""
    files = _read(path, {"Chart.yaml", "requirements.yaml", "values.yaml", *_READMES})
    parts = [_chart_yaml(files), files.get("values.yaml", ""), _readme(files)]
    return "---\n".join(_ended(part) for part in parts if part) + show_crds(path)


def _readme(files: Mapping[str, str]) -> str:
    return next((files[name] for name in _READMES if name in files), "")


def _ended(text: str) -> str:
    return text if text.endswith("\n") else f"{text}\n"


def _read(path: Path, names: set[str]) -> dict[str, str]:
    """Reads files of the top folder; `names` in lower case match any case."""
    texts: dict[str, str] = {}
    with path.open("rb") as file:
        for member in Tarball(file, Budget(ArchiveLimits())).members():
            name = member.path if member.path in names else member.path.lower()
            if name in names:
                texts.setdefault(name, _decoded(member))
    return texts


def _decoded(member: Member) -> str:
    return member.data.decode("utf-8", "replace").removeprefix("\ufeff")


def _crds(file: IO[bytes], budget: Budget) -> Iterator[str]:
    """Yields its own files below crds/ in the order of the archive, then those of its subcharts, by their names."""
    texts: dict[str, list[str]] = {}
    for member in Tarball(file, budget).members():
        if _VENDORED.fullmatch(member.path):
            texts[member.path] = list(_crds(BytesIO(member.data), budget))
        elif match := _CRD.fullmatch(member.path):
            texts.setdefault(match[1], []).append(_decoded(member))
    for chart in sorted(texts):
        yield from texts[chart]


def _joined(texts: Iterator[str]) -> str:
    return "".join(f"{text}\n" if text.startswith("---") else f"---\n{text}\n" for text in texts)
