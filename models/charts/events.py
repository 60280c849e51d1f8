"""Events of Kubernetes as they are returned. Nothing here queries a cluster."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from models.charts.releases import instant
from models.charts.responses import Event
from models.json_format import number_of, part_of, text_of


def event(item: Mapping[str, Any]) -> Event:
    """An event of either API (`v1`, `events.k8s.io`); without a count it has happened once."""
    involved, series = part_of(item, "involvedObject"), part_of(item, "series")
    created = part_of(item, "metadata").get("creationTimestamp")
    at = item.get("eventTime")
    return Event(
        type=text_of(item, "type"),
        reason=text_of(item, "reason"),
        message=text_of(item, "message").strip(),
        count=number_of(item, "count") or number_of(series, "count") or 1,
        first=_first(item.get("firstTimestamp"), at, created),
        last=_first(item.get("lastTimestamp"), series.get("lastObservedTime"), at, created),
        kind=text_of(involved, "kind"),
        name=text_of(involved, "name"),
    )


def _first(*times: object) -> str | None:
    return next(filter(None, map(instant, times)), None)
