"""Releases as helm stores them, and the responses made of them. Nothing here queries a cluster.

A revision is a Secret of type `helm.sh/release.v1`, named `sh.helm.release.v1.<release>.v<revision>`, with the labels
owner=helm, name, version and status. Its key `release` is base64 (helm's) of gzip of JSON; Kubernetes adds a base64.

helm refuses to upgrade a release whose newest revision is pending or uninstalling. It leaves a release so if a hook
before a rollback or uninstall fails, or if it is killed. A failed release can be upgraded, rolled back, uninstalled.
"""

from __future__ import annotations

import base64
import binascii
import contextlib
import gzip
import json
import re
import zlib
from collections.abc import Collection, Iterable, Mapping, Sequence
from datetime import UTC, datetime
from operator import itemgetter
from typing import Any

from attrs import frozen

from models.charts.responses import HistoryRow, Hook, ListRow, Release, ReleaseInfo, TestResult
from models.errors import Invalid, Unprocessable
from models.json_format import json_value, list_of, number_of, part_of, text_of

MAX_INFLATED_BYTES = 64 * 1024**2
"""Limit of an inflated release; helm's Secret holds at most 1 MiB of compressed data."""

SELECTOR = "owner=helm"
SUPERSEDED = "superseded"

_GZIP = b"\x1f\x8b\x08"
_CHART_FILES = ("templates", "files", "schema")
_GO_TIME = re.compile(r"(\d{4}-\d\d-\d\d)[T ](\d\d:\d\d:\d\d)(?:\.(\d+))? ?(Z|[+-]\d\d:?\d\d)(?: \S+)?")
_TEST_EVENT = "test"
_TEST_STATUSES = {"Succeeded": "PASSED", "Failed": "FAILED"}

Stored = Mapping[str, Any]
"""The JSON of one revision as helm stored it."""


class BadRelease(ValueError):
    """The stored data is not a release."""


class ReleaseTooLarge(BadRelease):
    """The release is larger than the reader permits."""


@frozen
class Revision:
    """One revision as its labels describe it, without its content."""

    release: str
    number: int
    key: str
    """The name of its Secret."""
    version: str
    """Changes with each write: uid and resource version."""
    status: str = ""


def key(release: str, number: int) -> str:
    """The name of the Secret that holds a revision."""
    return f"sh.helm.release.v1.{release}.v{number}"


def revisions(items: Iterable[Mapping[str, Any]]) -> list[Revision]:
    """The revisions in a list of Secrets' metadata; Secrets that only look like one are skipped."""
    revisions_ = []
    for item in items:
        metadata = item.get("metadata") or {}
        labels = metadata.get("labels") or {}
        name, number = labels.get("name") or "", str(labels.get("version") or "")
        if not number.isdecimal() or metadata.get("name") != key(name, int(number)):
            continue
        version = f"{metadata.get('uid')} {metadata.get('resourceVersion')}"
        revisions_.append(Revision(name, int(number), metadata["name"], version, labels.get("status") or ""))
    return revisions_


def latest(revisions_: Iterable[Revision]) -> dict[str, Revision]:
    """The newest revision of each release, by its name."""
    newest: dict[str, Revision] = {}
    for revision in revisions_:
        if revision.release not in newest or newest[revision.release].number < revision.number:
            newest[revision.release] = revision
    return newest


def unpacked(secret: Mapping[str, Any], max_bytes: int = MAX_INFLATED_BYTES) -> Stored:
    """The release in a Secret. Raises `BadRelease`, its subclass `ReleaseTooLarge` if it is larger than `max_bytes`."""
    try:
        packed = base64.b64decode(base64.b64decode((secret.get("data") or {})["release"]), validate=True)
        stored = json.loads(_inflated(packed, max_bytes) if packed.startswith(_GZIP) else packed)
    except BadRelease:
        raise
    except (KeyError, TypeError, ValueError, binascii.Error, zlib.error, RecursionError):
        raise BadRelease("it cannot be unpacked") from None
    if not isinstance(stored, dict) or not isinstance(stored.get("name"), str):
        raise BadRelease("it is not a release")
    return stored


def without_chart_files(secret: Mapping[str, Any]) -> Stored:
    """The release in a Secret without its chart's templates, files and schema: sufficient for every response, and
    small.

    Raises `BadRelease`.
    """
    stored = unpacked(secret)
    chart = {key: value for key, value in part_of(stored, "chart").items() if key not in _CHART_FILES}
    return {**stored, "chart": chart}


BAD_RELEASE = "bad-release"
"""The code of an `Unprocessable` for a stored release that is none."""


def for_responses(secret: Mapping[str, Any]) -> Stored:
    """As `without_chart_files`, for a worker. Raises `Unprocessable`."""
    try:
        return without_chart_files(secret)
    except BadRelease as bad:
        raise Unprocessable(str(bad), BAD_RELEASE) from None


def rows_of_list(answer: bytes, wanted: Collection[str]) -> dict[str, ListRow]:
    """The rows of the wanted revisions (their versions) in a list of Secrets as JSON. Raises `Invalid` for no JSON."""
    rows = {}
    for secret in list_of(json_value(answer), "items"):
        for revision in revisions([secret]):
            if revision.version in wanted:
                with contextlib.suppress(BadRelease):
                    rows[revision.version] = list_row(unpacked(secret))
    return rows


def _inflated(packed: bytes, max_bytes: int) -> bytes:
    inflater = zlib.decompressobj(wbits=31)
    plain = inflater.decompress(packed, max_bytes)
    if inflater.unconsumed_tail:
        raise ReleaseTooLarge(f"it is larger than {max_bytes} bytes")
    if not inflater.eof:
        raise BadRelease("it is truncated")
    return plain


# Responses


def instant(text: object) -> str | None:
    """Converts a time in either of helm's Go formats to RFC 3339 in UTC with Z; `None` if it is not a time."""
    match = _GO_TIME.fullmatch(text) if isinstance(text, str) else None
    if match is None:
        return None
    day, clock, fraction, zone = match.groups()
    try:
        at = datetime.fromisoformat(f"{day}T{clock}{'+00:00' if zone == 'Z' else zone}").astimezone(UTC)
    except (ValueError, OverflowError):  # not a date
        return None
    if at.year <= 1:  # Go's zero time means that the event has not happened
        return None
    fraction = (fraction or "").rstrip("0")
    return at.strftime("%Y-%m-%dT%H:%M:%S") + (f".{fraction}Z" if fraction else "Z")


def release(stored: Stored) -> Release:
    info = _info(stored)
    return Release(
        name=stored["name"],
        namespace=text_of(stored, "namespace"),
        version=number(stored),
        info=ReleaseInfo(
            first_deployed=instant(info.get("first_deployed")),
            last_deployed=instant(info.get("last_deployed")),
            deleted=instant(info.get("deleted")),
            description=text_of(info, "description"),
            status=text_of(info, "status"),
            notes=notes(stored),
        ),
        manifest=manifest(stored),
    )


def list_row(stored: Stored) -> ListRow:
    info = _info(stored)
    return ListRow(
        name=stored["name"],
        namespace=text_of(stored, "namespace"),
        revision=number(stored),
        updated=instant(info.get("last_deployed")),
        status=text_of(info, "status"),
        chart=_chart(stored),
        app_version=text_of(_metadata(stored), "appVersion"),
    )


def history_row(stored: Stored) -> HistoryRow:
    info = _info(stored)
    return HistoryRow(
        revision=number(stored),
        updated=instant(info.get("last_deployed")),
        status=text_of(info, "status"),
        chart=_chart(stored),
        app_version=text_of(_metadata(stored), "appVersion"),
        description=text_of(info, "description"),
    )


def number(stored: Stored) -> int:
    """The revision."""
    return number_of(stored, "version")


def manifest(stored: Stored) -> str:
    return text_of(stored, "manifest")


def notes(stored: Stored) -> str:
    return text_of(_info(stored), "notes")


def hook_manifest(stored: Stored) -> str:
    """The manifests of all hooks, as `helm get hooks` prints them."""
    return "".join(f"---\n{text_of(hook, 'manifest').strip()}\n" for hook in _hooks(stored))


def hooks(stored: Stored) -> list[Hook]:
    return [
        Hook(
            kind=text_of(hook, "kind"),
            name=text_of(hook, "name"),
            phases=_texts(hook, "events"),
            weight=number_of(hook, "weight"),
            delete_policy=_texts(hook, "delete_policies"),
        )
        for hook in _hooks(stored)
    ]


def test_results(stored: Stored, since: datetime | None) -> list[TestResult]:
    """The result of each test hook's last run; RUNNING if it has not ended or did not start after `since`."""
    results = []
    for hook in _hooks(stored):
        if _TEST_EVENT in _texts(hook, "events"):
            run = part_of(hook, "last_run")
            phase = text_of(run, "phase") if since is None or _is_since(run, since) else ""
            status = _TEST_STATUSES.get(phase, "RUNNING")
            message = None if status == "PASSED" else f"the test is {phase.lower() or 'not finished'}"
            results.append(TestResult(text_of(hook, "kind"), text_of(hook, "name"), status, message))  # type: ignore[arg-type]
    return results


def _is_since(run: Mapping[str, Any], since: datetime) -> bool:
    began = instant(run.get("started_at"))
    return began is not None and datetime.fromisoformat(began) >= since


def _chart(stored: Stored) -> str:
    metadata = _metadata(stored)
    return f"{text_of(metadata, 'name')}-{text_of(metadata, 'version')}" if metadata else "MISSING"  # as helm prints it


def _info(stored: Stored) -> Mapping[str, Any]:
    return part_of(stored, "info")


def _metadata(stored: Stored) -> Mapping[str, Any]:
    return part_of(part_of(stored, "chart"), "metadata")


def _hooks(stored: Stored) -> list[Mapping[str, Any]]:
    return [hook for hook in list_of(stored, "hooks") if isinstance(hook, dict)]


def _texts(of: Mapping[str, Any], name: str) -> tuple[str, ...]:
    return tuple(text for text in list_of(of, name) if isinstance(text, str))


# Values


def values(stored: Stored) -> dict[str, Any]:
    """The values that the user supplied."""
    return dict(part_of(stored, "config"))


def all_values(stored: Stored) -> dict[str, Any]:
    """The supplied values merged over the chart's own as helm merges them."""
    supplied = values(stored)
    return _merge_values(supplied, part_of(part_of(stored, "chart"), "values"), is_top=True)


def _merge_values(overrides: Mapping[str, Any], defaults: Mapping[str, Any], is_top: bool) -> dict[str, Any]:
    """Merges `overrides` over `defaults`: tables merge, a null removes the key, any other value replaces."""
    merged = dict(overrides)
    for name, value in defaults.items():
        if name not in overrides:
            merged[name] = value
        elif overrides[name] is None:
            if is_top or value is not None:
                del merged[name]
        elif isinstance(overrides[name], dict) and isinstance(value, dict):
            merged[name] = _merge_values(overrides[name], value, is_top=False)
    return merged


@frozen
class Brief:
    """A release's newest revision. `row` is its list row if that has been read already."""

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
    """The newest revision of each release in a list of Secrets' metadata, sorted by namespace and name."""
    newest = sorted(_newest(items).items(), key=itemgetter(0))
    return [Brief(namespace, revision, _updated(metadata)) for (namespace, _), (revision, metadata) in newest]


def briefs_of_list(answer: bytes) -> list[Brief]:
    """As `briefs`, of the answer of an API server. Raises `Invalid` for what is no JSON."""
    return briefs(list_of(json_value(answer), "items"))


def _newest(items: Iterable[Mapping[str, Any]]) -> dict[tuple[str, str], tuple[Revision, Mapping[str, Any]]]:
    """The newest revision of each release, with its metadata, by namespace and name."""
    newest: dict[tuple[str, str], tuple[Revision, Mapping[str, Any]]] = {}
    for item in items:
        metadata = item.get("metadata") or {}
        for revision in revisions([item]):
            place = str(metadata.get("namespace") or ""), revision.release
            if place not in newest or newest[place][0].number < revision.number:
                newest[place] = revision, metadata
    return newest


def brief_of_row(row: ListRow) -> Brief:
    """The summary of a release whose list row is known."""
    revision = Revision(row.name, row.revision, key(row.name, row.revision), "", row.status)
    return Brief(row.namespace, revision, row.updated, row)


def row_of_brief(brief: Brief) -> ListRow:
    """The list row of a release, as far as it is known."""
    return brief.row or ListRow(brief.name, brief.namespace, brief.revision.number, brief.updated, brief.status, "", "")


def _updated(metadata: Mapping[str, Any]) -> str | None:
    """When helm last wrote the release: the label `modifiedAt` (seconds since 1970), else the Secret's creation."""
    seconds = str((metadata.get("labels") or {}).get("modifiedAt") or "")
    if not seconds.isdecimal() or len(seconds) > 11:
        return instant(metadata.get("creationTimestamp"))
    return datetime.fromtimestamp(int(seconds), UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


_INTERRUPTED_STATUSES = ("pending-install", "pending-upgrade", "pending-rollback", "uninstalling")
_UNINSTALLING = "uninstalling"
_FAILED = "failed"
_NOT_STARTED = re.compile(
    r"another operation .* is in progress|cannot re-?use a name that is still in use|kubernetes cluster unreachable|"
    r"could not get (?:server version|apiVersions) from Kubernetes|"
    r"^Error: (?:[A-Z]+ FAILED: )?(?:uninstall: Release not loaded: \S+: )?"
    r"query: failed to query with labels: [^\n]* is forbidden: User",  # the first read of a change
    re.IGNORECASE | re.MULTILINE,
)
_CLOCK_TOLERANCE_SECONDS, _CHANGE_TOLERANCE_SECONDS = 1.0, 120.0
_COMMAND_NAMES = {"install": "Release", "upgrade": "Upgrade", "rollback": "Rollback", "uninstall": "Uninstall"}
_MAX_DESCRIPTION_CHARACTERS = 500


@frozen
class StartedChange:
    """A change that has started: helm's command, when it began (seconds since 1970) and how long it may take."""

    namespace: str
    name: str
    command: str
    began: float
    seconds: float

    def has_interrupted(self, stored: Stored) -> bool:
        """Whether a release's newest revision is incomplete and was written by this change.

        helm dates revisions by this machine's clock, so a revision of another client is older or younger.
        """
        info = stored.get("info")
        if not isinstance(info, dict) or info.get("status") not in _INTERRUPTED_STATUSES:
            return False
        written = instant(info.get("deleted" if info["status"] == _UNINSTALLING else "last_deployed"))
        if written is None:
            return False
        at = datetime.fromisoformat(written).timestamp()
        return self.began - _CLOCK_TOLERANCE_SECONDS <= at <= self.began + self.seconds + _CHANGE_TOLERANCE_SECONDS

    def described(self, reason: str) -> str:
        """The description in helm's own format."""
        return f'{_COMMAND_NAMES[self.command]} "{self.name}" failed: {reason}'[:_MAX_DESCRIPTION_CHARACTERS]


def was_not_started(stderr: str) -> bool:
    """Whether helm did nothing: another client is changing the release, or helm could not read the cluster."""
    return _NOT_STARTED.search(stderr) is not None


def marked_failed(
    secret: Mapping[str, Any], change: StartedChange, description: str, now: float
) -> dict[str, Any] | None:
    """The Secret of a revision with its stored release marked as failed; `None` if the change has not interrupted it.

    `now` is seconds since 1970. Raises `Unprocessable`.
    """
    try:
        stored = unpacked(secret)
    except BadRelease as bad:
        raise Unprocessable(str(bad), BAD_RELEASE) from None
    if not change.has_interrupted(stored):
        return None
    info = {**stored["info"], "status": _FAILED, "description": description}
    info.pop("deleted", None)
    metadata = dict(secret["metadata"])
    metadata["labels"] = {**(metadata.get("labels") or {}), "status": _FAILED, "modifiedAt": str(int(now))}
    return {**secret, "metadata": metadata, "data": {**secret["data"], "release": _packed({**stored, "info": info})}}


def _packed(stored: Stored) -> str:
    plain = json.dumps(stored, ensure_ascii=False, separators=(",", ":")).encode("utf-8", "replace")
    return base64.b64encode(base64.b64encode(gzip.compress(plain))).decode()


# Lists

_FILTER_SIGNS = re.compile(r"[\\+?()\[\]{}*]")
_LABEL = r"[A-Za-z0-9](?:[-A-Za-z0-9_./]{0,315}[A-Za-z0-9])?"
_REQUIREMENT = re.compile(rf"\s*({_LABEL})\s*(==?|!=)\s*((?:{_LABEL})?)\s*")


def check_filter(text: str) -> None:
    """Raises `Invalid` for signs of regular expressions other than `^`, `$`, `.*` and `|`."""
    if len(text) > _MAX_DESCRIPTION_CHARACTERS or _FILTER_SIGNS.search(text.replace(".*", "")):
        raise Invalid("filter: only text, ^, $, .* and | are supported")


def check_selector(text: str) -> None:
    """Raises `Invalid` unless the text is requirements such as `a=b,c!=d`."""
    if not all(_REQUIREMENT.fullmatch(part) for part in text.split(",")):
        raise Invalid("selector: is not a list of requirements such as a=b,c!=d")


def is_selected(labels: Mapping[str, str], selector: str) -> bool:
    """Whether labels meet a checked selector."""
    for part in selector.split(","):
        match = _REQUIREMENT.fullmatch(part)
        if match is None or (labels.get(match[1]) == match[3]) == (match[2] == "!="):
            return False
    return True


def selected(items: Iterable[Mapping[str, Any]], selector: str) -> set[tuple[str, str]]:
    """Namespace and name of the releases whose newest revision has labels that meet a selector."""
    newest = _newest(items).items()
    return {place for place, (_, metadata) in newest if is_selected(metadata.get("labels") or {}, selector)}


def select_rows(rows: list[ListRow], filter: str | None, statuses: Sequence[str], sort: str) -> list[ListRow]:
    """The rows whose name matches the filter and whose status is one of these, in order."""
    patterns = [_pattern(part) for part in filter.split("|")] if filter else []
    found = [
        row
        for row in rows
        if (not patterns or any(pattern.search(row.name) for pattern in patterns))
        and (not statuses or row.status in statuses)
    ]
    if sort == "name":
        return found
    return sorted(found, key=lambda row: row.updated or "", reverse=sort.startswith("-"))


def _pattern(part: str) -> re.Pattern[str]:
    """One alternative of a filter; its text is literal. Names are short, so `.*` costs little."""
    begins, ends = part.startswith("^"), part.endswith("$")
    texts = part.removeprefix("^").removesuffix("$").split(".*")
    middle = ".*".join(re.escape(text) for text in texts if text or len(texts) > 1)
    return re.compile(("^" if begins else "") + re.sub(r"(?:\.\*){2,}", ".*", middle) + ("$" if ends else ""))
