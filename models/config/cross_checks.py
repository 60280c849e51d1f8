"""Checks between properties, and the expansion of template names."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from attrs import NOTHING, evolve

from models.config import env_files, login_checks, notify_checks, parsers, secret_files
from models.config.parsers import ValidationError
from models.config.settings import MAX_SOCKET_PATH_BYTES, Config, ForgeSettings
from models.supervision.captured_logs import with_log
from models.supervision.process import Condition, Dependency, ProcessSpec, Restart, circle
from models.supervision.selectors import is_glob

PROCESSES = "supervisor.processes"
_MAX_CIRCLES = 20


def with_templates(config: Config) -> Config:
    """Returns the configuration completed with values that depend on all processes.

    A dependency on a template is one on each of its replicas, a replica is a member of its template's group, the
    contents of environment files count as a property, and captured logs have their files.
    """
    specs = config.supervisor.processes
    replicas: dict[str, list[str]] = {}
    for spec in specs.values():
        if spec.template is not None:
            replicas.setdefault(spec.template, []).append(spec.name)
    mode, data_dir = config.supervisor.log, config.server.data_dir
    changed = {name: with_log(_with_templates(spec, replicas), mode, data_dir) for name, spec in specs.items()}
    return evolve(config, supervisor=evolve(config.supervisor, processes=changed))


def _with_templates(spec: ProcessSpec, replicas: Mapping[str, list[str]]) -> ProcessSpec:
    changes: dict[str, Any] = {}
    if any(dependency.process in replicas for dependency in spec.depends_on):
        changes["depends_on"] = tuple(_each(spec.depends_on, replicas))
    if spec.template is not None and spec.template not in spec.groups:
        changes["groups"] = (spec.template, *spec.groups)
    if spec.env_file:
        changes["env_digest"] = env_files.digest(spec.env_file, spec.user, spec.group)
    return evolve(spec, **changes) if changes else spec


def _each(needed: tuple[Dependency, ...], replicas: Mapping[str, list[str]]) -> Iterator[Dependency]:
    for dependency in needed:
        for name in replicas.get(dependency.process, [dependency.process]):
            yield evolve(dependency, process=name)


def _restart_fault(spec: ProcessSpec) -> str:
    kind = "type: oneshot" if spec.type else "schedule, which makes it a oneshot"
    return f"always cannot be given together with {kind}"


class CrossChecks:
    def __init__(
        self, config: Config, fault: Callable[[str, object], object], is_faulty: Callable[[str], bool]
    ) -> None:
        """`fault(path, why)` is called for each fault; `is_faulty(path)` returns whether the property already has a
        fault."""
        self._config = config
        self._fault = fault
        self._is_faulty = is_faulty

    def run(self) -> None:
        """Checks properties against each other. An invalid property is not reported a second time."""
        config = self._config
        tls = config.server.tls
        is_half = (tls.certificate is None) != (tls.key is None)
        if is_half and not self._is_faulty("server.tls"):
            self._fault("server.tls", "certificate and key must be given together")
        self._check_socket(config)
        self._check_secret_files(config)
        for path, why in (*notify_checks.faults(config.notify), *login_checks.faults(config)):
            self._fault(path, why)
        specs = config.supervisor.processes
        for spec in specs.values():
            self._check_process(spec, specs)
        self._check_log_files(specs)
        self._check_groups(config)
        self._check_circles(specs)

    def _check_socket(self, config: Config) -> None:
        socket, at = config.server.unix_socket, "server.unix-socket"
        path = socket.path
        if path is not None and len(os.fsencode(path)) > MAX_SOCKET_PATH_BYTES:
            self._fault(f"{at}.path", f"has more than {MAX_SOCKET_PATH_BYTES} bytes")
        folder = config.server.data_dir.absolute()
        if socket.mode != "0600" and (path is None or Path(path).absolute().is_relative_to(folder)):
            self._fault(f"{at}.mode", f"{socket.mode} needs a path outside server.data-dir, which has mode 0700")
        if path == "none" and not config.server.address:
            self._fault(f"{at}.path", "none leaves no way to the server: server.address is none too")

    def _check_secret_files(self, config: Config) -> None:
        if config.server.secret_key_file is not None:
            try:
                secret_files.key_of(config.server.secret_key_file)
            except ValidationError as unusable:
                self._fault("server.secret-key-file", unusable)
        if (ca_file := config.server.outbound.ca_file) is not None and not os.access(ca_file, os.R_OK):
            self._fault("server.outbound.ca-file", f"{parsers.shown(str(ca_file))} cannot be read")
        for name, forge in config.tracker.forges.items():
            at = f"tracker.forges.{name}"
            for path, why in _forge_faults(at, forge, self._is_faulty(f"{at}.app")):
                self._fault(path, why)

    def _check_groups(self, config: Config) -> None:
        processes = config.supervisor.processes
        templates = {spec.template for spec in processes.values()}
        for group, members in config.supervisor.groups.items():
            for member in members:
                if not is_glob(member) and member not in processes and member not in templates:
                    why = f"{parsers.shown(member)} is not a process{parsers.suggestion(member, processes)}"
                    self._fault(f"supervisor.groups.{group}", why)

    def _check_process(self, spec: ProcessSpec, specs: Mapping[str, ProcessSpec]) -> None:
        at = f"{PROCESSES}.{spec.name}"
        if spec.redirect_stderr and spec.stderr_logfile is not None:
            self._fault(f"{at}.stderr-logfile", "cannot be given together with redirect-stderr: true")
        files = [path for path in (spec.stdout_logfile, spec.stderr_file) if path and not path.startswith("/dev/")]
        if spec.log_forward is not None and not files:
            self._fault(f"{at}.log-forward", "needs stdout-logfile, stderr-logfile or log: capture")
        if spec.is_job and spec.restart is Restart.ALWAYS:
            self._fault(f"{at}.restart", _restart_fault(spec))
        for dependency in spec.depends_on:
            if why := self._dependency_fault(dependency, spec, specs):
                self._fault(f"{at}.depends-on", why)

    def _dependency_fault(self, dependency: Dependency, spec: ProcessSpec, specs: Mapping[str, ProcessSpec]) -> str:
        name: Any = dependency.process
        if name is NOTHING:
            return ""
        if name == spec.name:
            return "a process cannot depend on itself"
        if name not in specs:
            return f"{parsers.shown(name)} is not a process{parsers.suggestion(name, specs)}"
        checked = specs[name].health_check or self._is_faulty(f"{PROCESSES}.{name}.health-check")
        if dependency.condition is Condition.HEALTHY and not checked:
            return f"{parsers.shown(name)} has no health-check, so it never becomes healthy"
        if dependency.condition is Condition.COMPLETED and specs[name].restart is Restart.ALWAYS:
            return f"{parsers.shown(name)} has restart: always, so it is never completed"
        return ""

    def _check_circles(self, specs: Mapping[str, ProcessSpec]) -> None:
        """Reports circles of dependencies: each time one is found, the dependency that closes it is left out."""
        needs = {name: {dependency.process for dependency in spec.depends_on} - {name} for name, spec in specs.items()}
        for _ in range(_MAX_CIRCLES):
            if not (names := circle(needs)):
                return
            self._fault(f"{PROCESSES}.{names[0]}.depends-on", f"{' -> '.join(names)} is a circle")
            needs[names[-2]].discard(names[-1])

    def _check_log_files(self, specs: Mapping[str, ProcessSpec]) -> None:
        """Replicas of a template may not write to the same file."""
        writers: dict[tuple[str, str], str] = {}
        for spec in specs.values():
            files = {path for path in (spec.stdout_logfile, spec.stderr_file) if path and not path.startswith("/dev/")}
            for path in files if spec.template else ():
                other = writers.setdefault((spec.template or "", path), spec.name)
                if other != spec.name:
                    why = f"{other} and {spec.name} have the same log file {parsers.shown(path)}"
                    self._fault(f"{PROCESSES}.{spec.template}", f"{why}; write ${{{{ num }}}} in it")


def _forge_faults(at: str, forge: ForgeSettings, is_faulty: bool) -> Iterator[tuple[str, object]]:
    yield from secret_files.faults(at, "token", forge.token, forge.token_file)
    app = forge.app
    if app is None:
        return
    if forge.type != "github":
        yield f"{at}.app", "only a forge of the type github has apps"
    if forge.token is not None or forge.token_file is not None:
        yield at, "token and app cannot be given together"
    if app.private_key is None and app.private_key_file is None and not is_faulty:
        yield f"{at}.app", "needs private-key or private-key-file"
    read = secret_files.private_key_of
    yield from secret_files.faults(f"{at}.app", "private-key", app.private_key, app.private_key_file, read)


def ignored(config: Config) -> list[str]:
    """A line for each property that is set and has no effect any more."""
    if config.svc.work.threads is None:
        return []
    return ["svc.work.threads is ignored: server.workers.processes is the number of processes that read for charts"]
