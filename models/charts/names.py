"""Helm's rules for names, as checks for `models/charts/fields.py`: each raises `Unfit` where a text breaks one."""

from __future__ import annotations

import re
from typing import Any

from attrs import frozen

from models.values import Unfit

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
            raise Unfit(self.fault, text)

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
        raise Unfit(f"{name} is one that helm sets itself")
    if not _LABEL_NAME.fullmatch(name):
        raise Unfit("is not the name of a label", name)
    if not _LABEL_VALUE.fullmatch(value):
        raise Unfit("is not the value of a label", value)


def template_file(text: str) -> None:
    """One of a chart's templates, or a pattern for some: a path within the chart."""
    if text.startswith(("/", "-")) or ".." in text.split("/") or len(text) > 500 or _NOT_IN_A_PATH.search(text):
        raise Unfit("is not the path of a template within the chart", text)
