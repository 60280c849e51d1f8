"""The guarded HTTP client: refused addresses, redirects and DNS rebinding, and successful requests."""

from __future__ import annotations

import asyncio
import base64
import gzip
import socket
import ssl
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any

import chart_servers
import pytest
import trustme
from chart_servers import Reply, WebServer
from conftest import TIMEOUT_SECONDS, free_port, until
from tornado.iostream import IOStream
from tornado.tcpclient import TCPClient

from models.config.settings import ChartSecurity, FetchSettings
from models.errors import Invalid, Problem, TimedOut, Upstream
from models.supervision.process import Seconds
from supervisor.charts.fetcher import Fetcher
from supervisor.http import urls
from supervisor.http.client import Lookup, Request, Response
from supervisor.http.dns import Policy
from supervisor.http.urls import OriginLogin


@pytest.fixture
def web() -> Iterator[WebServer]:
    with chart_servers.web_server() as one:
        yield one


@pytest.fixture
def other() -> Iterator[WebServer]:
    with chart_servers.web_server() as one:
        yield one


def fetcher(*allowed: str, lookup: Lookup | None = None, private: bool = False, **limits: Any) -> Fetcher:
    return Fetcher(
        FetchSettings(**limits), ChartSecurity(allowed_hosts=allowed, block_private_networks=private), lookup
    )


def get(one: Fetcher, url: str, **facts: Any) -> Response:
    return asyncio.run(one.fetch(Request(urls.parse(url), **facts)))


def assert_refused(one: Fetcher, url: str, why: str = "is refused", **facts: Any) -> None:
    with pytest.raises(Invalid, match=why):
        get(one, url, **facts)


def fake_resolver(**addresses: str | list[str]) -> Lookup:
    """A resolver of these names. The answers of a list are used in turn; the last one is repeated."""
    left = {name: [found] if isinstance(found, str) else list(found) for name, found in addresses.items()}

    async def look(host: str, port: int) -> list[tuple[int, Any]]:
        answers = left[host.partition(".")[0]]
        address = answers.pop(0) if len(answers) > 1 else answers[0]
        return [
            (socket.AF_INET6, (one, port, 0, 0)) if ":" in one else (socket.AF_INET, (one, port))
            for one in address.split()
        ]

    return look


# Refused addresses


LOOPBACK = (
    "127.0.0.1", "127.1", "127.0.1", "127.255.255.254", "2130706433", "0x7f000001", "0x7f.0.0.1", "0177.0.0.1",
    "017700000001", "127.0.0.1.", "127.0x0.1", "localhost", "LOCALHOST", "localhost.", "a.localhost",
    "a.b.localhost.", "[::1]", "[0:0:0:0:0:0:0:1]", "[::ffff:127.0.0.1]", "[::ffff:7f00:1]", "[::127.0.0.1]",
    "[64:ff9b::127.0.0.1]", "[64:ff9b::7f00:1]", "[2002:7f00:1::]", "[2001:0:7f00:1::]",
    "[2001:0:4136:e378:8000:63bf:80ff:fffe]", "[fe80::5efe:127.0.0.1]", "[2001:db8::5efe:127.0.0.1]",
    "[2001:db8::200:5efe:7f00:1]",
)  # fmt: skip
UNICODE_SPELLINGS = (
    "\uff11\uff12\uff17.\uff10.\uff10.\uff11",
    "\u2460\u2461\u2466.\u24ea.\u24ea.\u2460",
    "127\u30020\u30020\u30021",
    "\uff4c\uff4f\uff43\uff41\uff4c\uff48\uff4f\uff53\uff54",
    "\u24dbocalhost",
)
"""In characters that names are mapped from: full width, circled, and the dots of other scripts."""
ALWAYS_REFUSED = (
    "169.254.169.254", "169.254.0.1", "[fe80::1]", "[febf::1]", "100.100.100.200", "[fd00:ec2::254]",
    "[fd20:ce::254]", "168.63.129.16", "192.0.0.192", "0.0.0.0", "0", "0.1.2.3", "[::]", "224.0.0.1",
    "239.255.255.250", "[ff02::1]", "255.255.255.255", "240.0.0.1", "[::ffff:169.254.169.254]",
    "[64:ff9b::a9fe:a9fe]", "[2002:a9fe:a9fe::]", "[::ffff:0.0.0.0]", "[64:ff9b:1::1]", "0xa9fea9fe", "2852039166",
    "0251.0376.0251.0376", "169.16689662",
)  # fmt: skip
PRIVATE = (
    "10.0.0.1", "10.255.255.255", "172.16.0.1", "172.31.255.255", "192.168.1.1", "100.64.0.1", "100.127.255.255",
    "[fc00::1]", "[fdff::1]", "[::ffff:10.0.0.1]", "[64:ff9b::192.168.0.1]", "0xa000001", "[fec0::1]",
)  # fmt: skip
PUBLIC = (
    "93.184.215.14", "172.15.0.1", "172.32.0.1", "192.169.0.1", "100.63.0.1", "100.128.0.1", "2606:2800:21f::1",
    "64:ff9b::5db8:d70e", "1.1.1.1",
)  # fmt: skip


@pytest.mark.parametrize("host", [*LOOPBACK, *UNICODE_SPELLINGS, *ALWAYS_REFUSED])
def test_internal_addresses_are_refused_in_every_notation(host: str) -> None:
    assert_refused(fetcher(), f"http://{host}:1/")


@pytest.mark.parametrize("host", PRIVATE)
def test_private_networks_are_refused_if_configured(host: str) -> None:
    assert_refused(fetcher(private=True), f"http://{host}:1/", "private")
    assert not Policy().refusal(urls.parse(f"http://{host}/").host)


@pytest.mark.parametrize("address", PUBLIC)
def test_public_addresses_are_allowed(address: str) -> None:
    assert Policy(block_private=True).refusal(address) is None


@pytest.mark.parametrize(
    "url",
    [
        "file:///etc/passwd", "ftp://x.example/", "gopher://x.example/", "//x.example/", "/etc/passwd", "x.example",
        "", "http://", "http:///x", "http://x.example:0/", "http://x.example:99999/", "http://x.example:x/",
        "http://x.example:/", "http://a b/", "http://x.example\\@127.0.0.1/", "http://127.0.0.1\\.x.example/",
        "http://x.example\n/", " http://x.example/", "http://x\t.example/", "http://a@b@127.0.0.1/",
        "http://%31%32%37.0.0.1/", "http://[::1/", "http://[fe80::1%25eth0]/", "http://x..example/", "http://.x/",
        "http://256.1.1.1/", "http://1.2.3.4.5/", "http://0x100000000/", "http://[::1]x/", "http://127.0.0.1:80:80/",
        "jar:http://x.example!/", "HTTP:127.0.0.1",
        "http://" + "a" * 300 + "/",
    ],
)  # fmt: skip
def test_invalid_and_deceptive_urls_are_refused(url: str) -> None:
    with pytest.raises(Invalid):
        urls.parse(url)


@pytest.mark.parametrize(
    ("url", "host"),
    [
        ("http://x.example@127.0.0.1/", "127.0.0.1"),
        ("http://x.example:80@127.0.0.1/", "127.0.0.1"),
        ("http://x.example%2f@127.0.0.1/x@y/", "127.0.0.1"),
        ("http://127.0.0.1#@x.example/", "127.0.0.1"),
        ("http://127.0.0.1?@x.example/", "127.0.0.1"),
        ("http://BÜCHER.example./", "xn--bcher-kva.example"),
        ("http://[0:0::1]/", "::1"),
        ("http://user%40x.example:p@127.0.0.1/", "127.0.0.1"),
    ],
)
def test_the_host_of_a_url_is_normalized(url: str, host: str) -> None:
    assert urls.parse(url).host == host


def test_a_login_in_a_url_is_not_printed() -> None:
    found = urls.parse("http://me:s%40cret@x.example/a?b=c")
    assert found.login == OriginLogin("me", "s@cret")
    assert str(found) == "http://x.example/a?b=c"
    assert "s@cret" not in repr(found)


def test_a_host_is_refused_if_one_of_its_addresses_is_internal() -> None:
    for answer in ("127.0.0.1", "169.254.169.254", "93.184.215.14 127.0.0.1", "::ffff:7f00:1", "2606:2800::1 fe80::1"):
        assert_refused(fetcher(lookup=fake_resolver(inside=answer)), "http://inside.example:1/")


def test_a_host_is_resolved_once_against_dns_rebinding(web: WebServer) -> None:
    """DNS rebinding: the second answer of the resolver is loopback."""
    requested = []
    look = fake_resolver(rebinding=["93.184.215.14", "127.0.0.1"])

    async def counted(host: str, port: int) -> list[tuple[int, Any]]:
        requested.append(host)
        return await look(host, port)

    web.pages["/"] = b"inside"
    one = fetcher(lookup=counted, timeout=Seconds(0.3))
    with pytest.raises(Problem) as result:
        get(one, f"http://rebinding.example:{web.port}/")
    assert isinstance(result.value, Upstream | TimedOut)
    assert requested == ["rebinding.example"]
    assert_refused(one, f"http://rebinding.example:{web.port}/")
    assert web.seen == []


def test_the_fetcher_connects_to_the_address_that_it_checked(web: WebServer) -> None:
    """The name is an allowed host, so that the connection to its first address can be observed."""
    web.pages["/"] = b"here"
    one = fetcher(f"inside.example:{web.port}", lookup=fake_resolver(inside=["127.0.0.1", "192.0.2.1"]))
    assert get(one, f"http://inside.example:{web.port}/").body == b"here"
    assert web.seen[0][2]["host"] == f"inside.example:{web.port}"


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
@pytest.mark.parametrize(
    "inside",
    [
        "http://127.0.0.1:{}/secret",
        "http://localhost:{}/secret",
        "http://0x7f.1:{}/secret",
        "//[::ffff:127.0.0.1]:{}/secret",
        "http://169.254.169.254/",
        "file:///etc/passwd",
        "http://me:pw@{}/",
    ],
)
def test_a_redirect_to_an_internal_address_is_refused(
    web: WebServer, other: WebServer, status: int, inside: str
) -> None:
    other.pages["/secret"] = b"secret"
    web.pages["/"] = (status, {"Location": inside.format(other.port)}, b"")
    assert_refused(fetcher(web.host_port), f"{web.url}/")
    assert other.seen == []


def test_each_redirect_is_resolved_and_checked_again(web: WebServer) -> None:
    """The second answer of the resolver for the same name is loopback."""
    web.pages["/a"] = (302, {"Location": "http://turning.example/b"}, b"")
    look = fake_resolver(turning=["10.0.0.1", "127.0.0.1"])
    asyncio.run(_resolve_once(look))
    assert_refused(fetcher(web.host_port, lookup=_resolver_with_loopback(look, web)), f"{web.url}/a", "loopback")


async def _resolve_once(look: Lookup) -> None:
    assert (await look("turning.example", 80))[0][1][0] == "10.0.0.1"


def _resolver_with_loopback(look: Lookup, web: WebServer) -> Lookup:
    async def found(host: str, port: int) -> list[tuple[int, Any]]:
        return [(socket.AF_INET, ("127.0.0.1", port))] if host == "127.0.0.1" else await look(host, port)

    return found


def test_an_allowed_host_is_a_host_and_a_port(web: WebServer, other: WebServer) -> None:
    web.pages["/"] = other.pages["/"] = b"yes"
    one = fetcher(web.host_port)
    assert get(one, f"{web.url}/").body == b"yes"
    assert get(one, f"http://0x7f.1:{web.port}/").body == b"yes"
    assert_refused(one, f"{other.url}/")
    assert_refused(one, f"http://localhost:{web.port}/")
    assert get(fetcher(f"localhost:{web.port}"), f"http://LocalHost.:{web.port}/").body == b"yes"


def test_proxies_of_the_environment_are_ignored(
    web: WebServer, other: WebServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("http_proxy", "HTTP_PROXY", "https_proxy", "all_proxy"):
        monkeypatch.setenv(name, other.url)
    web.pages["/"] = b"direct"
    assert get(fetcher(web.host_port), f"{web.url}/").body == b"direct"
    assert other.seen == []


# Allowed requests


def test_redirects_are_followed_up_to_the_limit(web: WebServer) -> None:
    for number in range(4):
        web.pages[f"/{number}"] = (302, {"Location": f"{number + 1}"}, b"")
    web.pages["/4"] = b"there"
    assert get(fetcher(web.host_port, max_redirects=4), f"{web.url}/0").body == b"there"
    with pytest.raises(Upstream, match="more than 3 redirects"):
        get(fetcher(web.host_port, max_redirects=3), f"{web.url}/0")
    with pytest.raises(Upstream, match="more than 0 redirects"):
        get(fetcher(web.host_port, max_redirects=0), f"{web.url}/0")


def test_a_login_is_sent_to_its_own_origin_only(web: WebServer, other: WebServer) -> None:
    login = OriginLogin("me", "secret")
    web.pages["/away"] = (302, {"Location": f"{other.url}/x"}, b"")
    web.pages["/near"] = (302, {"Location": "/x"}, b"")
    web.pages["/x"] = other.pages["/x"] = b"x"
    one = fetcher(web.host_port, other.host_port)
    expected = "Basic " + base64.b64encode(b"me:secret").decode()
    get(one, f"{web.url}/near", login=login)
    assert [headers.get("authorization") for _, _, headers in web.seen] == [expected, expected]
    get(one, f"{web.url}/away", login=login)
    assert "authorization" not in other.seen[0][2]
    get(one, f"{web.url}/away", login=login, pass_login=True)
    assert other.seen[1][2]["authorization"] == expected
    get(one, f"{web.url}/away", token="bearer-of-it", pass_login=True)
    assert "authorization" not in other.seen[2][2]


def test_a_response_is_written_to_a_file_with_its_size(web: WebServer, tmp_path: Path) -> None:
    body = bytes(range(256)) * 4096
    web.pages["/file"] = body
    found = get(fetcher(web.host_port), f"{web.url}/file", into=tmp_path / "file", max_bytes=len(body))
    assert (tmp_path / "file").read_bytes() == body
    assert (found.size, found.body) == (len(body), b"")


def _endless(handler: BaseHTTPRequestHandler) -> Reply:
    handler.send_response(200)
    handler.end_headers()
    try:
        while True:
            handler.wfile.write(bytes(65536))
    except OSError:
        handler.close_connection = True
        raise


def test_a_response_above_its_limit_is_refused_while_it_is_received(web: WebServer, tmp_path: Path) -> None:
    web.pages |= {
        "/sized": bytes(2000),
        "/endless": _endless,
        "/packed": (200, {"Content-Encoding": "gzip"}, gzip.compress(bytes(10**7))),
    }
    one = fetcher(web.host_port)
    for path in ("/sized", "/endless"):
        assert_refused(one, f"{web.url}{path}", "larger than 1000 bytes", max_bytes=1000, into=tmp_path / "file")
        with pytest.raises(Upstream, match="larger than 1000 bytes"):
            get(one, f"{web.url}{path}", max_bytes=1000)
    with pytest.raises(Upstream, match="larger than 1000000 bytes"):
        get(one, f"{web.url}/packed", max_bytes=10**6, unpack=True)
    assert (tmp_path / "file").stat().st_size <= 1000


def test_a_compressed_response_is_unpacked_only_on_request(web: WebServer) -> None:
    packed = gzip.compress(b"index")
    web.pages["/"] = (200, {"Content-Encoding": "gzip"}, packed)
    one = fetcher(web.host_port)
    assert get(one, f"{web.url}/", unpack=True).body == b"index"
    assert get(one, f"{web.url}/").body == packed
    assert [headers.get("accept-encoding") for _, _, headers in web.seen] == ["gzip", None]


def test_a_slow_response_is_a_timeout(web: WebServer) -> None:
    stop = threading.Event()

    def slow(handler: BaseHTTPRequestHandler) -> Reply:
        stop.wait(20)
        return 200, {}, b""

    web.pages["/slow"] = slow
    with pytest.raises(TimedOut, match=r"svc\.fetch\.timeout"):
        get(fetcher(web.host_port, timeout=Seconds(0.2)), f"{web.url}/slow")
    stop.set()


def test_the_timeout_includes_all_redirects(web: WebServer) -> None:
    def loop(handler: BaseHTTPRequestHandler) -> Reply:
        threading.Event().wait(0.1)
        return 302, {"Location": "/"}, b""

    web.pages["/"] = loop
    with pytest.raises(TimedOut):
        get(fetcher(web.host_port, timeout=Seconds(0.35), max_redirects=100), f"{web.url}/")


def test_a_fetch_that_is_cancelled_as_it_connects_closes_its_connection(
    web: WebServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun: list[IOStream] = []
    create = TCPClient._create_stream

    def cancelled_at_the_end(client: TCPClient, *arguments: Any, **options: Any) -> Any:
        stream, connecting = create(client, *arguments, **options)
        begun.append(stream)
        task = asyncio.current_task()
        assert task is not None
        asyncio.get_running_loop().call_soon(lambda: connecting.add_done_callback(lambda _: task.cancel()))
        return stream, connecting

    monkeypatch.setattr(TCPClient, "_create_stream", cancelled_at_the_end)

    async def fetch() -> None:
        with pytest.raises(asyncio.CancelledError):
            await asyncio.create_task(fetcher(web.host_port).fetch(Request(urls.parse(f"{web.url}/"))))
        assert [stream.closed() for stream in begun] == [True]

    asyncio.run(fetch())


def test_connection_failures_are_reported(web: WebServer) -> None:
    port = free_port()
    with pytest.raises(Upstream, match="refused"):
        get(fetcher(f"127.0.0.1:{port}"), f"http://127.0.0.1:{port}/")

    async def nowhere(host: str, port: int) -> list[tuple[int, Any]]:
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")

    with pytest.raises(Upstream, match="the host does not exist"):
        get(fetcher(lookup=nowhere), "http://nowhere.example/")

    def cut(handler: BaseHTTPRequestHandler) -> Reply:
        handler.close_connection = True
        return 200, {"Content-Length": "100", "Connection": "close"}, b"less"

    web.pages["/"] = cut
    with pytest.raises(Upstream, match="cannot be reached"):
        get(fetcher(web.host_port), f"{web.url}/")


def test_a_server_that_does_not_speak_http_is_reported() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]

        def answer() -> None:
            connection, _ = server.accept()
            connection.recv(1000)
            connection.sendall(b"SSH-2.0-x\r\n\r\n")
            connection.close()

        threading.Thread(target=answer, daemon=True).start()
        with pytest.raises(Upstream):
            get(fetcher(f"127.0.0.1:{port}"), f"http://127.0.0.1:{port}/")


# TLS


@pytest.fixture(scope="module")
def authority() -> trustme.CA:
    return trustme.CA()


@pytest.fixture
def secure(authority: trustme.CA) -> Iterator[WebServer]:
    with chart_servers.web_server() as one:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        authority.issue_cert("charts.example").configure_cert(context)
        one.server.socket = context.wrap_socket(one.server.socket, server_side=True)
        yield one


def _trust_authority(monkeypatch: pytest.MonkeyPatch, folder: Path, authority: trustme.CA) -> None:
    from supervisor.http import tls

    file = folder / "ca.pem"
    authority.cert_pem.write_to_path(str(file))
    monkeypatch.setenv("SSL_CERT_FILE", str(file))
    tls.system_context.cache_clear()


def test_a_certificate_is_verified_against_the_host_name(
    secure: WebServer, authority: trustme.CA, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _trust_authority(monkeypatch, tmp_path, authority)
    secure.pages["/"] = b"safe"
    allowed = (f"charts.example:{secure.port}", f"other.example:{secure.port}")
    one = fetcher(*allowed, lookup=fake_resolver(charts="127.0.0.1", other="127.0.0.1"))
    assert get(one, f"https://charts.example:{secure.port}/").body == b"safe"
    with pytest.raises(Upstream, match="certificate is not valid"):
        get(one, f"https://other.example:{secure.port}/")
    assert get(one, f"https://other.example:{secure.port}/", verify=False).body == b"safe"


def test_an_untrusted_certificate_is_refused(
    secure: WebServer, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    _trust_authority(monkeypatch, tmp_path, trustme.CA())
    one = fetcher(f"charts.example:{secure.port}", lookup=fake_resolver(charts="127.0.0.1"))
    with pytest.raises(Upstream, match="certificate is not valid"):
        get(one, f"https://charts.example:{secure.port}/")


# Sending


def test_a_file_is_sent_with_its_length(web: WebServer, tmp_path: Path) -> None:
    body = bytes(300_000)
    (tmp_path / "file").write_bytes(body)
    web.pages["/up"] = (201, {}, b"")
    assert get(fetcher(web.host_port), f"{web.url}/up", method="PUT", body=tmp_path / "file").status == 201
    assert web.bodies == [body]
    assert web.seen[0][2]["content-length"] == "300000"


def test_a_response_before_the_end_of_the_request_is_read(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        done = threading.Event()

        def answer() -> None:
            connection, _ = server.accept()
            connection.recv(1000)
            connection.sendall(b"HTTP/1.1 413 Too Large\r\nContent-Length: 0\r\n\r\n")
            done.wait(20)
            connection.close()

        threading.Thread(target=answer, daemon=True).start()
        (tmp_path / "file").write_bytes(bytes(30_000_000))
        one = fetcher(f"127.0.0.1:{port}", timeout=Seconds(10))
        assert get(one, f"http://127.0.0.1:{port}/up", method="PUT", body=tmp_path / "file").status == 413
        done.set()


def test_a_cancelled_fetch_closes_its_connection(web: WebServer) -> None:
    disconnected = threading.Event()

    def endless(handler: BaseHTTPRequestHandler) -> Reply:
        try:
            return _endless(handler)
        finally:
            disconnected.set()

    web.pages["/"] = endless

    async def cancel_fetch() -> None:
        task = asyncio.create_task(
            fetcher(web.host_port).fetch(Request(urls.parse(f"{web.url}/"), max_bytes=10**12, into=Path("/dev/null")))
        )
        await asyncio.wait_for(until(lambda: bool(web.seen)), TIMEOUT_SECONDS)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(cancel_fetch())
    assert disconnected.wait(10)
