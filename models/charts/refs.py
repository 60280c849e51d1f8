"""What names things of charts in a request, by strict pattern: references, versions and repositories.

Nothing here is ever a path on the server, a URL of http, or the beginning of an option.
"""

from __future__ import annotations

import ipaddress
import re

from attrs import evolve, frozen

from models.charts.names import Name
from models.charts.versions import range_of
from models.errors import Invalid

OCI = "oci://"

_WORD = r"[A-Za-z0-9][A-Za-z0-9._-]*"
_NAME = re.compile(_WORD)
_REPOSITORY_CHART = re.compile(rf"({_WORD})/({_WORD})(?::(.+))?", re.DOTALL)
_COMPONENT = r"[a-z0-9]+(?:(?:\.|_|__|-+)[a-z0-9]+)*"
_OCI_PATH = re.compile(rf"{_COMPONENT}(?:/{_COMPONENT})*")
_TAG = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._+-]{0,127}")
_LABEL = r"[A-Za-z0-9_](?:[A-Za-z0-9_-]{0,61}[A-Za-z0-9_])?"
_HOST = re.compile(rf"(?=.{{1,253}}$)({_LABEL}(?:\.{_LABEL})*\.?|\[[0-9A-Fa-f:.]+\])(?::([0-9]{{1,5}}))?")
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
