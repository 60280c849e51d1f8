"""Which addresses may be reached on a caller's behalf: never our own machine, its neighbours on the link, or a cloud's
metadata, however they are written; and no private network where the operator says so.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Iterator
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network

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
