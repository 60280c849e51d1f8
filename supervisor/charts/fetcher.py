"""The guarded HTTP client with the settings of charts: `svc.fetch` and `svc.security`."""

from __future__ import annotations

from models.config.settings import ChartSecurity, FetchSettings
from supervisor.http import urls
from supervisor.http.client import GuardedClient, Lookup, Rules
from supervisor.http.dns import Policy


class Fetcher(GuardedClient):
    """Fetches repositories, registries and archives."""

    def __init__(self, limits: FetchSettings, security: ChartSecurity, lookup: Lookup | None = None) -> None:
        """`lookup` resolves a name; the system's resolver by default."""
        allowed = frozenset(urls.host_port(host) for host in security.allowed_hosts)
        rules = Rules(
            Policy(security.block_private_networks, allowed),
            limits.timeout,
            "svc.fetch.timeout",
            "svc.security.allowed-hosts",
            limits.max_redirects,
        )
        super().__init__(rules, lookup)
        self.limits = limits
