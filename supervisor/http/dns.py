"""Resolves names, and decides which addresses may be reached on a caller's behalf.

This machine, its link-local neighbours and cloud metadata services are never reached, however they are written; nor are
private networks if the configuration blocks them.
"""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import socket
from collections.abc import Iterator
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network
from typing import Any

from attrs import frozen

from supervisor.scheduling import DaemonThreads

Address = IPv4Address | IPv6Address

_REFUSED_NETWORKS: dict[str, tuple[str, ...]] = {
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
_PRIVATE_NETWORKS = ("10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16", "100.64.0.0/10", "fc00::/7", "fec0::/10")

_Network = IPv4Network | IPv6Network
_networks: dict[str, list[_Network]] = {
    why: [ipaddress.ip_network(text) for text in texts] for why, texts in _REFUSED_NETWORKS.items()
}
_private: list[_Network] = [ipaddress.ip_network(text) for text in _PRIVATE_NETWORKS]
_NAT64 = IPv6Network("64:ff9b::/96")
_COMPATIBLE = IPv6Network("::/96")
_TRANSLATED = IPv6Network("::ffff:0:0:0/96")
_ISATAP = 0x5EFE


@frozen
class Policy:
    """`allowed` holds hosts (lower case, without a trailing dot) with their ports."""

    block_private: bool = False
    allowed: frozenset[tuple[str, int]] = frozenset()

    def is_allowed(self, host: str, port: int) -> bool:
        """Whether the operator allows this host whatever its address."""
        return (host, port) in self.allowed

    def refusal(self, address: str) -> str | None:
        """Why this address may not be reached, in a word or two; `None` if it may."""
        try:
            parsed = ipaddress.ip_address(address)
        except ValueError:
            return "not readable"
        for form in _forms(parsed):
            for why, networks in _networks.items():
                if any(form in network for network in networks):
                    return why
            if self.block_private and any(form in network for network in _private):
                return "private"
        return None


def _forms(address: Address) -> Iterator[Address]:
    """The address and every IPv4 address that it may embed."""
    yield address
    if isinstance(address, IPv4Address):
        return
    if address.scope_id:
        yield IPv6Address("fe80::1")  # link-local
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

_MAX_CONCURRENT_LOOKUPS = 16


class CoalescingResolver:
    """Coalesces concurrent lookups of a name; a literal address needs no lookup."""

    def __init__(self) -> None:
        self._lookups: dict[tuple[str, int], asyncio.Task[Addresses]] = {}
        self._slots = asyncio.Semaphore(_MAX_CONCURRENT_LOOKUPS)
        self._threads = DaemonThreads(_MAX_CONCURRENT_LOOKUPS, "lookup")

    async def __call__(self, host: str, port: int) -> Addresses:
        """Raises `OSError` if the host does not exist."""
        with contextlib.suppress(socket.gaierror):
            return _resolve(host, port, socket.AI_NUMERICHOST)
        key = host, port
        task = self._lookups.get(key)
        if task is None:
            task = asyncio.get_running_loop().create_task(self._look_up(host, port), name=f"lookup {host}")
            self._lookups[key] = task
            task.add_done_callback(lambda done: self._on_looked_up(key, done))
        return await asyncio.shield(task)

    def _on_looked_up(self, key: tuple[str, int], task: asyncio.Task[Addresses]) -> None:
        """Marks the exception as retrieved, so that asyncio does not log it when every caller has left."""
        del self._lookups[key]
        if not task.cancelled():
            task.exception()

    async def _look_up(self, host: str, port: int) -> Addresses:
        async with self._slots:
            return await asyncio.get_running_loop().run_in_executor(self._threads, _resolve, host, port)


def _resolve(host: str, port: int, flags: int = 0) -> Addresses:
    entries = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=flags)
    return [(family, address) for family, _, _, _, address in entries]
