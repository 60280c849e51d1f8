"""Identity providers for tests: the `oidc-provider` of npm, a double with the responses of the test, and a browser."""

from __future__ import annotations

import contextlib
import http.client
import itertools
import json
import subprocess
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urljoin, urlsplit

from conftest import ROOT, TIMEOUT_SECONDS, Answer, Server
from requirements import OIDC_PROVIDER, OIDC_PROVIDER_FOLDER, require
from users import cookies_of

HOST = "pilothouse.example"
PUBLIC_URL = f"https://{HOST}"
CALLBACK = f"{PUBLIC_URL}/login/oidc/callback"
CLIENT_ID, SECRET = "pilothouse test", "s3cret+of/the:client%"
_ADDRESSES = itertools.count(1)


def settings(issuer: str, outbound: Any = None, **oidc: Any) -> dict[str, Any]:
    """The configuration of a server that people log in to by this provider."""
    server: dict[str, Any] = {"public-url": PUBLIC_URL, "allowed-hosts": [HOST], "trusted-proxies": ["127.0.0.1"]}
    if outbound is not None:
        server["outbound"] = outbound
    login = {"issuer": issuer, "client-id": CLIENT_ID, "client-secret": SECRET, **oidc}
    return {"server": server, "tracker": {"security": {"open-mode": False, "oidc": login}}}


class RealProvider:
    """`oidc-provider`, which logs in whom the test names."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process
        self.port = int(self._line())
        self.issuer = f"http://127.0.0.1:{self.port}"

    def _line(self) -> str:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        assert line, "the provider ended"
        return line

    def _send(self, **command: Any) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(command) + "\n")
        self._process.stdin.flush()
        assert self._line() == "done\n"

    def log_in(self, subject: str, name: str, *groups: str) -> None:
        """Sets the person who logs in from now on."""
        self._send(sub=subject, claims={"preferred_username": name, "groups": groups}, error=None)

    def refuse(self, error: str) -> None:
        self._send(error=error)

    def rotate_keys(self) -> None:
        self._send(rotate=True)

    def discovery(self) -> Any:
        with contextlib.closing(http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)) as connection:
            connection.request("GET", "/.well-known/openid-configuration")
            return json.loads(connection.getresponse().read())


@contextlib.contextmanager
def real_provider(
    algorithm: str = "RS256",
    auth: str = "client_secret_basic",
    claims_in: str = "id_token",
    callback: str = CALLBACK,
) -> Iterator[RealProvider]:
    require("node", "npm", OIDC_PROVIDER)
    options = {
        "redirectUri": callback, "clientId": CLIENT_ID, "secret": SECRET, "algorithm": algorithm, "auth": auth,
        "claimsIn": claims_in,
    }  # fmt: skip
    script = ROOT / "tests" / "accounts" / "oidc_provider.mjs"
    command = ["node", str(script), str(OIDC_PROVIDER_FOLDER), json.dumps(options)]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    ) as process:
        try:
            yield RealProvider(process)
        finally:
            process.kill()


class Browser:
    """Follows redirects between a server, which is reached by its public URL, and a provider; keeps their cookies."""

    def __init__(self, server: Server) -> None:
        self.server = server
        number = next(_ADDRESSES)
        self.address = f"198.18.{number // 256}.{number % 256}"
        """Each browser has one of its own, since failed logins are limited by it."""
        self.jars: dict[int, dict[str, str]] = {}

    def request(self, url: str) -> Answer:
        """Sends one request."""
        parts = urlsplit(url)
        is_ours = parts.netloc in ("", HOST)
        port = self.server.port if is_ours else parts.port or 80
        jar = self.jars.setdefault(port, {})
        headers = {"Host": HOST, "X-Forwarded-For": self.address} if is_ours else {"Host": parts.netloc}
        headers |= {"Accept": "text/html"}
        headers |= {"Cookie": "; ".join(f"{name}={value}" for name, value in jar.items())} if jar else {}
        with contextlib.closing(http.client.HTTPConnection("127.0.0.1", port, timeout=60)) as connection:
            connection.request("GET", f"{parts.path or '/'}?{parts.query}".rstrip("?"), headers=headers)
            response = connection.getresponse()
            answer = Answer(response.status, response.headers, response.read())
        for name, value in cookies_of(answer).items():
            jar[name] = value.partition(";")[0]
        return answer

    def begin(self, target: str = "/profile") -> str:
        """Begins a login; returns the URL of the provider."""
        answer = self.request(f"/login/oidc?next={target}")
        assert answer.status == 303, answer
        return str(answer.headers["Location"])

    def follow(self, url: str, until: str = "") -> tuple[Answer, str]:
        """Follows redirects up to a URL that begins so, or to the end; returns the last response and that URL."""
        for _ in range(10):
            if until and url.startswith(until):
                return Answer(0, http.client.HTTPMessage(), b""), url
            answer = self.request(url)
            location = answer.headers.get("Location")
            if answer.status not in (302, 303) or location is None:
                return answer, url
            url = urljoin(url, location)
        raise AssertionError(f"redirects without an end: {url}")

    def log_in(self, target: str = "/profile") -> Answer:
        """Logs in by the provider; returns the response of the callback."""
        _, url = self.follow(self.begin(target), CALLBACK)
        return self.request(url)

    def me(self) -> tuple[str, str] | int:
        """The name and the role of the account; the status where there is none."""
        answer = self.request("/api/v1/me")
        return (answer.json["username"], answer.json["role"]) if answer.status == 200 else answer.status


def query_of(url: str) -> dict[str, str]:
    return {name: values[-1] for name, values in parse_qs(urlsplit(url).query).items()}


Respond = Callable[["Request"], None]


class Request(BaseHTTPRequestHandler):
    """A request to the double."""

    protocol_version = "HTTP/1.0"
    body = b""

    def do_GET(self) -> None:
        path = self.path.partition("?")[0]
        double: Double = self.server.double  # type: ignore[attr-defined]
        self.body = self.rfile.read(int(self.headers.get("Content-Length", "0")))
        double.requests.append(path)
        with contextlib.suppress(OSError):  # the server has hung up
            double.responses[path](self)

    def do_POST(self) -> None:
        self.do_GET()

    def answer(self, status: int, body: bytes, **headers: str) -> None:
        self.send_response(status)
        for name, value in {"Content-Type": "application/json", **headers}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *values: object) -> None:
        """Logs nothing."""


class Double:
    """A provider whose documents and responses are the test's."""

    DISCOVERY, KEYS, TOKEN, USER_INFO = "/.well-known/openid-configuration", "/jwks", "/token", "/me"

    def __init__(self, listener: ThreadingHTTPServer) -> None:
        self.port = int(listener.server_address[1])
        self.issuer = f"http://127.0.0.1:{self.port}"
        self.requests: list[str] = []
        self.ended = threading.Event()
        self.responses: dict[str, Respond] = {}
        self.document: dict[str, Any] = {
            "issuer": self.issuer,
            "authorization_endpoint": f"{self.issuer}/auth",
            "token_endpoint": f"{self.issuer}{self.TOKEN}",
            "jwks_uri": f"{self.issuer}{self.KEYS}",
            "userinfo_endpoint": f"{self.issuer}{self.USER_INFO}",
        }
        self.set(self.DISCOVERY, self.document)

    def set(self, path: str, document: object, status: int = 200) -> None:
        body = json.dumps(document).encode()
        self.responses[path] = lambda request: request.answer(status, body)

    def hang(self, request: Request) -> None:
        self.ended.wait(TIMEOUT_SECONDS * 4)


@contextlib.contextmanager
def double_provider() -> Iterator[Double]:
    with ThreadingHTTPServer(("127.0.0.1", 0), Request) as listener:
        listener.daemon_threads = True
        double = Double(listener)
        listener.double = double  # type: ignore[attr-defined]
        thread = threading.Thread(target=listener.serve_forever, daemon=True)
        thread.start()
        try:
            yield double
        finally:
            double.ended.set()
            listener.shutdown()
            thread.join()


def secrets_in(folder: Path, *texts: str) -> list[str]:
    """The texts that any file below a folder has."""
    contents = [path.read_bytes() for path in folder.rglob("*") if path.is_file()]
    return [text for text in texts if any(text.encode() in content for content in contents)]
