"""From YAML, environment and command line to a `Config`. What does not fit is told by path, all of it at once."""

from __future__ import annotations

import difflib
import enum
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cache
from itertools import islice
from operator import attrgetter
from pathlib import Path
from types import UnionType
from typing import Annotated, Any, Literal, TypeAlias, Union, get_args, get_origin, get_type_hints

import attrs
from attrs import NOTHING, evolve, frozen

from models.config import parsers
from models.config.parsers import Count, Count0, Filled, Host, Raw, Span, Token, Url, ValidationError, Words
from models.config.settings import BadConfig, Config
from models.config.yaml_text import Yaml
from models.supervision.process import (
    Condition,
    Dependency,
    ExecProbe,
    HealthCheck,
    HttpProbe,
    ProcessSpec,
    Seconds,
    Size,
    TcpProbe,
    circle,
)
from models.supervision.selectors import is_glob

_AMOUNT: TypeAlias = Annotated[str, parsers.amount]


@frozen
class _Limit:
    soft: _AMOUNT
    hard: _AMOUNT


def _soft_and_hard(limit: _Limit) -> tuple[str, str]:
    soft, hard = (float("inf") if side == "unlimited" else int(side) for side in attrs.astuple(limit))
    if soft > hard:
        raise ValidationError(f"soft {limit.soft} is above hard {limit.hard}")
    return limit.soft, limit.hard


def _one_probe(check: HealthCheck) -> HealthCheck:
    if sum(probe is not None for probe in (check.http, check.tcp, check.exec)) != 1:
        raise ValidationError("exactly one of http, tcp, exec must be given")
    return check


_COMMAND = Annotated[Words, parsers.program]

# The specs of processes know nothing of text; how theirs is read stands here, by class and attribute.
_READ_AS: Mapping[type, Mapping[str, Any]] = {
    ProcessSpec: {
        "command": _COMMAND,
        "args": Words,
        "environment": Mapping[Annotated[str, parsers.variable_name], str],
        "limits": Mapping[Annotated[str, parsers.one_of(*parsers.LIMITS)], Annotated[_Limit, _soft_and_hard]],
        "umask": Annotated[str, parsers.octal],
        "nice": Annotated[int, parsers.between(-20, 19)],
        "stop_signal": Annotated[str, parsers.signal_of],
        "health_check": Annotated[HealthCheck, _one_probe],
        "groups": tuple[Annotated[str, parsers.group_name], ...],
        **dict.fromkeys(("directory", "user", "group", "stdout_logfile", "stderr_logfile"), Filled),
        **dict.fromkeys(("log_backups", "restart_limit"), Count0),
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
}


@frozen
class _Field:
    """One property of a section: its attribute, its bare type, the checks after reading, whether it must be given."""

    attribute: str
    base: Any
    checks: tuple[Callable[[Any], Any], ...]
    required: bool


def _taken_apart(hint: Any) -> tuple[Any, tuple[Callable[[Any], Any], ...]]:
    if get_origin(hint) in (Union, UnionType):
        hint = next(choice for choice in get_args(hint) if choice is not type(None))
    if get_origin(hint) is Annotated:
        return hint.__origin__, hint.__metadata__
    return hint, ()


def _typed(hint: Any) -> _Field:
    return _Field("", *_taken_apart(hint), required=False)


# Sections that may be written as one text: how it is read, and what it stands for.
_SHORT: Mapping[Any, tuple[_Field, Callable[[str], object]]] = {
    Dependency: (_typed(str), Dependency),
    _Limit: (_typed(_AMOUNT), lambda side: _Limit(side, side)),
}


@cache
def _fields(section: type) -> Mapping[str, _Field]:
    """The properties of a section by name; a process's own name is its key and no property."""
    hints = {**get_type_hints(section, include_extras=True), **_READ_AS.get(section, {})}
    return {
        a.name.replace("_", "-"): _Field(a.name, *_taken_apart(hints[a.name]), a.default is NOTHING)
        for a in attrs.fields(section)
        if (section, a.name) != (ProcessSpec, "name")
    }


@cache
def _names(section: type) -> tuple[str, ...]:
    """Every name that may follow the section's, its sections' own included; what spelling is compared with."""
    own = _fields(section)
    inner = [f"{name}.{rest}" for name, f in own.items() if attrs.has(f.base) for rest in _names(f.base)]
    return (*own, *inner)


def _leaves(section: type, above: str = "") -> Iterator[tuple[str, _Field]]:
    for name, f in _fields(section).items():
        if attrs.has(f.base):
            yield from _leaves(f.base, f"{above}{name}.")
        elif get_origin(f.base) is not Mapping:
            yield f"{above}{name}", f


_PROPERTIES = dict(_leaves(Config))
_VARIABLE_OF = {path: path.upper().replace(".", "_").replace("-", "_") for path in _PROPERTIES}
_PROCESSES = "supervisor.processes"

VARIABLES: frozenset[str] = frozenset(_VARIABLE_OF.values())
"""Every environment variable that sets a property; children do not inherit them."""


def load(path: Path | None, environ: Mapping[str, str], overrides: Mapping[str, str] | None = None) -> Config:
    """The configuration of the file (`None`: there is none), under the environment, under the command line.

    `overrides` is property path -> text. Raises BadConfig with all that is wrong in any of them.
    """
    reading = _Reading()
    config: Config = reading.section(Config, [reading.file(path) if path else None], _At())
    for name, variable in _VARIABLE_OF.items():
        if environ.get(variable):
            config = reading.over(config, environ[variable], _At(name, f"{variable} ({name})"))
    for name, text in (overrides or {}).items():
        config = reading.over(config, text, _At(name, name))
    reading.cross_check(config)
    if reading.faults:
        raise BadConfig(reading.faults)
    return config


def differences(old: Config, new: Config) -> list[str]:
    """The paths of the properties whose values differ; of a process only its own path, `supervisor.processes.web`."""
    before, after = old.supervisor.processes, new.supervisor.processes
    names = [name for name in {**before, **after} if before.get(name) != after.get(name)]
    return [
        *(path for path in _PROPERTIES if _get(old, path) != _get(new, path)),
        *(f"{_PROCESSES}.{name}" for name in names),
    ]


def _get(config: Config, path: str) -> object:
    return attrgetter(path.replace("-", "_"))(config)


def _put(section: Any, path: str, value: object) -> Any:
    name, _, rest = path.replace("-", "_").partition(".")
    return evolve(section, **{name: _put(getattr(section, name), rest, value) if rest else value})


def _near(name: str, names: Iterable[str], above: str = "") -> str:
    """The end of a fault about a name that is not known."""
    found = difflib.get_close_matches(name.lower(), list(names), 1, 0.7)
    return f"; did you mean {above}{found[0]}?" if found else ""


@frozen
class _At:
    """Where a value stands: the property's path, and how a fault names it."""

    path: str = ""
    shown: str = ""

    def of(self, name: str) -> _At:
        path = f"{self.path}.{name}" if self.path else name
        return _At(path, path)


class _Reading:
    """One reading of a configuration, which goes on after a fault; `NOTHING` stands for what could not be read."""

    def __init__(self) -> None:
        self.faults: list[str] = []
        self._faulty: set[str] = set()
        self._processes: list[str] = []  # with those that could not be read

    def fault(self, at: _At, why: object) -> Any:
        self._faulty.add(at.path)
        line = f"{at.shown}: {why}"
        self.faults.append("".join(c if c.isprintable() else ascii(c)[1:-1] for c in line))
        return NOTHING

    def file(self, path: Path) -> Raw:
        return Yaml(path, lambda where, why: self.fault(_At(shown=where), why)).read()

    def over(self, config: Config, text: str, at: _At) -> Config:
        """`config` with the text of one property in place of what it had."""
        if at.path not in _PROPERTIES:
            self.fault(at, f"unknown property{_near(at.path, _PROPERTIES)}")
            return config
        value = self._value(_PROPERTIES[at.path], [text], at)
        return config if value is NOTHING else _put(config, at.path, value)

    def section(self, kind: Any, parts: Sequence[Raw], at: _At, **known: object) -> Any:
        """An attrs value from all mappings given for it, nested and dotted; with its defaults where a field failed."""
        fields, given = _fields(kind), self._gathered(kind, parts, at)
        for name, raws in given.items():
            if name not in fields:
                self._unknown(kind, name, raws[0], at)
            elif (value := self._value(fields[name], raws, at.of(name))) is not NOTHING:
                known[fields[name].attribute] = value
        for name, f in fields.items():
            if f.required and name not in given and at.path not in self._faulty:
                self.fault(at.of(name), "is required")
        return kind(**known) if all(f.attribute in known for f in fields.values() if f.required) else NOTHING

    def _gathered(self, kind: Any, parts: Sequence[Raw], at: _At) -> dict[str, list[Raw]]:
        """What was given under each name, in the order of appearance; null is nothing given."""
        fields, given = _fields(kind), dict[str, list[Raw]]()
        for part in parts:
            for key, raw in self._items(part, at):
                name, inner = _undotted(fields, key, raw)
                if inner is not None or name not in fields:
                    given.setdefault(name, []).append(inner)
        return given

    def _items(self, raw: Raw, at: _At) -> Iterable[tuple[str, Raw]]:
        if raw is not None and not isinstance(raw, dict):
            self.fault(at, f"a mapping is expected, not {_kind(raw)}")
        return raw.items() if isinstance(raw, dict) else ()

    def _unknown(self, kind: Any, name: str, raw: Raw, at: _At) -> None:
        above = f"{at.path}." if at.path else ""
        elsewhere = [path for path in _names(Config) if path.rpartition(".")[2] == name]
        section = _near(name, _names(kind), above) or (elsewhere and f"; did you mean {elsewhere[0]}?") or ""
        for end in islice(_ends(name, raw), 20):
            self.fault(at.of(end), f"unknown property{_near(end, _names(kind), above) or section}")

    def _value(self, f: _Field, parts: Sequence[Raw], at: _At) -> Any:
        before = len(self.faults)
        value = self._base(f.base, parts, at)
        try:
            for check in f.checks if len(self.faults) == before else ():
                value = check(value)
        except ValidationError as why:
            return self.fault(at, why)
        return value

    def _base(self, base: Any, parts: Sequence[Raw], at: _At) -> Any:
        if base in _SHORT and isinstance(parts[0], str) and len(parts) == 1:
            text, made = _SHORT[base]
            value = self._value(text, parts, at)
            return value if value is NOTHING else made(value)
        origin = _origin(base)
        if origin is attrs:
            return self.section(base, parts, at)
        if origin is Mapping:
            key, value = map(_typed, get_args(base))
            return self._mapping(key, value, parts, at)
        if len(parts) > 1:
            return self.fault(at, "is given twice")
        if base is Words:
            return self._list(parsers.shell_words, _typed(str), parts[0], at)
        if origin is tuple:
            item, raw = _typed(get_args(base)[0]), parts[0]
            alone = isinstance(raw, dict) and attrs.has(item.base)
            return self._list(parsers.commas, item, [raw] if alone else raw, at)
        return self._scalar(base, parts[0], at)

    def _mapping(self, key: _Field, value: _Field, parts: Sequence[Raw], at: _At) -> dict[Any, Any]:
        """A mapping whose keys are the user's own."""
        given, read = dict[str, list[Raw]](), {}
        for word, raw in (item for part in parts for item in self._items(part, at)):
            for name, inner in _of_entry(value.base, word, raw).items():
                given.setdefault(name, []).append(inner)
        for name, raws in given.items():
            if self._value(key, [name], at) is not NOTHING:
                read[name] = self._entry(value, name, raws, at.of(name))
        return {name: entry for name, entry in read.items() if entry is not NOTHING}

    def _entry(self, value: _Field, name: str, raws: Sequence[Raw], at: _At) -> Any:
        if value.base is ProcessSpec:
            self._processes.append(name)
            return self.section(ProcessSpec, raws, at, name=name)
        present = [raw for raw in raws if raw is not None]
        return self._value(value, present, at) if present else NOTHING

    def _list(self, split: Callable[[str], list[str]], item: _Field, raw: Raw, at: _At) -> Any:
        try:
            items = split(raw) if isinstance(raw, str) else raw
        except ValidationError as why:
            return self.fault(at, why)
        if not isinstance(items, list):
            return self.fault(at, f"a list is expected, not {_kind(items)}")
        read = [
            self._value(item, [one], _At(f"{at.path}[{n}]", f"{at.shown}[{n}]") if isinstance(one, dict) else at)
            for n, one in enumerate(items)
        ]
        return NOTHING if NOTHING in read else tuple(read)

    def _scalar(self, base: Any, raw: Raw, at: _At) -> Any:
        if not isinstance(raw, str):
            return self.fault(at, f"one value is expected, not {_kind(raw)}")
        try:
            return _reader(base)(raw)
        except ValidationError as why:
            return self.fault(at, why)

    def cross_check(self, config: Config) -> None:
        """What no property shows alone. A property that could not be read is not blamed a second time."""
        tls = config.server.tls
        if (tls.certificate is None) != (tls.key is None) and not {
            "server.tls.certificate",
            "server.tls.key",
        } & self._faulty:
            self.fault(_At("server.tls", "server.tls"), "certificate and key must be given together")
        specs = config.supervisor.processes
        for spec in specs.values():
            self._check_process(spec, specs)
        self._check_groups(config)
        # A process that depends on itself was told already, and would hide a longer circle.
        own = [spec for spec in specs.values() if any(needed.process == spec.name for needed in spec.depends_on)]
        others = {s.name: evolve(s, depends_on=tuple(d for d in s.depends_on if d.process != s.name)) for s in own}
        if names := circle({**specs, **others}):
            self.fault(_process(names[0]).of("depends-on"), f"{' -> '.join(names)} is a circle")

    def _check_groups(self, config: Config) -> None:
        for group, members in config.supervisor.groups.items():
            for member in members:
                if not is_glob(member) and member not in self._processes:
                    why = f"{parsers.shown(member)} is not a process{_near(member, self._processes)}"
                    self.fault(_At().of(f"supervisor.groups.{group}"), why)

    def _check_process(self, spec: ProcessSpec, specs: Mapping[str, ProcessSpec]) -> None:
        at = _process(spec.name)
        if spec.redirect_stderr and spec.stderr_logfile is not None:
            self.fault(at.of("stderr-logfile"), "cannot be given together with redirect-stderr: true")
        for dependency in spec.depends_on:
            if why := self._wrong(dependency, spec, specs):
                self.fault(at.of("depends-on"), why)

    def _wrong(self, dependency: Dependency, spec: ProcessSpec, specs: Mapping[str, ProcessSpec]) -> str:
        name = dependency.process
        if name == spec.name:
            return "a process cannot depend on itself"
        if name not in self._processes:
            return f"{parsers.shown(name)} is not a process{_near(name, self._processes)}"
        checked = name not in specs or specs[name].health_check or self._failed(_process(name).of("health-check").path)
        if dependency.condition is Condition.HEALTHY and not checked:
            return f"{parsers.shown(name)} has no health-check, so it never becomes healthy"
        return ""

    def _failed(self, path: str) -> bool:
        return any(faulty == path or faulty.startswith(f"{path}.") for faulty in self._faulty)


def _process(name: str) -> _At:
    return _At().of(f"{_PROCESSES}.{name}")


def _kind(raw: Raw) -> str:
    return "nothing" if raw is None else {str: "text", list: "a list", dict: "a mapping"}[type(raw)]


@cache  # asked for each value: thousands, where there are hundreds of processes
def _origin(base: Any) -> Any:
    """What `get_origin` says of it; `attrs` for a class of theirs."""
    return attrs if attrs.has(base) else get_origin(base)


@cache
def _reader(base: Any) -> Callable[[str], object]:
    if get_origin(base) is Literal:
        return parsers.one_of(*get_args(base))
    if isinstance(base, type) and issubclass(base, enum.Enum):
        check = parsers.one_of(*(member.value for member in base))
        return lambda raw: base(check(raw))
    return _BY_TYPE[base]


def _undotted(fields: Mapping[str, _Field], key: str, raw: Raw) -> tuple[str, Raw]:
    """The property that a key stands for, and what it says of it: `security.mode` is `mode` within `security`."""
    name, _, rest = key.partition(".")
    if key in fields or not rest or name not in fields:
        return key, raw
    base = fields[name].base
    if get_origin(base) is Mapping:
        return name, _of_process(rest, raw) if get_args(base)[1] is ProcessSpec else {rest: raw}
    return (name, {rest: raw}) if attrs.has(base) else (key, raw)


def _of_entry(base: Any, word: str, raw: Raw) -> dict[str, Raw]:
    """What a key within a mapping says, by name of the entry: `nofile.soft` is `soft` of `nofile`.

    What has a property of a process is a whole process, whatever dots its name has.
    """
    name, _, rest = word.partition(".")
    if base is _Limit and rest:
        return {name: {rest: raw}}
    properties = {key.partition(".")[0] for key in raw} if isinstance(raw, dict) else set()
    whole = raw is None or not properties.isdisjoint(_fields(ProcessSpec))
    return {word: raw} if whole or base is not ProcessSpec else _of_process(word, raw)


def _of_process(rest: str, raw: Raw) -> dict[str, Raw]:
    """`web.command` is web's command. A name may have dots: it ends before the first word that is a process's property.

    Without one, a mapping is the whole process; anything else was meant for a property, whose name is wrong.
    """
    words = rest.split(".")
    end = len(words) if isinstance(raw, dict) else max(len(words) - 1, 1)
    end = next((n for n in range(1, len(words)) if words[n] in _fields(ProcessSpec)), end)
    name, tail = ".".join(words[:end]), ".".join(words[end:])
    return {name: {tail: raw} if tail else raw}


def _ends(name: str, raw: Raw) -> Iterator[str]:
    """The names of the single values under an unknown name."""
    if not isinstance(raw, dict) or not raw:
        yield name
        return
    for key, inner in raw.items():
        yield from _ends(f"{name}.{key}", inner)
