"""Pulls charts from and pushes them to OCI registries through the guarded HTTP client; helm follows any redirect."""

from __future__ import annotations

import asyncio
import hashlib
import re
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Any, NoReturn

from attrs import evolve

from models.charts.archives import metadata
from models.charts.archives.archive import ChartArchive
from models.charts.refs import ChartRef
from models.charts.repositories import registries, semver
from models.charts.repositories import tags as tag_lists
from models.errors import Invalid, NotFound, Problem, TimedOut, TooLargeResponse, Upstream
from models.json_format import json_value
from supervisor.charts.fetcher import Fetcher
from supervisor.charts.registry_logins import RegistryLogins, shares_domain
from supervisor.charts.workers import MAX_INLINE_BYTES, Workers
from supervisor.http import urls
from supervisor.http.client import TLS_FAILED, Request, Response
from supervisor.http.tls import TlsCredentials
from supervisor.http.urls import OriginLogin, Url

CONFIG = "application/vnd.cncf.helm.config.v1+json"
CONTENT = "application/vnd.cncf.helm.chart.content.v1.tar+gzip"
_LEGACY_CONTENT = "application/tar+gzip"
_PROVENANCE = "application/vnd.cncf.helm.chart.provenance.v1.prov"
_MANIFEST = "application/vnd.oci.image.manifest.v1+json"
_MANIFESTS = f"{_MANIFEST}, application/vnd.docker.distribution.manifest.v2+json"
_SHA256 = re.compile(r"sha256:[0-9a-f]{64}")
_EXACT = re.compile(r"v?[0-9]+\.[0-9]+\.[0-9]+([-+][0-9A-Za-z.+_-]*)?")
_CHALLENGE = re.compile(r'\b(\w+)=(?:"([^"]*)"|([^\s,]+))')
LOGIN_REQUIRED, LOGIN_REFUSED = "registry-login-required", "registry-login-refused"
_MAX_MANIFEST_BYTES = 4 * 1024**2
_MAX_TAG_PAGES = 100
_MAX_TAG_BYTES = 8 * 1024**2
_MAX_TOKEN_BYTES = 64 * 1024


class Registries:
    def __init__(self, fetcher: Fetcher, logins: RegistryLogins, workers: Workers) -> None:
        self._workers = workers
        self._fetcher = fetcher
        self._logins = logins

    async def pull(self, ref: ChartRef, folder: Path, proven: bool = False) -> Path:
        """Fetches a chart into `folder`; with `proven` also its provenance file.

        Raises `NotFound`, `Invalid`, `Upstream`, `TimedOut`.
        """
        session = await self._session(ref)
        tag = ref.tag or await self._tag(session, ref.version)
        response = await session.manifest(tag)
        try:
            manifest = await self._workers.parse_json(response.body)
        except Invalid:
            raise _no_json(response) from None
        if _field(manifest, "config", "mediaType") != CONFIG:
            raise Invalid(f"{ref}:{tag} is not a chart")
        path = folder / f"{ref.name}-{tag.replace('_', '+')}.tgz"
        if not await session.blob(manifest, (CONTENT, _LEGACY_CONTENT), path):
            raise Invalid(f"{ref}:{tag} contains no chart")
        if proven and not await session.blob(manifest, (_PROVENANCE,), path.with_name(f"{path.name}.prov")):
            raise Invalid(f"the chart cannot be verified: {ref}:{tag} has no provenance")
        return path

    async def _session(self, ref: ChartRef) -> _RegistrySession:
        """A session with the login and the certificates of the registry."""
        tls = self._logins.credentials(_secure_base(ref))
        base = await _base(self._fetcher, ref, tls)
        return _RegistrySession(self._fetcher, ref, base, await self._logins.of(base), tls)

    async def check_login(self, host: str, login: OriginLogin, tls: TlsCredentials | None = None) -> None:
        """Raises `Invalid` unless `host` is a registry that accepts the login; `Upstream`, `TimedOut`."""
        ref = ChartRef(host, "", is_oci=True)
        session = _RegistrySession(self._fetcher, ref, await _base(self._fetcher, ref, tls), login, tls)
        try:
            response = await session.request("GET", session.root)
        except Invalid as refused:
            if refused.code == LOGIN_REFUSED:
                raise Invalid(f"the registry {host} refuses this login", LOGIN_REFUSED) from None
            raise
        if response.status in (401, 403):
            raise Invalid(f"the registry {host} refuses this login", LOGIN_REFUSED)
        if response.status == 404:
            raise Invalid(f"{host} is no registry: {response.url} was not found")
        if not response.is_good:
            session.refuse(response)

    async def hosts(self) -> tuple[list[str], list[str]]:
        """The hosts whose login this server stores, and the other hosts of the file of `helm registry login`."""
        own = registries.hosts()
        return own, sorted(set(await self._logins.of_file()) - set(own))

    async def version(self, ref: ChartRef) -> str:
        """The version that `ref.version` resolves to; it exists. Raises as `pull`."""
        session = await self._session(ref)
        tag = await self._tag(session, ref.version)
        if _EXACT.fullmatch(ref.version):
            await session.manifest(tag)
        return tag.replace("_", "+")

    async def versions(self, ref: ChartRef) -> list[str]:
        """All versions of a repository, newest first; tags that are none are left out. Raises as `pull`."""
        session = await self._session(ref)
        tags = await self._within_timeout(session)
        return await self._workers.run(tag_lists.versions, tags)

    async def _tag(self, session: _RegistrySession, wanted: str) -> str:
        if _EXACT.fullmatch(wanted):
            return wanted.replace("+", "_")
        tags = await self._within_timeout(session)
        chosen = await self._workers.run(semver.chosen_tag, wanted, tags)
        if chosen is None:
            raise NotFound(f"there is no version {wanted or 'that is stable'} of {session.ref}")
        return chosen.replace("+", "_")

    async def _within_timeout(self, session: _RegistrySession) -> list[str]:
        limit = self._fetcher.limits.timeout
        try:
            async with asyncio.timeout(limit):
                return await self._all_tags(session)
        except TimeoutError:
            raise TimedOut(f"the tags of {session.ref} took longer than svc.fetch.timeout ({limit:g} s)") from None

    async def _all_tags(self, session: _RegistrySession) -> list[str]:
        """All tags of the repository. Raises `Invalid` beyond `svc.fetch.max-tags`, 100 pages or 8 MiB."""
        tags: list[str] = []
        size, most = 0, self._fetcher.limits.max_tags
        async for page in session.tag_pages():
            if (size := size + len(page)) > _MAX_TAG_BYTES:
                raise session.too_many_bytes()
            tags += await self._workers.run(tag_lists.parse, page, most + 1 - len(tags))
            if len(tags) > most:
                raise Invalid(f"{session.ref} has more tags than svc.fetch.max-tags ({most}): name an exact version")
        return tags

    async def push(self, ref: ChartRef, chart: ChartArchive, created: str) -> None:
        """Pushes an archive to the reference that `refs.remote` returns, with helm's bytes; `created` is RFC 3339.

        Raises `Invalid`, `Upstream`, `TimedOut`.
        """
        session = await self._session(ref)
        config = await self._workers.run(metadata.config_json, chart.metadata)
        config_digest = f"sha256:{hashlib.sha256(config).hexdigest()}"
        digest = await asyncio.to_thread(digest_of, chart.path)
        await session.upload(config, config_digest)
        await session.upload(chart.path, digest)
        described = {"mediaType": CONFIG, "digest": config_digest, "size": len(config)}
        layer = {"mediaType": CONTENT, "digest": digest, "size": chart.path.stat().st_size}
        body = metadata.manifest_json(chart.metadata, described, layer, created)
        response = await session.request("PUT", f"manifests/{ref.tag}", body=body, headers={"Content-Type": _MANIFEST})
        session.check(response)


def _secure_base(ref: ChartRef) -> Url:
    return urls.parse(f"https://{ref.repository}/v2/", "the registry")


async def _base(fetcher: Fetcher, ref: ChartRef, tls: TlsCredentials | None) -> Url:
    """The registry's base URL: https; plain http only for a host in `allowed-hosts` that does not support TLS.

    Raises `Upstream` if TLS fails, because a login would be sent without encryption otherwise.
    """
    base, plain = _secure_base(ref), urls.parse(f"http://{ref.repository}/v2/", "the registry")
    if tls is not None or not fetcher.policy.is_allowed(plain.host, plain.port):
        return base
    try:
        await fetcher.fetch(Request(base))
    except Upstream as problem:
        if problem.code == TLS_FAILED:
            raise
        return plain
    return base


def digest_of(path: Path) -> str:
    """The digest of a file as registries write it: `sha256:` and hex."""
    with path.open("rb") as file:
        return f"sha256:{hashlib.file_digest(file, 'sha256').hexdigest()}"


def _field(value: Any, *names: str) -> Any:
    for name in names:
        value = value.get(name) if isinstance(value, dict) else None
    return value


class _RegistrySession:
    """One operation's requests to one repository of a registry, with authentication.

    The login is sent to the registry if it requires one, and to its token realm if that has the same domain.
    """

    def __init__(
        self, fetcher: Fetcher, ref: ChartRef, base: Url, login: OriginLogin | None, tls: TlsCredentials | None
    ) -> None:
        self.ref = ref
        self._tls = tls
        self._fetcher = fetcher
        self._base = base
        self._login = login
        self._token: str | None = None
        self._sends_login = False

    @property
    def root(self) -> Url:
        """The address by which a registry says that it is one, and checks a login."""
        return self._base

    async def request(self, method: str, where: str | Url, **options: Any) -> Response:
        """Sends a request about the repository; after a 401 once more with credentials."""
        url = where if isinstance(where, Url) else evolve(self._base, path=f"/v2/{self.ref.chart}/{where}")
        request = Request(url, method=method, **options)
        is_own = url.origin == self._base.origin  # credentials go to the registry's own origin only
        response = await self._fetcher.fetch(self._signed(request) if is_own else request)
        if response.status != 401 or not is_own or response.url.origin != self._base.origin:
            return response
        if not await self._authorized(response.headers.get("WWW-Authenticate", "")):
            return response
        return await self._fetcher.fetch(self._signed(request))

    def _signed(self, request: Request) -> Request:
        login = self._login if self._sends_login else None
        return evolve(request, token=self._token, login=login, tls=self._tls)

    async def _authorized(self, challenge: str) -> bool:
        """Answers a challenge; returns whether there are new credentials to send."""
        scheme, _, rest = challenge.partition(" ")
        challenge_ = {name: quoted or plain for name, quoted, plain in _CHALLENGE.findall(rest)}
        if scheme.lower() == "bearer" and "realm" in challenge_:
            self._token = await self._fetch_token(challenge_)
            return True
        already_sent, self._sends_login = self._sends_login, scheme.lower() == "basic" and self._login is not None
        return self._sends_login and not already_sent

    async def _fetch_token(self, challenge: Mapping[str, str]) -> str:
        """Fetches a token from the realm of the challenge."""
        url = urls.parse(challenge["realm"], "the registry's token realm")
        if url.login:
            raise Invalid(f"{url} is refused: a token realm may not contain a login")
        parameters = {name: challenge[name] for name in ("service", "scope") if name in challenge}
        login = self._login if self._may_get_login(url) else None
        tls = self._tls if url.origin == self._base.origin else None
        response = await self._fetcher.fetch(
            Request(url.with_query(**parameters), max_bytes=_MAX_TOKEN_BYTES, login=login, tls=tls)
        )
        if not response.is_good:
            self.refuse(response, is_of_realm=True)
        document = _json(response)
        token = _field(document, "token") or _field(document, "access_token")
        if not isinstance(token, str) or not re.fullmatch(r"[!-~]+", token):
            raise Upstream(f"{url} returned no token")
        return token

    def _may_get_login(self, realm: Url) -> bool:
        if realm.origin == self._base.origin:
            return True
        return realm.scheme == "https" and shares_domain(self._base.host, realm.host)

    def check(self, response: Response) -> None:
        """Raises `NotFound`, `Invalid` (a login) or `Upstream` unless the response is successful."""
        if response.status == 404:
            raise NotFound(f"there is no {self.ref} in that version in the registry")
        if not response.is_good:
            self.refuse(response)

    def too_many_bytes(self) -> Invalid:
        return Invalid(f"{self.ref} has more than {_MAX_TAG_BYTES} bytes of tags: name an exact version")

    async def tag_pages(self) -> AsyncIterator[bytes]:
        """The pages of the tag list. Raises `Invalid` if there are too many."""
        url: str | Url = "tags/list"
        for _ in range(_MAX_TAG_PAGES):
            try:
                response = await self.request("GET", url, max_bytes=_MAX_TAG_BYTES)
            except TooLargeResponse:
                raise self.too_many_bytes() from None
            self.check(response)
            yield response.body
            link = re.match(r'\s*<([^>]+)>\s*;\s*rel="?next"?', response.headers.get("Link", ""))
            if not link:
                return
            url = response.url.linked(link[1])
        raise Invalid(f"{self.ref} has more than {_MAX_TAG_PAGES} pages of tags: name an exact version")

    async def manifest(self, tag: str) -> Response:
        headers = {"Accept": _MANIFESTS}
        response = await self.request("GET", f"manifests/{tag}", headers=headers, max_bytes=_MAX_MANIFEST_BYTES)
        self.check(response)
        digest = response.headers.get("Docker-Content-Digest", "")
        if _SHA256.fullmatch(digest) and digest != f"sha256:{response.sha256}":
            raise Upstream(f"{response.url} does not match the registry's digest")
        return response

    async def blob(self, manifest: Any, types: tuple[str, ...], into: Path) -> bool:
        """Fetches the one layer with these media types and checks its digest; False if there is none."""
        layers = _field(manifest, "layers")
        matching = (
            [layer for layer in layers if _field(layer, "mediaType") in types] if isinstance(layers, list) else []
        )
        if len(matching) != 1:
            return False
        digest = _field(matching[0], "digest")
        if not isinstance(digest, str) or not _SHA256.fullmatch(digest):
            raise Upstream(f"{self.ref} has a layer without a SHA-256")
        response = await self.request("GET", f"blobs/{digest}", max_bytes=self._fetcher.limits.max_archive, into=into)
        self.check(response)
        if f"sha256:{response.sha256}" != digest:
            raise Upstream(f"{response.url} does not match the registry's digest")
        return True

    async def upload(self, body: bytes | Path, digest: str) -> None:
        """Uploads a blob unless the registry has it."""
        if (await self.request("HEAD", f"blobs/{digest}")).is_good:
            return
        begun = await self.request("POST", "blobs/uploads/", headers={"Content-Type": "application/octet-stream"})
        if begun.status != 202 or "Location" not in begun.headers:
            self.refuse(begun)
        place = begun.url.linked(begun.headers["Location"]).with_query(digest=digest)
        sent = await self.request("PUT", place, body=body, headers={"Content-Type": "application/octet-stream"})
        if sent.status not in (201, 202, 204):
            self.refuse(sent)

    def refuse(self, response: Response, is_of_realm: bool = False) -> NoReturn:
        """Raises `Invalid` if the registry or its token realm demands another login, else `Upstream`."""
        message = _registry_message(response)
        demands_login = response.status in (401, 403) and (is_of_realm or response.url.origin == self._base.origin)
        if not demands_login:
            raise Upstream(f"{response.url} answered {response.status}{message}")
        host = self.ref.repository
        configure = f"log in as the user of this server (helm registry login {host}; HELM_REGISTRY_CONFIG)"
        if self._login is None:
            raise Invalid(f"the registry {host} requires a login for {self.ref}{message}: {configure}", LOGIN_REQUIRED)
        raise Invalid(f"the registry {host} refuses its login for {self.ref}{message}: {configure}", LOGIN_REFUSED)


def _json(response: Response) -> Any:
    """The value of a short response. Raises `Upstream`."""
    try:
        if len(response.body) <= MAX_INLINE_BYTES:
            return json_value(response.body)
    except Invalid:
        pass
    raise _no_json(response)


def _no_json(response: Response) -> Upstream:
    return Upstream(f"{response.url} did not answer with JSON")


def _registry_message(response: Response) -> str:
    """The registry's own message from the `errors` of its response, if it has one."""
    try:
        errors = _field(_json(response), "errors")
    except Problem:
        return ""
    first: Mapping[str, Any] = errors[0] if isinstance(errors, list) and errors and isinstance(errors[0], dict) else {}
    message = ": ".join(str(first[name])[:200] for name in ("code", "message") if first.get(name))
    return f" ({message})" if message else ""
