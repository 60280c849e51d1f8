"""The context that all processes share (clock, event writer, children), and the launch of a spec."""

from __future__ import annotations

import asyncio
import contextlib
import grp
import logging
import os
import pwd
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence

from attrs import Factory, define

from models.config import env_files
from models.errors import Invalid
from models.supervision.process import LogMode, ProcessSpec
from models.supervision.record import Record
from supervisor.children.child import Children, Launch
from supervisor.children.openings import FileCredentials, open_settings
from supervisor.children.orphans import Cgroups, Orphans
from supervisor.children.tags import FINGERPRINT_VARIABLE, TAG_VARIABLE
from supervisor.clock import Clock
from supervisor.processes.event_writer import EventWriter
from supervisor.processes.logs.files import LogFile
from supervisor.processes.notices import Notices
from supervisor.processes.process import notify
from supervisor.processes.process.health import Prober
from supervisor.processes.run_recorder import RunRecorder
from supervisor.scheduling import YieldingLock

log = logging.getLogger("supervision")

_NO_USER = 65534


async def _no_sizes(name: str, files: Sequence[LogFile]) -> Mapping[str, int]:
    return {}


@define
class SupervisionContext:
    clock: Clock
    event_writer: EventWriter
    children: Children
    cgroups: Cgroups
    orphans: Orphans
    prober: Prober
    server_id: str
    notices: Notices
    runs: RunRecorder
    environment: Mapping[str, str]
    """What children inherit: the environment of the server, less the variables that configure it."""
    spawn_lock: YieldingLock = Factory(YieldingLock)
    on_logs_opened: Callable[[Iterable[LogFile]], None] = lambda files: None
    """Called with the log files of a process that was spawned."""
    log_sizes: Callable[[str, Sequence[LogFile]], Awaitable[Mapping[str, int]]] = _no_sizes
    """Returns the sizes of the log files of a process, after those of its exits before."""
    on_start: Callable[[Mapping[str, int], Record], None] = lambda sizes, record: None
    """Called with the sizes of its log files before its start when a process has started."""
    on_exit: Callable[[Sequence[LogFile], Record], None] = lambda files, record: None
    """Called with its log files when a process has ended."""
    leftovers: Mapping[str, asyncio.Future[None]] = Factory(dict)
    """By process: done when what an earlier run of the server left of it has ended."""
    period: int = 0
    """Counts the starts of the server that found no live child; what a job has finished counts in one period only."""
    closing: bool = False
    """Whether the server is shutting down: nothing is started any more."""

    def tag(self, name: str, generation: int) -> str:
        """The value of `PILOTHOUSE_CHILD` by which a process is recognized."""
        return f"{self.server_id}:{generation}:{name}"

    async def launch(self, spec: ProcessSpec, generation: int) -> Launch:
        """How the spec is run on this machine. Raises `Invalid` where it cannot be.

        Suspends only where the spec names a directory, files or an account: looking them up may take a while.
        """
        if not _is_looked_up(spec):
            return self._launch(spec, generation, {})
        return await asyncio.to_thread(
            lambda: self._launch(spec, generation, _from_files(spec) if spec.env_file else {})
        )

    async def check(self, spec: ProcessSpec) -> None:
        """Raises `Invalid` where the spec cannot be run on this machine now. A pipe of variables is not read."""

        def look_up() -> None:
            for problem in env_files.problems(spec.env_file, spec.user, spec.group):
                raise _invalid(spec, problem)
            self._launch(spec, 0, {})

        await asyncio.to_thread(look_up) if _is_looked_up(spec) else look_up()

    def adopted_launch(self, spec: ProcessSpec, generation: int, variables: Mapping[str, str] | None) -> Launch:
        """As it would be launched now, for its probes; without its directory and files where those are gone.

        Never with more rights than its user has: the user can remove the directory.

        `variables` are those of its environment files, `None` if unreadable.
        """
        with contextlib.suppress(Invalid):
            if variables is not None:
                return self._launch(spec, generation, variables)
        environment = {**self.environment, TAG_VARIABLE: self.tag(spec.name, generation)}
        try:
            uid, gid, groups, account = _account(spec)
        except Invalid:
            uid, gid, groups, account = _NO_USER, _NO_USER, (), {}
        return Launch(spec.argv, {**environment, **account}, uid=uid, gid=gid, groups=groups)

    def _launch(self, spec: ProcessSpec, generation: int, variables: Mapping[str, str]) -> Launch:
        if spec.directory is not None and not os.path.isdir(spec.directory):  # noqa: PTH112 (Path's own raises EACCES)
            raise _invalid(spec, f"there is no directory {spec.directory}")
        uid, gid, groups, account = _account(spec)
        tags = {TAG_VARIABLE: self.tag(spec.name, generation), FINGERPRINT_VARIABLE: spec.launch_fingerprint}
        server_variables = {**notify.variables(self.children.key, spec, generation), **tags}
        environment = {**self.environment, **account, **variables, **spec.environment, **server_variables}
        nowhere = os.devnull if spec.log is LogMode.NONE else None
        return Launch(
            argv=spec.argv,
            environment=environment,
            directory=spec.directory,
            umask=-1 if spec.umask is None else spec.umask,
            nice=spec.nice,
            uid=uid,
            gid=gid,
            groups=groups,
            limits=spec.limits,
            stdin=spec.stdin,
            stdout=spec.stdout_logfile or nowhere,
            stderr=spec.stderr_file or nowhere,
            private_files=spec.captured_files,
            redirect_stderr=spec.redirect_stderr,
        )


def _is_looked_up(spec: ProcessSpec) -> bool:
    """Whether the spec names what a file system or a directory of accounts answers for."""
    return any((spec.env_file, spec.directory, spec.user, spec.group))


def identity_of(spec: ProcessSpec) -> FileCredentials | None:
    """With which a process accesses files, where it has another user than the server; else `None`."""
    try:
        uid, gid, groups, _ = _account(spec)
    except Invalid:
        return None
    return None if uid is None or gid is None else FileCredentials(uid, gid, groups)


def _opener_of(user: str | None, group: str | None) -> Callable[[str], int]:
    identity = identity_of(ProcessSpec("", ("",), user=user, group=group))
    return lambda path: open_settings(path, identity)


env_files.use_openers(_opener_of)


def variables_of_files(specs: Iterable[ProcessSpec]) -> dict[str, Mapping[str, str] | None]:
    """The variables of the environment files, by process; `None` for those that cannot be read. For use in a worker."""
    variables: dict[str, Mapping[str, str] | None] = {}
    for spec in specs:
        try:
            variables[spec.name] = _from_files(spec, waits=False)
        except Invalid:
            variables[spec.name] = None
    return variables


def unusable_files(specs: Iterable[ProcessSpec]) -> list[str]:
    """The faults of the environment files, with the names of their processes. Pipes are not read. For a worker."""
    return [
        f"{spec.name}: {problem}"
        for spec in specs
        for problem in env_files.problems(spec.env_file, spec.user, spec.group)
    ]


def _from_files(spec: ProcessSpec, waits: bool = True) -> dict[str, str]:
    """The variables of the environment files. Raises `Invalid`."""
    try:
        identity = identity_of(spec)
        variables = env_files.read(spec.env_file, waits, lambda path: open_settings(path, identity))
    except env_files.EnvFileError as error:
        raise _invalid(spec, str(error)) from None
    for path in env_files.readable_by_others(spec.env_file):
        log.warning("%s: env-file %s can be read by other users", spec.name, path)
    return variables


def _invalid(spec: ProcessSpec, reason: str) -> Invalid:
    return Invalid(f"process {spec.name} cannot be run: {reason}", "INVALID_PROCESS_CONFIGURATION")


def _account(spec: ProcessSpec) -> tuple[int | None, int | None, tuple[int, ...], dict[str, str]]:
    """User and group id to run as (None: those of the server), the user's other groups, and the user's variables."""
    if spec.user is None and spec.group is None:
        return None, None, (), {}
    try:
        user = _passwd(spec.user) if spec.user is not None else None
        group = _group_id(spec.group) if spec.group is not None else user.pw_gid if user else None
    except KeyError:
        missing = f"user {spec.user}" if spec.user and not _has_user(spec.user) else f"group {spec.group}"
        raise _invalid(spec, f"there is no {missing}") from None
    if (user is None or user.pw_uid == os.geteuid()) and group == os.getegid():
        return None, None, (), {}
    if os.geteuid() != 0:
        raise _invalid(spec, "running as another user or group needs pilothouse to run as root")
    if user is None or group is None:
        return None, group, (), {}
    groups = tuple(os.getgrouplist(user.pw_name, group))
    return user.pw_uid, group, groups, {"HOME": user.pw_dir, "USER": user.pw_name, "LOGNAME": user.pw_name}


def user_of(spec: ProcessSpec) -> int | None:
    """The user id that a process runs as; `None` for that of the server, or where there is no such user."""
    with contextlib.suppress(KeyError):
        return None if spec.user is None else _passwd(spec.user).pw_uid
    return None


def _passwd(user: str) -> pwd.struct_passwd:
    return pwd.getpwuid(int(user)) if user.isdigit() else pwd.getpwnam(user)


def _has_user(user: str) -> bool:
    try:
        _passwd(user)
    except KeyError:
        return False
    return True


def _group_id(group: str) -> int:
    return int(group) if group.isdigit() else grp.getgrnam(group).gr_gid
