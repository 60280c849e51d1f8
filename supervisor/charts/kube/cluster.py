"""One cluster, asked over kept-alive connections: single objects, lists page by page, and where a kind is found."""

from __future__ import annotations

import asyncio
import json
import logging
import time
from collections.abc import AsyncIterator, Mapping
from typing import Any
from urllib.parse import quote, urlencode

from attrs import frozen

from models.charts.kubeconfig import Access
from models.errors import Upstream
from supervisor.charts.kube.client import Connections

log = logging.getLogger("charts")

OBJECT = "application/json"
METADATA = "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1"
"""What an object is called and labelled, without what it holds."""
METADATA_LIST = "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1"

DENIED = "CLUSTER_DENIED"
"""The code of an `Upstream` that says: the cluster does not let us."""

_BIG = 64 * 1024
_KINDS_LAST = 600.0
_KINDS_ASKED_AGAIN = 2.0
_GONE = 410


@frozen
class Kind:
    """Where the objects of a kind are found."""

    path: str
    plural: str
    is_namespaced: bool

    def of(self, namespace: str, name: str) -> str:
        """The path of one object."""
        within = f"/namespaces/{quote(namespace, safe='')}" if self.is_namespaced else ""
        return f"{self.path}{within}/{self.plural}/{quote(name, safe='')}"


class _Expired(Upstream):
    """A list took so long that the cluster has forgotten where we were."""

    def __init__(self) -> None:
        super().__init__("the cluster forgets a list while it is read")


class Cluster:
    """Raises `Upstream` wherever the cluster does not do its part; nothing that it says reaches whoever asked us."""

    def __init__(self, access: Access) -> None:
        """Reads the files that `access` names."""
        self._connections = Connections(access)
        self._kinds: dict[str, tuple[float, dict[str, Kind]]] = {}

    def close(self) -> None:
        self._connections.close()

    async def get(self, path: str, accept: str = OBJECT) -> Any:
        """What is at a path; `None` where there is nothing."""
        status, body = await self._connections.ask("GET", path, accept)
        if status == 404:
            return None
        if status == _GONE:
            raise _Expired
        if status != 200:
            raise _refusal(status)
        try:
            return await asyncio.to_thread(json.loads, body) if len(body) > _BIG else json.loads(body)
        except (ValueError, RecursionError):
            raise Upstream("the cluster answered with something that is no JSON") from None

    async def put(self, path: str, thing: Mapping[str, Any]) -> bool:
        """Writes an object over the one that it was read as; `False` where that has changed meanwhile, or is gone."""
        status, _ = await self._connections.ask("PUT", path, OBJECT, json.dumps(thing).encode())
        if status in (404, 409):
            return False
        if status != 200:
            raise _refusal(status)
        return True

    async def pages(
        self, path: str, selector: str, accept: str = OBJECT, size: int = 500
    ) -> AsyncIterator[list[Mapping[str, Any]]]:
        """A list as it is now, page by page, so that it need not be held as a whole."""
        query = {"labelSelector": selector, "limit": str(size)}
        while True:
            answer = await self.get(f"{path}?{urlencode(query)}", accept) or {}
            yield answer.get("items") or []
            query["continue"] = (answer.get("metadata") or {}).get("continue") or ""
            if not query["continue"]:
                return

    async def metadata(self, path: str, selector: str) -> list[Mapping[str, Any]]:
        """What the objects of a list are called and labelled, as it is now.

        An API server may have to read every object of the namespace for that: `remembered` is quick.
        """
        try:
            return await self._metadata(path, selector)
        except _Expired:
            log.info("a list of the cluster took too long; it is asked again")
            return await self._metadata(path, selector)

    async def _metadata(self, path: str, selector: str) -> list[Mapping[str, Any]]:
        return [item async for page in self.pages(path, selector, METADATA_LIST, size=2000) for item in page]

    async def remembered(self, path: str, selector: str, accept: str) -> list[Mapping[str, Any]]:
        """A list as the API server remembers it, which is quick; it may be behind by a moment."""
        query = urlencode({"labelSelector": selector, "resourceVersion": "0"})
        answer = await self.get(f"{path}?{query}", accept) or {}
        return list(answer.get("items") or [])

    async def kind(self, api_version: str, kind: str) -> Kind | None:
        """Where a kind is found, `None` if the cluster has it not. Asked again at times, and when one is missing."""
        asked, kinds = self._kinds.get(api_version, (float("-inf"), {}))
        age = time.monotonic() - asked
        if age > _KINDS_LAST or (kind not in kinds and age > _KINDS_ASKED_AGAIN):
            kinds = await self._find_kinds(api_version)
            self._kinds[api_version] = (time.monotonic(), kinds)
        return kinds.get(kind)

    async def _find_kinds(self, api_version: str) -> dict[str, Kind]:
        path = f"/{'apis' if '/' in api_version else 'api'}/{quote(api_version)}"
        answer = await self.get(path) or {}
        return {
            one["kind"]: Kind(path, one["name"], bool(one.get("namespaced")))
            for one in answer.get("resources") or []
            if "/" not in one["name"]
        }


def _refusal(status: int) -> Upstream:
    if status == 401:
        return Upstream("the cluster does not take the credentials of the kubeconfig", DENIED)
    if status == 403:
        return Upstream("the cluster does not let us read this", DENIED)
    if status == 429:
        return Upstream("the cluster has too much to do")
    return Upstream(f"the cluster failed ({status})")
