"""OCI registries: charts pulled and pushed through the guard, tokens and all; helm would follow a registry anywhere."""

from __future__ import annotations

import asyncio
import hashlib
import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from attrs import evolve

from models.charts import metadata, semver
from models.charts.archive import ChartArchive
from models.charts.refs import ChartRef
from models.charts.registry_logins import is_kin
from models.errors import Invalid, NotFound, Problem, Upstream
from supervisor.charts.http import urls
from supervisor.charts.http.client import Fetcher
from supervisor.charts.http.exchange import Request, Response
from supervisor.charts.http.urls import Login, Url
from supervisor.charts.registry_logins import RegistryLogins

CONFIG = "application/vnd.cncf.helm.config.v1+json"
CONTENT = "application/vnd.cncf.helm.chart.content.v1.tar+gzip"
_OLD_CONTENT = "application/tar+gzip"
_PROVENANCE = "application/vnd.cncf.helm.chart.provenance.v1.prov"
_MANIFEST = "application/vnd.oci.image.manifest.v1+json"
_MANIFESTS = f"{_MANIFEST}, application/vnd.docker.distribution.manifest.v2+json"
_SHA256 = re.compile(r"sha256:[0-9a-f]{64}")
_EXACT = re.compile(r"v?[0-9]+\.[0-9]+\.[0-9]+([-+][0-9A-Za-z.+_-]*)?")
_CHALLENGE = re.compile(r'\b(\w+)=(?:"([^"]*)"|([^\s,]+))')
_LARGEST_MANIFEST = 4 * 1024**2
_MOST_PAGES = 100
_LONGEST_TOKEN = 64 * 1024


class Registries:
    def __init__(self, fetcher: Fetcher, logins: RegistryLogins) -> None:
        self._fetcher = fetcher
        self._logins = logins

    async def pull(self, ref: ChartRef, folder: Path, proven: bool = False) -> Path:
        """Fetches a chart into `folder`, with its provenance beside it where that is wanted.

        Raises `NotFound`, `Invalid`, `Upstream`, `TimedOut`.
        """
        talk = await self._talk(ref)
        tag = ref.tag or await self._tag(talk, ref.version)
        manifest = await talk.manifest(tag)
        if _field(manifest, "config", "mediaType") != CONFIG:
            raise Invalid(f"{ref}:{tag} is no chart")
        path = folder / f"{ref.name}-{tag.replace('_', '+')}.tgz"
        if not await talk.blob(manifest, (CONTENT, _OLD_CONTENT), path):
            raise Invalid(f"{ref}:{tag} has no chart in it")
        if proven and not await talk.blob(manifest, (_PROVENANCE,), path.with_name(f"{path.name}.prov")):
            raise Invalid(f"the chart cannot be verified: {ref}:{tag} has no provenance")
        return path

    async def _talk(self, ref: ChartRef) -> _Talk:
        base = await _Talk.base(self._fetcher, ref)
        return _Talk(self._fetcher, ref, base, self._logins.of(base))

    async def version(self, ref: ChartRef) -> str:
        """The version that `ref.version` means there. Raises as `pull`."""
        return (await self._tag(await self._talk(ref), ref.version)).replace("_", "+")

    async def _tag(self, talk: _Talk, wanted: str) -> str:
        if _EXACT.fullmatch(wanted):
            return wanted.replace("+", "_")
        tags = [tag.replace("_", "+") for tag in await talk.tags()]
        found = semver.chosen(wanted, semver.newest_first(tags))
        if found is None:
            raise NotFound(f"there is no version {wanted or 'that is stable'} of {talk.ref}")
        return found.replace("+", "_")

    async def push(self, ref: ChartRef, chart: ChartArchive) -> None:
        """Sends an archive to where `refs.remote` says. Raises `Invalid`, `Upstream`, `TimedOut`."""
        talk = await self._talk(ref)
        config = metadata.config(chart.metadata)
        digest = await asyncio.to_thread(digest_of, chart.path)
        await talk.upload(config, f"sha256:{hashlib.sha256(config).hexdigest()}")
        await talk.upload(chart.path, digest)
        manifest = {
            "schemaVersion": 2,
            "mediaType": _MANIFEST,
            "config": {
                "mediaType": CONFIG,
                "digest": f"sha256:{hashlib.sha256(config).hexdigest()}",
                "size": len(config),
            },
            "layers": [{"mediaType": CONTENT, "digest": digest, "size": chart.path.stat().st_size}],
            "annotations": _annotations(chart),
        }
        body = json.dumps(manifest, separators=(",", ":"), ensure_ascii=False).encode()
        response = await talk.ask("PUT", f"manifests/{ref.tag}", body=body, headers={"Content-Type": _MANIFEST})
        talk.check(response)


def _annotations(chart: ChartArchive) -> dict[str, str]:
    names = {"name": "title", "version": "version", "description": "description", "home": "url"}
    facts = chart.metadata
    own = facts.get("annotations")
    found = {key: text for key, text in own.items() if isinstance(text, str)} if isinstance(own, dict) else {}
    told = {
        f"org.opencontainers.image.{theirs}": facts[ours]
        for ours, theirs in names.items()
        if metadata.is_text(facts.get(ours))
    }
    return found | told


def digest_of(path: Path) -> str:
    """Of a file, as registries have it: `sha256:` and hex."""
    with path.open("rb") as file:
        return f"sha256:{hashlib.file_digest(file, 'sha256').hexdigest()}"


def _field(value: Any, *names: str) -> Any:
    for name in names:
        value = value.get(name) if isinstance(value, dict) else None
    return value


class _Talk:
    """What one operation has to say to one registry about one repository in it, as whom the registry wants to know.

    A login goes to the registry itself, where that asks for it, and to its token realm if that is of the same domain.
    """

    def __init__(self, fetcher: Fetcher, ref: ChartRef, base: Url, login: Login | None) -> None:
        self.ref = ref
        self._fetcher = fetcher
        self._base = base
        self._login = login
        self._token: str | None = None
        self._tells_login = False

    @staticmethod
    async def base(fetcher: Fetcher, ref: ChartRef) -> Url:
        """Over https; where the operator has made an exception of the host, over http if it does not speak TLS."""
        base = urls.parse(f"https://{ref.repository}/v2/", "the registry")
        plain = urls.parse(f"http://{ref.repository}/v2/", "the registry")
        if not fetcher.policy.is_allowed(plain.host, plain.port):
            return base
        try:
            await fetcher.fetch(Request(base))
        except Upstream:
            return plain
        return base

    async def ask(self, method: str, where: str | Url, **facts: Any) -> Response:
        """A request about the repository; once more as somebody where that is asked for."""
        url = where if isinstance(where, Url) else evolve(self._base, path=f"/v2/{self.ref.chart}/{where}")
        request = Request(url, method=method, **facts)
        own = url.origin == self._base.origin  # who we are is for the registry, whatever it leads to
        response = await self._fetcher.fetch(self._signed(request) if own else request)
        if response.status != 401 or not own or response.url.origin != self._base.origin:
            return response
        if not await self._authorized(response.headers.get("WWW-Authenticate", "")):
            return response
        return await self._fetcher.fetch(self._signed(request))

    def _signed(self, request: Request) -> Request:
        return evolve(request, token=self._token, login=self._login if self._tells_login else None)

    async def _authorized(self, challenge: str) -> bool:
        """Whether there is now more to say of who we are: a token, or the login itself."""
        scheme, _, rest = challenge.partition(" ")
        asked = {name: quoted or plain for name, quoted, plain in _CHALLENGE.findall(rest)}
        if scheme.lower() == "bearer" and "realm" in asked:
            self._token = await self._given(asked)
            return True
        told, self._tells_login = self._tells_login, scheme.lower() == "basic" and self._login is not None
        return self._tells_login and not told

    async def _given(self, asked: Mapping[str, str]) -> str:
        """A token from where the registry says, which may be anywhere that may be reached."""
        url = urls.parse(asked["realm"], "the registry's token realm")
        if url.login:
            raise Invalid(f"{url} is refused: a token realm may not bring a login")
        wanted = {name: asked[name] for name in ("service", "scope") if name in asked}
        login = self._login if self._is_kin(url) else None
        response = await self._fetcher.fetch(Request(url.with_query(**wanted), most=_LONGEST_TOKEN, login=login))
        _must_be_good(response)
        found = _json(response)
        token = _field(found, "token") or _field(found, "access_token")
        if not isinstance(token, str) or not re.fullmatch(r"[!-~]+", token):
            raise Upstream(f"{url} gave no token")
        return token

    def _is_kin(self, realm: Url) -> bool:
        if realm.origin == self._base.origin:
            return True
        return realm.scheme == "https" and is_kin(self._base.host, realm.host)

    def check(self, response: Response) -> None:
        """Raises `NotFound` or `Upstream` where the answer is not a good one."""
        if response.status == 404:
            raise NotFound(f"there is no {self.ref} in that version in the registry")
        _must_be_good(response)

    async def tags(self) -> list[str]:
        found: list[str] = []
        where: str | Url = "tags/list"
        for _ in range(_MOST_PAGES):
            response = await self.ask("GET", where)
            self.check(response)
            tags = _field(_json(response), "tags") or []
            found += [tag for tag in tags if isinstance(tag, str)] if isinstance(tags, list) else []
            link = re.match(r'\s*<([^>]+)>\s*;\s*rel="?next"?', response.headers.get("Link", ""))
            if not link:
                break
            where = response.url.linked(link[1])
        return found

    async def manifest(self, tag: str) -> Any:
        headers = {"Accept": _MANIFESTS}
        response = await self.ask("GET", f"manifests/{tag}", headers=headers, most=_LARGEST_MANIFEST)
        self.check(response)
        digest = response.headers.get("Docker-Content-Digest", "")
        if _SHA256.fullmatch(digest) and digest != f"sha256:{response.sha256}":
            raise Upstream(f"{response.url} is not what the registry says: its digest is another")
        return _json(response)

    async def blob(self, manifest: Any, types: tuple[str, ...], into: Path) -> bool:
        """Fetches the one layer of these media types, and proves its digest; False where there is none."""
        layers = _field(manifest, "layers")
        found = [one for one in layers if _field(one, "mediaType") in types] if isinstance(layers, list) else []
        if len(found) != 1:
            return False
        digest = _field(found[0], "digest")
        if not isinstance(digest, str) or not _SHA256.fullmatch(digest):
            raise Upstream(f"{self.ref} has a layer without a SHA-256")
        response = await self.ask("GET", f"blobs/{digest}", most=self._fetcher.limits.max_archive, into=into)
        self.check(response)
        if f"sha256:{response.sha256}" != digest:
            raise Upstream(f"{response.url} is not what the registry says: its digest is another")
        return True

    async def upload(self, body: bytes | Path, digest: str) -> None:
        """Sends a blob that the registry has not yet."""
        if (await self.ask("HEAD", f"blobs/{digest}")).is_good:
            return
        begun = await self.ask("POST", "blobs/uploads/", headers={"Content-Type": "application/octet-stream"})
        if begun.status != 202 or "Location" not in begun.headers:
            self.refuse(begun)
        place = begun.url.linked(begun.headers["Location"]).with_query(digest=digest)
        sent = await self.ask("PUT", place, body=body, headers={"Content-Type": "application/octet-stream"})
        if sent.status not in (201, 202, 204):
            self.refuse(sent)

    def refuse(self, response: Response) -> None:
        """Tells that the registry did not take what was sent."""
        raise Upstream(f"{response.url} answered {response.status}{_told(response)}")


def _json(response: Response) -> Any:
    try:
        return json.loads(response.body)
    except (ValueError, RecursionError):
        raise Upstream(f"{response.url} answered with no JSON") from None


def _must_be_good(response: Response) -> None:
    """Raises `Upstream`."""
    if not response.is_good:
        raise Upstream(f"{response.url} answered {response.status}{_told(response)}")


def _told(response: Response) -> str:
    """The registry's own words, where it has some: `errors` of its answer, as the specification has them."""
    try:
        errors = _field(_json(response), "errors")
    except Problem:
        return ""
    first: Mapping[str, Any] = errors[0] if isinstance(errors, list) and errors and isinstance(errors[0], dict) else {}
    words = ": ".join(str(first[name])[:200] for name in ("code", "message") if first.get(name))
    return f" ({words})" if words else ""
