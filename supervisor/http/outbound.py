"""Where the server's own requests may go (`server.outbound`): to forges, channels and identity providers."""

from __future__ import annotations

from collections.abc import Iterable

from models.config.settings import OutboundSettings
from supervisor.http import urls
from supervisor.http.client import Rules
from supervisor.http.dns import Policy


def outbound_rules(outbound: OutboundSettings, own: Iterable[str] = ()) -> Rules:
    """The rules of a client. The hosts and ports of `own`, URLs of the configuration, are allowed at any address."""
    hosts = {urls.host_port(host) for host in outbound.allowed_hosts}
    for text in own:
        url = urls.parse(text)
        hosts.add((url.host, url.port))
    return Rules(
        Policy(outbound.block_private_networks, frozenset(hosts)),
        outbound.timeout,
        "server.outbound.timeout",
        "server.outbound.allowed-hosts",
        needs_https=True,
        ca_file=outbound.ca_file,
    )
