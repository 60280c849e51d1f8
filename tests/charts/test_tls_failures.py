"""TLS failures of servers and servers without TLS: the reported reason, and no fallback to plain HTTP."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import pytest
import trustme
from chart_servers import WebServer, web_server

from models.charts.refs import ChartRef
from models.config.settings import ChartSecurity, FetchSettings
from models.errors import Invalid, Upstream
from supervisor.charts.fetcher import Fetcher
from supervisor.charts.oci import Registries
from supervisor.charts.registry_logins import RegistryLogins
from supervisor.charts.workers import Workers
from supervisor.http import client, urls
from supervisor.http.client import Request

EXPIRED = datetime(2020, 1, 1, tzinfo=UTC)


@pytest.fixture
def web() -> Iterator[WebServer]:
    with web_server() as one:
        yield one


def enable_tls(web: WebServer, verify_mode: ssl.VerifyMode = ssl.CERT_NONE) -> None:
    """Enables TLS with an untrusted and expired certificate."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    trustme.CA().issue_cert("127.0.0.1", not_after=EXPIRED).configure_cert(context)
    context.verify_mode = verify_mode
    web.server.socket = context.wrap_socket(web.server.socket, server_side=True)


def fetcher(web: WebServer) -> Fetcher:
    return Fetcher(FetchSettings(), ChartSecurity(allowed_hosts=(web.host_port,)))


def upstream_error(web: WebServer, verify: bool = True) -> Upstream:
    with pytest.raises(Upstream) as found:
        asyncio.run(fetcher(web).fetch(Request(urls.parse(f"https://{web.host_port}/index.yaml"), verify=verify)))
    return found.value


def pull(web: WebServer, folder: Path) -> None:
    registries = Registries(fetcher(web), RegistryLogins({}), Workers())
    asyncio.run(registries.pull(ChartRef.parse(f"oci://{web.host_port}/ours/demo:1.0.0"), folder))


def test_a_server_without_tls_is_reported(web: WebServer) -> None:
    problem = upstream_error(web)
    assert problem.message == f"https://{web.host_port}/index.yaml cannot be reached: it does not support TLS"
    assert problem.code is None


def test_an_invalid_certificate_is_reported_with_the_reason(web: WebServer) -> None:
    enable_tls(web)
    problem = upstream_error(web)
    assert "its certificate is not valid: " in problem.message
    assert problem.code == client.TLS_FAILED


def test_a_tls_error_of_the_server_is_reported_without_source_locations(web: WebServer) -> None:
    enable_tls(web, ssl.CERT_REQUIRED)
    problem = upstream_error(web, verify=False)
    assert "TLS failed: " in problem.message
    assert "_ssl.c" not in problem.message
    assert problem.code == client.TLS_FAILED


def test_a_registry_with_an_invalid_certificate_gets_no_plain_http_request(web: WebServer, tmp_path: Path) -> None:
    enable_tls(web)
    with pytest.raises(Upstream, match="certificate is not valid"):
        pull(web, tmp_path)


def test_the_error_for_an_invalid_url_names_the_index_or_redirect(web: WebServer) -> None:
    base = urls.parse(f"{web.url}/charts")
    with pytest.raises(Invalid, match=r"a URL in the index of http://\S+/charts is refused: file is neither http"):
        base.below("file:///etc/passwd")
    web.pages["/charts"] = (302, {"Location": "ftp://there.example/"}, b"")
    with pytest.raises(Invalid, match=r"the redirect or link of http://\S+/charts is refused: ftp is neither http"):
        asyncio.run(fetcher(web).fetch(Request(base)))
