"""`run.py import-supervisord FILE`: translates a supervisord.conf, and lists the omitted settings."""

from __future__ import annotations

import argparse
import configparser
import glob
import io
import os
import platform
import re
import shlex
import sys
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import yaml

from models.config import loader
from models.config.settings import BadConfig

OK, BAD_FILE, LEFT_OUT = 0, 2, 3

_COMMENT = re.compile(r"(?:^|\s)[;#]")
_EXPRESSION = re.compile(r"%%|%\((\w+)\)(0?[0-9]*)[sdi]")
_VARIABLES = {"program_name": "name", "group_name": "name", "process_num": "num", "numprocs": "numprocs",
              "host_node_name": "node"}  # fmt: skip
_RESTART = {"true": "always", "unexpected": "on-failure", "false": "never"}
_NO_FILES = ("AUTO", "NONE", "SYSLOG")
_INHERITED = {"stdout": ("/dev/stdout", "/dev/fd/1", "/proc/self/fd/1"),
              "stderr": ("/dev/stderr", "/dev/fd/2", "/proc/self/fd/2")}  # fmt: skip
_DEFAULT_PRIORITY = 999
_TRUE, _FALSE = ("true", "yes", "on", "1"), ("false", "no", "off", "0")

_SAME = {"command": "command", "directory": "directory", "user": "user", "umask": "umask", "numprocs": "numprocs",
         "numprocs_start": "numprocs-start", "process_name": "process-name", "priority": "order",
         "startsecs": "start-seconds", "stopsignal": "stop-signal", "stopwaitsecs": "stop-timeout",
         "stdout_logfile_maxbytes": "log-max-bytes", "stdout_logfile_backups": "log-backups"}  # fmt: skip
"""Keys whose values need no more than their expressions translated."""

_SPECIAL = {"environment", "autostart", "autorestart", "startretries", "exitcodes", "redirect_stderr",
            "stdout_logfile", "stdout_syslog", "stderr_logfile", "stderr_logfile_maxbytes", "stderr_logfile_backups",
            "stderr_syslog"}  # fmt: skip
_ALWAYS_SO = {"stopasgroup", "killasgroup"}
"""Keys that need no counterpart where they are true: a stop always ends the whole group."""
_LEFT_OUT = {
    "serverurl": "a process has no variable with the address of the server",
    "stdout_capture_maxbytes": "capture mode: use events or notices",
    "stderr_capture_maxbytes": "capture mode: use events or notices",
    "stdout_events_enabled": "log events: follow the log",
    "stderr_events_enabled": "log events: follow the log",
}
_OWN_LOG = "the server logs to its standard error"
_DAEMON = {
    **dict.fromkeys(("logfile", "logfile_maxbytes", "logfile_backups"), _OWN_LOG),
    "loglevel": "the server logs at one level",
    "pidfile": "`ctl info` prints the pid",
    "nodaemon": "the server stays in the foreground",
    "silent": _OWN_LOG,
    "minfds": "the server raises its own limit to the hard one",
    "minprocs": "set it in the unit of the service manager",
    "nocleanup": "captured logs stay when the server starts",
    "childlogdir": "captured logs are in the data directory",
    "strip_ansi": "logs are stored as they are written",
    "user": "start pilothouse as this user",
}
"""Keys about supervisord itself."""
_CONTROL = "ctl finds the server of this machine, or is given --url"
_KNOWN = {"unix_http_server": {"file", "chmod", "chown", "username", "password"},
          "inet_http_server": {"port", "username", "password"}, "include": {"files"},
          "group": {"programs", "priority"}}  # fmt: skip
"""The keys of other sections that are read."""


class Import:
    def __init__(self, path: Path) -> None:
        """Reads the file and those it includes. Raises `configparser.Error`, `OSError`, `UnicodeDecodeError`."""
        self.left_out: list[str] = []
        self._known: Mapping[str, str] = {}
        """The variables by `environment` of supervisord and of the program, which `%(ENV_X)s` prefers."""
        self._group: str | None = None
        """The group of the program whose texts are translated."""
        self._path = path
        self._here = path.parent.absolute()
        self._sections, self._places = _sections(path)
        for pattern in self._sections.pop("include", {}).get("files", "").split():
            files = sorted(glob.glob(str(self._here / _expanded(pattern))))  # noqa: PTH207 (absolute patterns too)
            for file in files:
                self._add(*_sections(Path(file)))
            if not files:
                self._omit("include", "files", f"no file matches {pattern}")

    def _add(self, sections: Mapping[str, dict[str, str]], places: Mapping[tuple[str, str], str]) -> None:
        """Adds those of an included file. Supervisord follows no `include` of it."""
        self._places |= places
        for name, keys in sections.items():
            if name == "include":
                self._omit("include", "", "of an included file, as supervisord does")
            else:
                self._sections.setdefault(name, {}).update(keys)

    def tree(self) -> dict[str, Any]:
        """The configuration as YAML has it."""
        server = self._server()
        supervisor: dict[str, Any] = {}
        common = self._daemon(supervisor)
        groups, processes = self._groups(), dict[str, Any]()
        for section, keys in self._sections.items():
            kind, _, name = section.partition(":")
            if kind == "program":
                self._group = next((group for group, members in groups.items() if name in members), None)
                processes[name] = self._program(name, {**common, **keys})
            elif kind in ("eventlistener", "fcgi-program", "ctlplugin"):
                self._omit(section, "", "follow /api/v1/processes/stream?notices=true" if kind[0] == "e" else "")
            elif kind == "rpcinterface":
                self._omit(section, "", "the server has its own API")
            else:
                self._other_keys(section, kind, keys)
        self._order(groups, processes)
        supervisor |= {"groups": groups} if groups else {}
        supervisor["processes"] = processes
        return {**({"server": server} if server else {}), "supervisor": supervisor}

    def _other_keys(self, section: str, kind: str, keys: Mapping[str, str]) -> None:
        """Names the keys of a section, which is not a program's, that are not read."""
        if kind == "supervisorctl":
            for key in keys:
                self._omit(section, key, _CONTROL)
        elif kind in _KNOWN:
            for key in keys.keys() - _KNOWN[kind]:
                self._omit(section, key, "is not known")
        elif kind != "supervisord":
            self._omit(section, "", "is not known")

    def _order(self, groups: Mapping[str, list[str]], processes: Mapping[str, dict[str, Any]]) -> None:
        """Sets the order of all processes: the priority of the group comes before that of the program."""
        of_group = {
            name: self._sections[f"group:{group}"].get("priority") for group in groups for name in groups[group]
        }
        if not any("order" in process for process in processes.values()) and not any(of_group.values()):
            return
        own = {name: process.setdefault("order", str(_DEFAULT_PRIORITY)) for name, process in processes.items()}
        first = {name: (of_group[name] or str(_DEFAULT_PRIORITY)) if name in of_group else own[name] for name in own}
        try:
            orders = _orders([(int(first[name]), int(own[name])) for name in own])
        except ValueError:  # an expression, or a fault that the check reports
            for group in groups:
                if "priority" in self._sections[f"group:{group}"]:
                    self._omit(f"group:{group}", "priority", "give the members an order")
            return
        for name, order in zip(own, orders, strict=True):
            processes[name]["order"] = order

    def _omit(self, section: str, key: str, why: str) -> None:
        self._report(section, key, f"left out{f' ({why})' if why else ''}")

    def _report(self, section: str, key: str, text: str) -> None:
        where = self._places.get((section, key)) or self._places.get((section, ""), str(self._path))
        self.left_out.append(f"{where}: [{section}]{f' {key}' if key else ''}: {text}")

    def report_fault(self, fault: str) -> None:
        """Reports a fault that the check finds in the translation."""
        programs = [
            name for kind, _, name in (section.partition(":") for section in self._sections) if kind == "program"
        ]
        found = [name for name in programs if re.match(rf"{re.escape(f'supervisor.processes.{name}')}[.:]", fault)]
        where = self._places.get((f"program:{max(found, key=len)}", ""), self._path) if found else self._path
        self.left_out.append(f"{where}: check this: {fault}")

    def _groups(self) -> dict[str, list[str]]:
        """The groups with their programs. A group has no other members, because the rest is left out."""
        groups: dict[str, list[str]] = {}
        for section, keys in self._sections.items():
            kind, _, name = section.partition(":")
            if kind != "group":
                continue
            members = [member.strip() for member in keys.get("programs", "").split(",") if member.strip()]
            if known := [member for member in members if f"program:{member}" in self._sections]:
                groups[name] = known
            for member in members:
                if member not in known:
                    self._omit(section, "programs", f"there is no [program:{member}]")
            if "priority" in keys and not known:
                self._omit(section, "priority", "the group has no program")
        return groups

    def _server(self) -> dict[str, Any]:
        server: dict[str, Any] = {}
        unix, inet = self._sections.get("unix_http_server"), self._sections.get("inet_http_server")
        if unix is not None and "file" not in unix:
            self._omit("unix_http_server", "", "it has no file")
            unix = None
        if unix is not None:
            mode = unix.get("chmod", "0700").lstrip("0")
            server["unix-socket"] = {"path": self._text(unix["file"]), "mode": "0660" if mode[1:2] in "67" else "0600"}
            if mode[2:] not in ("0", ""):
                self._omit("unix_http_server", "chmod", "others are never let in")
            if "chown" in unix:
                _, separator, group = unix["chown"].partition(":")
                server["unix-socket"] |= {"group": group} if separator else {}
                self._omit("unix_http_server", "chown", "the socket belongs to the user of the server")
        if inet is not None and "port" in inet:
            host, _, port = inet["port"].rpartition(":")
            address = "0.0.0.0" if host in ("", "*") else host.strip("[]")  # noqa: S104 (what supervisord does)
            server |= {"address": address, "port": port}
        elif unix is not None:
            server["address"] = "none"
        for section, keys in (("unix_http_server", unix), ("inet_http_server", inet)):
            for key in ("username", "password"):
                if keys and key in keys:
                    self._omit(section, key, "make an account with `run.py user`")
        return server

    def _daemon(self, supervisor: dict[str, Any]) -> dict[str, str]:
        """Translates the section [supervisord]; returns its settings for all programs."""
        keys = self._sections.get("supervisord", {})
        if "identifier" in keys:
            supervisor["node-name"] = self._text(keys["identifier"])
        for key in keys.keys() - {"identifier", "environment", "umask", "directory"}:
            if key != "nodaemon" or _boolean(keys[key]) is not True:
                self._omit("supervisord", key, _DAEMON.get(key, "is not known"))
        self._environment = self._known = self._variables("supervisord", keys.get("environment", ""))
        return {key: keys[key] for key in ("umask", "directory") if key in keys}

    def _program(self, name: str, keys: Mapping[str, str]) -> dict[str, Any]:
        section = f"program:{name}"
        self._known = self._environment
        environment = self._known = self._environment | self._variables(section, keys.get("environment", ""))
        process: dict[str, Any] = {_SAME[key]: self._text(value) for key, value in keys.items() if key in _SAME}
        process["auto-start"] = _boolean(self._text(keys.get("autostart", "true")))
        process.setdefault("start-seconds", 1)
        self._restart(section, keys, process)
        self._logs(section, keys, process)
        process |= {"environment": environment} if environment else {}
        if keys.get("numprocs", "1").strip() == "1":
            self._single(process)
        else:
            process.setdefault("process-name", "${{ name }}")  # the check reports it for two, as supervisord does
        for key in keys.keys() - _SAME.keys() - _SPECIAL - _ALWAYS_SO:
            self._omit(section, key, _LEFT_OUT.get(key, "is not known"))
        for key in sorted(keys.keys() & _ALWAYS_SO):
            if _boolean(keys[key]) is not True:
                self._omit(section, key, "a stop always ends the whole group")
        return process

    def _single(self, process: dict[str, Any]) -> None:
        """A program of one process has its name, unless `process_name` is another; a replica would have a number."""
        process.setdefault("process-name", "${{ name }}")
        if process["process-name"] != "${{ name }}" or "${{ num" in str(process):
            process["numprocs"] = 1
        else:
            for key in ("process-name", "numprocs", "numprocs-start"):
                process.pop(key, None)

    def _restart(self, section: str, keys: Mapping[str, str], process: dict[str, Any]) -> None:
        wanted = self._text(keys.get("autorestart", "unexpected"))
        process["restart"] = _RESTART.get(str(_boolean(wanted)).lower(), wanted)
        retries = self._text(keys.get("startretries", "3"))
        process["restart-limit"] = 0  # supervisord restarts a program that has started without a limit
        process["start-retries"] = int(retries) if retries.isdecimal() else retries
        listed = [code.strip() for code in self._text(keys.get("exitcodes", "0")).split(",")]
        if "0" not in listed:
            self._omit(section, "exitcodes", "0 always counts as a success")
        codes = [code for code in listed if code not in ("", "0")]
        process |= {"success-exit-codes": codes} if codes else {}

    def _logs(self, section: str, keys: Mapping[str, str], process: dict[str, Any]) -> None:
        if redirected := _boolean(self._text(keys.get("redirect_stderr", "false"))):
            process["redirect-stderr"] = redirected
        streams = ["stdout"] if redirected else ["stdout", "stderr"]
        files = {stream: keys.get(f"{stream}_logfile", "AUTO") for stream in streams}
        forwarded = [
            stream
            for stream, file in files.items()
            if file.upper() == "SYSLOG" or keys.get(f"{stream}_syslog", "").lower() in _TRUE
        ]
        modes = {stream: file.upper() for stream, file in files.items() if file.upper() in _NO_FILES}
        modes |= {stream: "INHERIT" for stream, file in files.items() if file in _INHERITED[stream]}
        for stream in (stream for stream in streams if stream not in modes):
            process[f"{stream}-logfile"] = self._text(files[stream])
            process.setdefault("log-backups", 10)
            self._separate(section, stream, process)
        is_captured = "AUTO" in modes.values() or not modes.keys().isdisjoint(forwarded)
        if "INHERIT" in modes.values() and modes.keys().isdisjoint(forwarded):
            self._inherit(section, modes, process)
        elif modes:
            process["log"] = "capture" if is_captured else "none"
            for stream, mode in modes.items():
                if mode in ("NONE", "INHERIT") and is_captured and stream not in forwarded:
                    self._omit(section, f"{stream}_logfile", f"{files[stream]}: both outputs are captured")
        if forwarded:
            process["log-forward"] = "syslog"
            for stream in (stream for stream in streams if stream not in forwarded):
                self._omit(section, f"{stream}_syslog", "both outputs go to syslog")
        self._log_bounds(section, keys, process)

    def _inherit(self, section: str, modes: Mapping[str, str], process: dict[str, Any]) -> None:
        """An output that supervisord writes to its own output goes to that of the server."""
        process["log"] = "inherit"
        if modes.get("stdout") == "INHERIT":
            process.pop("log-max-bytes", None)
            process.pop("log-backups", None)
            process |= {"log-backups": 10} if "stderr-logfile" in process else {}
        for stream, mode in modes.items():
            if mode != "INHERIT":
                self._omit(section, f"{stream}_logfile", f"{mode}: both outputs go to that of the server")

    def _separate(self, section: str, stream: str, process: dict[str, Any]) -> None:
        """Gives each replica a file of its own, which Pilothouse requires."""
        path = Path(process[f"{stream}-logfile"])
        if process.get("numprocs", "1") == "1" or "${{ num" in str(path) or path.is_relative_to("/dev"):
            return
        process[f"{stream}-logfile"] = own = str(path.with_name(f"{path.stem}-${{{{ num }}}}{path.suffix}"))
        self._report(section, f"{stream}_logfile", f"changed to {own} (each replica has a file of its own)")

    def _log_bounds(self, section: str, keys: Mapping[str, str], process: dict[str, Any]) -> None:
        """Translates the bounds of standard error where only that has a file: both files have the same."""
        if "stderr-logfile" not in process and (process.get("log") != "capture" or "redirect-stderr" in process):
            return
        for key, name, default in (("maxbytes", "log-max-bytes", "50MB"), ("backups", "log-backups", "10")):
            of_stdout, of_stderr = (keys.get(f"{stream}_logfile_{key}", default) for stream in ("stdout", "stderr"))
            if "stderr-logfile" in process and "stdout-logfile" not in process:
                process |= {name: of_stderr} if of_stderr != default else {}
            elif of_stderr != of_stdout and ("stderr-logfile" in process or f"stderr_logfile_{key}" in keys):
                self._omit(section, f"stderr_logfile_{key}", f"{of_stdout} counts for both files")

    def _variables(self, section: str, text: str) -> dict[str, str]:
        lexer = shlex.shlex(text.replace("\n", " "), posix=True)
        lexer.wordchars += "/.+-():%$@{}|!*?^~&<>[];#"
        lexer.commenters = ""
        found = dict[str, str]()
        try:
            tokens = list(lexer)
        except ValueError:  # a quote that is not closed
            tokens = [text]
        while tokens:
            if len(tokens) < 3 or tokens[1] != "=":
                self._omit(section, "environment", "is not KEY=value,KEY=value")
                break
            found[tokens[0]] = self._text(tokens[2])
            tokens = tokens[4:]
        return found

    def _text(self, text: str) -> str:
        """Replaces supervisord's expressions by variables of Pilothouse."""
        return _EXPRESSION.sub(self._expression, text.replace("${{", "$${{")).strip()

    def _expression(self, found: re.Match[str]) -> str:
        name, width = found.groups()
        if found[0] == "%%":
            return "%"
        if name.startswith("ENV_"):
            variable = name.removeprefix("ENV_")
            return self._known.get(variable, f"${{{{ env.{variable} }}}}")
        if name == "group_name" and self._group is not None:
            return self._group
        return f"${{{{ {_VARIABLES.get(name, name)}{f':{width}d' if width else ''} }}}}"


def _boolean(text: str) -> bool | str:
    """True or false, in the words of supervisord. Another text stays, for the check to report."""
    return True if text.lower() in _TRUE else False if text.lower() in _FALSE else text


def _orders(priorities: list[tuple[int, int]]) -> list[int]:
    """One number for each pair of priorities, of the group and of the program, in the same order.

    The number is the program's or the group's priority where all pairs allow it, else a rank.
    """
    ranks = _ranks(priorities)
    for part in (1, 0):
        choice = [pair[part] for pair in priorities]
        if _ranks(choice) == ranks:
            return choice
    return ranks


def _ranks(values: list[Any]) -> list[int]:
    places = {value: place for place, value in enumerate(sorted(set(values)))}
    return [places[value] for value in values]


def _expanded(pattern: str) -> str:
    """The pattern of `files` with the variables of the environment and the name of the host, as they are now."""
    values = {"host_node_name": platform.node(), **{f"ENV_{name}": value for name, value in os.environ.items()}}
    return _EXPRESSION.sub(lambda found: "%" if found[0] == "%%" else values.get(found[1], found[0]), pattern)


class _SupervisordParser(configparser.RawConfigParser):
    """Reads as supervisord does, and remembers the line of each section and key."""

    def __init__(self) -> None:
        super().__init__(inline_comment_prefixes=(";", "#"), strict=False)
        self.lines: dict[tuple[str, str], int] = {}
        self._at = "", 0

    def numbered(self, text: str) -> Iterator[str]:
        """The lines of a text, to be parsed."""
        section = ""
        for number, line in enumerate(io.StringIO(text), 1):
            if header := self.SECTCRE.match(_COMMENT.split(line, maxsplit=1)[0].strip()):
                section = header["header"]
                self.lines[section, ""] = number
            self._at = section, number
            yield line

    def optionxform(self, optionstr: str) -> str:
        """The key as it is. The parser calls this for each key that it has read."""
        section, number = self._at
        self.lines[section, optionstr] = number
        return optionstr


def _sections(path: Path) -> tuple[dict[str, dict[str, str]], dict[tuple[str, str], str]]:
    """The sections of one file, and the places of their keys, as `file:line`.

    `%(here)s` is the folder of the file, of an included one too. Raises `configparser.Error`, `OSError`,
    `UnicodeDecodeError`.
    """
    parser = _SupervisordParser()
    parser.read_file(parser.numbered(path.read_text()), str(path))
    places = {key: f"{path}:{number}" for key, number in parser.lines.items()}
    here = str(path.parent.absolute())
    return {
        name: {key: value.replace("%(here)s", here) for key, value in parser.items(name)} for name in parser.sections()
    }, places


def written(path: Path) -> tuple[str, list[str]]:
    """The YAML text for a supervisord.conf, and what was left out of it. Raises as `Import`."""
    source = Import(path)
    text = yaml.safe_dump(source.tree(), sort_keys=False, allow_unicode=True, width=120)
    with tempfile.NamedTemporaryFile("w", suffix=".yaml") as file:
        file.write(text)
        file.flush()
        try:
            loader.load(Path(file.name), {})
        except BadConfig as bad:
            for fault in bad.faults:
                source.report_fault(fault)
    comments = "".join(f"# {line}\n" for line in source.left_out)
    return f"# Made from {path.name}, a configuration of supervisord.\n{comments}{text}", source.left_out


def add_to(parser: argparse.ArgumentParser) -> None:
    """Adds the arguments of the command."""
    parser.epilog = "Exit codes: 0 all was translated, 2 the file cannot be read, 3 something was left out or changed."
    parser.set_defaults(alone=main)
    parser.add_argument("file", type=Path, help="a supervisord.conf")
    parser.add_argument("-o", "--output", type=Path, help="where to write (default: standard output)")


def main(arguments: argparse.Namespace) -> int:
    """Returns the exit code."""
    try:
        text, left_out = written(arguments.file)
        if arguments.output is None:
            sys.stdout.write(text)
        else:
            arguments.output.write_text(text)
    except OSError as error:
        print(f"{error.filename or arguments.file}: {error.strerror}", file=sys.stderr)
        return BAD_FILE
    except configparser.MissingSectionHeaderError as error:
        print(f"{error.source}:{error.lineno}: a section such as [program:web] is expected", file=sys.stderr)
        return BAD_FILE
    except configparser.ParsingError as error:
        for number, line in error.errors:
            print(f"{error.source}:{number}: key=value is expected, not {line}", file=sys.stderr)
        return BAD_FILE
    except (UnicodeDecodeError, configparser.Error) as error:
        print(f"{arguments.file}: {' '.join(str(error).split())}", file=sys.stderr)
        return BAD_FILE
    for line in left_out:
        print(line, file=sys.stderr)
    return LEFT_OUT if left_out else OK
