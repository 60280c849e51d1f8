"""Registries that require a login: that of `helm registry login` is used and sent to no other host."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import json
import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import chart_servers
import pytest
from chart_servers import FULL, Reply, WebServer, post_json, post_parts
from conftest import Server

from models.charts.repositories.registries import StoredLogin
from supervisor.charts.registry_logins import RegistryLogins, read, shares_domain
from supervisor.http import urls

USER, PASSWORD = "me", "se:cret"
HTPASSWD = f"{USER}:$2b$05$abcdefghijklmnopqrstuuWqeDdmk0qhXLYvA33lbC9M700ynI2Oa"
"""What htpasswd would make of the two."""


def auth(name: str = USER, password: str = PASSWORD) -> str:
    return base64.b64encode(f"{name}:{password}".encode()).decode()


class Lab:
    """A registry that requires a login, a web server that acts as one, and a server that may reach both."""

    def __init__(self, folder: Path, registry: str, web: WebServer, other: WebServer) -> None:
        self.registry, self.web, self.other = registry, web, other
        self.file = folder / "registry.json"
        svc = {"security": FULL | {"allowed-hosts": [registry, web.host_port, other.host_port]}}
        environ = {"HELM_REGISTRY_CONFIG": str(self.file)}
        self.server = Server(folder, {"svc": svc}, environ, []).start()

    def store_logins(self, **logins: str) -> None:
        self.file.write_text(json.dumps({"auths": {name: {"auth": result} for name, result in logins.items()}}))


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    folder = tmp_path_factory.mktemp("lab")
    with (
        chart_servers.running_registry(folder, HTPASSWD) as registry,
        chart_servers.web_server() as web,
        chart_servers.web_server() as other,
    ):
        one = Lab(folder, registry, web, other)
        with contextlib.closing(one.server):
            yield one


def test_the_login_of_helm_registry_login_is_used_for_pull_and_push(lab: Lab, tmp_path: Path) -> None:
    data = chart_servers.chart_archive("demo", "1.2.3")
    lab.file.unlink(missing_ok=True)
    for result in (
        post_parts(lab.server, "/repos/push", {"chart": data, "remote": f"oci://{lab.registry}/ours"}),
        post_json(lab.server, "/repos/pull", {"chart": f"oci://{lab.registry}/ours/demo", "version": "^1"}),
        post_json(lab.server, "/dependencies/resolve", {"chartRef": f"oci://{lab.registry}/ours/demo:1.2.3"}),
    ):
        assert (result.status, result.json["code"]) == (400, "registry-login-required")
        assert f"the registry {lab.registry} requires a login" in result.json["detail"]
        assert f"helm registry login {lab.registry}" in result.json["detail"]
    login = ("registry", "login", lab.registry, "--plain-http", f"-u={USER}", f"-p={PASSWORD}")
    chart_servers.run_helm(tmp_path, *login)
    (written,) = (tmp_path / "home" / "config").rglob("config.json")
    lab.file.write_bytes(written.read_bytes())
    for _ in range(2):
        sent = post_parts(lab.server, "/repos/push", {"chart": data, "remote": f"oci://{lab.registry}/ours"})
        assert sent.status == 200, sent
    ref = f"oci://{lab.registry}/ours/demo"
    assert post_json(lab.server, "/repos/pull", {"chart": ref, "version": "^1"}).body == data
    assert lab.server.get(f"/api/v1/charts/show/chart?chartRef={ref}:1.2.3").status == 200
    chart_servers.run_helm(tmp_path, "pull", "--plain-http", ref, "--version=1.2.3")
    lab.store_logins(**{lab.registry: auth(password="another")})
    answer = post_json(lab.server, "/repos/pull", {"chart": ref})
    assert (answer.status, answer.json["code"]) == (400, "registry-login-refused")
    assert f"the registry {lab.registry} refuses its login" in answer.json["detail"]
    assert "another" not in answer.text
    assert all(secret not in lab.server.log.read_text() for secret in (PASSWORD, auth(), "another"))


def test_a_login_is_sent_to_the_registry_and_its_token_realm_only(lab: Lab) -> None:
    seen: dict[str, list[str | None]] = {"registry": [], "realm": [], "elsewhere": []}

    def recorded_reply(who: str, answer: Reply) -> Any:
        def reply(handler: Any) -> Reply:
            seen[who].append(handler.headers.get("Authorization"))
            return answer

        return reply

    challenge = {"WWW-Authenticate": f'Bearer realm="{lab.web.url}/token",service="it"'}
    lab.store_logins(**{lab.web.host_port: auth()})
    lab.web.pages["/v2/a/demo/manifests/1.0.0"] = recorded_reply("registry", (401, challenge, b""))
    lab.web.pages["/token"] = recorded_reply("realm", (200, {}, b'{"token": "t"}'))
    assert post_json(lab.server, "/repos/pull", {"chart": f"oci://{lab.web.host_port}/a/demo:1.0.0"}).status == 400
    assert seen == {"registry": [None, "Bearer t"], "realm": [f"Basic {auth()}"], "elsewhere": []}

    challenge["WWW-Authenticate"] = f'Bearer realm="{lab.other.url}/token"'
    lab.other.pages["/token"] = recorded_reply("elsewhere", (200, {}, b'{"token": "t"}'))
    post_json(lab.server, "/repos/pull", {"chart": f"oci://{lab.web.host_port}/a/demo:1.0.0"})
    assert seen["elsewhere"] == [None], "a realm in another domain gets no login"

    away = {"Location": f"{lab.other.url}/blob"}
    lab.other.pages["/blob"] = recorded_reply("elsewhere", (401, {"WWW-Authenticate": 'Basic realm="x"'}, b""))
    lab.web.pages["/v2/b/demo/manifests/1.0.0"] = recorded_reply("registry", (307, away, b""))
    assert post_json(lab.server, "/repos/pull", {"chart": f"oci://{lab.web.host_port}/b/demo:1.0.0"}).status == 502
    assert seen["elsewhere"] == [None, None], "the target of a redirect gets no login"


def test_a_login_that_is_given_to_the_server_is_checked_stored_used_and_removed(lab: Lab) -> None:
    def push() -> Any:
        chart = chart_servers.chart_archive("given", "1.0.0")
        return post_parts(lab.server, "/repos/push", {"chart": chart, "remote": f"oci://{lab.registry}/given"})

    lab.store_logins(**{"files.example": auth()})
    login = {"host": lab.registry, "username": USER, "password": PASSWORD}
    refused = post_json(lab.server, "/registries", {**login, "password": "another"})
    assert (refused.status, refused.json["code"]) == (400, "registry-login-refused")
    assert refused.json["detail"] == f"the registry {lab.registry} refuses this login"
    assert registries(lab) == [{"host": "files.example", "source": "FILE"}]
    assert push().json["code"] == "registry-login-required"

    for _ in range(2):
        stored = post_json(lab.server, "/registries", {**login, "host": lab.registry.upper()})
        assert (stored.status, stored.body) == (201, b"")
    assert registries(lab) == [{"host": lab.registry, "source": "API"}, {"host": "files.example", "source": "FILE"}]
    lab.store_logins(**{lab.registry: auth(password="another")})
    assert registries(lab) == [{"host": lab.registry, "source": "API"}]
    assert push().status == 200, "the login that was given has priority"

    address = f"/api/v1/registries/{lab.registry}"
    removed = lab.server.ask("DELETE", address, b"", {"X-API-Key": chart_servers.KEY})
    assert (removed.status, removed.body) == (204, b"")
    assert push().json["code"] == "registry-login-refused", "helm's login counts again"
    again = lab.server.ask("DELETE", address, b"", {"X-API-Key": chart_servers.KEY})
    assert (again.status, again.json["detail"]) == (
        409, f"the login of {lab.registry} is one of helm's: helm registry logout {lab.registry} removes it",
    )  # fmt: skip
    lab.file.unlink()
    missing = lab.server.ask("DELETE", address, b"", {"X-API-Key": chart_servers.KEY})
    assert (missing.status, missing.json["detail"]) == (404, f"there is no login of {lab.registry}")
    assert PASSWORD not in lab.server.log.read_text()


def registries(lab: Lab) -> Any:
    return lab.server.get("/api/v1/registries").json


def test_other_requests_are_answered_while_the_file_of_logins_is_read(lab: Lab) -> None:
    lab.file.unlink(missing_ok=True)
    os.mkfifo(lab.file)
    try:
        with ThreadPoolExecutor(1) as clients:
            listed = clients.submit(registries, lab)
            with lab.file.open("wb") as file:  # opens as soon as the server reads
                assert lab.server.get("/healthz").status == 200
                file.write(json.dumps({"auths": {"slow.example": {"auth": auth()}}}).encode())
            assert {"host": "slow.example", "source": "FILE"} in listed.result()
    finally:
        lab.file.unlink()


def test_the_login_of_what_is_no_registry_is_refused_and_not_stored(lab: Lab) -> None:
    lab.web.pages["/v2/"] = (404, {}, b"")
    login = {"host": lab.web.host_port, "username": USER, "password": PASSWORD}
    refused = post_json(lab.server, "/registries", login)
    assert refused.status == 400
    assert refused.json["detail"].startswith(f"{lab.web.host_port} is no registry: ")
    lab.web.pages["/v2/"] = (500, {}, b"")
    assert post_json(lab.server, "/registries", login).status == 502
    private = post_json(lab.server, "/registries", {**login, "host": "169.254.169.254"})
    assert private.status == 400
    assert "is refused: its address is" in private.json["detail"]
    for host in ("", "a/b", "user@host", "host:0", "host:99999", "oci://host", "[::1", "[g]"):
        fault = post_json(lab.server, "/registries", {**login, "host": host})
        assert (fault.status, "host" in fault.json["detail"]) == (400, True), host
    assert {row["source"] for row in registries(lab)} <= {"FILE"}


def test_docker_hub_has_one_login_under_all_its_names(tmp_path: Path) -> None:
    logins = RegistryLogins({"HOME": str(tmp_path)}, {"docker.io": StoredLogin("docker.io", USER, PASSWORD)}.get)
    found = asyncio.run(logins.of(urls.parse("https://registry-1.docker.io/v2/")))
    assert found is not None
    assert (found.username, found.password) == (USER, PASSWORD)
    assert asyncio.run(logins.of(urls.parse("https://ghcr.io/v2/"))) is None


@pytest.mark.parametrize(
    ("document", "found"),
    [
        ({}, {}),
        ({"auths": None}, {}),
        ({"auths": {"Ghcr.io": {"auth": auth()}}}, {"ghcr.io": (USER, PASSWORD)}),
        ({"auths": {"https://a.example:5000/v2/": {"auth": auth()}}}, {"a.example:5000": (USER, PASSWORD)}),
        ({"auths": {"a.example": {"username": "n", "password": "p"}}}, {"a.example": ("n", "p")}),
        (
            {"auths": {"https://index.docker.io/v1/": {"auth": auth()}}},
            dict.fromkeys(("index.docker.io", "docker.io", "registry-1.docker.io"), (USER, PASSWORD)),
        ),
        ({"auths": {"a.example": {}, "b": {"auth": "*"}, "c": None, "d": {"auth": auth("", "x")}, "": {}}}, {}),
        ({"auths": {}, "credsStore": "pass", "credHelpers": {"a.example": "pass"}}, {}),
    ],
)
def test_logins_of_the_file_are_read(document: Any, found: Any) -> None:
    assert read(json.dumps(document).encode()) == found


@pytest.mark.parametrize("content", [b"", b"[]", b'{"auths": []}', b"\xff", b"[" * 100_000], ids=range(5))
def test_an_invalid_login_file_is_refused(content: bytes) -> None:
    with pytest.raises(ValueError, match=r".*"):
        read(content)


@pytest.mark.parametrize(
    ("registry", "realm", "kin"),
    [
        ("ghcr.io", "ghcr.io", True), ("registry-1.docker.io", "auth.docker.io", True),
        ("registry.gitlab.com", "gitlab.com", True), ("ghcr.io", "evil.io", False), ("ghcr.io", "io", False),
        ("registry.gitlab.com", "evilgitlab.com", False), ("registry.gitlab.com", "gitlab.com.evil.example", False),
        ("10.0.0.1", "11.0.0.1", False), ("10.0.0.1", "0.0.1", False), ("fd00::1", "fd00::2", False),
        ("localhost", "elsewhere", False),
    ],
)  # fmt: skip
def test_a_token_realm_must_share_the_domain_of_its_registry(registry: str, realm: str, kin: bool) -> None:
    assert shares_domain(registry, realm) is kin


@pytest.mark.parametrize(
    ("environ", "file"),
    [
        ({"HELM_REGISTRY_CONFIG": "/a/b"}, "/a/b"),
        ({"HELM_CONFIG_HOME": "/a", "XDG_CONFIG_HOME": "/x"}, "/a/registry/config.json"),
        ({"XDG_CONFIG_HOME": "/x", "HOME": "/h"}, "/x/helm/registry/config.json"),
        ({"HOME": "/h"}, "/h/.config/helm/registry/config.json"),
    ],
)
def test_the_login_file_of_helm_is_found(environ: dict[str, str], file: str) -> None:
    assert RegistryLogins(environ).file == Path(file)
