"""Authorization: named permissions. Every handler names one for each method; a handler that names none is closed."""

from __future__ import annotations

from collections.abc import Callable

from attrs import frozen

from handlers.http.credentials import ANONYMOUS, Caller
from models.config.settings import Config
from models.errors import Denied, NotFound, Unauthenticated


@frozen(eq=False)
class Permission:
    name: str
    check: Callable[[Caller, Config], None]
    """Raises `Unauthenticated` or `Denied`."""


def admit(caller: Caller, permission: Permission, config: Config) -> None:
    """Checks a permission. Raises `Unauthenticated`, `Denied`.

    A token of scope INGEST has only `POST_REPORTS` and `FOLLOW_REPORTS`.
    """
    if caller.scope == "INGEST" and permission not in (POST_REPORTS, FOLLOW_REPORTS):
        raise Denied("a token of scope INGEST may only post reports")
    permission.check(caller, config)


def check_charts_open(config: Config) -> None:
    """Raises `Denied` if the configuration forbids changes of charts, even with the key."""
    if config.svc.rest.access_interceptor.enabled:
        check_changes_open(config)


def check_cluster_reads(config: Config) -> None:
    """Raises `NotFound` if the configuration turns off reads of live objects."""
    if config.svc.security.cluster_reads == "OFF":
        raise NotFound("live objects are not served (svc.security.cluster-reads)")


def check_changes_open(config: Config) -> None:
    """Raises `Denied` where the mode or a missing key forbids changes, also with the interceptor disabled."""
    security = config.svc.security
    if security.mode != "FULL":
        raise Denied("changes are disabled (svc.security.mode is READ_ONLY)")
    if not _has_key(config):
        raise Denied("changes are disabled while there is no key (svc.security.api-key)")


def chart_access(config: Config) -> str:
    """Returns a log line that states which callers may change charts."""
    if not config.svc.rest.access_interceptor.enabled:
        return (
            "the API key check of the charts is disabled (svc.rest.access-interceptor.enabled): anybody may change them"
        )
    try:
        check_charts_open(config)
    except Denied as problem:
        return f"charts cannot be changed: {problem.message}"
    return f"charts may be changed with the key, in the header {config.svc.security.api_key_header}"


def _has_key(config: Config) -> bool:
    return bool((config.svc.security.api_key or "").strip())


def _closed(caller: Caller, config: Config) -> None:
    raise Denied("no caller may do this")


def _public(caller: Caller, config: Config) -> None:
    pass


def _unless_operator(check: Callable[[Caller, Config], None]) -> Callable[[Caller, Config], None]:
    """The same check, which callers by the control socket pass."""

    def checked(caller: Caller, config: Config) -> None:
        if not caller.is_operator:
            check(caller, config)

    return checked


def _signed_in(caller: Caller, config: Config) -> None:
    if not caller.is_authenticated:
        raise Unauthenticated("an account is needed here")


def _administer(caller: Caller, config: Config) -> None:
    _signed_in(caller, config)
    if not caller.is_admin:
        raise Denied("only an ADMIN may do this")


def _read(caller: Caller, config: Config) -> None:
    if not config.tracker.security.open_mode:
        _signed_in(caller, config)


def _read_logs(caller: Caller, config: Config) -> None:
    _read(caller, config)
    if caller.is_remote:
        _signed_in(caller, config)


def _control_processes(caller: Caller, config: Config) -> None:
    _read(caller, config)
    security = config.supervisor.security
    if caller.is_remote and not security.allow_anonymous_control:
        where, setting = "beyond loopback", "allow-anonymous-control"
    elif not caller.is_remote and security.local_control == "operator":
        where, setting = "over TCP", "local-control"
    else:
        return
    if not caller.is_authenticated:
        raise Unauthenticated(f"an account is needed to change processes {where} (see supervisor.security.{setting})")
    if not caller.is_admin:
        raise Denied(f"only an ADMIN may change processes {where}")


def _read_server_log(caller: Caller, config: Config) -> None:
    is_open = config.tracker.security.open_mode and config.supervisor.security.local_control != "operator"
    if caller.is_remote or not is_open:
        _administer(caller, config)


def _post_reports(caller: Caller, config: Config) -> None:
    _read(caller, config)
    if config.tracker.security.require_ingest_token and not _has_token(caller):
        raise Unauthenticated("a token is needed to post reports (tracker.security.require-ingest-token)")


def _read_charts(caller: Caller, config: Config) -> None:
    if not caller.has_chart_key:
        _read(caller, config)


def _read_cluster(caller: Caller, config: Config) -> None:
    if caller.has_chart_key or config.svc.security.cluster_reads == "OPEN":
        _read_charts(caller, config)
    elif not caller.is_admin:
        header = config.svc.security.api_key_header
        raise Unauthenticated(f"the key of the charts ({header}) or the account of an ADMIN is needed")


def _change_charts(caller: Caller, config: Config) -> None:
    if config.svc.rest.access_interceptor.enabled:
        _present_chart_key(caller, config)
        return
    _read(caller, config)
    if caller.is_remote:
        _administer(caller, config)


def _use_tools(caller: Caller, config: Config) -> None:
    if _has_key(config):
        _present_chart_key(caller, config)
    elif not _has_token(caller):
        _read(ANONYMOUS, config)


def _present_chart_key(caller: Caller, config: Config) -> None:
    if not caller.has_chart_key:
        raise Unauthenticated(f"the key of the charts is missing or wrong ({config.svc.security.api_key_header})")


def _has_token(caller: Caller) -> bool:
    return caller.credential is not None and caller.credential.kind == "token"


CLOSED = Permission("closed", _closed)
"""No caller; the default."""

PUBLIC = Permission("public", _public)
"""Every caller, in every mode: health, static files, the login, and handlers with their own checks."""

SIGNED_IN = Permission("signed-in", _signed_in)
"""Callers with an account."""

ADMINISTER = Permission("administer", _administer)
"""Callers whose account is an ADMIN."""

READ = Permission("read", _unless_operator(_read))
"""Every caller; in closed mode callers with an account and operators."""

READ_LOGS = Permission("read-logs", _unless_operator(_read_logs))
"""As `READ`, and callers with an account beyond loopback: logs may contain confidential data.

Operators too."""

READ_SERVER_LOG = Permission("read-server-log", _unless_operator(_read_server_log))
"""An ADMIN and operators; every caller on loopback in open mode, unless `local-control` is `operator`.

The log names accounts, addresses and private projects."""

CONTROL_PROCESSES = Permission("control-processes", _unless_operator(_control_processes))
"""As `READ` on loopback; an ADMIN beyond, unless `supervisor.security.allow-anonymous-control` is set.

With `supervisor.security.local-control: operator` an ADMIN on loopback too. Operators pass in any case."""

POST_REPORTS = Permission("post-reports", _post_reports)
"""As `READ`; callers with a token where `tracker.security.require-ingest-token` is set."""

FOLLOW_REPORTS = Permission("follow-reports", READ.check)
"""As `READ`, with a token of scope INGEST too: the verdict on a run that it may post to."""

READ_CHARTS = Permission("read-charts", _read_charts)
"""As `READ`, and callers with the chart key."""

READ_CLUSTER = Permission("read-cluster", _read_cluster)
"""Callers with the chart key, and an ADMIN; as `READ_CHARTS` where `svc.security.cluster-reads` is OPEN."""

SEND_CHART_FORMS = Permission("send-chart-forms", _read_charts)
"""As `READ_CHARTS`. A form carries the chart key in a field: `ChartPage` checks `CHANGE_CHARTS` after parsing it."""

CHANGE_CHARTS = Permission("change-charts", _change_charts)
"""Callers with the chart key. With the interceptor disabled: as `READ` on loopback, an ADMIN beyond."""

USE_TOOLS = Permission("use-tools", _use_tools)
"""Callers with the chart key where one is configured; else every caller, in closed mode callers with a token."""
