"""`run.py import-supervisord FILE`: translates a supervisord.conf, and lists the omitted settings."""

from __future__ import annotations

import argparse
import configparser
import glob
import re
import shlex
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from models.config import loader
from models.config.settings import BadConfig

OK, BAD_FILE, LEFT_OUT = 0, 2, 3

_EXPRESSION = re.compile(r"%%|%\((\w+)\)(0?[0-9]*)[sdi]")
_VARIABLES = {"program_name": "name", "process_num": "num", "numprocs": "numprocs", "host_node_name": "node"}
_RESTART = {"true": "always", "unexpected": "on-failure", "false": "never"}
_NO_FILES = ("AUTO", "NONE", "SYSLOG")
_DEFAULT_PRIORITY = 999
_TRUE = ("true", "yes", "on", "1")

_SAME = {"command": "command", "directory": "directory", "user": "user", "umask": "umask", "numprocs": "numprocs",
         "numprocs_start": "numprocs-start", "process_name": "process-name", "priority": "order",
         "startsecs": "start-seconds", "stopsignal": "stop-signal", "stopwaitsecs": "stop-timeout",
         "stdout_logfile_maxbytes": "log-max-bytes", "stdout_logfile_backups": "log-backups"}  # fmt: skip
"""Keys whose values need no more than their expressions translated."""

_SPECIAL = {"environment", "autostart", "autorestart", "startretries", "exitcodes", "redirect_stderr",
            "stdout_logfile", "stdout_syslog", "stderr_logfile", "stderr_logfile_maxbytes", "stderr_logfile_backups",
            "stderr_syslog"}  # fmt: skip
_ALWAYS_SO = {"stopasgroup", "killasgroup", "serverurl"}
"""Keys without a counterpart that is needed: a stop always ends the whole group."""
_LEFT_OUT = {
    "stdout_capture_maxbytes": "capture mode: use events or notices",
    "stderr_capture_maxbytes": "capture mode: use events or notices",
    "stdout_events_enabled": "log events: follow the log",
    "stderr_events_enabled": "log events: follow the log",
}
_DAEMON = {"logfile", "logfile_maxbytes", "logfile_backups", "loglevel", "pidfile", "nodaemon", "silent", "minfds",
           "minprocs", "nocleanup", "childlogdir", "strip_ansi"}  # fmt: skip
"""Keys about supervisord itself, which need no counterpart: the log goes to standard error."""


class Import:
    def __init__(self, path: Path) -> None:
        """Reads the file and those it includes. Raises `configparser.Error`, `OSError`, `UnicodeDecodeError`."""
        self.left_out: list[str] = []
        self._here = path.parent.absolute()
        self._sections = _sections(path)
        for pattern in shlex.split(self._sections.pop("include", {}).get("files", "")):
            for file in sorted(glob.glob(str(self._here / pattern))):  # noqa: PTH207 (absolute patterns too)
                self._add(_sections(Path(file)), file)

    def _add(self, sections: Mapping[str, dict[str, str]], file: str) -> None:
        """Adds those of an included file. Supervisord follows no `include` of it."""
        for name, keys in sections.items():
            if name == "include":
                self._omit("include", "", f"of the included file {file}, as supervisord does")
            else:
                self._sections.setdefault(name, {}).update(keys)

    def tree(self) -> dict[str, Any]:
        """The configuration as YAML has it."""
        server = self._server()
        supervisor: dict[str, Any] = {}
        common = self._daemon(supervisor)
        groups, processes = dict[str, Any](), dict[str, Any]()
        for section, keys in self._sections.items():
            kind, _, name = section.partition(":")
            if kind == "program":
                processes[name] = self._program(name, {**common, **keys})
            elif kind == "group":
                groups[name] = [member.strip() for member in keys.get("programs", "").split(",") if member.strip()]
                if "priority" in keys:
                    self._omit(section, "priority", "give the members an order")
            elif kind in ("eventlistener", "fcgi-program", "ctlplugin"):
                self._omit(section, "", "follow /api/v1/processes/stream?notices=true" if kind[0] == "e" else "")
            elif kind not in ("supervisord", "supervisorctl", "unix_http_server", "inet_http_server", "rpcinterface"):
                self._omit(section, "", "is not known")
        if any("order" in process for process in processes.values()):
            for process in processes.values():
                process.setdefault("order", _DEFAULT_PRIORITY)
        supervisor |= {"groups": groups} if groups else {}
        supervisor["processes"] = processes
        return {**({"server": server} if server else {}), "supervisor": supervisor}

    def _omit(self, section: str, key: str, why: str) -> None:
        self.left_out.append(f"[{section}]{f' {key}' if key else ''}: left out{f' ({why})' if why else ''}")

    def _server(self) -> dict[str, Any]:
        server: dict[str, Any] = {}
        unix, inet = self._sections.get("unix_http_server"), self._sections.get("inet_http_server")
        if unix is not None:
            mode = unix.get("chmod", "0700").lstrip("0")
            server["unix-socket"] = {"path": self._text(unix["file"]), "mode": "0660" if mode[1:2] in "67" else "0600"}
            if mode[2:] not in ("0", ""):
                self._omit("unix_http_server", "chmod", "others are never let in")
            if ":" in unix.get("chown", ""):
                server["unix-socket"]["group"] = unix["chown"].partition(":")[2]
        if inet is not None and "port" in inet:
            host, _, port = inet["port"].rpartition(":")
            server |= {"address": {"*": "0.0.0.0", "": "127.0.0.1"}.get(host, host), "port": int(port)}  # noqa: S104
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
            supervisor["node-name"] = keys["identifier"]
        if "user" in keys:
            self._omit("supervisord", "user", "start pilothouse as this user")
        for key in keys.keys() - _DAEMON - {"identifier", "user", "environment", "umask", "directory"}:
            self._omit("supervisord", key, "is not known")
        self._environment = self._variables("supervisord", keys.get("environment", ""))
        return {key: keys[key] for key in ("umask", "directory") if key in keys}

    def _program(self, name: str, keys: Mapping[str, str]) -> dict[str, Any]:
        section = f"program:{name}"
        process: dict[str, Any] = {_SAME[key]: self._text(value) for key, value in keys.items() if key in _SAME}
        if "numprocs" not in keys:
            if self._text(keys.get("process_name", "%(program_name)s")) == "${{ name }}":
                process.pop("process-name", None)
            else:
                process["numprocs"] = 1
        process |= {"auto-start": keys.get("autostart", "true").lower() in _TRUE}
        process.setdefault("start-seconds", 1)
        self._restart(section, keys, process)
        self._logs(section, keys, process)
        environment = self._environment | self._variables(section, keys.get("environment", ""))
        process |= {"environment": environment} if environment else {}
        for key in keys.keys() - _SAME.keys() - _SPECIAL - _ALWAYS_SO:
            self._omit(section, key, _LEFT_OUT.get(key, "is not known"))
        return process

    def _restart(self, section: str, keys: Mapping[str, str], process: dict[str, Any]) -> None:
        wanted = keys.get("autorestart", "unexpected").lower()
        process["restart"] = _RESTART.get(wanted, "always" if wanted in _TRUE else "never")
        retries = keys.get("startretries", "3")
        if retries != "0":
            process["restart-limit"] = int(retries)
        else:
            self._omit(section, "startretries", "a restart-limit of 0 would be no limit")
        codes = [code.strip() for code in keys.get("exitcodes", "0").split(",") if code.strip() not in ("", "0")]
        process |= {"success-exit-codes": codes} if codes else {}

    def _logs(self, section: str, keys: Mapping[str, str], process: dict[str, Any]) -> None:
        process |= {"redirect-stderr": True} if keys.get("redirect_stderr", "").lower() in _TRUE else {}
        streams = ["stdout"] if process.get("redirect-stderr") else ["stdout", "stderr"]
        files = {stream: keys.get(f"{stream}_logfile", "AUTO") for stream in streams}
        forwarded = [
            stream
            for stream, file in files.items()
            if file.upper() == "SYSLOG" or keys.get(f"{stream}_syslog", "").lower() in _TRUE
        ]
        modes = {stream: file.upper() for stream, file in files.items() if file.upper() in _NO_FILES}
        for stream in (stream for stream in streams if stream not in modes):
            process[f"{stream}-logfile"] = self._text(files[stream])
            process.setdefault("log-backups", 10)
        is_captured = "AUTO" in modes.values() or not modes.keys().isdisjoint(forwarded)
        process |= {"log": "capture" if is_captured else "none"} if modes else {}
        for stream, mode in modes.items():
            if mode == "NONE" and is_captured and stream not in forwarded:
                self._omit(section, f"{stream}_logfile", "NONE: both outputs are captured")
        if forwarded:
            process["log-forward"] = "syslog"
            for stream in (stream for stream in streams if stream not in forwarded):
                self._omit(section, f"{stream}_syslog", "both outputs go to syslog")
        for key in ("maxbytes", "backups"):
            own, other = f"stderr_logfile_{key}", f"stdout_logfile_{key}"
            if own in keys and "stderr-logfile" in process and keys[own] != keys.get(other):
                self._omit(section, own, "one bound counts for both files")

    def _variables(self, section: str, text: str) -> dict[str, str]:
        lexer = shlex.shlex(text.replace("\n", " "), posix=True)
        lexer.wordchars += "/.+-():%$@{}|!*?^~&<>[];#"
        lexer.commenters = ""
        tokens, found = list(lexer), dict[str, str]()
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
            return f"${{{{ env.{name.removeprefix('ENV_')} }}}}"
        if name == "group_name":
            return "${{ name }}"
        return f"${{{{ {_VARIABLES.get(name, name)}{f':{width}d' if width else ''} }}}}"


def _sections(path: Path) -> dict[str, dict[str, str]]:
    """The sections of one file. `%(here)s` is the folder of the file, of an included one too.

    Raises `configparser.Error`, `OSError`, `UnicodeDecodeError`.
    """
    parser = configparser.RawConfigParser(inline_comment_prefixes=(";", "#"), strict=False)
    parser.optionxform = str  # type: ignore[assignment, method-assign]
    parser.read_string(path.read_text(), str(path))
    here = str(path.parent.absolute())
    return {
        name: {key: value.replace("%(here)s", here) for key, value in parser.items(name)} for name in parser.sections()
    }


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
            source.left_out += [f"check this: {fault}" for fault in bad.faults]
    comments = "".join(f"# {line}\n" for line in source.left_out)
    return f"# Made from {path.name}, a configuration of supervisord.\n{comments}{text}", source.left_out


def add_to(parser: argparse.ArgumentParser) -> None:
    """Adds the arguments of the command."""
    parser.epilog = "Exit codes: 0 all was translated, 2 the file cannot be read, 3 something was left out."
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
    except (UnicodeDecodeError, configparser.Error, ValueError, KeyError) as error:
        print(f"{arguments.file}: {' '.join(str(error).split())}", file=sys.stderr)
        return BAD_FILE
    for line in left_out:
        print(line, file=sys.stderr)
    return LEFT_OUT if left_out else OK
