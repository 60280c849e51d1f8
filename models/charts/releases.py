"""What helm stores of a release, and what we say of it. Nothing here asks a cluster.

A revision is a Secret of type `helm.sh/release.v1`, named `sh.helm.release.v1.<release>.v<revision>`, with the labels
owner=helm, name, version and status. Its key `release` is base64 (helm's) of gzip of JSON; Kubernetes adds a base64.
"""

from __future__ import annotations

import base64
import binascii
import json
import re
import zlib
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from typing import Any

from attrs import frozen

from models.charts.responses import HistoryRow, Hook, ListRow, Release, ReleaseInfo, TestResult

MOST = 64 * 1024**2
"""Bytes that one release may unpack to; helm's Secret holds 1 MiB of it, packed."""

SELECTOR = "owner=helm"
SUPERSEDED = "superseded"

_GZIP = b"\x1f\x8b\x08"
_TIME = re.compile(r"(\d{4}-\d\d-\d\d)[T ](\d\d:\d\d:\d\d)(?:\.(\d+))? ?(Z|[+-]\d\d:?\d\d)(?: \S+)?")
_TEST = "test"
_TOLD = {"Succeeded": "PASSED", "Failed": "FAILED"}

Stored = Mapping[str, Any]
"""The JSON of one revision, as helm wrote it."""


class BadRelease(ValueError):
    """What is stored is no release."""


@frozen
class Revision:
    """One revision as its labels tell, without what it holds."""

    release: str
    number: int
    key: str
    """The name of its Secret."""
    version: str
    """What changes with each write: uid and resource version."""
    status: str = ""


def key(release: str, number: int) -> str:
    """The name of the Secret that holds a revision."""
    return f"sh.helm.release.v1.{release}.v{number}"


def revisions(items: Iterable[Mapping[str, Any]]) -> list[Revision]:
    """The revisions that a list of Secrets' metadata tells of; what only looks like one is left out."""
    found = []
    for item in items:
        about = item.get("metadata") or {}
        labels = about.get("labels") or {}
        name, number = labels.get("name") or "", str(labels.get("version") or "")
        if not number.isdecimal() or about.get("name") != key(name, int(number)):
            continue
        version = f"{about.get('uid')} {about.get('resourceVersion')}"
        found.append(Revision(name, int(number), about["name"], version, labels.get("status") or ""))
    return found


def latest(found: Iterable[Revision]) -> dict[str, Revision]:
    """The newest revision of each release, by its name."""
    newest: dict[str, Revision] = {}
    for one in found:
        if one.release not in newest or newest[one.release].number < one.number:
            newest[one.release] = one
    return newest


def unpacked(secret: Mapping[str, Any]) -> Stored:
    """What a Secret holds. Raises `BadRelease`."""
    try:
        packed = base64.b64decode(base64.b64decode((secret.get("data") or {})["release"]), validate=True)
        stored = json.loads(_inflated(packed) if packed.startswith(_GZIP) else packed)
    except (KeyError, TypeError, ValueError, binascii.Error, zlib.error, RecursionError):
        raise BadRelease("it cannot be unpacked") from None
    if not isinstance(stored, dict) or not isinstance(stored.get("name"), str):
        raise BadRelease("it is no release")
    return stored


def _inflated(packed: bytes) -> bytes:
    inflater = zlib.decompressobj(wbits=31)
    plain = inflater.decompress(packed, MOST)
    if inflater.unconsumed_tail or not inflater.eof:
        raise BadRelease("it is cut off, or too large")
    return plain


# Shapes


def instant(text: object) -> str | None:
    """A time as Go writes it, in either of helm's two ways, as RFC 3339 in UTC with Z; `None` where there is none."""
    found = _TIME.fullmatch(text) if isinstance(text, str) else None
    if found is None:
        return None
    day, clock, fraction, zone = found.groups()
    try:
        at = datetime.fromisoformat(f"{day}T{clock}{'+00:00' if zone == 'Z' else zone}").astimezone(UTC)
    except (ValueError, OverflowError):  # no such day
        return None
    if at.year <= 1:  # Go's zero time: it has not happened
        return None
    fraction = (fraction or "").rstrip("0")
    return at.strftime("%Y-%m-%dT%H:%M:%S") + (f".{fraction}Z" if fraction else "Z")


def release(stored: Stored) -> Release:
    info = _info(stored)
    return Release(
        name=stored["name"],
        namespace=_text(stored, "namespace"),
        version=number(stored),
        info=ReleaseInfo(
            first_deployed=instant(info.get("first_deployed")),
            last_deployed=instant(info.get("last_deployed")),
            deleted=instant(info.get("deleted")),
            description=_text(info, "description"),
            status=_text(info, "status"),
            notes=notes(stored),
        ),
        manifest=manifest(stored),
    )


def list_row(stored: Stored) -> ListRow:
    info = _info(stored)
    return ListRow(
        name=stored["name"],
        namespace=_text(stored, "namespace"),
        revision=number(stored),
        updated=instant(info.get("last_deployed")),
        status=_text(info, "status"),
        chart=_chart(stored),
        app_version=_text(_metadata(stored), "appVersion"),
    )


def history_row(stored: Stored) -> HistoryRow:
    info = _info(stored)
    return HistoryRow(
        revision=number(stored),
        updated=instant(info.get("last_deployed")),
        status=_text(info, "status"),
        chart=_chart(stored),
        app_version=_text(_metadata(stored), "appVersion"),
        description=_text(info, "description"),
    )


def number(stored: Stored) -> int:
    """The revision."""
    return _number(stored, "version")


def manifest(stored: Stored) -> str:
    return _text(stored, "manifest")


def notes(stored: Stored) -> str:
    return _text(_info(stored), "notes")


def hooks(stored: Stored) -> list[Hook]:
    return [
        Hook(
            kind=_text(hook, "kind"),
            name=_text(hook, "name"),
            phases=_texts(hook, "events"),
            weight=_number(hook, "weight"),
            delete_policy=_texts(hook, "delete_policies"),
        )
        for hook in _hooks(stored)
    ]


def test_results(stored: Stored, since: datetime | None) -> list[TestResult]:
    """What the last run of each test hook came to; one that has not ended is RUNNING, or not begun `since` then."""
    results = []
    for hook in _hooks(stored):
        if _TEST in _texts(hook, "events"):
            run = _part(hook, "last_run")
            phase = _text(run, "phase") if since is None or _is_since(run, since) else ""
            status = _TOLD.get(phase, "RUNNING")
            message = None if status == "PASSED" else f"the test is {phase.lower() or 'not finished'}"
            results.append(TestResult(_text(hook, "kind"), _text(hook, "name"), status, message))  # type: ignore[arg-type]
    return results


def _is_since(run: Mapping[str, Any], since: datetime) -> bool:
    began = instant(run.get("started_at"))
    return began is not None and datetime.fromisoformat(began) >= since


def _chart(stored: Stored) -> str:
    about = _metadata(stored)
    return f"{_text(about, 'name')}-{_text(about, 'version')}" if about else "MISSING"  # helm's own word


def _info(stored: Stored) -> Mapping[str, Any]:
    return _part(stored, "info")


def _metadata(stored: Stored) -> Mapping[str, Any]:
    return _part(_part(stored, "chart"), "metadata")


def _hooks(stored: Stored) -> list[Mapping[str, Any]]:
    return [hook for hook in _list(stored, "hooks") if isinstance(hook, dict)]


def _part(of: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    part = of.get(name)
    return part if isinstance(part, dict) else {}


def _text(of: Mapping[str, Any], name: str) -> str:
    value = of.get(name)
    return value if isinstance(value, str) else ""


def _number(of: Mapping[str, Any], name: str) -> int:
    value = of.get(name)
    return value if isinstance(value, int) else 0


def _list(of: Mapping[str, Any], name: str) -> list[Any]:
    value = of.get(name)
    return value if isinstance(value, list) else []


def _texts(of: Mapping[str, Any], name: str) -> tuple[str, ...]:
    return tuple(text for text in _list(of, name) if isinstance(text, str))


# Values


def values(stored: Stored) -> dict[str, Any]:
    """What the user gave."""
    return dict(_part(stored, "config"))


def all_values(stored: Stored) -> dict[str, Any]:
    """What the user gave over the chart's own values, merged as helm merges them."""
    given = values(stored)
    return _over(given, _part(_part(stored, "chart"), "values"), is_top=True)


def _over(given: Mapping[str, Any], own: Mapping[str, Any], is_top: bool) -> dict[str, Any]:
    """`given` over `own`: tables are merged, a null takes away what `own` has, and all else is replaced."""
    merged = dict(given)
    for name, value in own.items():
        if name not in given:
            merged[name] = value
        elif given[name] is None:
            if is_top or value is not None:
                del merged[name]
        elif isinstance(given[name], dict) and isinstance(value, dict):
            merged[name] = _over(given[name], value, is_top=False)
    return merged


NEWEST_SELECTOR = f"{SELECTOR},status!=superseded"
"""The newest revision of a release is never one that was superseded."""


@frozen
class Brief:
    """A release's newest revision. `row` is what else is known of it, where that was read already."""

    namespace: str
    revision: Revision
    updated: str | None
    row: ListRow | None = None

    @property
    def name(self) -> str:
        return self.revision.release

    @property
    def status(self) -> str:
        return self.revision.status


def briefs(items: Iterable[Mapping[str, Any]]) -> list[Brief]:
    """The newest revision of each release that a list of Secrets' metadata tells of, by namespace and name."""
    newest: dict[tuple[str, str], Brief] = {}
    for item in items:
        about = item.get("metadata") or {}
        namespace = str(about.get("namespace") or "")
        for one in revisions([item]):
            place = (namespace, one.release)
            if place not in newest or newest[place].revision.number < one.number:
                newest[place] = Brief(namespace, one, _updated(about))
    return [newest[place] for place in sorted(newest)]


def of_row(row: ListRow) -> Brief:
    """A release of which all is known."""
    revision = Revision(row.name, row.revision, key(row.name, row.revision), "", row.status)
    return Brief(row.namespace, revision, row.updated, row)


def plain_row(one: Brief) -> ListRow:
    """The row of a release, with what is known of it."""
    return one.row or ListRow(one.name, one.namespace, one.revision.number, one.updated, one.status, "", "")


def _updated(about: Mapping[str, Any]) -> str | None:
    """When helm last wrote it; helm notes that in a label, as seconds since 1970."""
    seconds = str((about.get("labels") or {}).get("modifiedAt") or "")
    if not seconds.isdecimal() or len(seconds) > 11:
        return instant(about.get("creationTimestamp"))
    return datetime.fromtimestamp(int(seconds), UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
