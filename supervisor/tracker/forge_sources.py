"""Reads source files from forges, for members of a project: on demand, with a token, cached in memory."""

from __future__ import annotations

import asyncio
import hashlib
import logging
import zlib
from collections import OrderedDict
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from attrs import evolve

from models.config import secret_files
from models.config.parsers import ValidationError
from models.config.settings import Config, ForgeSettings
from models.errors import Conflict, Problem, Upstream
from models.tracker.files.source_archive import text_of
from models.tracker.files.sources import CoveredFile
from models.tracker.forges import project_forge as forges
from models.tracker.forges.project_forge import FileRequest, ForgeLink
from models.tracker.project_secrets import ProjectSecrets
from supervisor.http import urls
from supervisor.http.client import GuardedClient, Lookup, Request, Response, Rules
from supervisor.http.outbound import outbound_rules
from supervisor.single_flight import SingleFlight

if TYPE_CHECKING:
    from supervisor.tracker.forge_reports.app_tokens import AppTokens

log = logging.getLogger("forges")

MAX_REASON_CHARACTERS = 500
_ENTRY_BYTES = 1024
"""Counted for each cached file in addition to its bytes."""
_MAX_REMEMBERED = 1000
_REFUSED = (401, 403)

Key = tuple[int, bytes, str]
"""The project, a digest of the token, or of the App and repository, and the URL: a file is shown only to those whose
token has read it."""


def rules(settings: Config) -> Rules:
    """Where requests to forges may go."""
    own = [text for forge in settings.tracker.forges.values() for text in (forge.url, forges.api_url(forge))]
    return outbound_rules(settings.server.outbound, own)


def token_of(secrets: ProjectSecrets, project_id: int, has_own: bool, name: str, forge: ForgeSettings) -> str:
    """The project's token where it has its own, else that of the forge `name`. For a worker. Raises `Conflict`."""
    token = None
    if has_own:
        token = secrets.get(project_id, forges.TOKEN)
    elif forge.token is not None:
        token = forge.token
    elif forge.token_file is not None:
        try:
            token = secret_files.token_of(forge.token_file)
        except ValidationError as why:
            log.warning("the token of the forge %s cannot be used: %s", name, why)
    if token is None:
        raise Conflict(f"the token for the forge {name} cannot be read")
    return token


class ForgeSources:
    def __init__(self, settings: Config, lookup: Lookup | None = None) -> None:
        """`lookup` resolves a name; the system's resolver by default."""
        self.secrets = ProjectSecrets(settings.server)
        self._settings = settings
        self._client = GuardedClient(rules(settings), lookup)
        self._apps: AppTokens | None = None
        self._flights: SingleFlight[bytes] = SingleFlight()
        self._cache: OrderedDict[Key, bytes] = OrderedDict()
        self._cached_bytes = 0
        self._refused: OrderedDict[int, str] = OrderedDict()

    def close(self) -> None:
        self.secrets.close()

    def state(self, project_id: int, link: ForgeLink, report_refusal: str | None = None) -> ForgeLink:
        """`link`, REFUSED where the forge has refused the token at the last request, or at the last report."""
        reason = report_refusal or self._refused.get(project_id)
        return evolve(link, state="REFUSED", reason=reason) if link.state == "OK" and reason else link

    def forget_refusal(self, project_id: int) -> None:
        """For a project whose repository or token has changed."""
        self._refused.pop(project_id, None)

    async def with_text(self, file: CoveredFile, request: FileRequest | str) -> CoveredFile:
        """`file` with its text, or with the reason why there is none."""
        if isinstance(request, str):
            return evolve(file, reason=request[:MAX_REASON_CHARACTERS])
        try:
            text = await self._text(request)
        except Problem as problem:
            return evolve(file, reason=problem.message[:MAX_REASON_CHARACTERS])
        return evolve(file, text=text.split("\n"))

    async def _text(self, request: FileRequest) -> str:
        facts = request.project_id, request.has_own_token, request.name, request.forge
        if request.forge.app is not None and not request.has_own_token:
            token, shown = await self._app_token(request), f"{request.forge.app.id} {request.repository}"
        else:
            token = shown = await asyncio.to_thread(token_of, self.secrets, *facts)
        key = request.project_id, hashlib.sha256(shown.encode()).digest(), request.url
        packed = self._cached(key)
        if packed is None:
            packed = await self._flights.run(key, lambda: self._fetch(key, request, token))
        return (await asyncio.to_thread(zlib.decompress, packed)).decode()

    async def _app_token(self, request: FileRequest) -> str:
        """The token of a GitHub App for the repository. Raises `Problem`."""
        if self._apps is None:
            from supervisor.tracker.forge_reports.app_tokens import AppTokens  # with what it imports, on first use

            self._apps = AppTokens(self._client, self._settings.server.outbound.max_answer)
        return await self._apps.token(request.name, request.forge, request.repository)

    async def _fetch(self, key: Key, request: FileRequest, token: str) -> bytes:
        packed = self._cached(key)  # by the call before
        if packed is None:
            limit = min(self._settings.tracker.source.file, self._settings.server.outbound.max_answer)
            response = await self._client.fetch(
                Request(
                    urls.parse(request.url, "the URL of the forge"),
                    max_bytes=limit,
                    headers=request.headers,
                    token=token,
                    token_header=request.token_header,
                    auth_scheme=request.auth_scheme,
                )
            )
            if response.status == 401 and self._apps is not None:
                self._apps.forget(token)  # the next request gets another one
            text = self._judge(request, response)
            packed = await asyncio.to_thread(lambda: zlib.compress(text.encode("utf-8", "replace"), 6))
            self._keep(key, packed)
        return packed

    def _judge(self, request: FileRequest, response: Response) -> str:
        """The text of a response. Raises `Upstream`."""
        place = f"{request.path} at {request.commit[:12]}"
        host = urlsplit(request.forge.url).hostname
        is_spent = response.headers.get("X-RateLimit-Remaining") == "0" or "Retry-After" in response.headers
        if response.status == 429 or (response.status == 403 and is_spent):
            raise Upstream(f"the forge {host} answered {response.status} for {place}: the rate limit is reached")
        if response.status in _REFUSED:
            reason = f"the forge {host} refused the token: it answered {response.status} for {place}"
            self._refused[request.project_id] = reason
            while len(self._refused) > _MAX_REMEMBERED:
                self._refused.popitem(last=False)
            raise Upstream(reason)
        if response.status != 200:
            raise Upstream(f"the forge {host} answered {response.status} for {place}")
        self.forget_refusal(request.project_id)
        if request.forge.type == "github" and _media_type(response) == "application/json":
            raise Upstream(f"{place} is not a file")  # but a directory or a submodule
        text = text_of(response.body)
        if text is None:
            raise Upstream(f"{place} is not text")
        return text

    def _cached(self, key: Key) -> bytes | None:
        packed = self._cache.get(key)
        if packed is not None:
            self._cache.move_to_end(key)
        return packed

    def _keep(self, key: Key, packed: bytes) -> None:
        """Caches a file; the least recently used go first."""
        self._cache[key] = packed
        self._cached_bytes += len(packed) + _ENTRY_BYTES
        while self._cached_bytes > self._settings.tracker.source.cache:
            _, dropped = self._cache.popitem(last=False)
            self._cached_bytes -= len(dropped) + _ENTRY_BYTES


def _media_type(response: Response) -> str:
    return response.headers.get("Content-Type", "").partition(";")[0].strip().lower()
