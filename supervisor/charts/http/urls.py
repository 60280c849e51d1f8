"""URLs of http and https, read once and strictly, so that what was checked is what is reached."""

from __future__ import annotations

import ipaddress
import re
import socket
from urllib.parse import quote, unquote, urljoin, urlsplit

from attrs import evolve, field, frozen

from models.errors import Invalid

_LABEL = re.compile(r"[a-z0-9_]([a-z0-9_-]{0,61}[a-z0-9_])?")
_PLACE = re.compile(r"(\[[0-9A-Fa-f:.]+\]|[^\[\]:]+)(:[0-9]{1,5})?")
_PORTS = {"http": 80, "https": 443}
_LONGEST_HOST = 254
"""Letters, with a dot at the end."""
_AS_IT_IS = "/%:@!$&'()*+,;=~-._?"


@frozen
class Login:
    """A name and a password, for one origin."""

    username: str
    password: str = field(repr=False)


@frozen
class Url:
    """Where a request goes. `host` is in lower case and ASCII, an address in its plain form and without brackets."""

    scheme: str
    host: str
    port: int
    path: str
    query: str = ""
    login: Login | None = None

    @property
    def origin(self) -> tuple[str, str, int]:
        return self.scheme, self.host, self.port

    @property
    def authority(self) -> str:
        """Host, and port where it is not the scheme's own, as a Host header has them."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return host if self.port == _PORTS[self.scheme] else f"{host}:{self.port}"

    @property
    def target(self) -> str:
        return f"{self.path}?{self.query}" if self.query else self.path

    def __str__(self) -> str:
        """The whole URL without its login: it may be shown."""
        return f"{self.scheme}://{self.authority}{self.target}"

    def below(self, reference: str) -> Url:
        """What `reference` means in an index that lies here, as helm reads it: below this path, with this query."""
        folder = f"{self.scheme}://{self.authority}{self.path.rstrip('/')}/"
        found = _joined(folder, reference)
        is_whole = re.match(r"[a-z][a-z0-9+.-]*:", reference, re.IGNORECASE) is not None
        return found if is_whole else evolve(found, query=self.query)

    def linked(self, reference: str) -> Url:
        """Where a link or redirect found here leads. Raises `Invalid`, also where it brings a login with it."""
        found = _joined(str(self), reference)
        if found.login:
            raise Invalid(f"{found} is refused: a redirect may not bring a login")
        return found

    def with_query(self, **values: str) -> Url:
        """With these added to its query."""
        added = "&".join(f"{quote(name, safe='')}={quote(value, safe='')}" for name, value in values.items())
        return evolve(self, query="&".join(part for part in (self.query, added) if part))


def parse(text: str, what: str = "url") -> Url:
    """Reads a URL. Raises `Invalid`, never showing what may be a password."""
    try:
        return _parsed(text)
    except ValueError as error:
        raise Invalid(f"{what} is refused: {error}") from None


def _joined(base: str, reference: str) -> Url:
    """Raises `Invalid`."""
    try:
        return parse(urljoin(base, reference))
    except ValueError:
        raise Invalid("url is refused: what leads there cannot be read") from None


def _parsed(text: str) -> Url:
    if re.search(r"[\x00-\x1f\x7f\\]", text) or text != text.strip():
        raise ValueError("it has characters that a URL cannot have")
    parts = urlsplit(text)
    if parts.scheme not in _PORTS:
        raise ValueError(f"{parts.scheme[:20] or 'a text without a scheme'} is neither http nor https")
    userinfo, at, place = parts.netloc.rpartition("@")
    if "@" in userinfo or not _PLACE.fullmatch(place):
        raise ValueError("its host cannot be read")
    login = None
    if at:
        name, _, password = userinfo.partition(":")
        login = Login(unquote(name), unquote(password))
    port = parts.port if parts.port is not None else _PORTS[parts.scheme]
    if port == 0:
        raise ValueError("its port is 0")
    path = quote(parts.path or "/", safe=_AS_IT_IS.rstrip("?"))
    return Url(parts.scheme, host(parts.hostname or ""), port, path, quote(parts.query, safe=_AS_IT_IS), login)


def host(text: str) -> str:
    """A host in its plain form: of all the ways to write an address the usual one. Raises `ValueError`."""
    if ":" in text:
        return str(ipaddress.IPv6Address(text if "%" not in text else ""))
    if len(text) > _LONGEST_HOST:  # to encode what is long takes long
        raise ValueError("its host is no name")
    try:
        name = text.rstrip(".") if text.isascii() else text.encode("idna").decode().rstrip(".")
    except UnicodeError:
        raise ValueError("its host is no name") from None
    name = name.lower()
    if not name or len(name) > _LONGEST_HOST - 1 or not all(_LABEL.fullmatch(label) for label in name.split(".")):
        raise ValueError("its host is no name")
    if re.fullmatch(r"[0-9]+|0x[0-9a-f]*", name.rpartition(".")[2]):  # an address: whole, short, hex or octal
        try:
            return str(ipaddress.IPv4Address(socket.inet_aton(name)))
        except OSError:
            raise ValueError("its host is no address") from None
    return name


def host_port(text: str) -> tuple[str, int]:
    """A `host:port` of `svc.security.allowed-hosts` in the form in which URLs have it."""
    name, _, port = text.rpartition(":")
    return host(name.removeprefix("[").removesuffix("]")), int(port)
