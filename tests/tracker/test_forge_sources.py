"""Source lines from a forge: its requests, the permissions, and the secrecy of the tokens.

Every request, and every response of the doubles, is compared with the forge's own description of its API.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import json
import secrets
import socket
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote, unquote, urlencode

import chart_servers
import http_checks
import pytest
import records
from attrs import evolve
from chart_servers import Reply, WebServer
from conftest import Answer, Server
from forge_double import CODE, FACTS, OWN, PATH, RAW, SHA, TOKEN, Double, differing_request, example
from postgresql import Postgresql, ask
from uploads import FORM, INGEST, body, jacoco, junit, part

from models.config.settings import (
    Config,
    ForgeSettings,
    OutboundSettings,
    ServerSettings,
    SourceSettings,
    TrackerSettings,
)
from models.errors import Conflict, Invalid
from models.supervision.process import Size
from models.tracker.files.sources import CoveredFile
from models.tracker.forges import project_forge as forges
from models.tracker.forges.forge_links import repository
from models.tracker.forges.project_forge import FileRequest
from models.tracker.project_secrets import ProjectSecrets
from models.tracker.tables import Project, Run
from supervisor.http import urls
from supervisor.http.client import GuardedClient, Lookup, Request
from supervisor.tracker.forge_sources import ForgeSources, rules

API = "/api/v1"


@pytest.fixture(scope="module")
def web() -> Iterator[WebServer]:
    with chart_servers.web_server() as one:
        yield one


@pytest.fixture
def double(web: WebServer) -> Iterator[Double]:
    web.seen.clear()
    double = Double(web)
    yield double
    assert double.differences == [], "requests or responses differ from the descriptions of the APIs"


@pytest.fixture(scope="module")
def server(web: WebServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    local = f"http://localhost:{web.port}"
    tracker = {
        "source": {"mode": "forge", "file": "4K"},
        "forges": {
            "hub": {"type": "github", "url": local, "api-url": f"{web.url}/api/v3", "token": TOKEN},
            "lab": {"type": "gitlab", "url": f"{web.url}/lab", "token": TOKEN, "repositories": ["group/*"]},
            "tea": {"type": "forgejo", "url": web.url, "token": TOKEN, "repositories": ["shop/*"]},
            "bare": {"type": "forgejo", "url": web.url},
        },
    }
    folder = tmp_path_factory.mktemp("forges")
    (folder / "key").write_text(base64.b64encode(secrets.token_bytes(32)).decode())
    settings = {"secret-key-file": str(folder / "key")}  # for PostgreSQL
    with http_checks.running_server(folder, tracker=tracker, server=settings) as server:
        yield server


class Uploaded:
    """A project with a run that covers one file, its OWNER, and a path of the API for the file."""

    def __init__(self, server: Server, name: str, repo: str | None, confirmed: str | None = None) -> None:
        self.server = server
        texts = {"project": name, "commit": SHA} | ({} if repo is None else {"repoUrl": repo})
        parts = [part(field, value) for field, value in texts.items()]
        report = jacoco({"a b.py": {1: True, 2: False}})
        parts += [
            part("junit", junit(1), "a.xml"),
            part("jacoco", report, "c.xml"),
            part("paths", PATH, "p"),
        ]
        answer = server.post(INGEST, body(parts), Content_Type=FORM)
        assert answer.status == 201, answer
        self.run, self.id = answer.json["runId"], answer.json["projectId"]
        with records.store_of(server):
            user = records.create_user(f"owner-of-{name}".replace(" ", "-"))
            records.add_member(records.ensure_project(name), user, "OWNER")
            self.owner = records.bearer(user)
            self.admin = records.bearer(records.create_user(f"admin-of-{name}".replace(" ", "-"), "ADMIN"))
        if confirmed is not None:
            assert self.patch(self.admin, forgeRepo=confirmed).status == 200

    @property
    def file(self) -> str:
        return f"/runs/{self.run}/coverage?path=com/x/a%20b.py"

    def patch(self, by: dict[str, str] | None = None, **settings: Any) -> Answer:
        """As the owner, unless `by` has the header of another user."""
        headers = {"Content-Type": "application/json", **(by or self.owner)}
        path = f"{API}/projects/{self.id}/settings"
        return self.server.ask("PATCH", path, json.dumps(settings).encode(), headers)

    def get_file(self, **headers: str) -> Any:
        answer = self.server.get(f"{API}{self.file}", **(headers or self.owner))
        assert answer.status == 200, answer
        return answer.json

    def state(self) -> Any:
        return self.server.get(f"{API}/projects/{self.id}/forge", **self.owner).json


REPOSITORIES = {
    "github": "http://localhost:{port}/shop/cart.git",
    "gitlab": "http://127.0.0.1:{port}/lab/group/sub/cart",
    "forgejo": "http://127.0.0.1:{port}/shop/cart",
}


@pytest.mark.parametrize("kind", REPOSITORIES)
def test_member_sees_the_file_of_the_forge_which_is_fetched_once(server: Server, double: Double, kind: str) -> None:
    url = REPOSITORIES[kind].format(port=double.web.port)
    uploaded = Uploaded(server, f"of {kind}", url, url)
    file = uploaded.get_file()
    assert (file["source"], file["reason"], file["repositoryPath"]) == (CODE, None, PATH)
    page = server.get(uploaded.file, **uploaded.owner).text
    assert "&lt;b&gt;markup&lt;/b&gt;" in page
    assert len(double.web.seen) == 1, "the second time it is cached"
    name = {"github": "hub", "gitlab": "lab", "forgejo": "tea"}[kind]
    path = "group/sub/cart" if kind == "gitlab" else "shop/cart"
    assert uploaded.state() == {"forge": name, "repository": path, "state": "OK", "reason": None}


def test_only_members_see_the_file_of_a_public_project(server: Server, double: Double) -> None:
    uploaded = Uploaded(server, "public", None, REPOSITORIES["github"].format(port=double.web.port))
    assert uploaded.get_file()["source"] == CODE
    with records.store_of(server):
        other, member = records.create_user("no-member"), records.create_user("a-reader")
        records.add_member(records.ensure_project("public"), member, "READ")
        headers, reader = records.bearer(other), records.bearer(member)
    assert uploaded.get_file(**reader)["source"] == CODE
    assert server.get(f"{API}{uploaded.file}", **reader).headers["Cache-Control"] == "private, no-store"
    double.web.seen.clear()
    for caller in ({"Accept": "*/*"}, headers):
        assert (uploaded.get_file(**caller)["source"], uploaded.get_file(**caller)["reason"]) == (None, None)
        page = server.get(uploaded.file, **caller)
        assert page.status == 200
        assert "markup" not in page.text
        detail = server.get(f"{API}/projects/{uploaded.id}", **caller).json
        assert (detail["forgeRepo"], detail["forgeToken"]) == (None, None)
    assert server.get(f"{API}/projects/{uploaded.id}/forge", **headers).status == 403
    assert double.web.seen == []


@pytest.mark.parametrize(
    ("repo", "confirmed", "state", "reason"),
    [
        ("http://localhost:{port}/shop/cart", None, "UNCONFIRMED", "no repository is confirmed"),
        ("http://localhost:{port}/shop/other", "http://localhost:{port}/shop/cart", "OK", "names another repository"),
        ("http://localhost:{port}.evil.example/shop/cart", None, "UNCONFIRMED", "no repository is confirmed"),
        (None, "http://localhost.evil.example:{port}/shop/cart", "UNKNOWN_HOST", "no forge of tracker.forges has"),
        (None, "http://127.0.0.1:1/shop/cart", "UNKNOWN_HOST", "no forge of tracker.forges has"),
        (None, "http://127.0.0.1:{port}/else/cart", "NO_TOKEN", "neither the project nor the forge bare has a token"),
    ],
)
def test_repository_is_not_requested_unless_confirmed_and_known(
    server: Server, double: Double, repo: str | None, confirmed: str | None, state: str, reason: str
) -> None:
    port, name = double.web.port, f"refused {secrets.token_hex(4)}"
    urls = [text and text.format(port=port) for text in (repo, confirmed)]
    uploaded = Uploaded(server, name, *urls)
    file = uploaded.get_file()
    assert file["source"] is None
    assert reason in file["reason"]
    assert reason in server.get(uploaded.file, **uploaded.owner).text
    assert uploaded.state()["state"] == state
    assert double.web.seen == []


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        ((404, {}, b"{}"), f"answered 404 for {PATH} at {SHA[:12]}"),
        ((500, {}, b"tok-" * 100), "answered 500 for"),
        ((403, {"X-RateLimit-Remaining": "0"}, b"{}"), "the rate limit is reached"),
        ((403, {"Retry-After": "60"}, b"{}"), "the rate limit is reached"),
        ((302, {"Location": "http://169.254.169.254/latest/"}, b""), "answered 302 for"),
        ((200, {}, b"\0\1binary"), "is not text"),
        ((200, {}, b"x" * 4097), "is larger than 4096 bytes"),
        ((200, {"Content-Length": "10", "Connection": "close"}, b"cut"), "cannot be reached: it closed the connection"),
    ],
    ids=["missing", "broken", "rate limit", "secondary rate limit", "redirect", "binary", "too large", "cut off"],
)
def test_error_of_the_forge_is_shown_as_the_reason(server: Server, double: Double, answer: Reply, reason: str) -> None:
    url = REPOSITORIES["forgejo"].format(port=double.web.port)
    uploaded = Uploaded(server, f"failing {secrets.token_hex(4)}", url, url)
    double.answer = answer
    file = uploaded.get_file()
    assert file["source"] is None
    assert reason in file["reason"]
    assert file["coveredRanges"] == [[1, 1]]
    page = server.get(uploaded.file, **uploaded.owner)
    assert page.status == 200
    assert "The source cannot be shown" in page.text
    double.answer = None
    assert uploaded.get_file()["source"] == CODE


@pytest.mark.parametrize("place", range(4), ids=["directory", "file as JSON", "symbolic link", "submodule"])
def test_json_response_of_github_is_not_a_file(server: Server, double: Double, place: int) -> None:
    url = REPOSITORIES["github"].format(port=double.web.port)
    uploaded = Uploaded(server, f"no file {place}", url, url)
    schema = FACTS["github"]["responses"]["200"]["oneOf"][place]
    double.answer = 200, {"Content-Type": "application/json; charset=utf-8"}, json.dumps(example(schema)).encode()
    assert uploaded.get_file()["reason"] == f"{PATH} at {SHA[:12]} is not a file"
    double.answer = 200, {"Content-Type": f"{RAW}; charset=utf-8"}, b'{"a": "JSON file"}'
    assert uploaded.get_file()["source"] == '{"a": "JSON file"}'


def stored(server: Server) -> dict[str, bytes]:
    """The files of the stores; the log of one that nobody uses may go meanwhile."""
    found = {}
    for path in server.data.glob("*.db*"):
        with contextlib.suppress(FileNotFoundError):
            found[path.name] = path.read_bytes()
    return found


def test_project_token_is_stored_and_never_shown(server: Server, double: Double) -> None:
    url = REPOSITORIES["forgejo"].format(port=double.web.port)
    uploaded = Uploaded(server, "own token", url, url)
    detail = uploaded.patch(forgeToken=OWN).json
    assert detail["forgeToken"]["set"] is True
    assert http_checks.TIMESTAMP.fullmatch(detail["forgeToken"]["updatedAt"])
    assert uploaded.patch(minPatchLines=1).json["forgeToken"] == detail["forgeToken"], "an omitted token is kept"
    assert uploaded.get_file()["source"] == CODE
    assert [headers["authorization"] for _, _, headers in double.web.seen] == [f"token {OWN}"]
    double.tokens = {TOKEN}
    other = Uploaded(server, "bad token", url, url)
    other.patch(forgeToken="tok-refused")
    assert "refused the token: it answered 401" in other.get_file()["reason"]
    assert other.state()["state"] == "REFUSED"
    assert other.patch(forgeToken=None).json["forgeToken"] == {"set": False, "updatedAt": None}
    assert other.state()["state"] == "OK", "the forge has a token of its own"
    assert other.get_file()["source"] == CODE
    page = server.get(f"/projects/{uploaded.id}/settings", **uploaded.owner).text
    assert "stays as it is" in page
    assert "The token was set <time " in page
    for bad in (1, "", "a b", "ü", "x" * 5000):
        refused = uploaded.patch(forgeToken=bad)
        assert (refused.status, refused.json["message"].split()[0]) == (400, "forgeToken"), bad
        assert str(bad) not in refused.text or len(str(bad)) < 5
    shown = [page, json.dumps(detail), server.log.read_text(), repr(uploaded.state())]
    assert [OWN in text for text in shown] == [False] * 4
    if not server.is_on_postgresql:
        stores = stored(server)
        assert [name for name, content in stores.items() if OWN.encode() in content] != []
        assert all(name.startswith("secrets.db") for name, content in stores.items() if OWN.encode() in content)
        assert {stat.S_IMODE(path.stat().st_mode) for path in server.data.glob("secrets.db*")} == {0o600}
        uploaded.patch(forgeToken=None)
        assert not [name for name, data in stored(server).items() if OWN.encode() in data]


def test_project_token_is_bound_to_its_host(server: Server, double: Double) -> None:
    url = REPOSITORIES["forgejo"].format(port=double.web.port)
    uploaded = Uploaded(server, "moved", None, url)
    assert uploaded.patch(forgeToken=OWN).status == 200
    assert uploaded.patch(forgeRepo=None).status == 200
    elsewhere = REPOSITORIES["github"].format(port=double.web.port)
    answer = uploaded.patch(forgeRepo=elsewhere)
    assert (answer.status, f"forgeToken was set for http://127.0.0.1:{double.web.port}" in answer.text) == (409, True)
    assert uploaded.patch(forgeRepo=elsewhere, forgeToken=OWN).status == 200
    assert uploaded.patch(forgeRepo="https://user:password@github.com/a/b").status == 400
    assert uploaded.patch(forgeRepo="/srv/git").status == 400


def test_forge_token_is_used_only_for_repositories_confirmed_by_an_admin(server: Server, double: Double) -> None:
    mine, private = (REPOSITORIES[kind].format(port=double.web.port) for kind in ("forgejo", "github"))
    uploaded = Uploaded(server, "curious", None, mine)
    assert uploaded.patch(forgeRepo=mine).status == 200
    assert uploaded.state()["state"] == "OK", "the same repository stays confirmed"
    assert uploaded.patch(forgeRepo=private).status == 200
    assert uploaded.state()["state"] == "NO_TOKEN"
    assert "repositories that an ADMIN confirmed" in uploaded.get_file()["reason"]
    assert double.web.seen == []
    assert uploaded.patch(uploaded.admin, forgeRepo=private).status == 200
    assert uploaded.get_file()["source"] == CODE


def test_an_owner_confirms_the_repository_on_the_page(server: Server, double: Double) -> None:
    url = REPOSITORIES["forgejo"].format(port=double.web.port)
    uploaded = Uploaded(server, "by page", url)
    settings = server.get(f"/projects/{uploaded.id}/settings", **uploaded.owner).text
    assert f'<option value="{url}">' in settings
    form = f"source_mode=forge&forge_repo={quote(url, safe='')}&forge_token={OWN}".encode()
    headers = {"Content-Type": "application/x-www-form-urlencoded", **uploaded.owner}
    assert server.ask("POST", f"/projects/{uploaded.id}/forge", form, headers).status == 303
    assert uploaded.get_file()["source"] == CODE
    assert f"token {OWN}" in str(double.web.seen)
    form = f"source_mode=&forge_repo={quote(url, safe='')}&forge_token=&remove_token=true".encode()
    assert server.ask("POST", f"/projects/{uploaded.id}/forge", form, headers).status == 303
    assert server.get(f"{API}/projects/{uploaded.id}", **uploaded.owner).json["forgeToken"]["set"] is False
    with records.store_of(server):
        writer = records.create_user("a-writer")
        records.add_member(records.ensure_project("by page"), writer, "WRITE")
        headers |= records.bearer(writer)
    assert server.ask("POST", f"/projects/{uploaded.id}/forge", form, headers).status == 403


def test_an_admin_confirms_a_repository_on_the_page_only_by_its_box(server: Server, double: Double) -> None:
    url = REPOSITORIES["forgejo"].format(port=double.web.port)
    uploaded = Uploaded(server, "by box", url)
    assert uploaded.patch(uploaded.owner, forgeRepo=url).status == 200
    headers = {"Content-Type": "application/x-www-form-urlencoded", **uploaded.admin}

    def save(**more: str) -> int:
        form = urlencode({"source_mode": "forge", "forge_repo": url, **more}).encode()
        return server.ask("POST", f"/projects/{uploaded.id}/forge", form, headers).status

    def confirmed() -> int:
        with records.store_of(server):
            return int(Project.get_by_id(uploaded.id).forge_repo_by_admin)

    for box in ({}, {"confirmed_repo": url + "x"}, {"confirmed_repo": "-"}, {"confirmed_repo": ""}):
        assert (save(**box), confirmed()) == (303, 0)
    headers = {"Content-Type": "application/x-www-form-urlencoded", **uploaded.owner}
    assert (save(confirmed_repo=url), confirmed()) == (303, 0)
    headers = {"Content-Type": "application/x-www-form-urlencoded", **uploaded.admin}
    assert (save(confirmed_repo=url), confirmed()) == (303, 1)


FORGES = {
    "hub": ForgeSettings("github", "https://github.com", token="t"),
    "own": ForgeSettings("github", "https://github.example:8443", repositories=("corp/*",)),
    "lab": ForgeSettings("gitlab", "https://lab.example/git"),
}


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("https://github.com/a/b.git", ("hub", "a/b")),
        ("git@GitHub.com:a/b", ("hub", "a/b")),
        ("ssh://git@github.com:22/a/b", ("hub", "a/b")),
        ("https://github.com:443/a/b", ("hub", "a/b")),
        ("http://github.com/a/b", None),
        ("https://github.com:8443/a/b", None),
        ("https://github.com.evil.example/a/b", None),
        ("https://evil.example/github.com/a/b", None),
        ("https://github.com@evil.example/a/b", None),
        ("git@evil.example:github.com/a", None),
        ("https://xgithub.com/a/b", None),
        ("https://github.com/a/b/c", None),
        ("https://github.com/a/..", None),
        ("https://github.example:8443/corp/x", ("own", "corp/x")),
        ("https://github.example:8443/other/x", None),
        ("https://lab.example/git/g/s/p", ("lab", "g/s/p")),
        ("git@lab.example:g/s/p.git", ("lab", "g/s/p")),
        ("https://lab.example/g/p", None),
    ],
)
def test_a_repository_belongs_to_the_forge_of_its_host_and_port(url: str, expected: tuple[str, str] | None) -> None:
    parsed = repository(url)
    found = parsed and forges.find(FORGES, parsed)
    assert (found and (found[0], found[2])) == expected


def test_api_url_is_derived_from_the_forge_url() -> None:
    assert [forges.api_url(forge) for forge in FORGES.values()] == [
        "https://api.github.com", "https://github.example:8443/api/v3", "https://lab.example/git/api/v4",
    ]  # fmt: skip
    assert forges.api_url(ForgeSettings("forgejo", "https://tea.example")) == "https://tea.example/api/v1"
    assert forges.api_url(ForgeSettings("forgejo", "https://a.example", "https://b.example/x")) == "https://b.example/x"


@pytest.mark.parametrize(
    ("kind", "commit", "reason"),
    [
        ("forgejo", SHA[:10], "the commit 9fceb02d0a is abbreviated: it would answer with the default branch"),
        ("forgejo", SHA.upper(), None),
        ("forgejo", SHA + SHA[:24], None),
        ("github", SHA[:10], None),
        ("gitlab", SHA[:10], None),
    ],
)
def test_requests_have_a_commit_that_the_forge_accepts(kind: str, commit: str, reason: str | None) -> None:
    known = {"it": ForgeSettings(kind, "https://it.example", token="t")}  # type: ignore[arg-type]  # one of the three
    project = Project(id=1, forge_repo="https://it.example/shop/cart", forge_repo_by_admin=1)
    file = CoveredFile(PATH, PATH, (), (), (), [], None, None)
    made = forges.request(Run(commit_sha=commit), project, file, known)
    if isinstance(made, str):
        assert made == reason
        return
    assert (reason, made.url.endswith(f"ref={commit.lower()}")) == (None, True)
    headers = {**made.headers, made.token_header: made.auth_scheme}
    path = made.url.removeprefix("https://it.example").removeprefix("/api/v3")
    assert list(differing_request(kind, "GET", path, headers)) == []


@pytest.mark.parametrize(
    ("kind", "method", "path", "headers", "differences"),
    [
        ("github", "POST", "/repos/a/b/contents/x", {}, 1),
        ("github", "GET", "/repos/a/b/contents/x?reff=1", {"Accept": "text/plain"}, 2),
        ("gitlab", "GET", "/api/v4/projects/a/b/repository/files/x/raw", {}, 1),
        ("gitlab", "GET", "/api/v4/projects/a%2Fb/repository/files/x/raw", {"Authorization": "Bearer"}, 1),
        ("forgejo", "GET", "/api/v1/repos/a/b/raw/c/d?ref=x", {"Authorization": "token x"}, 0),
    ],
)
def test_request_that_differs_from_the_api_description_is_detected(
    kind: str, method: str, path: str, headers: dict[str, str], differences: int
) -> None:
    assert len(list(differing_request(kind, method, path, headers))) == differences


def fake_lookup(**addresses: str) -> Lookup:
    async def resolve(host: str, port: int) -> list[tuple[int, Any]]:
        return [(socket.AF_INET, (addresses[host.partition(".")[0]], port))]

    return resolve


def config(*allowed: str, **settings: Any) -> Config:
    server = ServerSettings(outbound=OutboundSettings(allowed_hosts=allowed, **settings))
    return Config(server=server, tracker=TrackerSettings(forges=FORGES))


@pytest.mark.parametrize(
    ("url", "reason"),
    [
        ("https://127.0.0.1/", "loopback"),
        ("https://[::1]/", "loopback"),
        ("https://169.254.169.254/", "of cloud metadata"),
        ("https://169.254.1.1/", "link-local"),
        ("https://10.0.0.1/", "private"),
        ("https://rebound.example/", "loopback"),
        ("https://metadata.example/", "of cloud metadata"),
        ("https://inside.example/", "private"),
        ("https://github.com:8443/", "loopback"),
        ("http://outside.example/", "it is not https"),
    ],
)
def test_addresses_that_are_neither_allowed_nor_a_forge_are_refused(url: str, reason: str) -> None:
    lookup = fake_lookup(
        rebound="127.0.0.1", metadata="169.254.169.254", inside="192.168.0.1", github="127.0.0.1", outside="1.1.1.1"
    )
    client = GuardedClient(rules(config()), lookup)
    with pytest.raises(Invalid, match=rf"{reason} \(see server\.outbound\.allowed-hosts\)"):
        asyncio.run(client.fetch(Request(urls.parse(url))))


def test_the_hosts_of_forges_and_allowed_hosts_are_reached() -> None:
    policy = rules(config("git.inside:8080")).policy
    for host, port in (("github.com", 443), ("api.github.com", 443), ("github.example", 8443), ("git.inside", 8080)):
        assert policy.is_allowed(host, port)
    assert not policy.is_allowed("git.inside", 80)
    assert rules(config(block_private_networks=False)).policy.refusal("10.0.0.1") is None


def test_concurrent_equal_requests_are_coalesced_and_the_cache_is_bounded(double: Double, tmp_path: Path) -> None:
    forge = ForgeSettings("forgejo", double.web.url, token=TOKEN)
    settings = config()
    tracker = evolve(settings.tracker, forges={"tea": forge}, source=SourceSettings("forge", cache=Size(1500)))
    settings = evolve(settings, server=evolve(settings.server, data_dir=tmp_path), tracker=tracker)
    file = CoveredFile("a", PATH, (), (), (), [], None, None)
    url = f"{double.web.url}/api/v1/repos/shop/cart/raw/{quote(PATH)}?ref={SHA}"

    def request(project: int) -> FileRequest:
        return FileRequest(project, False, "tea", forge, url, PATH, SHA, "shop/cart", auth_scheme="token")

    async def use() -> None:
        sources = ForgeSources(settings)
        files = await asyncio.gather(*(sources.with_text(file, request(1)) for _ in range(10)))
        assert [found.text for found in files] == [CODE.split("\n")] * 10
        assert len(double.web.seen) == 1
        await sources.with_text(file, request(2))
        assert len(double.web.seen) == 2, "a file is cached for its project only"
        await sources.with_text(file, request(1))
        assert len(double.web.seen) == 3, "two files are more than the cache holds"

    asyncio.run(use())
    assert unquote(double.web.seen[0][1]).endswith(f"{PATH}?ref={SHA}")


def test_request_to_an_unresponsive_forge_times_out(web: WebServer, tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"http://127.0.0.1:{silent.getsockname()[1]}"
        forge = ForgeSettings("forgejo", url, token=TOKEN)
        server = ServerSettings(data_dir=tmp_path, outbound=OutboundSettings(timeout=0.2))  # type: ignore[arg-type]
        sources = ForgeSources(Config(server=server, tracker=TrackerSettings(forges={"tea": forge})))
        file = CoveredFile("a", PATH, (), (), (), [], None, None)
        request = FileRequest(1, False, "tea", forge, f"{url}/x", PATH, SHA, "shop/cart")
        found = asyncio.run(sources.with_text(file, request))
    assert found.text is None
    assert "took longer than server.outbound.timeout (0.2 s)" in str(found.reason)


def test_secrets_are_encrypted_in_postgresql(postgresql: Postgresql, tmp_path: Path) -> None:
    url, key = postgresql.emptied(), tmp_path / "key"
    key.write_text(base64.b64encode(secrets.token_bytes(32)).decode())
    bare = ProjectSecrets(ServerSettings(database_url=url))
    with pytest.raises(Conflict, match=r"without server\.secret-key-file"):
        bare.set(1, "forgeToken", OWN, 1)
    sealed = ProjectSecrets(ServerSettings(database_url=url, secret_key_file=key))
    try:
        sealed.set(1, "forgeToken", OWN, 1)
        assert sealed.get(1, "forgeToken") == OWN
        assert sealed.get(2, "forgeToken") is None
        ((content,),) = ask(url, "SELECT value FROM secret")
        assert OWN.encode() not in bytes(content)
        ask(url, "UPDATE secret SET project_id = 2")
        with pytest.raises(Conflict, match=r"another server\.secret-key-file"):
            sealed.get(2, "forgeToken")
        sealed.set(2, "forgeToken", None, 2)
        assert ask(url, "SELECT * FROM secret") == []
    finally:
        sealed.close()


def test_missing_crypto_package_is_named_in_the_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "key").write_text(base64.b64encode(bytes(32)).decode())
    monkeypatch.setitem(__import__("sys").modules, "cryptography.hazmat.primitives.ciphers.aead", None)
    settings = ServerSettings(database_url="postgresql://nowhere/x", secret_key_file=tmp_path / "key")
    with pytest.raises(Conflict, match="install the extra `crypto`"):
        ProjectSecrets(settings).set(1, "forgeToken", OWN, 1)
