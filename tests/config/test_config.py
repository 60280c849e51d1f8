"""The configuration: accepted values of each property, error messages, and precedence of sources."""

from __future__ import annotations

import signal
from collections.abc import Callable, Mapping
from pathlib import Path
from textwrap import dedent
from typing import Any

import attrs
import pytest

from models.children import Limits
from models.config.cross_checks import ignored
from models.config.loader import VARIABLES, differences, load
from models.config.settings import BadConfig, Config, ForgeApp, ForgeSettings
from models.supervision.process import (
    Condition,
    Dependency,
    ExecProbe,
    HealthCheck,
    HttpProbe,
    LogMode,
    OnFailure,
    OnUnhealthy,
    ProcessKind,
    ProcessSpec,
    Restart,
    Seconds,
    TcpProbe,
    When,
)

Read = Callable[..., Config]
Faults = Callable[..., tuple[str, ...]]
KIB, MIB, GIB = 1024, 1024**2, 1024**3


@pytest.fixture
def read(tmp_path: Path) -> Read:
    def read(text: str, environ: Mapping[str, str] | None = None, **overrides: str) -> Config:
        path = tmp_path / "pilothouse.yaml"
        path.write_text(dedent(text), encoding="utf-8")
        return load(path, environ or {}, {name.replace("__", "."): text for name, text in overrides.items()})

    return read


@pytest.fixture
def faults(read: Read) -> Faults:
    def faults(*given: Any, **overrides: str) -> tuple[str, ...]:
        with pytest.raises(BadConfig) as caught:
            read(*given, **overrides)
        assert str(caught.value) == "\n".join(caught.value.faults)
        return caught.value.faults

    return faults


def at(config: object, path: str) -> object:
    for name in path.replace("-", "_").split("."):
        config = getattr(config, name)
    return config


def web(properties: str, *others: str) -> str:
    """A file with the process web in flow style; other processes have a command only."""
    lines = [f"  web: {{command: [run], {properties}}}", *(f"  {name}: {{command: [run]}}" for name in others)]
    return "supervisor.processes:\n" + "\n".join(lines)


DEFAULTS: dict[str, object] = {
    "server.address": ("127.0.0.1",),
    "server.port": 8080,
    "server.data-dir": Path("data"),
    "server.allowed-hosts": (),
    "server.trusted-proxies": (),
    "server.tls.certificate": None,
    "server.tls.key": None,
    "server.log-format": "text",
    "server.syslog": "/dev/log",
    "server.max-streams": 10000,
    "server.max-body": 101 * MIB,
    "server.max-unfinished": 64 * MIB,
    "server.stream-buffer": 256 * KIB,
    "server.stream-replay": 1000,
    "server.shutdown-timeout": 30,
    "server.database-url": None,
    "server.secret-key-file": None,
    "server.outbound.allowed-hosts": (),
    "server.outbound.block-private-networks": True,
    "server.outbound.timeout": 10,
    "server.outbound.ca-file": None,
    "server.outbound.max-answer": MIB,
    "server.workers.processes": 2,
    "server.workers.idle": 60,
    "server.storage.min-free": None,
    "supervisor.node-name": None,
    "supervisor.description": "",
    "supervisor.auto-start": True,
    "supervisor.on-exit": "stop",
    "supervisor.log": LogMode.INHERIT,
    "supervisor.security.allow-anonymous-control": False,
    "supervisor.security.local-control": "anybody",
    "server.unix-socket.path": None,
    "server.unix-socket.mode": "0600",
    "server.unix-socket.group": None,
    "supervisor.events.retain-days": 90,
    "supervisor.events.retain-rows": 1000000,
    "supervisor.processes": {},
    "supervisor.groups": {},
    "supervisor.notices.retain-rows": 10_000,
    "supervisor.metrics.interval": 5.0,
    "supervisor.metrics.keep": 86400.0,
    "supervisor.runs.retain": 100,
    "svc.security.mode": "READ_ONLY",
    "svc.security.api-key": None,
    "svc.security.api-key-header": "X-API-Key",
    "svc.security.cluster-reads": "KEY",
    "svc.security.block-private-networks": False,
    "svc.security.allowed-hosts": (),
    "svc.rest.base-path": "/api/v1",
    "svc.rest.temp-dir": None,
    "svc.rest.unknown-fields": "REFUSE",
    "svc.rest.access-interceptor.enabled": True,
    "svc.helm.binary": None,
    "svc.helm.max-concurrent": None,
    "svc.helm.reserved": 1,
    "svc.helm.per-caller": None,
    "svc.helm.queue-per-caller": 8,
    "svc.helm.queue": 64,
    "svc.helm.max-memory": 1536 * MIB,
    "svc.helm.timeout": 300,
    "svc.helm.template-timeout": 30,
    "svc.helm.open-template-timeout": 10,
    "svc.helm.lock-timeout": 30,
    "svc.helm.max-output": 64 * MIB,
    "svc.kube.kubeconfig": None,
    "svc.kube.context": None,
    "svc.kube.namespaces": (),
    "svc.kube.contexts": (),
    "svc.hub.url": "https://artifacthub.io",
    "svc.fetch.timeout": 30,
    "svc.fetch.max-index": 256 * MIB,
    "svc.fetch.max-archive": 100 * MIB,
    "svc.fetch.max-redirects": 10,
    "svc.fetch.max-tags": 20_000,
    "svc.fetch.keyring": None,
    "svc.work.threads": None,
    "svc.work.queue": 64,
    "svc.work.timeout": 20,
    "svc.package.keyring": None,
    "svc.package.key": None,
    "svc.package.passphrase-file": None,
    "svc.upgrades.interval": 3600,
    "svc.mcp.enabled": None,
    "svc.mcp.toolsets": ("processes", "charts", "tests"),
    "tracker.security.open-mode": True,
    "tracker.security.require-ingest-token": False,
    "tracker.security.default-visibility": None,
    "tracker.security.login-failures.per-minute": 10,
    "tracker.security.login-failures.per-name-per-hour": 100,
    "tracker.security.admin-username": "admin",
    "tracker.security.admin-password": None,
    "tracker.security.session-lifetime": 30 * 86400,
    "tracker.security.oidc.issuer": None,
    "tracker.security.oidc.client-id": None,
    "tracker.security.oidc.client-secret": None,
    "tracker.security.oidc.client-secret-file": None,
    "tracker.security.oidc.scopes": "openid profile email",
    "tracker.security.oidc.username-claim": "preferred_username",
    "tracker.security.oidc.groups-claim": "groups",
    "tracker.security.oidc.admin-groups": (),
    "tracker.security.oidc.user-groups": (),
    "tracker.security.oidc.auto-create": True,
    "tracker.security.oidc.session": 12 * 3600,
    "tracker.security.proxy-login.header": None,
    "tracker.security.proxy-login.groups-header": None,
    "tracker.security.proxy-login.admin-groups": (),
    "tracker.security.proxy-login.auto-create": True,
    "tracker.quality-gate.base-branch": "main",
    "tracker.quality-gate.min-line-coverage": None,
    "tracker.quality-gate.max-coverage-drop-pct": 1.0,
    "tracker.quality-gate.fail-on-new-failures": True,
    "tracker.quality-gate.min-patch-coverage": None,
    "tracker.quality-gate.min-patch-lines": 0,
    "tracker.quality-gate.fail-on-no-tests": False,
    "tracker.quality-gate.fail-on-missing-coverage": False,
    "tracker.quality-gate.aggregate-flags": True,
    "tracker.quality-gate.carry-forward-flags": (),
    "tracker.quality-gate.carry-forward-max-age": 30 * 86400,
    "tracker.quality-gate.required-flags": (),
    "tracker.quality-gate.max-test-drop-pct": None,
    "tracker.quality-gate.fail-on-any-failure": False,
    "tracker.quality-gate.perf-max-latency-increase-pct": None,
    "tracker.quality-gate.perf-max-throughput-drop-pct": None,
    "tracker.quality-gate.perf-max-error-pct": None,
    "tracker.quarantine.after-flaky": None,
    "tracker.quarantine.within": 14 * 86400,
    "tracker.quarantine.expires": 14 * 86400,
    "tracker.quarantine.max-pct": 5.0,
    "tracker.attachments.enabled": True,
    "tracker.attachments.dir": None,
    "tracker.attachments.file": 10 * MIB,
    "tracker.attachments.per-run": 100 * MIB,
    "tracker.attachments.per-case": 20,
    "tracker.attachments.per-project": None,
    "tracker.attachments.total": 2048 * MIB,
    "tracker.attachments.retain-days": 14,
    "tracker.source.mode": "off",
    "tracker.source.file": MIB,
    "tracker.source.cache": 64 * MIB,
    "tracker.forges": {},
    "tracker.forge-reports.enabled": True,
    "tracker.forge-reports.publish": "status",
    "tracker.forge-reports.comment": "changes",
    "tracker.forge-reports.untrusted": "none",
    "tracker.forge-reports.statuses": "aggregate",
    "tracker.forge-reports.context": "pilothouse/gate",
    "tracker.forge-reports.debounce": 15,
    "tracker.forge-reports.max-wait": 300,
    "server.public-url": None,
    "server.outbox.max-rows": 10_000,
    "server.outbox.max-age": 86_400,
    "server.outbox.retain-days": 14,
    "notify.enabled": True,
    "notify.channels": {},
    "notify.rules": (),
    "notify.smtp.host": None,
    "notify.smtp.port": 587,
    "notify.smtp.tls": "starttls",
    "notify.smtp.username": None,
    "notify.smtp.password": None,
    "notify.smtp.password-file": None,
    "notify.smtp.from": None,
    "tracker.runs.settle": 600,
    "tracker.runs.incomplete-after": 7200,
    "tracker.limits.file": 25 * MIB,
    "tracker.limits.request": 100 * MIB,
    "tracker.limits.inflated": 256 * MIB,
    "tracker.limits.inflated-request": 1024 * MIB,
    "tracker.limits.parts": 10000,
    "tracker.limits.depth": 200,
    "tracker.limits.output-per-case": MIB,
    "tracker.limits.open-projects": 200,
    "tracker.limits.open-projects-per-hour": 20,
    "tracker.retain-days": 0,
    "tracker.retain-runs": 0,
}

PROCESS_DEFAULTS: dict[str, object] = {
    "args": (),
    "type": None,
    "directory": None,
    "environment": {},
    "user": None,
    "group": None,
    "umask": None,
    "nice": None,
    "limits": {},
    "stdout_logfile": None,
    "stderr_logfile": None,
    "redirect_stderr": False,
    "log": None,
    "log_forward": None,
    "log_max_bytes": 50 * MIB,
    "captured_files": (),
    "log_backups": 5,
    "auto_start": False,
    "order": 0,
    "depends_on": (),
    "start_timeout": 60,
    "start_seconds": 0,
    "restart": Restart.NEVER,
    "restart_delay": 1,
    "restart_max_delay": 60,
    "restart_limit": 10,
    "restart_window": 300,
    "restart_reset": 30,
    "start_retries": None,
    "success_exit_codes": (),
    "no_restart_exit_codes": (),
    "stop_signal": signal.SIGTERM,
    "stop_timeout": 10,
    "ready_timeout": 60.0,
    "watchdog": None,
    "start_pre": (),
    "start_post": (),
    "stop_pre": (),
    "stop_post": (),
    "hook_timeout": 30.0,
    "on_failure": None,
    "max_memory": None,
    "start_delay": 0.0,
    "stdin": None,
    "labels": (),
    "groups": (),
    "env_file": (),
    "env_digest": "",
    "template": None,
    "description": "",
    "schedule": None,
    "max_runtime": None,
    "health_check": None,
}


def flat(value: Any, above: str = "") -> dict[str, object]:
    found: dict[str, object] = {}
    for attribute in attrs.fields(type(value)):
        path, inner = above + attribute.name.rstrip("_").replace("_", "-"), getattr(value, attribute.name)
        found |= flat(inner, f"{path}.") if attrs.has(type(inner)) else {path: inner}
    return found


def test_every_property_has_its_documented_default_and_there_is_no_other() -> None:
    assert flat(load(None, {})) == DEFAULTS


def test_a_property_without_effect_is_reported(read: Read) -> None:
    assert ignored(load(None, {})) == []
    (line,) = ignored(read("svc.work.threads: 4"))
    assert line.startswith("svc.work.threads is ignored: server.workers.processes")


def test_a_process_has_the_documented_defaults(read: Read) -> None:
    spec = read("supervisor: {processes: {web: {command: [run]}}}").supervisor.processes["web"]
    assert attrs.asdict(spec) == {"name": "web", "command": ("run",), **PROCESS_DEFAULTS}


def test_a_health_check_has_the_documented_defaults(read: Read) -> None:
    config = read(web("health-check: {tcp: {port: 9000}}"))
    assert config.supervisor.processes["web"].health_check == HealthCheck(
        tcp=TcpProbe(9000, "127.0.0.1"),
        initial_delay=Seconds(0),
        interval=Seconds(10),
        timeout=Seconds(5),
        success_threshold=1,
        failure_threshold=3,
        on_unhealthy=OnUnhealthy.IGNORE,
    )


def test_a_web_probe_is_a_get_that_expects_200_to_399(read: Read) -> None:
    config = read(web("health-check: {http: {url: 'http://127.0.0.1:9000/'}}"))
    probe = HttpProbe("http://127.0.0.1:9000/", method="GET", status=((200, 399),), headers={})
    assert config.supervisor.processes["web"].health_check == HealthCheck(http=probe)


@pytest.mark.parametrize(
    "text", ["", "{}", "# nothing\n", "---\n", "~", "server:\nsvc: {security: null}\n", "\ufeff{}"]
)
def test_a_file_without_content_is_the_same_as_no_file(read: Read, text: str) -> None:
    assert read(text) == load(None, {})


def test_values_are_frozen() -> None:
    with pytest.raises(attrs.exceptions.FrozenInstanceError):
        load(None, {}).server.port = 1  # type: ignore[misc]


# -- values

FITTING = [
    ("server.address", "0.0.0.0", ("0.0.0.0",)),
    ("server.address", "['::1', localhost, box-1.example.com]", ("::1", "localhost", "box-1.example.com")),
    ("server.address", "127.0.0.1, ::1", ("127.0.0.1", "::1")),
    ("server.port", "0", 0),
    ("server.port", "65535", 65535),
    ("server.data-dir", "/var/lib/x", Path("/var/lib/x")),
    ("server.allowed-hosts", "[box, box.lan:8443]", ("box", "box.lan:8443")),
    ("server.trusted-proxies", "[10.0.0.1, 10.0.0.1/8, 'fd00::/8']", ("10.0.0.1", "10.0.0.1/8", "fd00::/8")),
    ("server.log-format", "json", "json"),
    ("server.stream-replay", "0", 0),
    ("supervisor.on-exit", "leave", "leave"),
    ("supervisor.auto-start", "OFF", False),
    ("supervisor.auto-start", "Yes", True),
    ("supervisor.auto-start", "on", True),
    ("supervisor.auto-start", "no", False),
    ("supervisor.auto-start", "FALSE", False),
    ("supervisor.auto-start", "true", True),
    ("supervisor.node-name", "ON", "ON"),
    ("supervisor.description", "2024-01-01", "2024-01-01"),
    ("supervisor.description", "'null'", "null"),
    ("supervisor.description", "!!str null", "null"),
    ("supervisor.description", "1_000", "1_000"),
    ("supervisor.description", "=", "="),
    ("svc.security.mode", "FULL", "FULL"),
    ("svc.security.api-key", "12345", "12345"),
    ("svc.security.api-key", "0x1F", "0x1F"),
    ("svc.security.allowed-hosts", "repo.lan:443, 10.0.0.1:80", ("repo.lan:443", "10.0.0.1:80")),
    ("svc.security.allowed-hosts", "['[::1]:80', 10.0.0.1:8080]", ("[::1]:80", "10.0.0.1:8080")),
    ("svc.rest.base-path", "/helm/v2", "/helm/v2"),
    ("svc.rest.base-path", "/chartsmith", "/chartsmith"),
    ("svc.helm.max-concurrent", "4", 4),
    ("svc.kube.kubeconfig", "a:b", "a:b"),
    ("svc.hub.url", "http://[::1]:80/hub", "http://[::1]:80/hub"),
    ("svc.fetch.max-redirects", "0", 0),
    ("svc.mcp.enabled", "no", False),
    ("tracker.security.default-visibility", "PRIVATE", "PRIVATE"),
    ("tracker.quality-gate.min-line-coverage", "80", 80.0),
    ("tracker.quality-gate.max-coverage-drop-pct", ".5", 0.5),
    ("tracker.quality-gate.max-coverage-drop-pct", "100", 100.0),
]


@pytest.mark.parametrize(("path", "text", "value"), FITTING)
def test_a_value_is_read_by_the_type_of_its_property(read: Read, path: str, text: str, value: object) -> None:
    found = at(read(f"{path}: {text}"), path)
    assert (found, isinstance(found, type(value))) == (value, True)


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("500ms", 0.5),
        ("5s", 5),
        ("2m", 120),
        ("1h", 3600),
        ("30d", 2592000),
        ("1h30m", 5400),
        ("1d2h3m4s5ms", 93784.005),
        ("1.5s", 1.5),
        (".5m", 30),
        ("7", 7),
        ("0.25", 0.25),
        ("0", 0),
        ("PT5S", 5),
        ("PT1M30S", 90),
        ("P1D", 86400),
        ("P1W", 604800),
        ("P1DT12H", 129600),
        ("PT0.5S", 0.5),
        ("36500d", 3153600000),
    ],
)
def test_durations_have_many_forms(read: Read, text: str, seconds: float) -> None:
    assert read(f"server.shutdown-timeout: {text}").server.shutdown_timeout == pytest.approx(seconds, abs=1e-9)


@pytest.mark.parametrize(
    "text",
    ["-1", "-5s", "nan", "inf", "5 parsecs", "s", "PT", "P", "P1Y", "PT5", "1e3", "5s5m", "1s1s", "''", "5.", "."],
)
def test_an_invalid_duration_is_reported(faults: Faults, text: str) -> None:
    (fault,) = faults(f"server.shutdown-timeout: {text}")
    shown = text if text == "''" else repr(text)
    assert fault.startswith(f"server.shutdown-timeout: {shown} is not a length of time such as 500ms")


@pytest.mark.parametrize("text", ["36501d", "9" * 400])
def test_durations_are_at_most_a_hundred_years(faults: Faults, text: str) -> None:
    (fault,) = faults(f"server.shutdown-timeout: '{text}'")
    assert fault.endswith(" is longer than 36500d")


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("64K", 64 * KIB),
        ("25M", 25 * MIB),
        ("1G", GIB),
        ("64KB", 64 * KIB),
        ("64KiB", 64 * KIB),
        ("64 kib", 64 * KIB),
        ("1T", 1024 * GIB),
        ("100", 100),
        ("100B", 100),
    ],
)
def test_a_size_has_many_forms(read: Read, text: str, size: int) -> None:
    assert read(f"server.max-body: {text}").server.max_body == size


UNFIT = [
    ("server.port", "http", "'http' is not a whole number"),
    ("server.port", "80.5", "'80.5' is not a whole number"),
    ("server.port", "1_000", "'1_000' is not a whole number"),
    ("server.port", "٣", "'٣' is not a whole number"),
    ("server.port", "''", "'' is not a whole number"),
    ("server.port", "-1", "'-1' is not between 0 and 65535"),
    ("server.port", "65536", "'65536' is not between 0 and 65535"),
    ("server.port", "9" * 5000, f"'{'9' * 57}...' is too large"),
    ("server.port", "[80]", "one value is expected, not a list"),
    ("server.port", "{a: 1}", "one value is expected, not a mapping"),
    ("server.address", "[]", "must have at least one item"),
    ("server.address", "''", "must have at least one item"),
    ("server.address", "'a b'", "'a b' is not an IP address or a host name"),
    ("server.address", "300.1.1.1", "'300.1.1.1' is not an IP address or a host name"),
    ("server.address", "{a: b}", "a list is expected, not a mapping"),
    ("server.address", "[[a]]", "one value is expected, not a list"),
    ("server.address", "[null]", "one value is expected, not nothing"),
    ("server.data-dir", "''", "must not be empty"),
    ("server.data-dir", r'"a\0b"', "must not contain a NUL character"),
    ("server.data-dir", r'"\ud800"', "must be valid UTF-8"),
    ("server.allowed-hosts", "['http://x']", "'http://x' is not host:port"),
    ("server.trusted-proxies", "proxy.lan", "'proxy.lan' is not an IP address or a network such as 10.0.0.0/8"),
    ("server.tls", "{certificate: c.pem}", "certificate and key must be given together"),
    ("server.tls", "{key: k.pem}", "certificate and key must be given together"),
    ("server.tls", "c.pem", "a mapping is expected, not text"),
    ("server.tls", "[c.pem]", "a mapping is expected, not a list"),
    ("server.log-format", "xml", "'xml' is not one of text, json"),
    ("server.max-streams", "0", "'0' is less than 1"),
    ("server.max-body", "-1", "'-1' is not a size such as 64K, 25M, 1G or a number of bytes"),
    ("server.max-body", "1.5G", "'1.5G' is not a size such as 64K, 25M, 1G or a number of bytes"),
    ("server.max-body", "99999999T", "'99999999T' is too large"),
    ("server.max-body", "0", "'0' is less than 1"),
    ("server.stream-replay", "-1", "'-1' is less than 0"),
    ("server.database-url", "mysql://u:secret@h/d", "is not postgresql://USER:PASSWORD@HOST/NAME"),
    ("server.database-url", "postgresql:/d", "is not postgresql://USER:PASSWORD@HOST/NAME"),
    ("server.database-url", "'postgresql://u:s e@h/d'", "is not postgresql://USER:PASSWORD@HOST/NAME"),
    ("server.database-url", "'postgresql://[u/d'", "is not postgresql://USER:PASSWORD@HOST/NAME"),
    ("supervisor.on-exit", "die", "'die' is not one of stop, leave"),
    ("supervisor.auto-start", "1", "'1' is not true or false"),
    ("supervisor.processes", "[web]", "a mapping is expected, not a list"),
    ("svc.security.mode", "ALL", "'ALL' is not one of READ_ONLY, FULL"),
    ("svc.security.mode", "x" * 100, f"'{'x' * 57}...' is not one of READ_ONLY, FULL"),
    ("svc.security.mode", r'"a\nb"', r"'a\nb' is not one of READ_ONLY, FULL"),
    ("svc.security.api-key-header", "X API", "'X API' is not a name that HTTP allows"),
    ("svc.security.allowed-hosts", "repo.lan", "'repo.lan' is not host:port"),
    ("svc.security.allowed-hosts", "repo.lan:0", "'repo.lan:0' is not host:port"),
    ("svc.security.allowed-hosts", "'::1:80'", "'::1:80' is not host:port"),
    ("svc.security.allowed-hosts", "'[repo]:80'", "'[repo]:80' is not host:port"),
    ("svc.helm.max-concurrent", "0", "'0' is less than 1"),
    ("svc.helm.timeout", "0s", "must be longer than 0"),
    ("server.outbound.timeout", "0s", "'0s' is not between 0.001s and 40s"),
    ("server.outbound.timeout", "41s", "'41s' is not between 0.001s and 40s"),
    ("svc.hub.url", "ftp://x", "'ftp://x' is not an http or https URL with a host"),
    ("svc.hub.url", "http://x:0", "'http://x:0' is not an http or https URL with a host"),
    ("svc.hub.url", "http://x:99999", "'http://x:99999' is not an http or https URL with a host"),
    ("svc.hub.url", "'http://'", "'http://' is not an http or https URL with a host"),
    ("svc.hub.url", "'http://[x'", "'http://[x' is not an http or https URL with a host"),
    ("svc.hub.url", "htp://u:secret@x", "'htp://...@x' is not an http or https URL with a host"),
    ("tracker.security.default-visibility", "SECRET", "'SECRET' is not one of PUBLIC, PRIVATE"),
    ("tracker.quality-gate.max-coverage-drop-pct", "101", "'101.0' is not between 0 and 100"),
    ("tracker.quality-gate.max-coverage-drop-pct", "-1", "'-1.0' is not between 0 and 100"),
    ("tracker.quality-gate.max-coverage-drop-pct", "nan", "'nan' is not a number"),
]


@pytest.mark.parametrize(("path", "text", "why"), UNFIT)
def test_an_invalid_value_is_reported_with_its_path(faults: Faults, path: str, text: str, why: str) -> None:
    assert faults(f"{path}: {text}") == (f"{path}: {why}",)


@pytest.mark.parametrize("path", ["/", "", "api", "/api/", "//", "/a//b", "/a b", "/../x", "/x?y", "/a/.", "/é"])
def test_a_base_path_has_a_slash_before_it_and_none_after(faults: Faults, path: str) -> None:
    (fault,) = faults(f"svc.rest.base-path: '{path}'")
    assert fault.startswith(f"svc.rest.base-path: '{path}' is not a path such as /api/v1")


TAKEN = ["supervision", "charts", "tracker"]
TAKEN += ["search", "healthz", "readyz", "metrics", "static", "mcp", "sse", "v3", "swagger-ui.html"]


@pytest.mark.parametrize("name", TAKEN)
@pytest.mark.parametrize("below", ["", "/x"])
def test_a_base_path_may_not_hide_other_paths(faults: Faults, name: str, below: str) -> None:
    expected = f"svc.rest.base-path: '/{name}{below}' collides with /{name}"
    assert faults(f"svc.rest.base-path: /{name}{below}") == (expected,)


# -- processes


def spec(read: Read, properties: str, *others: str) -> ProcessSpec:
    return read(web(properties, *others)).supervisor.processes["web"]


@pytest.mark.parametrize(
    ("properties", "attribute", "value"),
    [
        ("args: [a, 'b c', 1]", "args", ("a", "b c", "1")),
        ("args: -a 'b c'", "args", ("-a", "b c")),
        ("args: ''", "args", ()),
        ("directory: /srv", "directory", "/srv"),
        (
            "environment: {PORT: 8080, A.B: on, EMPTY: '', GONE: null}",
            "environment",
            {"PORT": "8080", "A.B": "on", "EMPTY": ""},
        ),
        ("umask: 022", "umask", 0o22),
        ("umask: '0o777'", "umask", 0o777),
        ("umask: 0", "umask", 0),
        ("nice: -20", "nice", -20),
        ("nice: 19", "nice", 19),
        ("limits: {nofile: 4096, core: 0}", "limits", {"nofile": ("4096", "4096"), "core": ("0", "0")}),
        ("limits: {nofile: {soft: 1024, hard: 4096}}", "limits", {"nofile": ("1024", "4096")}),
        ("limits: {as: unlimited}", "limits", {"as": ("unlimited", "unlimited")}),
        ("limits: {core: {soft: 0, hard: unlimited}, cpu: null}", "limits", {"core": ("0", "unlimited")}),
        ("log-max-bytes: 0", "log_max_bytes", 0),
        ("log-backups: 0", "log_backups", 0),
        ("order: -5", "order", -5),
        ("restart: on-failure", "restart", Restart.ON_FAILURE),
        ("restart-limit: 0", "restart_limit", 0),
        ("start-retries: 0", "start_retries", 0),
        ("start-retries: null", "start_retries", None),
        ("stop-signal: HUP", "stop_signal", signal.SIGHUP),
        ("stop-signal: SIGINT", "stop_signal", signal.SIGINT),
        ("stop-signal: 15", "stop_signal", signal.SIGTERM),
        ("stop-signal: usr1", "stop_signal", signal.SIGUSR1),
        ("labels: [a, b]", "labels", ("a", "b")),
        ("labels: 'a, b'", "labels", ("a", "b")),
        ("groups: [a, b.c_d-9]", "groups", ("a", "b.c_d-9")),
        ("depends-on: db", "depends_on", (Dependency("db"),)),
        ("depends-on: [db, cache]", "depends_on", (Dependency("db"), Dependency("cache"))),
        ("depends-on: [{process: db, condition: completed}]", "depends_on", (Dependency("db", Condition.COMPLETED),)),
        ("start-pre: ./a 'b c'", "start_pre", ("./a", "b c")),
        ("watchdog: 1s", "watchdog", 1.0),
        ("ready-timeout: 0", "ready_timeout", 0.0),
        ("on-failure: {command: ./mail it, when: each}", "on_failure", OnFailure(("./mail", "it"), When.EACH)),
        ("on-failure.command: [./mail]", "on_failure", OnFailure(("./mail",), When.FINAL)),
        ("max-memory: 1M", "max_memory", MIB),
        ("start-delay: 1h", "start_delay", 3600.0),
        ("type: oneshot", "type", ProcessKind.ONESHOT),
        ("success-exit-codes: [3, 007, hup, SIGUSR1, 255]", "success_exit_codes", ("3", "7", "HUP", "USR1", "255")),
        ("no-restart-exit-codes: '3, KILL'", "no_restart_exit_codes", ("3", "KILL")),
        ("depends-on: [{process: db}]", "depends_on", (Dependency("db", Condition.RUNNING),)),
        ("redirect-stderr: true", "redirect_stderr", True),
        ("redirect-stderr: false, stderr-logfile: e", "stderr_logfile", "e"),
    ],
)
def test_a_property_of_a_process_is_read(read: Read, properties: str, attribute: str, value: object) -> None:
    assert getattr(spec(read, properties, "db", "cache"), attribute) == value


@pytest.mark.parametrize("text", ["[python3, -m, 'a b']", "python3 -m 'a b'"])
def test_a_command_is_a_list_or_split_as_a_shell_splits(read: Read, text: str) -> None:
    config = read(f"supervisor.processes.web.command: {text}")
    assert config.supervisor.processes["web"].command == ("python3", "-m", "a b")


@pytest.mark.parametrize(
    ("text", "probe"),
    [
        (
            "{http: {url: 'https://x/y', method: HEAD, status: '200,204,300-302', headers: {X-A.b: 1}}}",
            HttpProbe("https://x/y", "HEAD", ((200, 200), (204, 204), (300, 302)), {"X-A.b": "1"}),
        ),
        ("{http: {url: 'http://x', status: 204}}", HttpProbe("http://x", status=((204, 204),))),
        ("{tcp: {host: '::1', port: 9000}}", TcpProbe(9000, "::1")),
        ("{exec: {command: 'test -f \"a b\"'}}", ExecProbe(("test", "-f", "a b"))),
        ("{exec.command: ['true']}", ExecProbe(("true",))),
    ],
)
def test_a_probe_is_read(read: Read, text: str, probe: HttpProbe | TcpProbe | ExecProbe) -> None:
    check = spec(read, f"health-check: {text}").health_check
    assert check is not None
    assert [p for p in (check.http, check.tcp, check.exec) if p] == [probe]


def test_a_health_check_has_delay_interval_and_thresholds(read: Read) -> None:
    times = "initial-delay: 1s, interval: 2s, timeout: 3s, success-threshold: 4, failure-threshold: 5"
    check = spec(read, f"health-check: {{tcp: {{port: 1}}, {times}, on-unhealthy: restart}}").health_check
    assert check == HealthCheck(None, TcpProbe(1), None, Seconds(1), Seconds(2), Seconds(3), 4, 5, OnUnhealthy.RESTART)


@pytest.mark.parametrize(
    ("properties", "below", "why"),
    [
        ("args: 'a \"b'", "args", "cannot be split into words: no closing quotation"),
        ("args: [[a]]", "args", "one value is expected, not a list"),
        ("environment: {'': x}", "environment", "'' is not a name for an environment variable"),
        ("environment: {A=B: x}", "environment", "'A=B' is not a name for an environment variable"),
        (r'environment: {"A\0": x}', "environment", "must not contain a NUL character"),
        (r'environment: {A: "x\0"}', "environment.A", "must not contain a NUL character"),
        ("environment: [A=B]", "environment", "a mapping is expected, not a list"),
        ("environment: {A: [x]}", "environment.A", "one value is expected, not a list"),
        ("umask: 088", "umask", "'088' is not a umask such as 022 (octal, at most 777)"),
        ("umask: 1000", "umask", "'1000' is not a umask such as 022 (octal, at most 777)"),
        ("nice: 20", "nice", "'20' is not between -20 and 19"),
        ("nice: -21", "nice", "'-21' is not between -20 and 19"),
        (r'limits: {"nofile\0": 1}', "limits", "must not contain a NUL character"),
        ("limits: {nofile: {soft: 2, hard: 1}}", "limits.nofile", "soft 2 is above hard 1"),
        ("limits: {nofile: {soft: unlimited, hard: 1}}", "limits.nofile", "soft unlimited is above hard 1"),
        (
            "limits: {nofile: {soft: many, hard: 1}}",
            "limits.nofile.soft",
            "'many' is not a size such as 64K, 25M, 1G or a number of bytes",
        ),
        ("limits: {nofile: {soft: 2}}", "limits.nofile.hard", "is required"),
        ("limits: {nofile: many}", "limits.nofile", "'many' is not a size such as 64K, 25M, 1G or a number of bytes"),
        ("limits: {nofile: -1}", "limits.nofile", "'-1' is not a size such as 64K, 25M, 1G or a number of bytes"),
        ("limits: {nofile: [1, 2]}", "limits.nofile", "a mapping is expected, not a list"),
        ("log-backups: -1", "log-backups", "'-1' is less than 0"),
        ("order: first", "order", "'first' is not a whole number"),
        ("restart: sometimes", "restart", "'sometimes' is not one of never, on-failure, always"),
        ("restart-limit: -1", "restart-limit", "'-1' is less than 0"),
        ("start-retries: -1", "start-retries", "'-1' is less than 0"),
        ("stop-signal: NOPE", "stop-signal", "'NOPE' is not a signal such as TERM, HUP or 15"),
        ("stop-signal: 0", "stop-signal", "'0' is not a signal such as TERM, HUP or 15"),
        (
            "redirect-stderr: true, stderr-logfile: e",
            "stderr-logfile",
            "cannot be given together with redirect-stderr: true",
        ),
        (
            "depends-on: [{process: db, condition: up}]",
            "depends-on[0].condition",
            "'up' is not one of running, healthy, completed",
        ),
        ("depends-on: [{condition: running}]", "depends-on[0].process", "is required"),
        ("depends-on: datbase", "depends-on", "'datbase' is not a process; did you mean database?"),
        ("depends-on: [other]", "depends-on", "'other' is not a process"),
        ("depends-on: web", "depends-on", "a process cannot depend on itself"),
        (
            "depends-on: [{process: database, condition: healthy}]",
            "depends-on",
            "'database' has no health-check, so it never becomes healthy",
        ),
        ("health-check: {}", "health-check", "exactly one of http, tcp, exec must be given"),
        ("health-check: {interval: 5s}", "health-check", "exactly one of http, tcp, exec must be given"),
        (
            "health-check: {tcp: {port: 1}, exec: {command: x}}",
            "health-check",
            "exactly one of http, tcp, exec must be given",
        ),
        ("health-check: {tcp: 9000}", "health-check.tcp", "a mapping is expected, not text"),
        (r'depends-on: "a\0"', "depends-on", "must not contain a NUL character"),
        ("stop-post: []", "stop-post", "must begin with the name of a program"),
        ("hook-timeout: 0", "hook-timeout", "must be longer than 0"),
        ("watchdog: 999ms", "watchdog", "'0.999s' must be 1s or more"),
        ("max-memory: 1023K", "max-memory", "must be 1M or more"),
        ("start-delay: 61m", "start-delay", "'61m' is not between 0s and 1h"),
        ("on-failure: {when: final}", "on-failure.command", "is required"),
        ("log-forward: stdout", "log-forward", "needs stdout-logfile, stderr-logfile or log: capture"),
        (
            "log-forward: syslog, stdout-logfile: /dev/stdout",
            "log-forward",
            "needs stdout-logfile, stderr-logfile or log: capture",
        ),
        ("type: job", "type", "'job' is not one of service, notify, oneshot"),
        ("type: oneshot, restart: always", "restart", "always cannot be given together with type: oneshot"),
        ("success-exit-codes: [256]", "success-exit-codes", "'256' is not between 0 and 255"),
        (
            "no-restart-exit-codes: [OOPS]",
            "no-restart-exit-codes",
            "'OOPS' is not an exit code between 0 and 255 or a signal such as HUP",
        ),
        ("health-check: tcp", "health-check", "a mapping is expected, not text"),
        ("health-check: {tcp: {}}", "health-check.tcp.port", "is required"),
        ("health-check: {tcp: {port: 0}}", "health-check.tcp.port", "'0' is not between 1 and 65535"),
        ("health-check: {exec: {command: []}}", "health-check.exec.command", "must begin with the name of a program"),
        (
            'health-check: {exec: {command: "a \'b"}}',
            "health-check.exec.command",
            "cannot be split into words: no closing quotation",
        ),
        ("health-check: {http: {url: x}}", "health-check.http.url", "'x' is not an http or https URL with a host"),
        (
            "health-check: {http: {url: 'http://x', status: 300-200}}",
            "health-check.http.status",
            "'300-200' is not a status code such as 204 or a range such as 200-399",
        ),
        (
            "health-check: {http: {url: 'http://x', status: ''}}",
            "health-check.http.status",
            "must have at least one item",
        ),
        (
            r'health-check: {http: {url: "http://x", headers: {A: "b\r\nc"}}}',
            "health-check.http.headers.A",
            "must not contain control characters",
        ),
        (
            "health-check: {tcp: {port: 1}, success-threshold: 0}",
            "health-check.success-threshold",
            "'0' is less than 1",
        ),
        (
            "health-check: {tcp: {port: 1}, failure-threshold: 0}",
            "health-check.failure-threshold",
            "'0' is less than 1",
        ),
        ("health-check: {tcp: {port: 1}, interval: 0}", "health-check.interval", "must be longer than 0"),
    ],
)
def test_an_invalid_property_of_a_process_is_reported_with_its_path(
    faults: Faults, properties: str, below: str, why: str
) -> None:
    assert faults(web(properties, "database", "db")) == (f"supervisor.processes.web.{below}: {why}",)


@pytest.mark.parametrize("text", ["[]", "''", "'  '", "['']", "[' ', a]"])
def test_a_command_begins_with_a_program(faults: Faults, text: str) -> None:
    expected = "supervisor.processes.web.command: must begin with the name of a program"
    assert faults(f"supervisor.processes.web.command: {text}") == (expected,)


def test_a_process_that_is_not_a_mapping_is_one_error(faults: Faults) -> None:
    assert faults("supervisor.processes: {web: run}") == ("supervisor.processes.web: a mapping is expected, not text",)


@pytest.mark.parametrize("body", ["{}", "null", "{order: 1}", "{command: null}"])
def test_a_process_needs_a_command(faults: Faults, body: str) -> None:
    assert faults(f"supervisor: {{processes: {{web: {body}}}}}") == ("supervisor.processes.web.command: is required",)


@pytest.mark.parametrize("name", ["a/b", "a b", "ä.b", "x" * 255, "command", "0"])
def test_a_process_may_have_nearly_any_name(read: Read, name: str) -> None:
    config = read(f"supervisor: {{processes: {{'{name}': {{command: [run]}}}}}}")
    assert [(key, spec.name) for key, spec in config.supervisor.processes.items()] == [(name, name)]


@pytest.mark.parametrize("name", ["''", f"'{'x' * 256}'", r'"a\tb"', r'"a\x7f"', r'"a\x85"', r'"a\0"'])
def test_a_process_name_has_1_to_255_characters_and_no_control_character(faults: Faults, name: str) -> None:
    (fault,) = faults(f"supervisor: {{processes: {{? {name} : {{command: [run]}}}}}}")
    assert fault.startswith("supervisor.processes: ")
    assert fault.isprintable()


def test_processes_keep_the_order_of_the_file(read: Read) -> None:
    config = read("supervisor.processes: {z: {command: a}, a: {command: a}, m: {command: a}}")
    assert list(config.supervisor.processes) == ["z", "a", "m"]


def test_a_dependency_cycle_is_reported_step_by_step(faults: Faults) -> None:
    lines = [f"supervisor.processes.{a}: {{command: [run], depends-on: {b}}}" for a, b in ("ab", "bc", "ca")]
    assert faults("\n".join(lines)) == ("supervisor.processes.a.depends-on: a -> b -> c -> a is a circle",)


def test_a_dependency_on_itself_does_not_hide_a_cycle(faults: Faults) -> None:
    lines = [f"supervisor.processes.{a}: {{command: [run], depends-on: [{b}]}}" for a, b in ("aa", "bc", "cb")]
    assert faults("\n".join(lines)) == (
        "supervisor.processes.a.depends-on: a process cannot depend on itself",
        "supervisor.processes.b.depends-on: b -> c -> b is a circle",
    )


def test_all_dependency_cycles_are_reported_together(faults: Faults) -> None:
    needed = {"a": "[b, c]", "b": "a", "c": "a", "d": "e", "e": "d"}
    lines = [f"supervisor.processes.{name}: {{command: [run], depends-on: {on}}}" for name, on in needed.items()]
    found = sorted(fault.split(": ")[1] for fault in faults("\n".join(lines)))
    assert [sorted(set(fault.removesuffix(" is a circle").split(" -> "))) for fault in found] == [
        ["a", "b"], ["a", "c"], ["d", "e"],
    ]  # fmt: skip


def test_an_error_hides_no_other_error(faults: Faults) -> None:
    assert faults(
        """
        supervisor.processes:
          web:
            redirect-stderr: true
            stderr-logfile: log
            depends-on:
              [nowhere, {process: db, condition: soon}, {condition: healthy}, {process: db, condition: healthy}]
          db: {command: [run], order: first}
        server: {port: high, tls: {certificate: a}}
        """
    ) == (
        "supervisor.processes.web.depends-on[1].condition: 'soon' is not one of running, healthy, completed",
        "supervisor.processes.web.depends-on[2].process: is required",
        "supervisor.processes.web.command: is required",
        "supervisor.processes.db.order: 'first' is not a whole number",
        "server.port: 'high' is not a whole number",
        "server.tls: certificate and key must be given together",
        "supervisor.processes.web.stderr-logfile: cannot be given together with redirect-stderr: true",
        "supervisor.processes.web.depends-on: 'nowhere' is not a process",
        "supervisor.processes.web.depends-on: 'db' has no health-check, so it never becomes healthy",
    )


def test_a_healthy_dependency_on_a_process_with_a_health_check_is_fine(read: Read) -> None:
    config = read(
        """
        supervisor.processes:
          db: {command: [run], health-check: {tcp: {port: 1}}}
          web: {command: [run], depends-on: [{process: db, condition: healthy}]}
        """
    )
    assert config.supervisor.processes["web"].depends_on == (Dependency("db", Condition.HEALTHY),)


@pytest.mark.parametrize(
    ("db", "below"),
    [
        ("{command: [run], health-check: {tcp: {port: x}}}", "health-check.tcp.port: 'x' is not a whole number"),
        ("{health-check: {tcp: {port: 1}}}", "command: is required"),
        ("{command: [run], health-check: {}}", "health-check: exactly one of http, tcp, exec must be given"),
    ],
)
def test_an_invalid_process_is_not_reported_again_for_its_dependents(faults: Faults, db: str, below: str) -> None:
    text = web("depends-on: [{process: db, condition: healthy}]") + f"\n  db: {db}"
    assert faults(text) == (f"supervisor.processes.db.{below}",)


def test_an_unreadable_certificate_without_a_key_is_one_error(faults: Faults) -> None:
    assert faults("server.tls: {certificate: '', key: k}") == ("server.tls.certificate: must not be empty",)


# -- the structure of a file


@pytest.mark.parametrize(
    "text",
    [
        "svc: {security: {mode: FULL, api-key: k}}",
        "svc.security.mode: FULL\nsvc.security.api-key: k",
        "svc: {security.mode: FULL, security.api-key: k}",
        "svc.security: {mode: FULL, api-key: k}",
        "svc: {security: {mode: FULL}}\nsvc.security.api-key: k",
        "svc.security: {mode: FULL}\nsvc: {security.api-key: k}",
        "svc: {security: {mode: FULL, api-key: null}}\nsvc.security.api-key: k",
    ],
)
def test_keys_may_be_nested_or_dotted_or_both(read: Read, text: str) -> None:
    security = read(text).svc.security
    assert (security.mode, security.api_key) == ("FULL", "k")


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("supervisor.processes: {web: {command: [run], order: 1}}", "web"),
        ("supervisor.processes.web.command: [run]\nsupervisor.processes.web.order: 1", "web"),
        ("supervisor.processes.web: {command: [run], order: 1}", "web"),
        ("supervisor: {processes.web: {command: [run]}, processes.web.order: 1}", "web"),
        ("supervisor.processes: {web: {command: [run]}}\nsupervisor.processes.web.order: 1", "web"),
        ("supervisor.processes: {my.app: {command: [run], order: 1}}", "my.app"),
        ("supervisor.processes.my.app: {command: [run], order: 1}", "my.app"),
        ("supervisor.processes.my.app.command: [run]\nsupervisor.processes.my.app.order: 1", "my.app"),
        ("supervisor.processes: {web.command: {command: [run], order: 1}}", "web.command"),
        ("supervisor.processes.order.command: [run]\nsupervisor.processes.order.order: 1", "order"),
    ],
)
def test_a_process_may_be_written_nested_or_dotted(read: Read, text: str, name: str) -> None:
    assert read(text).supervisor.processes == {name: ProcessSpec(name, ("run",), order=1)}


def test_the_parts_of_a_process_may_be_dotted_too(read: Read) -> None:
    config = read(
        """
        supervisor.processes.web.command: [run]
        supervisor.processes.web.health-check.http.url: http://x
        supervisor.processes.web.environment.A.B: c
        supervisor.processes.web.environment: {D: e}
        supervisor.processes.web.limits.nofile: 4
        """
    )
    assert config.supervisor.processes["web"] == ProcessSpec(
        "web",
        ("run",),
        environment={"A.B": "c", "D": "e"},
        limits=Limits({"nofile": ("4", "4")}),
        health_check=HealthCheck(HttpProbe("http://x")),
    )


@pytest.mark.parametrize(
    ("text", "path"),
    [
        ("svc: {security: {mode: FULL}}\nsvc.security.mode: FULL", "svc.security.mode"),
        ("svc: {security.mode: FULL}\nsvc.security: {mode: READ_ONLY}", "svc.security.mode"),
        (web("order: 1") + "\nsupervisor.processes.web.order: 1", "supervisor.processes.web.order"),
        (
            web("environment: {A: b}") + "\nsupervisor.processes.web.environment.A: c",
            "supervisor.processes.web.environment.A",
        ),
    ],
)
def test_a_property_given_nested_and_dotted_is_an_error(faults: Faults, text: str, path: str) -> None:
    assert faults(text) == (f"{path}: is given twice",)


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("svc: {securty: {mode: FULL}}", "svc.securty.mode: unknown property; did you mean svc.security.mode?"),
        ("svc.securty.mode: FULL", "svc.securty.mode: unknown property; did you mean svc.security.mode?"),
        ("sevr: {port: 1}", "sevr.port: unknown property; did you mean server.port?"),
        ("server.prot: 1", "server.prot: unknown property; did you mean server.port?"),
        ("server: {Port: 1}", "server.Port: unknown property; did you mean server.port?"),
        ("server.port.x: 1", "server.port.x: unknown property; did you mean server.port?"),
        ("svc: {security: {api_key: k}}", "svc.security.api_key: unknown property; did you mean svc.security.api-key?"),
        ("svc.securit: {}", "svc.securit: unknown property; did you mean svc.security?"),
        ("server.: 1", "server.: unknown property; did you mean server?"),
        ("zebra: null", "zebra: unknown property"),
        ("server: {zebra: 1}", "server.zebra: unknown property"),
        (r'"a\nb": 1', r"a\nb: unknown property"),
        (
            web("comand: x"),
            "supervisor.processes.web.comand: unknown property; did you mean supervisor.processes.web.command?",
        ),
        (
            web("") + "\nsupervisor.processes.web.oder: 1",
            "supervisor.processes.web.oder: unknown property; did you mean supervisor.processes.web.order?",
        ),
        (web("name: x"), "supervisor.processes.web.name: unknown property"),
        (
            web("health-check: {htp: {url: 'http://x'}}"),
            "supervisor.processes.web.health-check.htp.url: unknown property; "
            "did you mean supervisor.processes.web.health-check.http.url?",
        ),
    ],
)
def test_an_unknown_key_names_its_nearest_neighbour(faults: Faults, text: str, fault: str) -> None:
    assert faults(text) == (fault,)


def test_an_unknown_limit_is_reported_with_the_known_ones(faults: Faults) -> None:
    known = "as, core, cpu, data, fsize, locks, memlock, msgqueue, nice, nofile, nproc, rss, rtprio, rttime, sigpending"
    expected = f"supervisor.processes.web.limits: 'files' is not one of {known}, stack"
    assert faults(web("limits: {files: 1}")) == (expected,)


def test_all_errors_are_reported_in_order(faults: Faults) -> None:
    text = """
    svc.security.mode: ALL
    server:
      prot: 1
      port: x
    supervisor.processes.web: {command: [run], order: x, depends-on: nobody}
    server.address: "!"
    """
    assert faults(text, {"SERVER_MAX_STREAMS": "x"}, server__log__format="x", server__port="y") == (
        "svc.security.mode: 'ALL' is not one of READ_ONLY, FULL",
        "server.prot: unknown property; did you mean server.port?",
        "server.port: 'x' is not a whole number",
        "server.address: '!' is not an IP address or a host name",
        "supervisor.processes.web.order: 'x' is not a whole number",
        "SERVER_MAX_STREAMS (server.max-streams): 'x' is not a whole number",
        "server.log.format: unknown property; did you mean server.log-format?",
        "server.port: 'y' is not a whole number",
        "supervisor.processes.web.depends-on: 'nobody' is not a process",
    )


def test_anchors_and_merge_keys_work(read: Read) -> None:
    config = read(
        """
        supervisor:
          processes:
            a: &a {command: [run], order: 1, labels: &labels [x]}
            b: {<<: *a, order: 2}
            c: {<<: [{order: 3}, *a], labels: *labels}
        """
    )
    specs = config.supervisor.processes
    assert [(s.command, s.order, s.labels) for s in specs.values()] == [(("run",), n, ("x",)) for n in (1, 2, 3)]


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("server:\n  port: 1\n  port: 2\n", ":3:3: the key 'port' is repeated, after line 2"),
        ("server: {port: [}", ":1:17: while parsing a flow node, expected the node content, but found '}'"),
        (
            "server:\n\tport: 1\n",
            ":2:1: while scanning for the next token, found character '\\t' that cannot start any token",
        ),
        ("server: {a: *x}", ":1:13: found undefined alias"),
        ("{}\n---\n{}\n", ":2:1: expected a single document in the stream, but found another document"),
        ("supervisor: &s\n  node-name: *s\n", ":1:13: contains itself"),
        ("server: {port: !secret x}", ":1:16: tags such as !this are not supported"),
        ("server: {? [a] : b}", ":1:12: a key must be a text"),
        ("server: {<<: x}", ":1:14: << takes a mapping or a list of mappings"),
        ("server: \x07", ": the character number 9 is not allowed in YAML"),
        ("- server", ": a mapping of properties is expected"),
        ("[" * 2000, ": is nested too deeply"),
    ],
)
def test_invalid_yaml_is_reported_in_one_line_with_its_place(
    faults: Faults, tmp_path: Path, text: str, fault: str
) -> None:
    assert faults(text)[0] == f"{tmp_path / 'pilothouse.yaml'}{fault}"


def test_nested_yaml_aliases_are_not_expanded(faults: Faults) -> None:
    lines = ["a0: &a0 {x: 1}", *(f"a{n}: &a{n} {{p: *a{n - 1}, q: *a{n - 1}}}" for n in range(1, 40))]
    assert len(faults("\n".join(lines))) < 1000


def fault_of(path: Path) -> str:
    with pytest.raises(BadConfig) as caught:
        load(path, {})
    (fault,) = caught.value.faults
    return fault


def test_a_file_that_is_not_utf_8_is_reported_with_the_line(tmp_path: Path) -> None:
    path = tmp_path / "c.yaml"
    path.write_bytes(b"server: {}\nsvc: {x: \xff}\n")
    assert fault_of(path) == f"{path}:2: is not UTF-8"


def test_a_missing_file_is_reported(tmp_path: Path) -> None:
    assert fault_of(tmp_path / "c.yaml") == f"{tmp_path / 'c.yaml'}: there is no such file"


def test_a_directory_is_reported(tmp_path: Path) -> None:
    assert fault_of(tmp_path) == f"{tmp_path}: is a directory, not a file"


def test_an_unreadable_file_is_reported(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    assert fault_of(tmp_path / "file" / "c.yaml") == f"{tmp_path / 'file' / 'c.yaml'}: cannot be read: Not a directory"


# -- the environment and the command line


def test_there_is_a_variable_for_every_property_outside_processes() -> None:
    paths = DEFAULTS.keys() - {"supervisor.processes", "supervisor.groups", "tracker.forges", "notify.channels"}
    assert {path.upper().replace(".", "_").replace("-", "_") for path in paths} == VARIABLES
    assert len(VARIABLES) == len(paths)
    assert {"SERVER_PORT", "SVC_SECURITY_API_KEY", "TRACKER_SECURITY_REQUIRE_INGEST_TOKEN"} <= VARIABLES


def test_the_command_line_wins_over_the_environment_which_wins_over_the_file(read: Read) -> None:
    text = "server: {port: 1, max-streams: 1, stream-replay: 1}"
    config = read(text, {"SERVER_PORT": "2", "SERVER_MAX_STREAMS": "2"}, server__port="3")
    assert (config.server.port, config.server.max_streams, config.server.stream_replay) == (3, 2, 1)


@pytest.mark.parametrize(
    ("variable", "text", "path", "value"),
    [
        ("SERVER_ADDRESS", "127.0.0.1, ::1", "server.address", ("127.0.0.1", "::1")),
        ("SERVER_DATA_DIR", "/d", "server.data-dir", Path("/d")),
        ("SVC_SECURITY_API_KEY", "null", "svc.security.api-key", "null"),
        ("SVC_MCP_ENABLED", "on", "svc.mcp.enabled", True),
        ("TRACKER_SECURITY_LOGIN_FAILURES_PER_MINUTE", "3", "tracker.security.login-failures.per-minute", 3),
        ("TRACKER_SECURITY_SESSION_LIFETIME", "1h", "tracker.security.session-lifetime", 3600),
        ("SERVER_PORT", "", "server.port", 8080),
    ],
)
def test_a_variable_sets_its_property_and_an_empty_one_none(variable: str, text: str, path: str, value: object) -> None:
    assert at(load(None, {variable: text}), path) == value


def test_other_variables_are_ignored() -> None:
    environ = {
        "SVC_SECURTY_MODE": "FULL",
        "SUPERVISOR_PROCESSES": "x",
        "SERVER": "x",
        "PATH": "\udc80",
        "server.port": "x",
    }
    assert load(None, environ) == load(None, {})


@pytest.mark.parametrize(
    ("variable", "text", "fault"),
    [
        ("SERVER_PORT", "x", "SERVER_PORT (server.port): 'x' is not a whole number"),
        ("SVC_SECURITY_MODE", "full", "SVC_SECURITY_MODE (svc.security.mode): 'full' is not one of READ_ONLY, FULL"),
        ("SERVER_TRUSTED_PROXIES", "a", "'a' is not an IP address or a network such as 10.0.0.0/8"),
        ("SERVER_TLS_KEY", "k", "server.tls: certificate and key must be given together"),
        ("SERVER_DATABASE_URL", "x", "(server.database-url): is not postgresql://USER:PASSWORD@HOST/NAME"),
    ],
)
def test_an_invalid_variable_is_reported_with_its_property(
    faults: Faults, variable: str, text: str, fault: str
) -> None:
    (found,) = faults("", {variable: text})
    assert found.endswith(fault)
    assert variable in found or fault.startswith("server.tls")


def test_the_other_half_of_a_certificate_may_come_from_the_environment(read: Read) -> None:
    config = read("server.tls.certificate: c", {"SERVER_TLS_KEY": "k"})
    assert (config.server.tls.certificate, config.server.tls.key) == (Path("c"), Path("k"))


@pytest.mark.parametrize(
    ("path", "text", "fault"),
    [
        ("server.port", "x", "server.port: 'x' is not a whole number"),
        ("server.data-dir", "", "server.data-dir: must not be empty"),
        ("server.prot", "1", "server.prot: unknown property; did you mean server.port?"),
    ],
)
def test_an_invalid_override_is_reported_with_its_property(path: str, text: str, fault: str) -> None:
    with pytest.raises(BadConfig) as caught:
        load(None, {}, {path: text})
    assert caught.value.faults == (fault,)


def test_errors_of_the_environment_are_reported_without_a_file_too(tmp_path: Path) -> None:
    with pytest.raises(BadConfig) as caught:
        load(tmp_path / "none", {"SERVER_PORT": "x"})
    assert len(caught.value.faults) == 2


# -- secrets


@pytest.mark.parametrize("path", ["svc.security.api-key", "tracker.security.admin-password", "server.database-url"])
@pytest.mark.parametrize(
    "text",
    [
        r'"hunter2\0"',
        r'"hunter2\ud800"',
        "[hunter2]",
        "{hunter2: x}",
        "*hunter2",
        "!hunter2",
        "!hunter2!x y",
        "'hunter2",
        "hunter2: x",
        "&hunter2 &hunter2 x",
        "{x: &hunter2 a, y: &hunter2 a}",
    ],
)
def test_no_error_shows_a_secret(faults: Faults, path: str, text: str) -> None:
    assert "hunter2" not in "\n".join(faults(f"{path}: {text}"))


@pytest.mark.parametrize("variable", ["SVC_SECURITY_API_KEY", "TRACKER_SECURITY_ADMIN_PASSWORD", "SERVER_DATABASE_URL"])
def test_no_error_of_a_variable_shows_a_secret(faults: Faults, variable: str) -> None:
    (fault,) = faults("", {variable: "hunter2\udc80"})
    assert variable in fault
    assert "hunter2" not in fault


def test_secrets_do_not_show_in_repr(read: Read) -> None:
    url = "postgresql://u:hunter4@h/d"
    words = "svc.security.api-key: hunter2, tracker.security.admin-password: hunter3"
    config = read(f"{{{words}, server.database-url: {url}}}")
    assert (config.svc.security.api_key, config.tracker.security.admin_password) == ("hunter2", "hunter3")
    assert config.server.database_url == url
    assert "hunter" not in repr(config)


# -- differences


def test_equal_configurations_do_not_differ(read: Read) -> None:
    assert differences(read(web("order: 1")), read(web("order: 1"))) == []


def test_differences_are_property_paths_and_processes(read: Read) -> None:
    old = read("{server.port: 1, svc.security.api-key: a, server.data-dir: x, " + PROCESSES.format(1, "gone"))
    new = read("{server.port: 2, svc.security.api-key: b, server.data-dir: x, " + PROCESSES.format(2, "new"))
    assert differences(old, new) == [
        "server.port",
        "svc.security.api-key",
        "supervisor.processes.a.b",
        "supervisor.processes.gone",
        "supervisor.processes.new",
    ]


PROCESSES = (
    "supervisor.processes: {{a.b: {{command: [run], order: {}}}, same: {{command: [run]}}, {}: {{command: [x]}}}}}}"
)


# -- groups


def test_groups_are_read_with_their_members(read: Read) -> None:
    text = "supervisor: {processes: {web: {command: [run]}}, groups: {backend: [web, 'w*', 'none*'], one: web}}"
    assert read(text).supervisor.groups == {"backend": ("web", "w*", "none*"), "one": ("web",)}
    assert read(f"supervisor.groups.backend: [web]\n{'supervisor.processes.web.command: run'}").supervisor.groups


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("groups: {backend: [wbe]}", "supervisor.groups.backend: 'wbe' is not a process"),
        ("groups: {backend: [web, '']}", "supervisor.groups.backend: must not be empty"),
        ("groups: {'a b': [web]}", "supervisor.groups: 'a b' is not a group name"),
    ],
)
def test_an_error_of_a_group_is_reported_with_its_path(faults: Faults, text: str, fault: str) -> None:
    (line,) = faults(f"supervisor:\n  processes: {{web: {{command: [run]}}}}\n  {text}")
    assert line.startswith(fault)


# -- logins by others


PROXY_LOGIN = "tracker.security.proxy-login"


@pytest.mark.parametrize(
    ("server", "login", "fault"),
    [
        ("{}", "{header: X-Remote-User}", f"{PROXY_LOGIN}.header: needs server.trusted-proxies"),
        ("{trusted-proxies: [10.0.0.1]}", "{header: 'X User'}", f"{PROXY_LOGIN}.header: 'X User' is not a name"),
        ("{trusted-proxies: [10.0.0.1]}", "{header: Cookie}", f"{PROXY_LOGIN}.header: 'Cookie' is a header with a"),
        ("{trusted-proxies: [10.0.0.1]}", "{header: Sec-Fetch-Site}", "is a header with a meaning of its own"),
        ("{trusted-proxies: [10.0.0.1]}", "{header: A, groups-header: a}", "must not be the header of the name"),
        ("{trusted-proxies: [10.0.0.1]}", "{header: A, admin-groups: [x]}", "admin-groups: needs groups-header"),
        ("{trusted-proxies: [10.0.0.1]}", "{admin-groups: [x]}", f"{PROXY_LOGIN}: needs header"),
    ],
)
def test_a_login_by_a_proxy_that_cannot_be_trusted_is_a_fault(read: Read, server: str, login: str, fault: str) -> None:
    with pytest.raises(BadConfig) as caught:
        read(f"server: {server}\ntracker: {{security: {{proxy-login: {login}}}}}")
    assert fault in "\n".join(caught.value.faults)


OIDC = "tracker.security.oidc"
CLIENT = "issuer: https://id.example/, client-id: p"


@pytest.mark.parametrize(
    ("public_url", "login", "fault"),
    [
        ("https://p.example", "{issuer: https://id.example}", f"{OIDC}: issuer and client-id must be given together"),
        ("https://p.example", "{client-id: p}", f"{OIDC}: issuer and client-id must be given together"),
        ("null", f"{{{CLIENT}}}", f"{OIDC}.issuer: needs server.public-url"),
        ("https://p.example", f"{{{CLIENT}, scopes: profile}}", f"{OIDC}.scopes: must have openid"),
        ("https://p.example", "{issuer: 'https://u:p-secret@id.example', client-id: p}", "must have no username"),
        ("https://p.example", "{issuer: 'https://id.example/?a=b', client-id: p}", "must have no username, query"),
        ("https://p.example", f"{{{CLIENT}, client-secret: 'p-secret x'}}", f"{OIDC}.client-secret: must have 1 to"),
        ("https://p.example", f"{{{CLIENT}, client-secret: p-secret, client-secret-file: /f}}", "given together"),
        ("https://p.example", f"{{{CLIENT}, client-secret-file: /nowhere/f}}", "'/nowhere/f' cannot be read"),
    ],
)
def test_a_fault_of_single_sign_on_is_reported_without_its_secret(
    read: Read, public_url: str, login: str, fault: str
) -> None:
    with pytest.raises(BadConfig) as caught:
        read(f"server: {{public-url: {public_url}}}\ntracker: {{security: {{oidc: {login}}}}}")
    assert fault in "\n".join(caught.value.faults)
    assert "p-secret" not in "\n".join(caught.value.faults)


def test_an_issuer_stays_as_it_is_and_its_secret_is_not_shown(read: Read) -> None:
    config = read(
        f"server: {{public-url: https://p.example}}\n"
        f"tracker: {{security: {{oidc: {{{CLIENT}, user-groups: [a, b]}}}}}}",
        {"TRACKER_SECURITY_OIDC_CLIENT_SECRET": "very-secret"},
    )
    login = config.tracker.security.oidc
    assert (login.issuer, login.client_secret) == ("https://id.example/", "very-secret")
    assert login.user_groups == ("a", "b")
    assert "very-secret" not in repr(config)


def test_a_login_by_a_proxy_is_read(read: Read) -> None:
    config = read(
        "server: {trusted-proxies: [10.0.0.1]}\n"
        "tracker: {security: {proxy-login: {header: X-User, groups-header: X-Groups, admin-groups: [a, b]}}}"
    )
    login = config.tracker.security.proxy_login
    assert (login.header, login.groups_header, login.admin_groups) == ("X-User", "X-Groups", ("a", "b"))


# -- forges

HUB = "type: github, url: https://a.example"
PEM = "-----BEGIN RSA PRIVATE KEY----- p-secret -----END RSA PRIVATE KEY-----".replace("p-secret", "cA+/c2Vj==")
LARGE_PEM = PEM.replace("cA+/c2Vj==", " ".join(62 * ["A" * 64]))
"""Of as many characters as one of 5120 bits."""


def test_an_app_of_a_forge_is_read(read: Read, tmp_path: Path) -> None:
    file = tmp_path / "app.pem"
    file.write_text(PEM.replace("----- ", "-----\r\n").replace(" -----END", "\r\n-----END"))
    config = read(f"""
        tracker:
          forges:
            a: {{{HUB}, app: {{id: 12, private-key-file: {file}, installation-id: 34}}}}
            b: {{{HUB}, app: {{id: 12, private-key: '{PEM}'}}}}
    """)
    apps = [forge.app for forge in config.tracker.forges.values()]
    assert apps == [ForgeApp(12, None, file, 34), ForgeApp(12, f"{PEM}\n")]
    assert "c2Vj" not in repr(config)


def test_a_forge_is_read_with_its_defaults(read: Read, tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_text(" from-a-file\n")
    text = f"""
        tracker:
          forges:
            main: {{type: github, url: "https://github.com/", token: tok-secret}}
            lab:
              {{type: gitlab, url: "https://git.example:8443/lab", token-file: {file}, repositories: [a/*]}}
            tea.url: http://tea.example
            tea.type: forgejo
            tea.api-url: https://api.tea.example
    """
    config = read(text)
    assert config.tracker.forges == {
        "main": ForgeSettings("github", "https://github.com", token="tok-secret"),
        "lab": ForgeSettings("gitlab", "https://git.example:8443/lab", token_file=file, repositories=("a/*",)),
        "tea": ForgeSettings("forgejo", "http://tea.example", "https://api.tea.example"),
    }
    assert "tok-secret" not in repr(config)
    other = attrs.evolve(config, tracker=attrs.evolve(config.tracker, forges={}))
    assert differences(config, other) == ["tracker.forges"]


@pytest.mark.parametrize(
    ("forge", "fault"),
    [
        ("{type: github}", "tracker.forges.x.url: is required"),
        ("{url: https://a.example}", "tracker.forges.x.type: is required"),
        ("{type: svn, url: https://a.example}", "tracker.forges.x.type: 'svn' is not one of github, gitlab, forgejo"),
        ("{type: github, url: https://u:p-secret@a.example}", "must have no username, query or fragment"),
        ("{type: github, url: ssh://a.example}", "is not an http or https URL with a host"),
        ("{type: github, url: https://a.example, token: 'p-secret x'}", "tracker.forges.x.token: must have 1 to 4096"),
        ("{type: github, url: https://a.example, token: p-secret, token-file: /f}", "cannot be given together"),
        ("{type: github, url: https://a.example, token-file: /nowhere/f}", "'/nowhere/f' cannot be read: No such file"),
        ("{type: github, url: https://a.example, app: 1}", "tracker.forges.x.app: a mapping is expected"),
        (f"{{{HUB}, app: {{id: 1, private-key: p-secret}}}}", "x.app.private-key: must be a private RSA key in PEM"),
        (
            f"{{{HUB}, app: {{id: 1, private-key-file: /nowhere/k}}}}",
            "x.app.private-key-file: '/nowhere/k' cannot be read",
        ),
        (
            f"{{{HUB}, app: {{id: 1, private-key-file: /dev/null}}}}",
            "x.app.private-key-file: must be a private RSA key",
        ),
        (
            f"{{{HUB}, app: {{id: 1, private-key: '{LARGE_PEM}'}}}}",
            "x.app.private-key: must be a private RSA key of at",
        ),
        (f"{{{HUB}, app: {{id: 1}}}}", "x.app: needs private-key or private-key-file"),
        (f"{{{HUB}, app: {{private-key: '{PEM}'}}}}", "x.app.id: is required"),
        (f"{{{HUB}, app: {{id: 0, private-key: '{PEM}'}}}}", "x.app.id: '0' is not between 1 and"),
        (f"{{{HUB}, token: p-secret, app: {{id: 1, private-key: '{PEM}'}}}}", "token and app cannot be given together"),
        (f"{{type: gitlab, url: https://a.example, app: {{id: 1, private-key: '{PEM}'}}}}", "only a forge of the type"),
    ],
)
def test_an_error_of_a_forge_is_reported_without_its_secret(read: Read, forge: str, fault: str) -> None:
    with pytest.raises(BadConfig) as caught:
        read(f"tracker: {{forges: {{x: {forge}}}}}")
    assert [fault in line for line in caught.value.faults] == [True]
    assert "p-secret" not in str(caught.value)


@pytest.mark.parametrize(
    ("settings", "fault"),
    [
        ("context: ''", "context: '' is not the name of a status: 1 to 100 printable characters"),
        (f"context: {'x' * 101}", "context: 'xxx"),
        ("statuses: all", "statuses: 'all' is not one of aggregate, flags, both"),
        ("max-wait: 0s", "max-wait: "),
    ],
)
def test_an_error_of_forge_reports_is_reported(read: Read, settings: str, fault: str) -> None:
    with pytest.raises(BadConfig) as caught:
        read(f"tracker: {{forge-reports: {{{settings}}}}}")
    assert [line.startswith(f"tracker.forge-reports.{fault}") for line in caught.value.faults] == [True]


@pytest.mark.parametrize("content", ["", "c2hvcnQ=", "not base64 at all", "A" * 64])
def test_a_key_file_without_a_key_is_reported(read: Read, tmp_path: Path, content: str) -> None:
    (tmp_path / "key").write_text(content)
    with pytest.raises(BadConfig) as caught:
        read(f"server: {{secret-key-file: {tmp_path / 'key'}}}")
    assert caught.value.faults == ("server.secret-key-file: must hold 32 random bytes in base64",)


# -- notifications


def test_channels_and_rules(read: Read) -> None:
    config = read(
        """
        notify:
          channels:
            team: {type: slack, url: https://chat.example/very-secret}
            ops: {type: email, to: [a@example.com, b@example.com]}
          smtp: {host: mail.example, username: pilot, password: very-secret, from: ops@example.com}
          rules:
            - {name: all, channels: [team, ops], events: ["process.*", gate.failed], quiet: 5m, branches: [main]}
        """
    )
    (rule,) = config.notify.rules
    assert (rule.channels, rule.events) == (("team", "ops"), ("process.*", "gate.failed"))
    assert float(rule.quiet) == 300
    assert config.notify.smtp.from_ == "ops@example.com"
    assert "very-secret" not in repr(config)
    other = attrs.evolve(config, notify=attrs.evolve(config.notify, channels={}))
    assert differences(config, other) == ["notify.channels"]


@pytest.mark.parametrize(
    ("notify", "fault"),
    [
        ("channels: {x: {type: slack}}", "notify.channels.x: type slack needs url or url-file"),
        ("channels: {x: {type: webhook, url: 'https://a.example'}}", "notify.channels.x: type webhook needs secret"),
        (
            "channels: {x: {type: webhook, url: 'https://a.example', secret: very}}",
            "notify.channels.x.secret: must be whsec_ and 24 to 64 bytes in base64",
        ),
        (
            "channels: {x: {type: slack, url: 'https://a.example', url-file: /f}}",
            "notify.channels.x: url and url-file cannot be given together",
        ),
        ("channels: {x: {type: slack, url-file: /none}}", "notify.channels.x.url-file: '/none' cannot be read"),
        (
            "channels: {x: {type: slack, url: 'htps://chat.example/very-secret'}}",
            "notify.channels.x.url: is not an http or https URL with a host",
        ),
        (
            "channels: {x: {type: post, url: 'https://chat.example', token: 'very secret'}}",
            "notify.channels.x.token: must have 1 to 4096 printable ASCII characters without spaces",
        ),
        ("channels: {x: {type: email, to: [a@b.example]}}", "notify.channels.x: mail needs notify.smtp.host"),
        ("channels: {x: {type: email}}", "notify.channels.x.to: must have 1 to 50 addresses"),
        ("channels: {x: {type: email, to: [nobody]}}", "notify.channels.x.to: 'nobody' is not a mail address"),
        ("rules: [{name: r, channels: [y], events: ['*']}]", "notify.rules[0]: 'y' is not a channel"),
        ("rules: [{name: r, channels: [y], events: [boom]}]", "notify.rules[0].events: 'boom' is not one of"),
        ("rules: [{name: r, events: ['*']}]", "notify.rules[0].channels: is required"),
        (
            "smtp: {host: mail.example, tls: none, username: u}",
            "notify.smtp.tls: none would send the password in plain text to another machine",
        ),
    ],
)
def test_a_channel_or_rule_that_cannot_be_used(read: Read, notify: str, fault: str) -> None:
    with pytest.raises(BadConfig) as bad:
        read(f"notify: {{{notify}}}")
    assert any(fault in line for line in bad.value.faults), bad.value.faults
    assert not [line for line in bad.value.faults if "very-secret" in line or "very secret" in line]
