"""Helm's rules for names, and the chart references of a request. Each check raises `ValidationError`."""

from __future__ import annotations

import ipaddress
import re
from typing import Any

from attrs import evolve, frozen

from models.charts.semver import range_of
from models.config.parsers import ValidationError
from models.errors import Invalid

_LABEL = r"[a-z0-9](?:[-a-z0-9]*[a-z0-9])?"
_LABEL_NAME = re.compile(r"(?:[a-z0-9](?:[-a-z0-9.]{0,251}[a-z0-9])?/)?[A-Za-z0-9](?:[-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?")
_LABEL_VALUE = re.compile(r"(?:[A-Za-z0-9](?:[-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?)?")
_NOT_IN_A_PATH = re.compile(r"[\x00-\x1f\x7f\\,]")
_RESERVED = ("name", "owner", "status", "version", "createdAt", "modifiedAt")


@frozen
class Name:
    """A check for names of one kind, which the interface document can tell as well."""

    pattern: str
    longest: int
    fault: str

    def __call__(self, text: str) -> None:
        if len(text) > self.longest or not re.fullmatch(self.pattern, text):
            raise ValidationError(self.fault, text)

    @property
    def schema(self) -> dict[str, Any]:
        return {"pattern": f"^{self.pattern}$", "maxLength": self.longest}


release = Name(
    rf"{_LABEL}(?:\.{_LABEL})*",
    53,
    "is not a release name (at most 53 of a-z, 0-9, - and ., each part beginning and ending with a letter or digit)",
)
namespace = Name(
    _LABEL, 63, "is not a namespace (at most 63 of a-z, 0-9 and -, beginning and ending with a letter or digit)"
)
new_chart = Name(
    "[a-zA-Z0-9][a-zA-Z0-9._-]*",
    250,
    "is not a chart name (at most 250 of letters, digits, ., _ and -, the first a letter or digit)",
)
"""What a chart that we make may be called: its name becomes that of a folder."""


def label(name: str, value: str) -> None:
    """A label that a release is to bear."""
    if name in _RESERVED:
        raise ValidationError(f"{name} is one that helm sets itself")
    if not _LABEL_NAME.fullmatch(name):
        raise ValidationError("is not the name of a label", name)
    if not _LABEL_VALUE.fullmatch(value):
        raise ValidationError("is not the value of a label", value)


def template_file(text: str) -> None:
    """One of a chart's templates, or a pattern for some: a path within the chart."""
    if text.startswith(("/", "-")) or ".." in text.split("/") or len(text) > 500 or _NOT_IN_A_PATH.search(text):
        raise ValidationError("is not the path of a template within the chart", text)


OCI = "oci://"

_WORD = r"[A-Za-z0-9][A-Za-z0-9._-]*"
_NAME = re.compile(_WORD)
_REPOSITORY_CHART = re.compile(rf"({_WORD})/({_WORD})(?::(.+))?", re.DOTALL)
_COMPONENT = r"[a-z0-9]+(?:(?:\.|_|__|-+)[a-z0-9]+)*"
_OCI_PATH = re.compile(rf"{_COMPONENT}(?:/{_COMPONENT})*")
_TAG = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._+-]{0,127}")
_HOST_LABEL = r"[A-Za-z0-9_](?:[A-Za-z0-9_-]{0,61}[A-Za-z0-9_])?"
_HOST = re.compile(rf"(?=.{{1,253}}$)({_HOST_LABEL}(?:\.{_HOST_LABEL})*\.?|\[[0-9A-Fa-f:.]+\])(?::([0-9]{{1,5}}))?")
_LONGEST_NAME = 250


@frozen
class ChartRef:
    """A chart of a repository that we know, or of an OCI registry; `version` exact, a range, or empty: the newest.

    Of an OCI reference `repository` is the registry's host with its port, `chart` the path below it, `tag` what the
    reference itself names.
    """

    repository: str
    chart: str
    version: str = ""
    is_oci: bool = False
    tag: str = ""

    @property
    def name(self) -> str:
        """The chart's own name."""
        return self.chart.rpartition("/")[2]

    def __str__(self) -> str:
        return f"{OCI if self.is_oci else ''}{self.repository}/{self.chart}"

    @classmethod
    def parse(cls, text: str, version: str | None = None, field: str = "chartRef") -> ChartRef:
        """Reads a reference, and the version that came beside it. Raises `Invalid`, naming the field."""
        version = check_version(version or "")
        if text.startswith(OCI):
            return _parse_oci(text, version, field)
        found = _REPOSITORY_CHART.fullmatch(text)
        if not found or ".." in found[1] or ".." in found[2] or max(len(found[1]), len(found[2])) > _LONGEST_NAME:
            raise Invalid(f"{field} must be repo/chart, repo/chart:version or oci://host/path[:tag]")
        return cls(found[1], found[2], _agreed(check_version(found[3] or "", field), version, field))


def _parse_oci(text: str, version: str, field: str) -> ChartRef:
    host, path = _registry(text, field)
    path, colon, tag = path.partition(":")
    if not _OCI_PATH.fullmatch(path) or len(path) > _LONGEST_NAME or (colon and not _TAG.fullmatch(tag)):
        raise Invalid(f"{field} must be oci://host/path[:tag], with a path in lower case")
    ref = ChartRef(host, path, version, is_oci=True, tag=tag.replace("+", "_"))
    if tag:
        _agreed(tag.replace("_", "+"), version.replace("_", "+"), field)
    return ref


def _agreed(named: str, version: str, field: str) -> str:
    """The one version that was asked for, in the reference or beside it. Raises `Invalid` where there are two."""
    if named and version and named != version:
        raise Invalid(f"{field} names version {named}, and version is {version}")
    return named or version


def _registry(text: str, field: str) -> tuple[str, str]:
    """Host (with port) and the rest of an OCI reference. Raises `Invalid`."""
    host, _, path = text.removeprefix(OCI).partition("/")
    found = _HOST.fullmatch(host)
    if not found or (found[2] and not 1 <= int(found[2]) <= 65535) or (host[0] == "[" and not _is_ipv6(found[1])):
        raise Invalid(f"{field} must begin with oci:// and the host of a registry")
    return host.lower(), path


def _is_ipv6(host: str) -> bool:
    try:
        ipaddress.IPv6Address(host[1:-1])
    except ValueError:
        return False
    return True


def remote(text: str, name: str, version: str) -> ChartRef:
    """Where a chart is pushed to: name and version are appended to `text`, as helm does. Raises `Invalid`."""
    if not text.startswith(OCI):
        raise Invalid("remote must be oci://host/path")
    host, path = _registry(text, "remote")
    whole = f"{path.rstrip('/')}/{name}".lstrip("/")
    tag = version.replace("+", "_")
    if not _OCI_PATH.fullmatch(whole) or not _TAG.fullmatch(tag):
        raise Invalid("remote must be oci://host/path without a tag; path and the chart's name must be in lower case")
    return evolve(ChartRef(host, whole, is_oci=True), tag=tag)


def check_version(text: str, field: str = "version") -> str:
    """An exact version or a range. Raises `Invalid`."""
    text = text.strip()
    if "/" in text or text.startswith("-") or any(c < " " for c in text):
        raise Invalid(f"{field}: not a version or a range of versions")
    if text:
        range_of(text)
    return text


repository_name = Name(
    rf"(?!.*\.\.){_WORD}",
    _LONGEST_NAME,
    "is not the name of a repository or chart (letters, digits, '.', '_' and '-')",
)
"""What may stand before the / of a reference."""
