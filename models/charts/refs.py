"""helm's rules for names, and chart references. Each check raises `ValidationError`."""

from __future__ import annotations

import ipaddress
import re
from typing import Any

from attrs import evolve, frozen

from models.charts.repositories.semver import range_of
from models.config.parsers import ValidationError
from models.errors import Invalid

_LABEL = r"[a-z0-9](?:[-a-z0-9]*[a-z0-9])?"
_LABEL_NAME = re.compile(r"(?:[a-z0-9](?:[-a-z0-9.]{0,251}[a-z0-9])?/)?[A-Za-z0-9](?:[-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?")
_LABEL_VALUE = re.compile(r"(?:[A-Za-z0-9](?:[-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?)?")
_FORBIDDEN_IN_PATH = re.compile(r"[\x00-\x1f\x7f\\,]")
_RESERVED_LABELS = ("name", "owner", "status", "version", "createdAt", "modifiedAt")


@frozen
class Name:
    """A check for one kind of name that the OpenAPI document can describe."""

    pattern: str
    max_characters: int
    fault: str

    def __call__(self, text: str) -> None:
        if len(text) > self.max_characters or not re.fullmatch(self.pattern, text):
            raise ValidationError(self.fault, text)

    @property
    def schema(self) -> dict[str, Any]:
        return {"pattern": f"^{self.pattern}$", "maxLength": self.max_characters}


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
"""The name of a chart to create; it becomes the name of a folder."""
kube_version = Name(
    r"v?[0-9]{1,9}\.[0-9]{1,9}(?:\.[0-9]{1,9})?(?:[-+][A-Za-z0-9.+-]*)?",
    100,
    "is not a version of Kubernetes (such as 1.31 or v1.31.2)",
)
api_version = Name(
    r"(?:[a-z0-9][a-z0-9.-]*/)?v[a-z0-9]+(?:/[A-Za-z][A-Za-z0-9]*)?",
    400,
    "is not an API version (group/version or group/version/Kind)",
)


def label(name: str, value: str) -> None:
    """Checks a label of a release."""
    if name in _RESERVED_LABELS:
        raise ValidationError(f"{name} is a label that helm sets itself")
    if not _LABEL_NAME.fullmatch(name):
        raise ValidationError("is not a valid label name", name)
    if not _LABEL_VALUE.fullmatch(value):
        raise ValidationError("is not a valid label value", value)


def template_file(text: str) -> None:
    """Checks the path, or path pattern, of a template within a chart."""
    if text.startswith(("/", "-")) or ".." in text.split("/") or len(text) > 500 or _FORBIDDEN_IN_PATH.search(text):
        raise ValidationError("is not the path of a template within the chart", text)


OCI = "oci://"

_WORD = r"[A-Za-z0-9][A-Za-z0-9._-]*"
_REPOSITORY_CHART = re.compile(rf"({_WORD})/({_WORD})(?::(.+))?", re.DOTALL)
_COMPONENT = r"[a-z0-9]+(?:(?:\.|_|__|-+)[a-z0-9]+)*"
_OCI_PATH = re.compile(rf"{_COMPONENT}(?:/{_COMPONENT})*")
_TAG = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._+-]{0,127}")
_HOST_LABEL = r"[A-Za-z0-9_](?:[A-Za-z0-9_-]{0,61}[A-Za-z0-9_])?"
_HOST = re.compile(rf"(?=.{{1,253}}$)({_HOST_LABEL}(?:\.{_HOST_LABEL})*\.?|\[[0-9A-Fa-f:.]+\])(?::([0-9]{{1,5}}))?")
_MAX_NAME_CHARACTERS = 250


@frozen
class ChartRef:
    """A chart of a configured repository or of an OCI registry; `version` is exact, a range, or empty for the newest.

    For OCI, `repository` is the registry's host and port, `chart` the path below it, `tag` the reference's own tag.
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
        """Parses a reference and the separate version. Raises `Invalid` naming the field."""
        version = check_version(version or "")
        if text.startswith(OCI):
            return _parse_oci(text, version, field)
        match = _REPOSITORY_CHART.fullmatch(text)
        if (
            not match
            or ".." in match[1]
            or ".." in match[2]
            or max(len(match[1]), len(match[2])) > _MAX_NAME_CHARACTERS
        ):
            raise Invalid(f"{field} must be repo/chart, repo/chart:version or oci://host/path[:tag]")
        return cls(match[1], match[2], _agreed(check_version(match[3] or "", field), version, field))


def _parse_oci(text: str, version: str, field: str) -> ChartRef:
    host, path = _registry(text, field)
    path, colon, tag = path.partition(":")
    if not _OCI_PATH.fullmatch(path) or len(path) > _MAX_NAME_CHARACTERS or (colon and not _TAG.fullmatch(tag)):
        raise Invalid(f"{field} must be oci://host/path[:tag], with a path in lower case")
    ref = ChartRef(host, path, version, is_oci=True, tag=tag.replace("+", "_"))
    if tag:
        _agreed(tag.replace("_", "+"), version.replace("_", "+"), field)
    return ref


def _agreed(tagged: str, version: str, field: str) -> str:
    """The requested version, from the reference or the separate field. Raises `Invalid` if they differ."""
    if tagged and version and tagged != version:
        raise Invalid(f"{field} names version {tagged}, and version is {version}")
    return tagged or version


def _registry(text: str, field: str) -> tuple[str, str]:
    """Host (with port) and path of an OCI reference. Raises `Invalid`."""
    host, _, path = text.removeprefix(OCI).partition("/")
    try:
        registry_host(host)
    except ValidationError:
        raise Invalid(f"{field} must begin with oci:// and the host of a registry") from None
    return host.lower(), path


def registry_host(text: str) -> None:
    """Checks the host of a registry, with its port where it has one."""
    match = _HOST.fullmatch(text)
    if not match or (match[2] and not 1 <= int(match[2]) <= 65535) or (text[0] == "[" and not _is_ipv6(match[1])):
        raise ValidationError("is not the host of a registry, such as ghcr.io or localhost:5000", text)


def _is_ipv6(host: str) -> bool:
    try:
        ipaddress.IPv6Address(host[1:-1])
    except ValueError:
        return False
    return True


def remote(text: str, name: str, version: str) -> ChartRef:
    """Where a chart is pushed: its name and version are appended to `text`, as helm does. Raises `Invalid`."""
    if not text.startswith(OCI):
        raise Invalid("remote must be oci://host/path")
    host, path = _registry(text, "remote")
    full_path = f"{path.rstrip('/')}/{name}".lstrip("/")
    tag = version.replace("+", "_")
    if not _OCI_PATH.fullmatch(full_path) or not _TAG.fullmatch(tag):
        raise Invalid("remote must be oci://host/path without a tag; path and the chart's name must be in lower case")
    return evolve(ChartRef(host, full_path, is_oci=True), tag=tag)


def check_version(text: str, field: str = "version") -> str:
    """Checks an exact version or a range. Raises `Invalid`."""
    text = text.strip()
    if "/" in text or text.startswith("-") or any(c < " " for c in text):
        raise Invalid(f"{field}: not a version or a range of versions")
    if text:
        range_of(text)
    return text


repository_name = Name(
    rf"(?!.*\.\.){_WORD}",
    _MAX_NAME_CHARACTERS,
    "is not the name of a repository or chart (letters, digits, '.', '_' and '-')",
)
"""The name before the / of a reference."""
