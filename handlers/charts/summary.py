"""What the overview page tells of releases: how many there are in each state. It never waits for a cluster."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from heapq import nlargest

from attrs import frozen
from tornado.httputil import HTTPServerRequest

from handlers.charts.base_page import micros
from handlers.charts.release_list import url_of
from models.charts.releases import Brief
from supervisor.charts.service import Charts

_TROUBLE = 5
_LATEST = 8


@frozen
class Card:
    """`why` is what there is to say where the releases are not known."""

    states: Mapping[str, int]
    trouble: list[tuple[Brief, str]]
    """Those that failed, each with its page."""
    latest: Sequence[tuple[Brief, str, int]] = ()
    """Those that changed last, each with its page and when that was, in microseconds since 1970."""
    why: str = ""


async def card(charts: Charts, request: HTTPServerRequest) -> Card:
    work = charts.work(request)
    if not charts.has_cluster(work.target):
        return Card({}, [], why="There is no cluster (svc.kube.kubeconfig).")
    known = await charts.overview.lately(work.reads)
    if known is None:
        return Card({}, [], why="The cluster has not answered yet.")
    if known.problem is not None:
        return Card({}, [], why=f"The cluster does not answer: {known.problem.message}.")
    failed = [one for one in known.releases if one.status == "failed"][:_TROUBLE]
    states = Counter(one.status for one in known.releases)
    told = nlargest(_LATEST, known.releases, key=lambda one: one.updated or "")
    latest = [(one, url_of(one.namespace, one.name), micros(one.updated)) for one in told if one.updated]
    return Card(dict(sorted(states.items())), [(one, url_of(one.namespace, one.name)) for one in failed], latest)
