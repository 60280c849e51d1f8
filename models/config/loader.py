"""Reads a configuration: YAML file, then environment, then command line, into a `Config`.

Reading continues after a fault, so that `BadConfig` lists everything that is wrong, each with the path of its property.
"""

from __future__ import annotations

import enum
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cache, lru_cache
from itertools import islice
from operator import attrgetter
from pathlib import Path
from types import UnionType
from typing import Annotated, Any, Literal, TypeAlias, Union, get_args, get_origin, get_type_hints

import attrs
from attrs import NOTHING, evolve, frozen

from models.config import parsers
from models.config.cross_checks import PROCESSES, CrossChecks, with_templates
from models.config.parsers import Count, Count0, Filled, Host, Raw, Span, Token, Url, ValidationError, Words
from models.config.settings import BadConfig, Config
from models.config.templates import Expansion
from models.config.yaml_text import Origins, read_files
from models.supervision.process import (
    Dependency,
    ExecProbe,
    HealthCheck,
    HttpProbe,
    OnFailure,
    ProcessSpec,
    Restart,
    Seconds,
    Size,
    TcpProbe,
)
from models.supervision.schedule import MAX_INTERVAL_SECONDS, MAX_JITTER_SECONDS, MIN_INTERVAL_SECONDS, Schedule

Check: TypeAlias = Callable[[Any], Any]
_AMOUNT: TypeAlias = Annotated[str, parsers.amount]
_MAX_UNKNOWN_NAMES = 20


@frozen
class _Limit:
    soft: _AMOUNT
    hard: _AMOUNT


def _soft_and_hard(limit: _Limit) -> tuple[str, str]:
    soft, hard = (float("inf") if side == "unlimited" else int(side) for side in attrs.astuple(limit))
    if soft > hard:
        raise ValidationError(f"soft {limit.soft} is above hard {limit.hard}")
    return limit.soft, limit.hard


def _cron_or_every(schedule: Schedule) -> Schedule:
    if (schedule.cron is None) == (schedule.every is None):
        raise ValidationError("exactly one of cron, every must be given")
    return _shared(schedule)


@lru_cache(maxsize=64)
def _shared(schedule: Schedule) -> Schedule:
    """Returns one shared object for equal values."""
    return schedule


def _one_probe(check: HealthCheck) -> HealthCheck:
    if sum(probe is not None for probe in (check.http, check.tcp, check.exec)) != 1:
        raise ValidationError("exactly one of http, tcp, exec must be given")
    return check


_COMMAND = Annotated[Words, parsers.program]
_CRON = Annotated[str, parsers.cron]

# The specs of processes are plain values. How text becomes their attributes is declared here.
_READ_AS: Mapping[type, Mapping[str, Any]] = {
    ProcessSpec: {
        "command": _COMMAND,
        "args": Words,
        "environment": Mapping[Annotated[str, parsers.variable_name], str],
        "limits": Mapping[Annotated[str, parsers.one_of(*parsers.LIMITS)], Annotated[_Limit, _soft_and_hard]],
        "umask": Annotated[str, parsers.octal],
        **dict.fromkeys(("success_exit_codes", "no_restart_exit_codes"), tuple[Annotated[str, parsers.exit_code], ...]),
        "nice": Annotated[int, parsers.between(-20, 19)],
        "stop_signal": Annotated[str, parsers.signal_of],
        "health_check": Annotated[HealthCheck, _one_probe],
        **dict.fromkeys(("start_pre", "start_post", "stop_pre", "stop_post"), _COMMAND),
        "hook_timeout": Span,
        "watchdog": Annotated[Seconds, parsers.time_between(1)],
        "start_delay": Annotated[Seconds, parsers.time_between(0, 3600)],
        "max_memory": Annotated[Size, parsers.a_mebibyte_or_more],
        "schedule": Annotated[Schedule, _cron_or_every],
        "max_runtime": Annotated[Seconds, parsers.time_between(1)],
        "groups": tuple[Annotated[str, parsers.group_name], ...],
        **dict.fromkeys(("directory", "user", "group", "stdin", "stdout_logfile", "stderr_logfile"), Filled),
        "env_file": tuple[Filled, ...],
        **dict.fromkeys(("log_backups", "restart_limit", "start_retries"), Count0),
    },
    OnFailure: {"command": _COMMAND},
    Schedule: {
        "cron": _CRON,
        "every": Annotated[Seconds, parsers.time_between(MIN_INTERVAL_SECONDS, MAX_INTERVAL_SECONDS)],
        "timezone": Annotated[str, parsers.timezone],
        "jitter": Annotated[Seconds, parsers.time_between(0, MAX_JITTER_SECONDS)],
    },
    HealthCheck: {
        **dict.fromkeys(("interval", "timeout"), Span),
        **dict.fromkeys(("success_threshold", "failure_threshold"), Count),
    },
    HttpProbe: {
        "url": Url,
        "method": Token,
        "status": Annotated[tuple[Annotated[str, parsers.status_range], ...], parsers.some],
        "headers": Mapping[Token, Annotated[str, parsers.header_value]],
    },
    TcpProbe: {"port": Annotated[int, parsers.between(1, 65535)], "host": Host},
    ExecProbe: {"command": _COMMAND},
}

_BY_TYPE: Mapping[Any, Callable[[str], object]] = {
    bool: parsers.yes_or_no,
    int: parsers.whole,
    float: parsers.number,
    str: parsers.text,
    Path: parsers.file_path,
    Seconds: parsers.seconds,
    Size: parsers.size,
    Restart: parsers.restart,
}


@frozen
class Field:
    """One property of a section: its attribute, its bare type, the checks after parsing, whether it is required."""

    attribute: str
    base: Any
    checks: tuple[Check, ...]
    required: bool = False


def split_annotation(hint: Any) -> tuple[Any, tuple[Check, ...]]:
    """The bare type of a hint, without `None` and `Annotated`, and its checks."""
    if get_origin(hint) in (Union, UnionType):
        hint = next(choice for choice in get_args(hint) if choice is not type(None))
    if get_origin(hint) is Annotated:
        return hint.__origin__, hint.__metadata__
    return hint, ()


def _item(hint: Any) -> Field:
    """An item of a list or mapping."""
    return Field("", *split_annotation(hint))


# Sections that may be given as one text: how the text is parsed, and the section it stands for.
_SHORT_FORMS: Mapping[Any, tuple[Field, Callable[[str], object]]] = {
    Dependency: (_item(str), Dependency),
    Schedule: (_item(_CRON), Schedule),
    _Limit: (_item(_AMOUNT), lambda side: _Limit(side, side)),
}


@cache
def fields_of(section: type) -> Mapping[str, Field]:
    """The properties of a section by name. A process's name is its key, not a property."""
    hints = {**get_type_hints(section, include_extras=True), **_READ_AS.get(section, {})}
    return {
        a.name.rstrip("_").replace("_", "-"): Field(a.name, *split_annotation(hints[a.name]), a.default is NOTHING)
        for a in attrs.fields(section)
        if section is not ProcessSpec or a.name not in ("name", "template", "captured_files", "env_digest")
    }


@cache
def _names_below(section: type) -> tuple[str, ...]:
    """The names that may follow the section's, those of nested sections included; spelling is compared with them."""
    fields = fields_of(section)
    nested = [f"{name}.{rest}" for name, f in fields.items() if attrs.has(f.base) for rest in _names_below(f.base)]
    return (*fields, *nested)


def _leaves(section: type, above: str = "") -> Iterator[tuple[str, Field]]:
    for name, f in fields_of(section).items():
        if attrs.has(f.base):
            yield from _leaves(f.base, f"{above}{name}.")
        elif get_origin(f.base) is not Mapping:
            yield f"{above}{name}", f


_PROPERTIES = dict(_leaves(Config))
_VARIABLE_OF = {path: path.upper().replace(".", "_").replace("-", "_") for path in _PROPERTIES}

VARIABLES: frozenset[str] = frozenset(_VARIABLE_OF.values())
"""Every environment variable that sets a property."""

PREFIXES = tuple(sorted({f"{variable.partition('_')[0]}_" for variable in VARIABLES}))
"""How their names begin; children inherit no variable that begins so."""


def misspelt(environ: Mapping[str, str]) -> list[str]:
    """A line for each variable that sets no property, but has almost the name of one that does."""
    unknown = [name for name in environ if name.startswith(PREFIXES) and name not in VARIABLES]
    found = ((name, parsers.closest(name, VARIABLES, 0.9)) for name in unknown)
    return [f"{name} in the environment sets no property; did you mean {near}?" for name, near in found if near]


def load(path: Path | None, environ: Mapping[str, str], overrides: Mapping[str, str] | None = None) -> Config:
    """The configuration of the file at `path`, if any, overridden by the environment, then by `overrides`.

    `overrides` maps property path to text. Raises `BadConfig` with every fault in any of them.
    """
    loader = _Loader()
    parts = read_files(path, lambda where, why: loader.fault(_Place(shown=where), why)) if path else []
    loader.expansion = Expansion(parts, environ, overrides or {}, VARIABLES)
    config: Config = loader.section(Config, parts, _Place())
    for name, variable in _VARIABLE_OF.items():
        if environ.get(variable):
            config = loader.override(config, environ[variable], _Place(name, f"{variable} ({name})"))
    for name, text in (overrides or {}).items():
        config = loader.override(config, text, _Place(name, name))
    config = with_templates(config)
    CrossChecks(config, lambda path, why: loader.fault(_Place(path, path), why), loader.is_faulty).run()
    if loader.faults:
        raise BadConfig(list(dict.fromkeys(loader.faults)))  # replicas of one template have the same faults
    return config


def differences(old: Config, new: Config) -> list[str]:
    """The paths of the properties whose values differ; of a process only its own path, `supervisor.processes.web`."""
    before, after = old.supervisor.processes, new.supervisor.processes
    names = [name for name in {**before, **after} if before.get(name) != after.get(name)]
    return [
        *(path for path in (*_PROPERTIES, "tracker.forges", "notify.channels") if _get(old, path) != _get(new, path)),
        *(f"{PROCESSES}.{name}" for name in names),
    ]


def _get(config: Config, path: str) -> object:
    return attrgetter(re.sub(r"\bfrom\b", "from_", path.replace("-", "_")))(config)


def _put(section: Any, path: str, value: object) -> Any:
    name, _, rest = re.sub(r"\bfrom\b", "from_", path.replace("-", "_")).partition(".")
    return evolve(section, **{name: _put(getattr(section, name), rest, value) if rest else value})


@frozen
class _Place:
    """The path of a property, and how a fault names it."""

    path: str = ""
    shown: str = ""

    def of(self, name: str) -> _Place:
        path = f"{self.path}.{name}" if self.path else name
        return _Place(path, path)


class _Loader:
    """Loads one configuration. `NOTHING` stands for a value that is missing or invalid; its fault is recorded."""

    def __init__(self) -> None:
        self.faults: list[str] = []
        self._faulty: set[str] = set()
        self.origins = Origins()
        self.expansion = Expansion([], {}, {}, frozenset())

    def fault(self, at: _Place, why: object) -> Any:
        self._faulty.add(at.path)
        line = f"{self.origins.prefix(at.path)}{at.shown}: {why}"
        self.faults.append("".join(c if c.isprintable() else ascii(c)[1:-1] for c in line))
        return NOTHING

    def override(self, config: Config, text: str, at: _Place) -> Config:
        """`config` with one property replaced by the value of `text`."""
        if at.path not in _PROPERTIES:
            self.fault(at, f"unknown property{parsers.suggestion(at.path, _PROPERTIES)}")
            return config
        value = self._value(_PROPERTIES[at.path], [text], at)
        return config if value is NOTHING else _put(config, at.path, value)

    def section(self, kind: Any, parts: Sequence[Raw], at: _Place, **known: object) -> Any:
        """An instance of `kind` from all mappings given for it, nested and dotted.

        An invalid attribute keeps its default; a required one is `NOTHING` then. So one fault does not hide others.
        """
        fields, given = fields_of(kind), self._gather(kind, parts, at)
        for name, raws in given.items():
            if name not in fields:
                self._unknown(kind, name, raws[0], at)
            elif (value := self._value(fields[name], raws, at.of(name))) is not NOTHING:
                known[fields[name].attribute] = value
        for name, f in fields.items():
            if f.required:
                known.setdefault(f.attribute, NOTHING)
                if name not in given and at.path not in self._faulty:
                    self.fault(at.of(name), "is required")
        return kind(**known)

    def _gather(self, kind: Any, parts: Sequence[Raw], at: _Place) -> dict[str, list[Raw]]:
        """The values given for each name, in order of appearance. A null counts as not given."""
        fields, given = fields_of(kind), dict[str, list[Raw]]()
        for part in parts:
            for key, raw in self._items(part, at):
                name, inner = _undotted(fields, key, raw)
                self.origins.note(at.of(name).path, part, key)
                if inner is not None or name not in fields:
                    given.setdefault(name, []).append(inner)
        return given

    def _items(self, raw: Raw, at: _Place) -> Iterable[tuple[str, Raw]]:
        if raw is not None and not isinstance(raw, dict):
            self.fault(at, f"a mapping is expected, not {_kind(raw)}")
        return raw.items() if isinstance(raw, dict) else ()

    def _unknown(self, kind: Any, name: str, raw: Raw, at: _Place) -> None:
        above = f"{at.path}." if at.path else ""
        elsewhere = [path for path in _names_below(Config) if path.rpartition(".")[2] == name]
        section = (
            parsers.suggestion(name, _names_below(kind), above)
            or (elsewhere and f"; did you mean {elsewhere[0]}?")
            or ""
        )
        for end in islice(_leaf_names(name, raw), _MAX_UNKNOWN_NAMES):
            self.fault(at.of(end), f"unknown property{parsers.suggestion(end, _names_below(kind), above) or section}")

    def _value(self, f: Field, parts: Sequence[Raw], at: _Place) -> Any:
        before = len(self.faults)
        value = self._base(f.base, parts, at)
        try:
            for check in f.checks if len(self.faults) == before else ():
                value = check(value)
        except ValidationError as why:
            return self.fault(at, why)
        return value

    def _base(self, base: Any, parts: Sequence[Raw], at: _Place) -> Any:
        if base in _SHORT_FORMS and isinstance(parts[0], str) and len(parts) == 1:
            text, expand = _SHORT_FORMS[base]
            value = self._value(text, parts, at)
            return value if value is NOTHING else expand(value)
        origin = _origin(base)
        if origin is attrs:
            return self.section(base, parts, at)
        if origin is Mapping:
            key, value = map(_item, get_args(base))
            return self._mapping(key, value, parts, at)
        if len(parts) > 1:
            return self.fault(at, "is given twice")
        if base is Words:
            return self._list(parsers.shell_words, _item(str), parts[0], at)
        if origin is tuple:
            item, raw = _item(get_args(base)[0]), parts[0]
            alone = isinstance(raw, dict) and attrs.has(item.base)
            return self._list(parsers.commas, item, [raw] if alone else raw, at)
        return self._scalar(base, parts[0], at)

    def _mapping(self, key: Field, value: Field, parts: Sequence[Raw], at: _Place) -> dict[Any, Any]:
        """A mapping whose keys the user chooses."""
        given, entries = dict[str, list[Raw]](), dict[str, Any]()
        for part in parts:
            for word, raw in self._items(part, at):
                for name, inner in _entry_of(value.base, word, raw).items():
                    place = at.of(name)
                    places = self.origins.two_files(place.path, part, word) if value.base is ProcessSpec else ""
                    self.origins.note(place.path, part, word)
                    if name in given and places:
                        self.fault(place, f"is given twice: {places}")
                        continue
                    given.setdefault(name, []).append(inner)
        for name, raws in given.items():
            if self._value(key, [name], at) is not NOTHING:
                for found, entry in self._entries(value, name, raws, at.of(name)).items():
                    if found in entries:
                        self.fault(at.of(name), f"{parsers.shown(found)} is the name of two processes")
                    entries[found] = entry
        return {name: entry for name, entry in entries.items() if entry is not NOTHING}

    def _entries(self, value: Field, name: str, raws: Sequence[Raw], at: _Place) -> dict[str, Any]:
        """The value of one key; of a process with `numprocs`, those of its replicas."""
        if value.base is ProcessSpec:
            return self._processes(name, raws, at)
        present = [raw for raw in raws if raw is not None]
        if at.path.startswith("supervisor.groups.") and len(present) > 1:  # groups of several files join
            present = [_joined(present) or []]
        return {name: self._value(value, present, at) if present else NOTHING}

    def _processes(self, name: str, raws: Sequence[Raw], at: _Place) -> dict[str, Any]:
        try:
            entries = self.expansion.entries(name, raws, self.origins.folder(at.path))
        except ValidationError as why:
            return {name: self.fault(at, why)}
        for entry in entries:
            self.origins.copy(at.path, f"{PROCESSES}.{entry.name}")
        return {
            entry.name: self.section(ProcessSpec, entry.raws, at, name=entry.name, template=entry.template)
            for entry in entries
        }

    def _list(self, split: Callable[[str], list[str]], item: Field, raw: Raw, at: _Place) -> Any:
        try:
            items = split(raw) if isinstance(raw, str) else raw
        except ValidationError as why:
            return self.fault(at, why)
        if not isinstance(items, list):
            return self.fault(at, f"a list is expected, not {_kind(items)}")
        values = [
            self._value(item, [raw], _Place(f"{at.path}[{n}]", f"{at.shown}[{n}]") if isinstance(raw, dict) else at)
            for n, raw in enumerate(items)
        ]
        return tuple(value for value in values if value is not NOTHING)

    def _scalar(self, base: Any, raw: Raw, at: _Place) -> Any:
        if not isinstance(raw, str):
            return self.fault(at, f"one value is expected, not {_kind(raw)}")
        try:
            return _parser(base)(raw)
        except ValidationError as why:
            return self.fault(at, why)

    def is_faulty(self, path: str) -> bool:
        return any(faulty == path or faulty.startswith(f"{path}.") for faulty in self._faulty)


def _joined(raws: Sequence[Raw]) -> Raw:
    return [item for raw in raws for item in (parsers.commas(raw) if isinstance(raw, str) else raw or [])]


def _kind(raw: Raw) -> str:
    if raw is None:
        return "nothing"
    return "text" if isinstance(raw, str) else "a list" if isinstance(raw, list) else "a mapping"


@cache  # called for each value: thousands, where there are hundreds of processes
def _origin(base: Any) -> Any:
    """`get_origin`, but `attrs` for one of its classes."""
    return attrs if attrs.has(base) else get_origin(base)


@cache
def _parser(base: Any) -> Callable[[str], object]:
    if get_origin(base) is Literal:
        return parsers.one_of(*get_args(base))
    if base not in _BY_TYPE and isinstance(base, type) and issubclass(base, enum.Enum):
        check = parsers.one_of(*(member.value for member in base))
        return lambda raw: base(check(raw))
    return _BY_TYPE[base]


def _undotted(fields: Mapping[str, Field], key: str, raw: Raw) -> tuple[str, Raw]:
    """The property that a key begins with, and the value it has then: `security.mode: x` is `security: {mode: x}`."""
    name, _, rest = key.partition(".")
    if key in fields or not rest or name not in fields:
        return key, raw
    base = fields[name].base
    if get_origin(base) is Mapping:
        return name, _process_of(rest, raw) if get_args(base)[1] is ProcessSpec else {rest: raw}
    return (name, {rest: raw}) if attrs.has(base) else (key, raw)


def _entry_of(base: Any, key: str, raw: Raw) -> dict[str, Raw]:
    """The entry that a key of a mapping stands for: `nofile.soft: x` is `nofile: {soft: x}`.

    A value that has a property of a process is a whole process, whatever dots its name has.
    """
    name, _, rest = key.partition(".")
    if base is not ProcessSpec and attrs.has(base) and rest and not isinstance(raw, dict):
        return {name: {rest: raw}}
    properties = {key.partition(".")[0] for key in raw} if isinstance(raw, dict) else set()
    whole = raw is None or not properties.isdisjoint(fields_of(ProcessSpec))
    return {key: raw} if whole or base is not ProcessSpec else _process_of(key, raw)


def _process_of(key: str, raw: Raw) -> dict[str, Raw]:
    """`web.command: x` is `web: {command: x}`. A name may have dots: it ends before the first name of a property.

    Without one, a mapping is the whole process; any other value is an unknown property of the process.
    """
    words = key.split(".")
    end = len(words) if isinstance(raw, dict) else max(len(words) - 1, 1)
    end = next((n for n in range(1, len(words)) if words[n] in fields_of(ProcessSpec)), end)
    name, tail = ".".join(words[:end]), ".".join(words[end:])
    return {name: {tail: raw} if tail else raw}


def _leaf_names(name: str, raw: Raw) -> Iterator[str]:
    """The names of the single values below an unknown name."""
    if not isinstance(raw, dict) or not raw:
        yield name
        return
    for key, inner in raw.items():
        yield from _leaf_names(f"{name}.{key}", inner)
