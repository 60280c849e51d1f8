"""Repositories and registries that need an authority or a client's certificate, which a caller uploads."""

from __future__ import annotations

import json
import ssl
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import chart_servers
import pytest
import trustme
from attrs import frozen
from chart_servers import FULL, KEY, WebServer, post_json, post_parts
from conftest import Answer, Server
from http_checks import running_server

AUTHORITY, CLIENTS = trustme.CA(), trustme.CA()


def enable_tls(web: WebServer, needs_certificate: bool) -> None:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    AUTHORITY.issue_cert("127.0.0.1").configure_cert(context)
    if needs_certificate:
        context.verify_mode = ssl.CERT_REQUIRED
        CLIENTS.configure_trust(context)
    web.server.socket = context.wrap_socket(web.server.socket, server_side=True)


def client_files() -> dict[str, bytes | str]:
    leaf = CLIENTS.issue_cert("client.example")
    chain = b"".join(part.bytes() for part in leaf.cert_chain_pems)
    return {"ca": AUTHORITY.cert_pem.bytes(), "certificate": chain, "key": leaf.private_key_pem.bytes()}


FILES = client_files()


@frozen
class Lab:
    """A server, a web server that requires a client's certificate, and another with a certificate of its authority."""

    server: Server
    web: WebServer
    other: WebServer

    @property
    def url(self) -> str:
        return f"https://{self.web.host_port}"

    def add(self, name: str, **parts: bytes | str) -> Answer:
        fields = {"name": name, "url": self.url}
        return post_parts(self.server, "/repos", {"request": json.dumps(fields), **parts})

    def details(self, name: str) -> dict[str, Any]:
        (found,) = [row for row in self.server.get("/api/v1/repos?details=true").json if row["name"] == name]
        return dict(found)


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    folder = tmp_path_factory.mktemp("certificates")
    with chart_servers.web_server() as web, chart_servers.web_server() as other:
        enable_tls(web, needs_certificate=True)
        enable_tls(other, needs_certificate=False)
        security = FULL | {"allowed-hosts": [web.host_port, other.host_port]}
        with running_server(folder, svc={"security": security}) as server:
            yield Lab(server, web, other)


@pytest.fixture(autouse=True)
def pages(lab: Lab) -> None:
    lab.web.pages.clear()
    lab.web.serve(("demo", "1.0.0", chart_servers.chart_archive("demo", "1.0.0")))


def test_a_repository_gets_its_authority_and_certificate(lab: Lab) -> None:
    untrusted = post_json(lab.server, "/repos", {"name": "private", "url": lab.url})
    assert (untrusted.status, untrusted.json["code"]) == (502, "tls-failed")
    assert lab.add("private", ca=FILES["ca"]).status == 502
    for _ in range(2):
        added = lab.add("private", **FILES)
        assert (added.status, added.body) == (201, b"")
    assert lab.add("private", ca=FILES["ca"]).status == 409
    assert post_json(lab.server, "/repos/private/update").status == 200
    pulled = post_json(lab.server, "/repos/pull", {"chart": "private/demo"})
    assert pulled.body == chart_servers.chart_archive("demo", "1.0.0")
    found = lab.details("private")
    assert found.pop("fetched").endswith("Z")
    assert found == {
        "name": "private", "url": lab.url, "hasLogin": False, "hasCa": True, "hasCertificate": True, "charts": 1,
        "versions": 1, "problem": None,
    }  # fmt: skip
    plain = lab.server.get("/api/v1/repos").json
    assert {"name": "private", "url": lab.url} in plain


def test_certificates_are_for_the_origin_of_the_repository_only(lab: Lab) -> None:
    assert lab.add("moved", **FILES).status == 201
    lab.web.pages["/index.yaml"] = (302, {"Location": f"https://{lab.other.host_port}/index.yaml"}, b"")
    lab.other.pages["/index.yaml"] = chart_servers.index_file()
    moved = post_json(lab.server, "/repos/moved/update")
    assert (moved.status, moved.json["code"]) == (502, "tls-failed"), "the authority counts for one origin"
    assert lab.other.seen == []
    assert lab.details("moved")["problem"] == moved.json["detail"]
    archive = f"https://{lab.other.host_port}/demo-1.0.0.tgz"
    lab.web.pages["/index.yaml"] = chart_servers.index_file(
        chart_servers.index_entry("demo", "1.0.0", None, urls=[archive])
    )
    assert post_json(lab.server, "/repos/moved/update").status == 200
    assert lab.details("moved")["problem"] is None
    pulled = post_json(lab.server, "/repos/pull", {"chart": "moved/demo"})
    assert (pulled.status, pulled.json["code"]) == (502, "tls-failed")
    assert lab.other.seen == []


def test_a_registry_gets_its_authority_and_certificate(lab: Lab) -> None:
    lab.web.pages["/v2/"] = b"{}"
    login = {"host": lab.web.host_port, "username": "me", "password": "secret"}
    assert post_json(lab.server, "/registries", login).status == 502
    stored = post_parts(lab.server, "/registries", {"request": json.dumps(login), **FILES})
    assert (stored.status, stored.body) == (201, b"")
    assert lab.server.get("/api/v1/registries").json == [{"host": lab.web.host_port, "source": "API"}]
    missing = post_json(lab.server, "/repos/pull", {"chart": f"oci://{lab.web.host_port}/a/demo:1.0.0"})
    assert missing.status == 404
    assert lab.web.paths()[-1] == "/v2/a/demo/manifests/1.0.0"
    path = f"/api/v1/registries/{lab.web.host_port}"
    assert lab.server.ask("DELETE", path, b"", {"X-API-Key": KEY}).status == 204
    untrusted = post_json(lab.server, "/repos/pull", {"chart": f"oci://{lab.web.host_port}/a/demo:1.0.0"})
    assert (untrusted.status, untrusted.json["code"]) == (502, "tls-failed")


BOTH = "certificate and key: are not a certificate in PEM and its unencrypted key"
TOO_LARGE = "certificate and key: the key has more than 4096 bits"
LARGE_KEY = b"-----BEGIN RSA PRIVATE KEY-----\n" + 62 * (b"A" * 64 + b"\n") + b"-----END RSA PRIVATE KEY-----\n"
"""Of as many characters as one of 5120 bits."""


@pytest.mark.parametrize(
    ("files", "detail"),
    [
        ({"certificate": FILES["certificate"]}, "certificate and key are needed together"),
        ({"key": FILES["key"]}, "certificate and key are needed together"),
        ({**FILES, "key": client_files()["key"]}, BOTH),
        ({**FILES, "certificate": b"none"}, BOTH),
        ({**FILES, "key": LARGE_KEY}, TOO_LARGE),
        ({**FILES, "certificate": LARGE_KEY + CLIENTS.cert_pem.bytes()}, TOO_LARGE),
        ({"ca": b"none"}, "ca: has no certificate in PEM"),
        ({"ca": b"\xff\xfe"}, "ca: is not PEM"),
        ({"ca": b"a" * (64 * 1024 + 1)}, "ca: is larger than 65536 bytes"),
    ],
)
def test_files_that_are_no_certificates_are_refused(lab: Lab, files: dict[str, bytes], detail: str) -> None:
    refused = lab.add("refused", **files)
    assert (refused.status, refused.json["detail"]) == (400, detail)
    assert "refused" not in lab.server.get("/api/v1/repos").text


def test_an_encrypted_key_is_refused_without_a_question(lab: Lab) -> None:
    encrypted = b"-----BEGIN ENCRYPTED PRIVATE KEY-----\nMAAwAA==\n-----END ENCRYPTED PRIVATE KEY-----\n"
    assert lab.add("encrypted", **{**FILES, "key": encrypted}).json["detail"] == BOTH


def test_certificates_need_https_and_are_parts(lab: Lab) -> None:
    request = json.dumps({"name": "http", "url": f"http://{lab.web.host_port}"})
    plain = post_parts(lab.server, "/repos", {"request": request, **FILES})
    assert (plain.status, plain.json["detail"]) == (400, "ca, certificate and key need an https URL")
    field = post_json(lab.server, "/repos", {"name": "field", "url": lab.url, "ca": "x"})
    assert (field.status, field.json["detail"]) == (400, "ca is a part of multipart/form-data, not a field")
    large = post_json(lab.server, "/repos", {"name": "large", "url": "x" * 100_000})
    assert large.status == 413
    assert post_parts(lab.server, "/repos", {"request": request, "ca": b"a" * 2_000_000}).status == 413


def test_a_file_without_content_counts_as_none(lab: Lab) -> None:
    empty = lab.add("empty", ca=b"", certificate=b"", key=b"")
    assert (empty.status, empty.json["code"]) == (502, "tls-failed")


def test_no_answer_log_or_readable_file_has_the_key(lab: Lab) -> None:
    assert lab.add("logged", **FILES).status == 201
    lines = [bytes(FILES[name]).decode().splitlines()[2] for name in ("certificate", "key")]  # type: ignore[arg-type]
    shown = "".join(
        lab.server.get(path).text for path in ("/api/v1/repos", "/api/v1/repos?details=true", "/repositories")
    )
    assert not any(line in shown + lab.server.log.read_text() for line in lines)
    readable = [path for path in Path(lab.server.data).rglob("charts.db*") if path.stat().st_mode & 0o077]
    assert readable == []
