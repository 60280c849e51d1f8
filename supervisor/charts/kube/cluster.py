"""One cluster's API over kept-alive connections: single objects, paged lists, kinds, and the live state of objects."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from typing import Any, TypeVar
from urllib.parse import quote, urlencode

from attrs import frozen

from models.charts.kubeconfig import Access
from models.charts.resources import Live, ManifestObject, readiness
from models.charts.responses import Resource
from models.errors import Invalid, Problem, TimedOut, Upstream
from supervisor.charts.kube.client import CONNECTION_LOST, Connections
from supervisor.charts.workers import MAX_INLINE_BYTES, Workers
from supervisor.clock import Clock

log = logging.getLogger("charts")

Result = TypeVar("Result")

OBJECT = "application/json"
METADATA = "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1"
"""The metadata of an object without its content."""
METADATA_LIST = "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1"

DENIED = "cluster-denied"
"""The code of an `Upstream` for a request that the cluster does not authorize."""

_KINDS_CACHE_SECONDS = 600.0
_MISSING_KIND_SECONDS = 2.0
_GONE = 410
_BUSY_RETRY_SECONDS = 5


@frozen
class ObjectKind:
    """The API path of a kind's objects."""

    path: str
    plural: str
    is_namespaced: bool

    def of(self, namespace: str, name: str) -> str:
        """The path of one object."""
        within = f"/namespaces/{quote(namespace, safe='')}" if self.is_namespaced else ""
        return f"{self.path}{within}/{self.plural}/{quote(name, safe='')}"


class _Expired(Upstream):
    """A list took so long that the cluster's continue token expired."""

    def __init__(self) -> None:
        super().__init__("the cluster's list expired while it was read")


class Cluster:
    """Raises `Upstream` or `TimedOut` whenever the cluster fails; the cluster's own text does not reach the caller."""

    def __init__(self, access: Access, clock: Clock | None = None, workers: Workers | None = None) -> None:
        """Reads the files that `access` names."""
        self.workers = workers or Workers()
        self.clock = clock or Clock()
        self._connections = Connections(access)
        self._kinds: dict[str, tuple[float, dict[str, ObjectKind]]] = {}

    def close(self) -> None:
        self._connections.close()

    async def get(self, path: str, accept: str = OBJECT) -> Any:
        """The object at a path; `None` if it does not exist."""
        body = await self._body(path, accept)
        with _json_expected():
            return None if body is None else await self.workers.parse_json(body)

    async def _body(self, path: str, accept: str) -> bytes | None:
        status, body = await self._get(path, accept)
        if status == 404:
            return None
        if status == _GONE:
            raise _Expired
        if status != 200:
            raise _refusal(status)
        return body

    async def _get(self, path: str, accept: str) -> tuple[int, bytes]:
        """Sends a GET, once more if the connection was lost."""
        try:
            return await self._connections.request("GET", path, accept)
        except Upstream as problem:
            if problem.code != CONNECTION_LOST:
                raise
        return await self._connections.request("GET", path, accept)

    async def put(self, path: str, thing: Mapping[str, Any]) -> bool:
        """Replaces an object; `False` if it has changed since it was read, or is gone."""
        status, _ = await self._connections.request("PUT", path, OBJECT, json.dumps(thing).encode())
        if status in (404, 409):
            return False
        if status != 200:
            raise _refusal(status)
        return True

    async def pages(
        self, path: str, selector: str, accept: str = OBJECT, size: int = 500
    ) -> AsyncIterator[list[Mapping[str, Any]]]:
        """Yields the current list page by page, so that it need not be in memory as a whole."""
        query = {"labelSelector": selector, "limit": str(size)}
        while True:
            page = await self.get(f"{path}?{urlencode(query)}", accept) or {}
            yield page.get("items") or []
            query["continue"] = (page.get("metadata") or {}).get("continue") or ""
            if not query["continue"]:
                return

    async def metadata(self, path: str, selector: str) -> list[Mapping[str, Any]]:
        """The metadata of a list's objects as they are now.

        The API server may read every object of the namespace for this: `cached` is faster.
        """
        try:
            return await self._metadata(path, selector)
        except _Expired:
            log.info("a list of the cluster took too long and is read again")
            return await self._metadata(path, selector)

    async def _metadata(self, path: str, selector: str) -> list[Mapping[str, Any]]:
        return [item async for page in self.pages(path, selector, METADATA_LIST, size=2000) for item in page]

    async def cached(self, path: str, selector: str, accept: str) -> list[Mapping[str, Any]]:
        """A list from the API server's cache: fast, but it may be slightly out of date."""
        answer = await self.get(_cached(path, selector), accept) or {}
        return list(answer.get("items") or [])

    async def read_cached(
        self,
        path: str,
        selector: str,
        accept: str,
        read: Callable[..., Result],
        *arguments: Any,
        max_inline: int = MAX_INLINE_BYTES,
    ) -> Result:
        """What `read` returns of the JSON of a list as `cached` gets it; beyond `max_inline` bytes in a worker."""
        body = await self._body(_cached(path, selector), accept) or b"{}"
        with _json_expected():
            return await self.workers.run_if(len(body) > max_inline, read, body, *arguments)

    async def kind(self, api_version: str, kind: str) -> ObjectKind | None:
        """The path of a kind, `None` if the cluster lacks it. Cached; a missing kind is looked up again sooner."""
        read_at, kinds = self._kinds.get(api_version, (float("-inf"), {}))
        age = self.clock.since_boot() - read_at
        if age > _KINDS_CACHE_SECONDS or (kind not in kinds and age > _MISSING_KIND_SECONDS):
            kinds = await self._find_kinds(api_version)
            self._kinds[api_version] = (self.clock.since_boot(), kinds)
        return kinds.get(kind)

    async def _find_kinds(self, api_version: str) -> dict[str, ObjectKind]:
        path = f"/{'apis' if '/' in api_version else 'api'}/{quote(api_version)}"
        document = await self.get(path) or {}
        return {
            resource["kind"]: ObjectKind(path, resource["name"], bool(resource.get("namespaced")))
            for resource in document.get("resources") or []
            if "/" not in resource["name"]
        }


def _cached(path: str, selector: str) -> str:
    return f"{path}?{urlencode({'labelSelector': selector, 'resourceVersion': '0'})}"


@contextlib.contextmanager
def _json_expected() -> Iterator[None]:
    try:
        yield
    except Invalid:
        raise Upstream("the cluster did not answer with JSON") from None


def _refusal(status: int) -> Problem:
    """The problem for a status code of the cluster."""
    if status == 401:
        return Upstream("the cluster does not accept the kubeconfig's credentials", DENIED)
    if status == 403:
        return Upstream("the cluster does not authorize this read", DENIED)
    if status == 429:
        busy = Upstream("the cluster is busy", "cluster-busy")
        busy.retry_after = _BUSY_RETRY_SECONDS
        return busy
    if status == 504:
        return TimedOut("the cluster did not finish in time", "timeout")
    if status == 503:
        return Upstream("the cluster is not available", "cluster-unavailable")
    return Upstream(f"the cluster failed ({status})")


MAX_CONCURRENT_READS = 32


async def resources(cluster: Cluster, objects: list[ManifestObject], namespace: str) -> list[Resource]:
    """The live state of each object, in order. Raises `Upstream`.

    An object that may not be read has that reason as its message.
    """
    states: list[Resource] = []
    for start in range(0, len(objects), MAX_CONCURRENT_READS):
        batch = objects[start : start + MAX_CONCURRENT_READS]
        states += await asyncio.gather(*(_resource(cluster, named_object, namespace) for named_object in batch))
    return states


async def _resource(cluster: Cluster, named_object: ManifestObject, namespace: str) -> Resource:
    place, live, reason = await find_live(cluster, named_object, namespace)
    if live is None:
        return Resource(named_object.kind, named_object.name, place, False, reason)
    return describe_live(named_object, place, live)


async def find_live(
    cluster: Cluster, named_object: ManifestObject, namespace: str
) -> tuple[str | None, Live | None, str]:
    """The namespace of an object (`None` for a cluster-scoped one), the live object, and why there is none."""
    place = named_object.namespace or namespace
    if named_object.fault:
        return place, None, named_object.fault
    try:
        kind = await cluster.kind(named_object.api_version, named_object.kind)
        if kind is None:
            return place, None, f"the cluster has no kind {named_object.kind} in {named_object.api_version}"
        own_place = place if kind.is_namespaced else None
        live = await _live(cluster, kind, named_object, own_place)
    except Upstream as problem:
        if problem.code != DENIED:
            raise
        return place, None, problem.message
    where = f" in namespace {own_place}" if own_place else ""
    return own_place, live, "" if live else f"not found: there is no {named_object.kind} {named_object.name}{where}"


async def _live(cluster: Cluster, kind: ObjectKind, named_object: ManifestObject, namespace: str | None) -> Live | None:
    if not all(_is_valid_name(text) for text in (named_object.name, namespace or named_object.name)):
        return None
    live_object = await cluster.get(kind.of(namespace or "", named_object.name))
    return live_object if isinstance(live_object, dict) else None


def _is_valid_name(text: str) -> bool:
    """Whether an API server accepts this as part of a path."""
    return text not in ("", ".", "..") and "/" not in text and "%" not in text


def describe_live(one: ManifestObject, namespace: str | None, live: Live) -> Resource:
    """The state of an object that exists."""
    is_ready, message = readiness({"apiVersion": one.api_version, "kind": one.kind, **live})
    return Resource(one.kind, one.name, namespace, is_ready, message)
