"""Which addresses may be reached on a caller's behalf: never our own machine, its neighbours on the link, or a cloud's
metadata, however they are written; and no private network where the operator says so.
"""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import socket
import threading
from collections.abc import Iterator
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network
from typing import Any

from attrs import frozen

Address = IPv4Address | IPv6Address

_NEVER: dict[str, tuple[str, ...]] = {
    "loopback": ("127.0.0.0/8", "::1/128"),
    "of cloud metadata": (
        "169.254.169.254/32", "100.100.100.200/32", "168.63.129.16/32", "192.0.0.192/32", "fd00:ec2::/32",
        "fd20:ce::254/128",
    ),
    "link-local": ("169.254.0.0/16", "fe80::/10"),
    "unspecified": ("0.0.0.0/8", "::/128"),
    "multicast": ("224.0.0.0/4", "ff00::/8"),
    "reserved": ("240.0.0.0/4", "192.0.0.0/24", "100::/64", "64:ff9b:1::/48"),
}  # fmt: skip
_PRIVATE = ("10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16", "100.64.0.0/10", "fc00::/7", "fec0::/10")

_Network = IPv4Network | IPv6Network
_networks: dict[str, list[_Network]] = {
    why: [ipaddress.ip_network(text) for text in texts] for why, texts in _NEVER.items()
}
_private: list[_Network] = [ipaddress.ip_network(text) for text in _PRIVATE]
_NAT64 = IPv6Network("64:ff9b::/96")
_COMPATIBLE = IPv6Network("::/96")
_TRANSLATED = IPv6Network("::ffff:0:0:0/96")
_ISATAP = 0x5EFE


@frozen
class Policy:
    """`allowed` are hosts (as URLs are read: lower case, without a dot at the end) with their ports."""

    block_private: bool = False
    allowed: frozenset[tuple[str, int]] = frozenset()

    def is_allowed(self, host: str, port: int) -> bool:
        """Whether the operator has made an exception of it, whatever its address."""
        return (host, port) in self.allowed

    def refusal(self, address: str) -> str | None:
        """Why this address may not be reached, in one word or two; `None` where it may."""
        try:
            found = ipaddress.ip_address(address)
        except ValueError:
            return "not to be read"
        for form in _forms(found):
            for why, networks in _networks.items():
                if any(form in network for network in networks):
                    return why
            if self.block_private and any(form in network for network in _private):
                return "private"
        return None


def _forms(address: Address) -> Iterator[Address]:
    """The address, and every IPv4 address that may lie within it."""
    yield address
    if isinstance(address, IPv4Address):
        return
    if address.scope_id:
        yield IPv6Address("fe80::1")  # what is of a link only
    low = IPv4Address(int(address) & 0xFFFFFFFF)
    if address.ipv4_mapped:
        yield address.ipv4_mapped
    if address.sixtofour:
        yield address.sixtofour
    if address.teredo:
        yield from address.teredo
    is_isatap = (int(address) >> 32) & 0xFDFFFFFF == _ISATAP
    if address in _NAT64 or address in _COMPATIBLE or address in _TRANSLATED or is_isatap:
        yield low


Addresses = list[tuple[int, Any]]

_AT_ONCE = 16


class Names:
    """Each name is looked up once at a time; an address is no name, and waits for nobody."""

    def __init__(self) -> None:
        self._asked: dict[tuple[str, int], asyncio.Task[Addresses]] = {}
        self._turns = asyncio.Semaphore(_AT_ONCE)

    async def __call__(self, host: str, port: int) -> Addresses:
        """Raises `OSError` where there is no such host."""
        with contextlib.suppress(socket.gaierror):
            return _found(host, port, socket.AI_NUMERICHOST)
        key = host, port
        task = self._asked.get(key)
        if task is None:
            task = asyncio.get_running_loop().create_task(self._look(host, port), name=f"lookup {host}")
            self._asked[key] = task
            task.add_done_callback(lambda done: self._is_over(key, done))
        return await asyncio.shield(task)

    def _is_over(self, key: tuple[str, int], task: asyncio.Task[Addresses]) -> None:
        """Its failure is told to those who wait; where all have left, nobody has to be warned of it."""
        del self._asked[key]
        if not task.cancelled():
            task.exception()

    async def _look(self, host: str, port: int) -> Addresses:
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[Addresses] = loop.create_future()

        def tell(found: Addresses | OSError) -> None:
            if answer.done():
                return
            if isinstance(found, OSError):
                answer.set_exception(found)
            else:
                answer.set_result(found)

        def work() -> None:
            try:
                found: Addresses | OSError = _found(host, port)
            except OSError as error:
                found = error
            with contextlib.suppress(RuntimeError):  # the loop has ended meanwhile
                loop.call_soon_threadsafe(tell, found)

        async with self._turns:
            # not a worker: the end of a program waits for those
            threading.Thread(target=work, name="lookup", daemon=True).start()
            return await answer


def _found(host: str, port: int, flags: int = 0) -> Addresses:
    found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=flags)
    return [(family, address) for family, _, _, _, address in found]
