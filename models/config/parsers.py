"""Parsers and checks of single values.

A parser turns text into a value. A check takes a parsed value and returns it, or another in its place. Both raise
`ValidationError`. Types that carry checks (`Port`, `Filled` ...) are written with `Annotated`.
"""

from __future__ import annotations

import fnmatch
import ipaddress
import math
import re
import shlex
import signal
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Annotated, NewType, TypeAlias, TypeVar
from urllib.parse import urlsplit

from models.supervision import schedule
from models.supervision.process import Restart, Seconds, Size

Raw: TypeAlias = "str | list[Raw] | dict[str, Raw] | None"
"""A YAML value in which every scalar but null is still text."""

Words = NewType("Words", tuple[str, ...])
"""The arguments of a command: a list, or text that is split as a shell splits it."""

T = TypeVar("T")
N = TypeVar("N", int, float)
MAX_SECONDS = 36500 * 86400.0  # a hundred years: beyond it timers and dates overflow
MAX_REQUEST_SECONDS = 40  # a message is leased for 60 s while it is sent, and its secrets may take 10 s to read


class ValidationError(ValueError):
    """A value is invalid. The message begins with the value, shortened, where one is given."""

    def __init__(self, why: str, value: object = None) -> None:
        super().__init__(why if value is None else f"{shown(str(value))} {why}")


def shown(text: str) -> str:
    """`text` in quotes, on one line, at most 60 characters of it."""
    return repr(text if len(text) <= 60 else text[:57] + "...")


def suggestion(name: str, names: Iterable[str], above: str = "") -> str:
    """The end of a fault about an unknown name."""
    close = closest(name.lower(), names)
    return f"; did you mean {above}{close}?" if close else ""


def closest(name: str, names: Iterable[str], similarity: float = 0.7) -> str:
    """The one of `names` that is most like `name`; empty where none is at least so similar."""
    from difflib import get_close_matches  # 0.4 MB, for a fault only

    return next(iter(get_close_matches(name, list(names), 1, similarity)), "")


def text(raw: str) -> str:
    """Text that a file name, an argument and JSON can hold. A fault does not show it: it may be a password."""
    if "\0" in raw:
        raise ValidationError("must not contain a NUL character")
    if any("\ud800" <= c <= "\udfff" for c in raw):
        raise ValidationError("must be valid UTF-8")
    return raw


def filled(raw: str) -> str:
    if not raw.strip():
        raise ValidationError("must not be empty")
    return raw


def file_path(raw: str) -> Path:
    return Path(filled(text(raw)))


def one_of(*names: str) -> Callable[[str], str]:
    def check(raw: str) -> str:
        if raw not in names:
            raise ValidationError(f"is not one of {', '.join(names)}", raw)
        return raw

    return check


_BOOLEANS = {"true": True, "yes": True, "on": True, "false": False, "no": False, "off": False}


def yes_or_no(raw: str) -> bool:
    try:
        return _BOOLEANS[raw.strip().lower()]
    except KeyError:
        raise ValidationError("is not true or false", raw) from None


_AUTORESTART = {"true": "always", "unexpected": "on-failure", "false": "never"}


def restart(raw: str) -> Restart:
    """A policy, also in the words of supervisord, which a variable of an imported configuration may hold."""
    check = one_of(*(policy.value for policy in Restart))
    return Restart(check(_AUTORESTART.get(raw.strip().lower(), raw)))


def whole(raw: str) -> int:
    digits = raw.strip()
    if not re.fullmatch(r"[+-]?[0-9]+", digits):
        raise ValidationError("is not a whole number", raw)
    if len(digits) > 18:  # what SQLite and the operating system take
        raise ValidationError("is too large", raw)
    return int(digits)


def number(raw: str) -> float:
    if not re.fullmatch(r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)", raw.strip()):
        raise ValidationError("is not a number", raw)
    return float(raw)


def between(low: N, high: N) -> Callable[[N], N]:
    def check(value: N) -> N:
        if not low <= value <= high:
            raise ValidationError(f"is not between {low} and {high}", value)
        return value

    return check


def at_least(low: int) -> Callable[[int], int]:
    def check(value: int) -> int:
        if value < low:
            raise ValidationError(f"is less than {low}", value)
        return value

    return check


_N = r"([0-9]*\.?[0-9]+)"
_SHORT = re.compile(rf"(?:{_N}d)?(?:{_N}h)?(?:{_N}m)?(?:{_N}s)?(?:{_N}ms)?")
_ISO = re.compile(rf"P(?=[0-9.T])(?:{_N}W)?(?:{_N}D)?(?:T(?=[0-9.])(?:{_N}H)?(?:{_N}M)?(?:{_N}S)?)?")
_BARE = re.compile(_N)
_FORMS = (
    (_SHORT, (86400, 3600, 60, 1, 0.001)),
    (_ISO, (604800, 86400, 3600, 60, 1)),
    (_BARE, (1,)),
)


def seconds(raw: str) -> Seconds:
    """`500ms`, `1h30m`, `PT1M30S` or a bare number of seconds; at most a hundred years."""
    written = raw.strip()
    for form, units in _FORMS:
        if written and (found := form.fullmatch(written)):
            return _bounded(math.fsum(float(n) * unit for n, unit in zip(found.groups(), units, strict=True) if n), raw)
    raise ValidationError("is not a length of time such as 500ms, 5s, 2m, 1h, 30d, PT5S or a number of seconds", raw)


def _bounded(length: float, raw: str) -> Seconds:
    if length > MAX_SECONDS:
        raise ValidationError("is longer than 36500d", raw)
    return Seconds(length)


def some_time(length: Seconds) -> Seconds:
    if not length:
        raise ValidationError("must be longer than 0")
    return length


def a_mebibyte_or_more(size: Size) -> Size:
    if size < 1024**2:
        raise ValidationError("must be 1M or more")
    return size


def size(raw: str) -> Size:
    """`64K`, `64KB`, `64KiB` (base 1024, any case) or a bare number of bytes."""
    found = re.fullmatch(r"([0-9]+) ?([KMGT]?)(?:i?B)?", raw.strip(), re.IGNORECASE)
    if not found:
        raise ValidationError("is not a size such as 64K, 25M, 1G or a number of bytes", raw)
    total = whole(found[1]) * 1024 ** " KMGT".index(found[2].upper() or " ")
    if total >= 2**63:
        raise ValidationError("is too large", raw)
    return Size(total)


def cron(raw: str) -> str:
    """Five fields, or `@hourly` to `@yearly`."""
    try:
        return schedule.check_cron(text(raw))
    except ValueError as why:
        raise why if isinstance(why, ValidationError) else ValidationError(str(why), raw) from None


def timezone(raw: str) -> str:
    """An IANA name that the time zone database has."""
    try:
        return schedule.check_timezone(raw)
    except ValueError as why:
        raise ValidationError(str(why), raw) from None


def time_between(low: float, high: float = MAX_SECONDS) -> Callable[[Seconds], Seconds]:
    """Accepts `low` to `high`, in seconds."""

    def check(length: Seconds) -> Seconds:
        if low > length and high == MAX_SECONDS:
            raise ValidationError(f"must be {time_text(low)} or more", time_text(length))
        if not low <= length <= high:
            raise ValidationError(f"is not between {time_text(low)} and {time_text(high)}", time_text(length))
        return length

    return check


_UNITS = (("d", 86400), ("h", 3600), ("m", 60))


def time_text(seconds: float) -> str:
    """A length of time as the configuration has it, such as `14d`."""
    unit, length = next(((unit, n) for unit, n in _UNITS if seconds and seconds % n == 0), ("s", 1))
    return f"{seconds / length:g}{unit}"


def octal(raw: str) -> int:
    if not re.fullmatch(r"(0o)?0*[0-7]{1,3}", raw.strip()):
        raise ValidationError("is not a umask such as 022 (octal, at most 777)", raw)
    return int(raw, 8)


_SIGNALS = {
    spelling: known
    for name, known in signal.Signals.__members__.items()
    for spelling in (name, name.removeprefix("SIG"), str(int(known)))
}


def signal_of(raw: str) -> signal.Signals:
    try:
        return _SIGNALS[raw.strip().upper()]
    except KeyError:
        raise ValidationError("is not a signal such as TERM, HUP or 15", raw) from None


def exit_code(raw: str) -> str:
    """An exit code, or the name of a signal without `SIG`, as `Exit.listed_as` has it."""
    text = raw.strip().upper()
    if text.isascii() and text.isdigit():
        return str(between(0, 255)(whole(text)))
    if text not in _SIGNALS:
        raise ValidationError("is not an exit code between 0 and 255 or a signal such as HUP", raw)
    return _SIGNALS[text].name.removeprefix("SIG")


def amount(raw: str) -> str:
    """One side of a resource limit as `prlimit` spells it; a size such as 200M is converted to bytes."""
    return raw if raw == "unlimited" else str(at_least(0)(size(raw)))


def status_range(raw: str) -> tuple[int, int]:
    found = re.fullmatch(r"([1-5][0-9]{2})(?: ?- ?([1-5][0-9]{2}))?", raw.strip())
    if not found or int(found[1]) > int(found[2] or found[1]):
        raise ValidationError("is not a status code such as 204 or a range such as 200-399", raw)
    return int(found[1]), int(found[2] or found[1])


def commas(raw: str) -> list[str]:
    return [item for item in map(str.strip, raw.split(",")) if item]


def shell_words(raw: str) -> list[str]:
    try:
        return shlex.split(raw)
    except ValueError as error:
        raise ValidationError(f"cannot be split into words: {str(error).lower()}") from None


def some(items: Sequence[T]) -> Sequence[T]:
    if not items:
        raise ValidationError("must have at least one item")
    return items


def addresses(hosts: Sequence[str]) -> Sequence[str]:
    """`none` alone means no address at all."""
    if "none" not in some(hosts):
        return hosts
    if len(hosts) > 1:
        raise ValidationError("none cannot be combined with an address")
    return ()


def program(words: Words) -> Words:
    if not words or not words[0].strip():
        raise ValidationError("must begin with the name of a program")
    return words


_LABEL = r"[A-Za-z0-9_](?:[A-Za-z0-9_-]{0,61}[A-Za-z0-9_])?"
_HOST = re.compile(rf"(?=.{{1,253}}$)(?:{_LABEL}\.)*(?!\d+\.?$){_LABEL}\.?")  # 300.1.1.1 is not a name


def host(raw: str) -> str:
    """An IP address, `localhost` or another host name."""
    try:
        ipaddress.ip_address(raw)
    except ValueError:
        if not _HOST.fullmatch(raw):
            raise ValidationError("is not an IP address or a host name", raw) from None
    return raw


def host_port(raw: str) -> str:
    """`host:port`, with an IPv6 address in brackets."""
    name, _, port = raw.rpartition(":")
    literal = name.removeprefix("[").removesuffix("]")
    try:
        host(literal)
        between(1, 65535)(whole(port))
    except ValidationError:
        raise ValidationError("is not host:port", raw) from None
    if (":" in literal) != (name == f"[{literal}]"):
        raise ValidationError("is not host:port", raw)
    return raw


def host_header(raw: str) -> str:
    """The value of a Host header: a name, with or without a port."""
    return host_port(raw) if ":" in raw else host(raw)


def flag_name(raw: str) -> str:
    """A flag of the tracker's runs, or `*`."""
    if not 0 < len(raw) <= 255 or "," in raw or not raw.isprintable():
        raise ValidationError("is not a flag: 1 to 255 printable characters without commas", raw)
    return raw


def network(raw: str) -> str:
    try:
        ipaddress.ip_network(raw, strict=False)
    except ValueError:
        raise ValidationError("is not an IP address or a network such as 10.0.0.0/8", raw) from None
    return raw


def url(raw: str) -> str:
    try:
        parts = urlsplit(raw)
        fits = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        fits = False
    if not fits or re.search(r"[\s\x00-\x1f]", raw):
        raise ValidationError("is not an http or https URL with a host", re.sub(r"//[^/]*@", "//...@", raw))
    return raw


def forge_url(raw: str) -> str:
    """The URL of a forge, without a trailing slash. A fault does not show it where it holds a password."""
    parts = urlsplit(url(raw))
    if parts.username is not None or parts.query or parts.fragment:
        raise ValidationError("must have no username, query or fragment")
    return raw.rstrip("/")


def forge_name(raw: str) -> str:
    if not re.fullmatch(r"[A-Za-z0-9_-]{1,64}", raw):
        raise ValidationError("is not a name of a forge (1 to 64 letters, digits, underscores or hyphens)", raw)
    return raw


EVENT_TYPES = (
    *(f"process.{each}" for each in ("crashed", "gave-up", "unhealthy", "recovered", "started", "stopped")),
    *(f"release.{each}" for each in ("installed", "upgraded", "rolled-back", "uninstalled", "failed")),
    *("gate.failed", "gate.passed", "run.incomplete", "coverage.dropped", "perf.regressed"),
    *("test.flaky", "test.quarantined", "test.quarantine-expired", "token.expiring", "delivery.dead"),
)
"""What can be reported, by name."""


def event_pattern(raw: str) -> str:
    """The name of an event, in which `*` is any text: `process.*`."""
    if not any(fnmatch.fnmatchcase(each, raw) for each in EVENT_TYPES) or set("[]?") & set(raw):
        raise ValidationError(f"is not one of {', '.join(EVENT_TYPES)}, nor a pattern with * of one", raw)
    return raw


def mail_address(raw: str) -> str:
    """`name@host`, of printable ASCII characters."""
    is_plain = raw.isascii() and raw.isprintable() and len(raw) <= 254
    if not is_plain or not re.fullmatch(r"[^\s@<>\"(),:;\\\[\]]{1,64}@[A-Za-z0-9.-]{1,253}", raw):
        raise ValidationError("is not a mail address such as team@example.com", raw)
    return raw


def syslog_address(raw: str) -> str:
    """The path of a socket, or `udp://host:port`."""
    try:
        parts = urlsplit(raw)
        is_udp = parts.scheme == "udp" and bool(parts.hostname) and parts.port != 0 and not parts.path.strip("/")
    except ValueError:
        is_udp = False
    if (not is_udp and not raw.startswith("/")) or re.search(r"[\s\x00-\x1f]", raw):
        raise ValidationError("is not a path such as /dev/log or udp://host:514", raw)
    return raw


def database_url(raw: str) -> str:
    """A PostgreSQL URL. A fault does not show it: it may hold a password."""
    try:
        fits = urlsplit(raw).scheme in ("postgresql", "postgres") and "://" in raw
    except ValueError:
        fits = False
    if not fits or re.search(r"[\s\x00-\x1f]", raw):
        raise ValidationError("is not postgresql://USER:PASSWORD@HOST/NAME")
    return raw


def token(raw: str) -> str:
    """A token of HTTP: the name of a header or a method."""
    if not re.fullmatch(r"[A-Za-z0-9!#$%&'*+.^_`|~-]+", raw):
        raise ValidationError("is not a name that HTTP allows", raw)
    return raw


def header_value(raw: str) -> str:
    if any(c < " " and c != "\t" for c in raw):
        raise ValidationError("must not contain control characters")
    return raw


# fmt: off
_TAKEN = {
    "supervision", "charts", "tracker", "healthz", "readyz", "metrics", "static", "mcp", "sse", "v3", "swagger-ui.html",
    "processes", "history", "releases", "repositories", "projects", "runs", "compare", "login", "logout", "profile",
    "users", "search", "notifications",
}
# fmt: on


def base_path(raw: str) -> str:
    """A path that can replace /api/v1: not /, no trailing /, no path that is served already."""
    names = raw.split("/")
    if not re.fullmatch(r"(/[A-Za-z0-9._~-]+)+", raw) or {".", ".."} & set(names):
        raise ValidationError("is not a path such as /api/v1 (more than /, with a / before it and none after it)", raw)
    if names[1] in _TAKEN:
        raise ValidationError(f"collides with /{names[1]}", raw)
    return raw


def variable_name(raw: str) -> str:
    if not raw or "=" in raw:
        raise ValidationError("is not a name for an environment variable", raw)
    return raw


def process_name(raw: str) -> str:
    if not 1 <= len(raw) <= 255 or any(c < " " or "\x7f" <= c <= "\x9f" for c in raw):
        raise ValidationError("is not a process name (1 to 255 characters, none of them a control character)", raw)
    return raw


def group_name(raw: str) -> str:
    if not re.fullmatch(r"[A-Za-z0-9._-]{1,64}", raw):
        raise ValidationError("is not a group name (1 to 64 letters, digits, dots, underscores or hyphens)", raw)
    return raw


TOOLSETS = ("processes", "charts", "tests")
"""The sets of tools for agents."""


def toolset(raw: str) -> str:
    if raw not in TOOLSETS:
        raise ValidationError(f"is not one of {', '.join(TOOLSETS)}", raw)
    return raw


# fmt: off
LIMITS = (
    "as", "core", "cpu", "data", "fsize", "locks", "memlock", "msgqueue", "nice", "nofile", "nproc", "rss",
    "rtprio", "rttime", "sigpending", "stack",
)
# fmt: on
"""The resource limits of util-linux' `prlimit`."""

Filled = Annotated[str, filled]
Host = Annotated[str, host]
Url = Annotated[str, url]
Token = Annotated[str, token]
ForgeUrl = Annotated[str, forge_url]
Port = Annotated[int, between(0, 65535)]  # 0: any that is free
Count = Annotated[int, at_least(1)]
Count0 = Annotated[int, at_least(0)]  # where 0 has a meaning
Bytes = Annotated[Size, at_least(1)]
Span = Annotated[Seconds, some_time]
Percent = Annotated[float, between(0, 100)]
Increase = Annotated[float, between(0, 10_000)]  # in per cent
