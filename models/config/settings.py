"""Every setting, as frozen classes that `models/config/loader.py` fills.

A class is the whole declaration of its properties: the attribute with - for _ is the name, the type decides how text is
parsed and checked, the default is the documented one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Literal

from attrs import Factory, field, frozen

from models.config import forge_checks, parsers, secret_files
from models.config.login_settings import Oidc, ProxyLogin
from models.config.parsers import (
    Bytes,
    Count,
    Count0,
    Filled,
    ForgeUrl,
    Host,
    Increase,
    Percent,
    Port,
    Span,
    Token,
    Url,
)
from models.supervision.process import LogMode, ProcessSpec, Seconds, Size

KIB, MIB, DAY = 1024, 1024**2, 86400
MAX_SOCKET_PATH_BYTES = 107
"""What the address of a Unix socket holds."""
MAX_FORGE_ID = 2**53 - 1
"""Of an App or an installation on a forge."""


class BadConfig(Exception):
    """The configuration is invalid. `faults` has one line for each fault, in the order in which they were found."""

    def __init__(self, faults: Sequence[str]) -> None:
        super().__init__("\n".join(faults))
        self.faults = tuple(faults)


@frozen
class TlsSettings:
    certificate: Path | None = None
    key: Path | None = None


@frozen
class UnixSocketSettings:
    path: Filled | None = None
    mode: Literal["0600", "0660"] = "0600"
    group: Filled | None = None


@frozen
class OutboundSettings:
    """Requests to forges and channels."""

    allowed_hosts: tuple[Annotated[str, parsers.host_port], ...] = ()
    block_private_networks: bool = True
    timeout: Annotated[Seconds, parsers.time_between(0.001, parsers.MAX_REQUEST_SECONDS)] = Seconds(10)
    ca_file: Path | None = None
    max_answer: Bytes = Size(MIB)


@frozen
class OutboxSettings:
    """Messages that are to be sent, and those that were."""

    max_rows: Annotated[int, parsers.between(10, 1_000_000)] = 10_000
    max_age: Span = Seconds(DAY)
    retain_days: Count = 14


@frozen
class WorkerSettings:
    """Processes that read what callers send."""

    processes: Count = 2
    idle: Span = Seconds(60)


@frozen
class StorageSettings:
    min_free: Annotated[Size, parsers.at_least(0)] | None = None
    """None: 256 MiB, or 5 % of the file system where that is less."""


@frozen
class ServerSettings:
    address: Annotated[tuple[Host, ...], parsers.addresses] = ("127.0.0.1",)
    """Empty: no TCP."""
    port: Port = 8080
    public_url: ForgeUrl | None = None
    """The address by which people reach the server, for links in what is sent."""
    unix_socket: UnixSocketSettings = UnixSocketSettings()
    data_dir: Path = Path("data")
    allowed_hosts: tuple[Annotated[str, parsers.host_header], ...] = ()
    trusted_proxies: tuple[Annotated[str, parsers.network], ...] = ()
    tls: TlsSettings = TlsSettings()
    log_format: Literal["text", "json"] = "text"
    syslog: Annotated[str, parsers.syslog_address] = "/dev/log"
    max_streams: Count = 10_000
    max_body: Bytes = Size(101 * MIB)
    max_unfinished: Bytes = Size(64 * MIB)
    stream_buffer: Bytes = Size(256 * KIB)
    stream_replay: Count0 = 1000
    shutdown_timeout: Seconds = Seconds(30)
    database_url: Annotated[str, parsers.database_url] | None = field(default=None, repr=False)
    secret_key_file: Path | None = None
    outbound: OutboundSettings = OutboundSettings()
    outbox: OutboxSettings = OutboxSettings()
    workers: WorkerSettings = WorkerSettings()
    storage: StorageSettings = StorageSettings()

    @property
    def control_socket(self) -> str | None:
        """The path of the control socket; `None` where it is off."""
        path = self.unix_socket.path
        return None if path == "none" else path or str(self.data_dir / "control.sock")


@frozen
class ControlSecurity:
    allow_anonymous_control: bool = False
    local_control: Literal["anybody", "operator"] = "anybody"


@frozen
class EventSettings:
    retain_days: Count = 90
    retain_rows: Count = 1_000_000


@frozen
class NoticeSettings:
    retain_rows: Annotated[int, parsers.between(1, 1_000_000)] = 10_000


@frozen
class MetricSettings:
    interval: Annotated[Seconds, parsers.between(0, 3600)] = Seconds(5)
    """0: off."""
    keep: Annotated[Seconds, parsers.between(0, DAY)] = Seconds(DAY)


@frozen
class JobRunSettings:
    retain: Annotated[int, parsers.between(1, 10_000)] = 100


@frozen
class SupervisorSettings:
    node_name: Filled | None = None
    description: str = ""
    auto_start: bool = True
    on_exit: Literal["stop", "leave"] = "stop"
    log: LogMode = LogMode.INHERIT
    security: ControlSecurity = ControlSecurity()
    events: EventSettings = EventSettings()
    notices: NoticeSettings = NoticeSettings()
    metrics: MetricSettings = MetricSettings()
    runs: JobRunSettings = JobRunSettings()
    processes: Mapping[Annotated[str, parsers.process_name], ProcessSpec] = Factory(dict)
    """In the order of the file."""
    groups: Mapping[Annotated[str, parsers.group_name], tuple[Filled, ...]] = Factory(dict)
    """Group -> its members: names of processes, or globs."""


@frozen
class ChartSecurity:
    mode: Literal["READ_ONLY", "FULL"] = "READ_ONLY"
    api_key: str | None = field(default=None, repr=False)
    api_key_header: Token = "X-API-Key"
    cluster_reads: Literal["KEY", "OPEN", "OFF"] = "KEY"
    block_private_networks: bool = False
    allowed_hosts: tuple[Annotated[str, parsers.host_port], ...] = ()


@frozen
class AccessInterceptorSettings:
    enabled: bool = True


@frozen
class RestSettings:
    base_path: Annotated[str, parsers.base_path] = "/api/v1"
    temp_dir: Path | None = None
    unknown_fields: Literal["REFUSE", "IGNORE"] = "REFUSE"
    access_interceptor: AccessInterceptorSettings = AccessInterceptorSettings()


@frozen
class HelmSettings:
    binary: Filled | None = None
    max_concurrent: Count | None = None
    reserved: Count0 = 1
    per_caller: Count | None = None
    queue_per_caller: Count = 8
    queue: Count = 64
    max_memory: Bytes = Size(1536 * MIB)
    timeout: Span = Seconds(300)
    template_timeout: Span = Seconds(30)
    open_template_timeout: Span = Seconds(10)
    lock_timeout: Seconds = Seconds(30)
    max_output: Bytes = Size(64 * MIB)


@frozen
class KubeSettings:
    kubeconfig: Filled | None = None
    context: Filled | None = None
    namespaces: tuple[Filled, ...] = ()
    contexts: tuple[Filled, ...] = ()


@frozen
class HubSettings:
    url: Url = "https://artifacthub.io"


@frozen
class FetchSettings:
    timeout: Span = Seconds(30)
    max_index: Bytes = Size(256 * MIB)
    max_archive: Bytes = Size(100 * MIB)
    max_redirects: Count0 = 10
    max_tags: Count = 20_000
    keyring: Path | None = None


@frozen
class WorkSettings:
    threads: Count | None = None
    """Ignored: `server.workers.processes` counts for charts too."""
    queue: Count = 64
    timeout: Span = Seconds(20)


@frozen
class PackageSettings:
    keyring: Path | None = None
    key: Filled | None = None
    passphrase_file: Path | None = None


@frozen
class UpgradeCheckSettings:
    interval: Span = Seconds(3600)


@frozen
class McpSettings:
    enabled: bool | None = None
    toolsets: tuple[Annotated[str, parsers.toolset], ...] = parsers.TOOLSETS


@frozen
class SvcSettings:
    security: ChartSecurity = ChartSecurity()
    rest: RestSettings = RestSettings()
    helm: HelmSettings = HelmSettings()
    kube: KubeSettings = KubeSettings()
    hub: HubSettings = HubSettings()
    fetch: FetchSettings = FetchSettings()
    work: WorkSettings = WorkSettings()
    package: PackageSettings = PackageSettings()
    upgrades: UpgradeCheckSettings = UpgradeCheckSettings()
    mcp: McpSettings = McpSettings()


@frozen
class LoginFailureSettings:
    per_minute: Count = 10
    per_name_per_hour: Count = 100


@frozen
class TrackerSecurity:
    open_mode: bool = True
    require_ingest_token: bool = False
    default_visibility: Literal["PUBLIC", "PRIVATE"] | None = None
    login_failures: LoginFailureSettings = LoginFailureSettings()
    admin_username: Filled = "admin"
    admin_password: Filled | None = field(default=None, repr=False)
    session_lifetime: Span = Seconds(30 * DAY)
    oidc: Oidc = Oidc()  # noqa: RUF009 (frozen)
    proxy_login: ProxyLogin = ProxyLogin()  # noqa: RUF009 (frozen)


@frozen
class QualityGate:
    """The limits of the quality gate; the response of a project has those that count for it."""

    base_branch: Filled = "main"
    min_line_coverage: Percent | None = None
    max_coverage_drop_pct: Percent = 1.0
    fail_on_new_failures: bool = True
    min_patch_coverage: Percent | None = None
    min_patch_lines: Count0 = 0
    fail_on_no_tests: bool = False
    fail_on_missing_coverage: bool = False
    aggregate_flags: bool = True
    carry_forward_flags: tuple[Annotated[str, parsers.flag_name], ...] = ()
    carry_forward_max_age: Span = Seconds(30 * DAY)
    required_flags: tuple[Annotated[str, parsers.flag_name], ...] = ()
    max_test_drop_pct: Percent | None = None
    fail_on_any_failure: bool = False
    perf_max_latency_increase_pct: Increase | None = None
    perf_max_throughput_drop_pct: Percent | None = None
    perf_max_error_pct: Percent | None = None


@frozen
class Quarantine:
    """When flaky tests are quarantined; `after_flaky` None, or 0 in a project: never."""

    after_flaky: Count | None = None
    within: Span = Seconds(14 * DAY)
    expires: Span = Seconds(14 * DAY)
    max_pct: Percent = 5.0


@frozen
class RunSettings:
    settle: Span = Seconds(600)
    incomplete_after: Span = Seconds(7200)


@frozen
class ReportLimits:
    file: Bytes = Size(25 * MIB)
    request: Bytes = Size(100 * MIB)
    inflated: Bytes = Size(256 * MIB)
    inflated_request: Bytes = Size(1024 * MIB)
    parts: Count = 10_000
    depth: Count = 200
    output_per_case: Bytes = Size(MIB)
    open_projects: Count0 = 200
    open_projects_per_hour: Count0 = 20
    """0: no limit."""


@frozen
class AttachmentSettings:
    enabled: bool = True
    dir: Path | None = None
    file: Bytes = Size(10 * MIB)
    per_run: Bytes = Size(100 * MIB)
    per_case: Count = 20
    per_project: Bytes | None = None
    total: Bytes = Size(2048 * MIB)
    retain_days: Count0 = 14


SourceMode = Literal["off", "upload", "forge"]
ReportComment = Literal["always", "changes", "failures", "off"]
ReportStatuses = Literal["aggregate", "flags", "both"]
ReportPublish = Literal["status", "check", "both"]
UntrustedReport = Literal["none", "comment"]


@frozen
class SourceSettings:
    mode: SourceMode = "off"
    file: Bytes = Size(MIB)
    cache: Bytes = Size(64 * MIB)


@frozen
class ForgeApp:
    """A GitHub App, which gets a token for each repository. Without `installation_id`, GitHub is queried for it."""

    id: Annotated[int, parsers.between(1, MAX_FORGE_ID)]
    private_key: Annotated[str, secret_files.check_private_key] | None = field(default=None, repr=False)
    private_key_file: Path | None = None
    installation_id: Annotated[int, parsers.between(1, MAX_FORGE_ID)] | None = None


@frozen
class ForgeSettings:
    type: Literal["github", "gitlab", "forgejo"]
    url: ForgeUrl
    api_url: ForgeUrl | None = None
    token: Annotated[str, secret_files.check_token] | None = field(default=None, repr=False)
    token_file: Path | None = None
    repositories: tuple[Filled, ...] = ("*",)
    app: ForgeApp | None = None


@frozen
class ForgeReportSettings:
    """What is reported to the forges of `tracker.forges`."""

    enabled: bool = True
    publish: ReportPublish = "status"
    comment: ReportComment = "changes"
    statuses: ReportStatuses = "aggregate"
    context: Annotated[str, forge_checks.status_context] = "pilothouse/gate"
    untrusted: UntrustedReport = "none"
    debounce: Seconds = Seconds(15)
    max_wait: Span = Seconds(300)


@frozen
class TrackerSettings:
    security: TrackerSecurity = TrackerSecurity()
    quality_gate: QualityGate = QualityGate()
    quarantine: Quarantine = Quarantine()
    runs: RunSettings = RunSettings()
    limits: ReportLimits = ReportLimits()
    attachments: AttachmentSettings = AttachmentSettings()
    source: SourceSettings = SourceSettings()
    forges: Mapping[Annotated[str, parsers.forge_name], ForgeSettings] = Factory(dict)
    forge_reports: ForgeReportSettings = ForgeReportSettings()
    retain_days: Count0 = 0
    retain_runs: Count0 = 0


@frozen
class SmtpSettings:
    """The mail server of the channels of type email, and of the mails to accounts."""

    host: Host | None = None
    port: Annotated[int, parsers.between(1, 65535)] = 587
    tls: Literal["starttls", "tls", "none"] = "starttls"
    username: Filled | None = None
    password: str | None = field(default=None, repr=False)
    password_file: Path | None = None
    from_: Annotated[str, parsers.mail_address] | None = None


@frozen
class ChannelSettings:
    """Where messages go. `url`, `secret` and `token` are secrets; each may stand in a file."""

    type: Literal["webhook", "slack", "teams", "email", "post"]
    url: Annotated[str, secret_files.check_url] | None = field(default=None, repr=False)
    url_file: Path | None = None
    secret: str | None = field(default=None, repr=False)
    secret_file: Path | None = None
    token: Annotated[str, secret_files.check_token] | None = field(default=None, repr=False)
    token_file: Path | None = None
    to: tuple[Annotated[str, parsers.mail_address], ...] = ()
    preset: Literal["ntfy", "gotify", "text", "json"] = "json"
    priority: Annotated[int, parsers.between(0, 10)] | None = None


@frozen
class NotifyRuleSettings:
    """Which events are reported to which channels, and how often."""

    name: Filled
    channels: tuple[Filled, ...]
    events: tuple[Annotated[str, parsers.event_pattern], ...]
    processes: tuple[Filled, ...] = ("*",)
    labels: tuple[Filled, ...] = ()
    releases: tuple[Filled, ...] = ("*",)
    projects: tuple[Filled, ...] = ("*",)
    branches: tuple[Filled, ...] | None = None
    """None: the base branch of the project."""
    flags: tuple[Filled, ...] = ("*",)
    only_on_change: bool = True
    quiet: Seconds = Seconds(900)
    group_wait: Seconds = Seconds(10)
    resolve: bool = True
    resolve_after: Seconds = Seconds(60)
    max_per_hour: Count = 60


@frozen
class NotifySettings:
    enabled: bool = True
    channels: Mapping[Annotated[str, parsers.forge_name], ChannelSettings] = Factory(dict)
    rules: tuple[NotifyRuleSettings, ...] = ()
    smtp: SmtpSettings = SmtpSettings()

    @property
    def has_mail(self) -> bool:
        """Whether accounts can get mails."""
        return self.enabled and self.smtp.host is not None


@frozen
class Config:
    server: ServerSettings = ServerSettings()
    supervisor: SupervisorSettings = SupervisorSettings()
    svc: SvcSettings = SvcSettings()
    tracker: TrackerSettings = TrackerSettings()
    notify: NotifySettings = NotifySettings()
