"""JSON: the response types of supervision and of all services, and the converter.

Response types are attrs classes. Their fields become camelCase, in the order written here; `None` becomes null.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import Annotated, Any, Generic, Literal, NewType, TypeVar

import attrs
import cattrs
from attrs import field
from cattrs.gen import make_dict_unstructure_fn, override

from models import VERSION
from models.json_format import Instant, camel_case, http_message, rfc3339
from models.paging import Page
from models.supervision.events import StatusEvent
from models.supervision.metrics import MetricStep
from models.supervision.notices import Notice
from models.supervision.process import Status
from models.times import SECOND
from supervisor import host
from supervisor.processes.fleet import Reload
from supervisor.processes.group_calls import Outcome
from supervisor.processes.process.health import HealthReport, check_name
from supervisor.processes.process.process import Process

Length = NewType("Length", int)
"""Microseconds; in JSON an ISO 8601 duration, hours the largest unit."""

Int32 = Annotated[int, "int32"]
"""A number of 32 bits."""

Item = TypeVar("Item")
Stored = TypeVar("Stored")

LEFT_OUT = {"left_out": True}
"""Metadata of a field that is omitted where it has no value; others are null."""

EVENT_SORTS = {
    "id": "id",
    "pid": "pid",
    "eventTime": "event_time",
    "processName": "process",
    "startTime": "start_time",
    "endTime": "end_time",
    "exitCode": "exit_code",
    "newStatus": "new_status",
    "oldStatus": "old_status",
    "processUptime": "uptime",
}
"""Sort keys of by-status and by-process: the JSON name and the column."""

COMMON_EVENT_SORTS = {name: EVENT_SORTS[name] for name in ("eventTime", "processName", "newStatus", "oldStatus", "pid")}
"""Sort keys of `/events`."""


@http_message
class ProcessStatusInfo:
    name: str
    status: Status
    pid: int | None
    start_time: Instant | None
    end_time: Instant | None
    exit_code: Int32 | None
    process_runtime: Length
    process_uptime: str
    stdout_logfile: str | None
    stderr_logfile: str | None
    failed_error_log: str | None


@http_message
class ProcessGroup:
    name: str
    members: Sequence[str]
    live: Int32


@http_message
class ProcessResult:
    """The result of an operation on several processes for one of them."""

    name: str
    outcome: Outcome
    message: str


@http_message
class ProcessResults:
    message: str
    results: Sequence[ProcessResult]


@http_message
class ProcessEventEntry:
    id: int
    pid: int | None
    event_time: Instant
    process_name: str
    start_time: Instant | None
    end_time: Instant | None
    exit_code: Int32 | None
    new_status: Status
    old_status: Status
    process_uptime: Length


@http_message
class ProcessHealth:
    """The last health check of a process; nulls without one."""

    process: str
    status: Status
    check: str | None
    message: str | None
    failures: Int32
    since: Instant | None
    checked_at: Instant | None


@http_message
class MetricPoint:
    """CPU in percent of one processor and memory in bytes, over the step that begins at `at`.

    `group` begins the names of the values of the process group: the process with those it started in its group.
    """

    at: Instant
    cpu_avg: float
    cpu_max: float
    memory_avg: float
    memory_max: float
    group_cpu_avg: float
    group_cpu_max: float
    group_memory_avg: float
    group_memory_max: float


def metric_point(point: MetricStep) -> MetricPoint:
    return MetricPoint(
        at=Instant(point.at * SECOND),
        cpu_avg=round(point.cpu_avg, 2),
        cpu_max=round(point.cpu_max, 2),
        memory_avg=round(point.memory_avg),
        memory_max=round(point.memory_max),
        group_cpu_avg=round(point.group_cpu_avg, 2),
        group_cpu_max=round(point.group_cpu_max, 2),
        group_memory_avg=round(point.group_memory_avg),
        group_memory_max=round(point.group_memory_max),
    )


@http_message
class ProcessMetrics:
    """The metrics of a process: `step` is in seconds, `starts` has the times at which it was started."""

    process: str
    step: Int32
    points: list[MetricPoint]
    starts: list[Instant]


@http_message
class ProcessNotice:
    """An event of a process that does not change its status."""

    id: int
    time: Instant
    name: str
    process_name: str | None
    message: str
    facts: Mapping[str, str | int | float | bool | None]


@http_message
class SupervisorInfo:
    node_name: str
    description: str
    physical_memory: str
    physical_cpu: Int32
    operating_system: str
    available_memory: str


@http_message
class ErrorResponse:
    timestamp: Instant
    path: str
    error: str
    message: str
    code: str


@http_message
class ErrorResponseWithResults(ErrorResponse):
    results: Sequence[ProcessResult]


@http_message
class ProblemDetail:
    """RFC 9457, and `message` with the text of `detail`."""

    type: str
    title: str
    status: int
    detail: str
    instance: str
    message: str


@http_message
class DatedProblemDetail(ProblemDetail):
    timestamp: Instant
    code: str
    """A stable name of the cause: `webhook-unavailable`, `not-found`."""


@http_message
class Account:
    username: str
    display_name: str | None
    email: str | None
    role: str


@http_message
class ResponseMessage:
    message: str | None = field(default=None, metadata=LEFT_OUT)
    error: str | None = field(default=None, metadata=LEFT_OUT)


@http_message
class Sort:
    unsorted: bool = False
    sorted: bool = True
    empty: bool = False


@http_message
class Pageable:
    page_size: Int32
    page_number: Int32
    offset: int
    sort: Sort = Sort()
    paged: bool = True
    unpaged: bool = False


@http_message
class PageOf(Generic[Item]):
    content: Sequence[Item]
    total_pages: Int32
    total_elements: int
    first: bool
    last: bool
    empty: bool
    number_of_elements: Int32
    size: Int32
    number: Int32
    pageable: Pageable
    sort: Sort = Sort()


@http_message
class ReloadResult:
    message: str
    added: Sequence[str]
    removed: Sequence[str]
    started: Sequence[str]
    restarted: Sequence[str]
    changed: Sequence[str]
    failed: Sequence[str]
    settings: Sequence[str]
    need_restart: Sequence[str]


@http_message
class Health:
    status: Literal["UP"] = "UP"
    version: str = VERSION


@http_message
class Readiness:
    status: Literal["UP"] = "UP"
    store: Literal["UP"] = "UP"
    loop: Literal["UP"] = "UP"
    charts: Mapping[str, bool] = field(kw_only=True)
    """By group, whether it is available."""
    disk: Literal["UP", "LOW"] = field(default="UP", kw_only=True)
    """LOW: less than `server.storage.min-free` is free, so uploads are refused."""


def length(micros: int) -> str:
    """Returns `PT49H3M2.5S` for microseconds, `PT0S` for none."""
    seconds, fraction = divmod(micros, SECOND)
    minutes, seconds = divmod(seconds, 60)
    hours, minutes = divmod(minutes, 60)
    rest = f"{seconds}.{fraction:06}".rstrip("0") if fraction else f"{seconds}"
    text = (f"{hours}H" if hours else "") + (f"{minutes}M" if minutes else "") + (f"{rest}S" if rest != "0" else "")
    return f"PT{text or '0S'}"


def duration_text(micros: int) -> str:
    """Returns microseconds as text: `2d 5h 30m`, below a minute `12s`; `0s` if the clock was set back meanwhile."""
    minutes, seconds = divmod(max(0, micros) // SECOND, 60)
    if not minutes:
        return f"{seconds}s"
    days, hours = divmod(minutes // 60, 24)
    return (f"{days}d " if days else "") + (f"{hours}h " if days or hours else "") + f"{minutes % 60}m"


def name_of(field: attrs.Attribute[Any]) -> str:
    """Returns the JSON name of a field."""
    return field.name if field.metadata.get("verbatim") else camel_case(field.name)


def may_be_missing(field: attrs.Attribute[Any]) -> bool:
    """Whether a field is omitted where it has no value."""
    return bool(field.metadata.get("left_out"))


def _converter() -> cattrs.Converter:
    converter = cattrs.Converter()

    def renamed(cls: type[Any]) -> Any:
        fields = attrs.fields(attrs.resolve_types(cls))
        names: Any = {a.name: override(rename=name_of(a), omit_if_default=may_be_missing(a)) for a in fields}
        return make_dict_unstructure_fn(cls, converter, **names)

    converter.register_unstructure_hook_factory(attrs.has, renamed)
    converter.register_unstructure_hook(Instant, rfc3339)
    converter.register_unstructure_hook(Length, length)
    return converter


_json_converter = _converter()


def plain(response: Any) -> Any:
    """Returns a response object, or lists and maps of them, as JSON values."""
    return _json_converter.unstructure(response)


def text(value: Any) -> str:
    """Returns JSON values as compact JSON."""
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False)


def encoded(response: Any) -> bytes:
    """Returns a response object as compact JSON in UTF-8. Bytes of file names that are not UTF-8 become `?`."""
    return text(plain(response)).encode("utf-8", "replace")


@cache
def _names(kind: Any) -> Sequence[str]:
    return [field.name for field in attrs.fields(kind)]


def copied(kind: Callable[..., Item], source: object, /, **others: Any) -> Item:
    """Makes a response of `others`; its other fields are the attributes of `source` with the same names."""
    return kind(**others, **{name: getattr(source, name) for name in _names(kind) if name not in others})


def process_status(process: Process) -> ProcessStatusInfo:
    record, spec = process.record, process.spec
    lived = Length(process.uptime())
    return ProcessStatusInfo(
        name=process.name,
        status=record.status,
        pid=record.pid if process.live else None,
        start_time=instant(record.start),
        end_time=instant(record.end),
        exit_code=record.exit_code,
        process_runtime=lived,
        process_uptime="" if record.start is None else duration_text(lived),
        stdout_logfile=spec.stdout_logfile,
        stderr_logfile=spec.stderr_file,
        failed_error_log=record.failed_log,
    )


def process_health(process: Process, report: HealthReport | None) -> ProcessHealth:
    if report is None:
        check = process.spec.health_check  # its first result is not known yet
        name = None if check is None else check_name(check)
        return ProcessHealth(process.name, process.status, name, None, Int32(0), None, None)
    return ProcessHealth(
        process.name,
        process.status,
        report.check,
        report.message or "ok",
        Int32(report.failures),
        instant(report.since),
        instant(report.checked_at),
    )


def event_entry(entry: StatusEvent) -> ProcessEventEntry:
    return ProcessEventEntry(
        id=entry.id,
        pid=entry.pid,
        event_time=Instant(entry.at),
        process_name=entry.process,
        start_time=instant(entry.start),
        end_time=instant(entry.end),
        exit_code=entry.exit_code,
        new_status=entry.new,
        old_status=entry.old,
        process_uptime=Length(entry.uptime),
    )


def notice(entry: Notice) -> ProcessNotice:
    return ProcessNotice(entry.id, Instant(entry.at), entry.name, entry.process, entry.message, entry.facts)


def page_of(page: Page[Stored], serialize: Callable[[Stored], Item]) -> PageOf[Item]:
    paging = page.paging
    return PageOf(
        content=[serialize(one) for one in page.content],
        total_pages=page.pages,
        total_elements=page.total,
        first=paging.number == 0,
        last=paging.number + 1 >= page.pages,
        empty=not page.content,
        number_of_elements=len(page.content),
        size=paging.size,
        number=paging.number,
        pageable=Pageable(paging.size, paging.number, paging.offset),
    )


def reload_result(done: Reload, need: Sequence[str], dry_run: bool = False) -> ReloadResult:
    heading = "a reload would do this" if dry_run else "the configuration has been read"
    return copied(ReloadResult, done, message=f"{heading}: {done}", need_restart=need)


def supervisor_info(name: str, description: str, machine: host.Host) -> SupervisorInfo:
    return SupervisorInfo(
        node_name=name,
        description=description,
        physical_memory=host.size(machine.memory),
        physical_cpu=machine.cpus,
        operating_system=machine.system,
        available_memory=host.size(machine.available),
    )


def instant(at: int | None) -> Instant | None:
    return None if at is None else Instant(at)
