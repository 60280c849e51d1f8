"""What a row of the objects of a release opens to: what the object owns, with restarts and events."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import takewhile

from attrs import evolve, frozen

from handlers.http.credentials import Caller
from handlers.http.permissions import READ_CLUSTER, admit, check_cluster_reads
from models.charts.resources import restarts
from models.charts.responses import Event
from models.config.settings import Config
from models.errors import Problem, Unauthenticated
from models.json_format import part_of, text_of
from supervisor.charts.kube.tree import Node
from supervisor.charts.release_reads import Reads

MAX_ROWS = 50


@frozen
class OwnedRow:
    """An object that the opened one owns, and its newest event. `restarts` is None for other objects than pods."""

    kind: str
    name: str
    ready: bool
    message: str
    restarts: int | None
    created: str | None
    event: Event | None


@frozen
class Opened:
    """The opened row. `rows` are at most `MAX_ROWS` of `total`, pods first; `problem`: why there are none."""

    place: str
    """The value of `open`: kind and name, and the namespace where it is not that of the release."""
    kind: str
    name: str
    rows: Sequence[OwnedRow] = ()
    total: int = 0
    event: Event | None = None
    problem: str = ""
    needs_key: bool = False


async def opened(reads: Reads, namespace: str, release: str, wanted: str, caller: Caller, config: Config) -> Opened:
    """Reads what the object `kind/name` or `kind/name/namespace` owns; a refusal or a fault is in `problem`."""
    kind, name, space = [*wanted.split("/", 2), "", ""][:3]
    found = Opened(wanted, kind, name)
    try:
        check_cluster_reads(config)
        admit(caller, READ_CLUSTER, config)
        nodes = await reads.tree(namespace, release)
        mine = _subtree(nodes, kind, name, space or namespace)
        events = await reads.events(mine)
    except Problem as problem:
        return evolve(found, problem=problem.message, needs_key=isinstance(problem, Unauthenticated))
    if not mine:
        return evolve(found, problem=f"the release has no object {kind} {name}")
    owned = sorted(mine[1:], key=lambda node: (node.kind != "Pod", node.ready))
    rows = [_row(node, events) for node in owned[:MAX_ROWS]]
    return evolve(found, rows=rows, total=len(owned), event=_newest(mine[0], events))


def _subtree(nodes: Sequence[Node], kind: str, name: str, namespace: str) -> list[Node]:
    """The object and what it owns: nodes follow their owner."""
    for place, node in enumerate(nodes):
        if node.owner is None and (node.kind, node.name) == (kind, name) and node.namespace in (None, namespace):
            return [node, *takewhile(lambda one: one.owner is not None, nodes[place + 1 :])]
    return []


def _row(node: Node, events: Sequence[Event]) -> OwnedRow:
    live = node.live or {}
    created = text_of(part_of(live, "metadata"), "creationTimestamp") or None
    counted = restarts(live) if node.kind == "Pod" else None
    return OwnedRow(node.kind, node.name, node.ready, node.message, counted, created, _newest(node, events))


def _newest(node: Node, events: Sequence[Event]) -> Event | None:
    """The newest event of an object; `events` are newest first."""
    return next((event for event in events if (event.kind, event.name) == (node.kind, node.name)), None)
