"""Parses http and https URLs strictly, so that the checked host is the host that is reached."""

from __future__ import annotations

import ipaddress
import re
import socket
from urllib.parse import quote, unquote, urljoin, urlsplit

from attrs import evolve, field, frozen

from models.errors import Invalid

_LABEL = re.compile(r"[a-z0-9_]([a-z0-9_-]{0,61}[a-z0-9_])?")
_NETLOC = re.compile(r"(\[[0-9A-Fa-f:.]+\]|[^\[\]:]+)(:[0-9]{1,5})?")
_PORTS = {"http": 80, "https": 443}
_MAX_HOST_CHARACTERS = 254
"""Including a trailing dot."""
_UNQUOTED = "/%:@!$&'()*+,;=~-._?"


@frozen
class OriginLogin:
    """A username and a password for one origin."""

    username: str
    password: str = field(repr=False)


@frozen
class Url:
    """A URL. `host` is in lower case and ASCII; an address is in canonical form without brackets."""

    scheme: str
    host: str
    port: int
    path: str
    query: str = ""
    login: OriginLogin | None = None

    @property
    def origin(self) -> tuple[str, str, int]:
        return self.scheme, self.host, self.port

    @property
    def authority(self) -> str:
        """Host, and port unless it is the scheme's default, as in a Host header."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return host if self.port == _PORTS[self.scheme] else f"{host}:{self.port}"

    @property
    def target(self) -> str:
        return f"{self.path}?{self.query}" if self.query else self.path

    def __str__(self) -> str:
        """The URL without its login, safe to show."""
        return f"{self.scheme}://{self.authority}{self.target}"

    def below(self, reference: str) -> Url:
        """Resolves a reference of an index at this URL as helm does: below this path, with this query."""
        folder = f"{self.scheme}://{self.authority}{self.path.rstrip('/')}/"
        joined = _join(folder, reference, f"a URL in the index of {self}")
        is_absolute = re.match(r"[a-z][a-z0-9+.-]*:", reference, re.IGNORECASE) is not None
        return joined if is_absolute else evolve(joined, query=self.query)

    def linked(self, reference: str) -> Url:
        """Resolves a link or redirect found at this URL. Raises `Invalid`, also if it contains a login."""
        joined = _join(str(self), reference, f"the redirect or link of {self}")
        if joined.login:
            raise Invalid(f"{joined} is refused: a redirect may not contain a login")
        return joined

    def with_query(self, **values: str) -> Url:
        """Adds parameters to the query."""
        added = "&".join(f"{quote(name, safe='')}={quote(value, safe='')}" for name, value in values.items())
        return evolve(self, query="&".join(part for part in (self.query, added) if part))


def parse(text: str, what: str = "url") -> Url:
    """Parses a URL. Raises `Invalid` without quoting a possible password."""
    try:
        return _parse(text)
    except ValueError as error:
        raise Invalid(f"{what} is refused: {error}") from None


def _join(base: str, reference: str, what: str) -> Url:
    """Raises `Invalid`."""
    try:
        return parse(urljoin(base, reference), what)
    except ValueError:
        raise Invalid(f"{what} is refused: it cannot be parsed") from None


def _parse(text: str) -> Url:
    if re.search(r"[\x00-\x1f\x7f\\]", text) or text != text.strip():
        raise ValueError("it has characters that URLs do not allow")
    parts = urlsplit(text)
    if parts.scheme not in _PORTS:
        raise ValueError(f"{parts.scheme[:20] or 'a text without a scheme'} is neither http nor https")
    userinfo, at, netloc = parts.netloc.rpartition("@")
    if "@" in userinfo or not _NETLOC.fullmatch(netloc):
        raise ValueError("its host cannot be parsed")
    login = None
    if at:
        name, _, password = userinfo.partition(":")
        login = OriginLogin(unquote(name), unquote(password))
    port = parts.port if parts.port is not None else _PORTS[parts.scheme]
    if port == 0:
        raise ValueError("its port is 0")
    path = quote(parts.path or "/", safe=_UNQUOTED.rstrip("?"))
    return Url(parts.scheme, host(parts.hostname or ""), port, path, quote(parts.query, safe=_UNQUOTED), login)


def host(text: str) -> str:
    """The canonical form of a host. Raises `ValueError`."""
    if ":" in text:
        return str(ipaddress.IPv6Address(text if "%" not in text else ""))
    if len(text) > _MAX_HOST_CHARACTERS:  # encoding a long name is slow
        raise ValueError("its host is not valid")
    try:
        name = text.rstrip(".") if text.isascii() else text.encode("idna").decode().rstrip(".")
    except UnicodeError:
        raise ValueError("its host is not valid") from None
    name = name.lower()
    if (
        not name
        or len(name) > _MAX_HOST_CHARACTERS - 1
        or not all(_LABEL.fullmatch(label) for label in name.split("."))
    ):
        raise ValueError("its host is not valid")
    if re.fullmatch(r"[0-9]+|0x[0-9a-f]*", name.rpartition(".")[2]):  # an address: whole, short, hex or octal
        try:
            return str(ipaddress.IPv4Address(socket.inet_aton(name)))
        except OSError:
            raise ValueError("its host is not a valid address") from None
    return name


def host_port(text: str) -> tuple[str, int]:
    """A `host:port` of `svc.security.allowed-hosts` in canonical form."""
    name, _, port = text.rpartition(":")
    return host(name.removeprefix("[").removesuffix("]")), int(port)
