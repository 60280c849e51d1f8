"""Opens the files of processes with no more rights than the users who can change their paths.

It imports nothing of the server, because the launcher imports it.

Where each folder of a path belongs to root (or the server's user) and nobody else may write in it, the server's rights
are used, and no link but root's own is followed. Else a file system identity is used, that of the process' user: Linux
keeps it for each thread, so that the kernel decides. A process of the server's own user has no other identity: for it
root refuses such a path. Nothing here waits for a FIFO, and what is no plain file (or FIFO, for input) is refused.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import pwd
import stat
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

_libc = ctypes.CDLL(None, use_errno=True)
_SETGROUPS_NUMBERS = {"x86_64": 116, "i686": 206, "armv7l": 206, "aarch64": 159, "riscv64": 159, "ppc64le": 81}
_OPENAT2_NUMBER, _RESOLVE_NO_MAGICLINKS = 437, 0x02
_MAX_LINKS = 40
_STATFS_BYTES = 256
_KERNEL_FILE_SYSTEMS = frozenset(
    {0x9FA0, 0x62656572, 0x63677270, 0x27E0EB, 0x64626720, 0x74726163, 0x73636673, 0xCAFE4A11}
)
"""Those of /proc, /sys, control groups and the like: what a file there holds depends on who reads it."""
_DEVICE_FOLDERS = (b"/dev", b"/dev/fd", b"/dev/pts")
_FOLDER_FLAGS = os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC


class FileCredentials(NamedTuple):
    """The user and groups with which a process accesses files."""

    uid: int
    gid: int
    groups: tuple[int, ...] = ()


class UnsafePathError(PermissionError):
    """A path that others than root and the process' user can change; the text names the folder and its owner."""


class FilePlace(NamedTuple):
    """A file in a folder that is open: whatever happens to the path, the folder stays the same."""

    folder: int
    name: bytes
    identity: FileCredentials | None
    """With which the file is accessed; `None` for the server's rights."""
    is_checked: bool
    """Whether only root can change what is in the folder."""

    def backup(self, number: int) -> bytes:
        """The name of what was rotated away `number` rotations ago: `web.log.1` is the youngest."""
        return b"%s.%d" % (self.name, number)

    def stat(self, name: bytes | None = None) -> os.stat_result:
        """Of the file, not of what a link names. Raises `OSError`."""
        with acting_as(self.identity):
            return os.stat(name or self.name, dir_fd=self.folder, follow_symlinks=False)

    def exists(self, name: bytes) -> bool:
        try:
            self.stat(name)
        except FileNotFoundError:
            return False
        return True

    def unlink(self, name: bytes) -> None:
        """Raises `OSError`, not for a file that is missing."""
        with acting_as(self.identity), contextlib.suppress(FileNotFoundError):
            os.unlink(name, dir_fd=self.folder)

    def rename(self, old: bytes, new: bytes) -> None:
        """Raises `OSError`."""
        with acting_as(self.identity):
            os.rename(old, new, src_dir_fd=self.folder, dst_dir_fd=self.folder)


@contextlib.contextmanager
def acting_as(identity: FileCredentials | None) -> Iterator[None]:
    """Accesses files with this identity, in the present thread only. Raises `OSError`."""
    if identity is None or (identity.uid, identity.gid) == (os.geteuid(), os.getegid()):
        yield
        return
    own_groups = tuple(os.getgroups())
    try:
        _set_groups(identity.groups)
        _libc.setfsgid(ctypes.c_uint(identity.gid))
        _libc.setfsuid(ctypes.c_uint(identity.uid))
        if _libc.setfsuid(ctypes.c_uint(0xFFFFFFFF)) != identity.uid:
            raise PermissionError(errno.EPERM, "the rights of another user cannot be taken")
        yield
    finally:
        _libc.setfsuid(ctypes.c_uint(os.geteuid()))
        _libc.setfsgid(ctypes.c_uint(os.getegid()))
        _set_groups(own_groups)


def _set_groups(groups: tuple[int, ...]) -> None:
    """The supplementary groups of the present thread; `os.setgroups` changes those of all threads."""
    values = (ctypes.c_uint32 * len(groups))(*groups)
    number = _SETGROUPS_NUMBERS[os.uname().machine]
    if _libc.syscall(ctypes.c_long(number), ctypes.c_long(len(groups)), values) != 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))


@contextlib.contextmanager
def place_of(path: str | bytes, identity: FileCredentials | None = None, create: bool = False) -> Iterator[FilePlace]:
    """The folder of a file, and how to access what is in it. With `create`, missing folders are made.

    Raises `UnsafePathError`, `OSError`.
    """
    folder, name = os.path.split(os.path.join(os.getcwdb(), os.fsencode(path)))
    walk = _FolderWalk(folder, create, makes_in_shared=identity is None)
    try:
        if not (walk.run() and walk.is_entry_safe(name, _make_file)):
            if identity is None and os.geteuid() == 0:
                raise _unsafe(walk.folder, path)
            descriptor = _opened_folder(folder, identity, create)
            os.close(walk.folder)
            walk.folder = descriptor
            yield FilePlace(descriptor, name, identity, False)
        else:
            yield FilePlace(walk.folder, name, None, True)
    finally:
        os.close(walk.folder)


class _FolderWalk:
    """Opens one folder after the other, from the root on, as long as only root can change which one it is."""

    def __init__(self, path: bytes, create: bool = False, makes_in_shared: bool = False) -> None:
        """With `create`, missing folders are made; in folders such as /tmp only with `makes_in_shared`."""
        self.folder = os.open("/", _FOLDER_FLAGS)
        self._rest = [part for part in reversed(path.split(b"/")) if part not in (b"", b".")]
        self._create, self._makes_in_shared = create, create and makes_in_shared
        self._links = 0

    def run(self) -> bool:
        """Whether all of the path is safe; else `folder` is the first in which others could change it.

        Raises `OSError`.
        """
        while self._rest:
            name = self._rest.pop()
            if not self.is_entry_safe(name, _make_folder):
                return False
            self._step(name)
        return True

    def is_entry_safe(self, name: bytes, make: Callable[[bytes, int], None]) -> bool:
        """Whether only root (or the server's user) can change what the name in the present folder is.

        `make` makes what is missing where others could make it.
        """
        facts, trusted = os.fstat(self.folder), (0, os.geteuid())
        if facts.st_uid not in trusted:
            return False
        is_own_group = facts.st_gid in (0, os.getegid()) and not (
            facts.st_mode & stat.S_IWGRP and _has_acl(self.folder)
        )
        is_shared = facts.st_mode & stat.S_IWGRP and not is_own_group
        if not (is_shared or facts.st_mode & stat.S_IWOTH):
            return True
        if not facts.st_mode & stat.S_ISVTX:
            return False
        with contextlib.suppress(OSError):
            if self._makes_in_shared:
                make(name, self.folder)
        try:  # as in /tmp, what belongs to us cannot be renamed or removed by others
            return os.stat(name, dir_fd=self.folder, follow_symlinks=False).st_uid in trusted
        except FileNotFoundError:
            return False

    def _step(self, name: bytes) -> None:
        try:
            self._enter(name)
        except FileNotFoundError:
            if not self._create:
                raise
            with contextlib.suppress(FileExistsError):
                _make_folder(name, self.folder)
            self._enter(name)
        except NotADirectoryError:
            self._follow(name)

    def _follow(self, name: bytes) -> None:
        """Goes on where a link leads. It is one of root's: only root can change what the name is."""
        if not stat.S_ISLNK(os.stat(name, dir_fd=self.folder, follow_symlinks=False).st_mode):
            raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR))
        self._links += 1
        if self._links > _MAX_LINKS:
            raise OSError(errno.ELOOP, os.strerror(errno.ELOOP))
        target = os.readlink(name, dir_fd=self.folder)
        self._rest += [part for part in reversed(target.split(b"/")) if part not in (b"", b".")]
        if target.startswith(b"/"):
            self._enter(b"/")

    def _enter(self, name: bytes) -> None:
        entered = os.open(name, _FOLDER_FLAGS | os.O_NOFOLLOW, dir_fd=self.folder)
        os.close(self.folder)
        self.folder = entered


def _has_acl(folder: int) -> bool:
    """Whether others may write by an access control list, which shows as a right of the group."""
    try:
        return bool(os.getxattr(f"/proc/self/fd/{folder}", "system.posix_acl_access"))
    except OSError:
        return False


def _make_folder(name: bytes, folder: int) -> None:
    os.mkdir(name, dir_fd=folder)


def _make_file(name: bytes, folder: int) -> None:
    os.close(os.open(name, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o640, dir_fd=folder))


def _unsafe(folder: int, path: str | bytes) -> UnsafePathError:
    facts, name = os.fstat(folder), os.readlink(f"/proc/self/fd/{folder}")
    try:
        owner = pwd.getpwuid(facts.st_uid).pw_name
    except KeyError:
        owner = str(facts.st_uid)
    reason = f"the folder {name} belongs to {owner}"
    if facts.st_uid in (0, os.geteuid()):
        reason = f"in the folder {name} of {owner} others may write"
    reason += ", who could replace the file: root does not use it (set the user of the process)"
    return UnsafePathError(errno.EPERM, reason, os.fsdecode(path))


def _opened_folder(folder: bytes, identity: FileCredentials | None, create: bool) -> int:
    with acting_as(identity):
        try:
            return _openat2(-100, folder, _FOLDER_FLAGS)
        except FileNotFoundError:
            if not create:
                raise
            os.makedirs(folder, exist_ok=True)
            return _openat2(-100, folder, _FOLDER_FLAGS)


def _openat2(folder: int, path: bytes, flags: int, mode: int = 0) -> int:
    """Opens a file; links of /proc to open files and roots are refused. Raises `OSError`."""
    how = (ctypes.c_uint64 * 3)(flags | os.O_CLOEXEC, mode if flags & os.O_CREAT else 0, _RESOLVE_NO_MAGICLINKS)
    size = ctypes.c_size_t(ctypes.sizeof(how))
    number = ctypes.c_long(_OPENAT2_NUMBER)
    descriptor = int(_libc.syscall(number, ctypes.c_long(folder), ctypes.c_char_p(path), ctypes.byref(how), size))
    if descriptor >= 0:
        return descriptor
    code = ctypes.get_errno()
    if code == errno.ENOSYS:  # Linux before 5.6
        return os.open(path, flags | os.O_CLOEXEC | os.O_NOFOLLOW, mode, dir_fd=None if folder == -100 else folder)
    raise OSError(code, os.strerror(code), path)


class NotRegularError(FileNotFoundError):
    """A device, a file of the kernel, a FIFO or the like: as if there were no file."""


def open_at(
    place: FilePlace, flags: int, mode: int = 0o640, name: bytes | None = None, fifo: bool = False, follow: bool = False
) -> int:
    """Opens a file of the folder, the place's own or one with another name. It never waits.

    With `follow` a link is followed with the rights of the process' user. Raises `NotRegularError`, `OSError`.
    """
    name = place.name if name is None else name
    flags |= os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY
    with acting_as(place.identity):
        if follow and not place.is_checked:
            descriptor = _openat2(place.folder, name, flags, mode)
        else:
            descriptor = os.open(name, flags | os.O_NOFOLLOW, mode, dir_fd=place.folder)
    facts = os.fstat(descriptor)
    is_usable = stat.S_ISREG(facts.st_mode) or (fifo and stat.S_ISFIFO(facts.st_mode))
    if not is_usable or (not place.is_checked and _is_of_kernel(descriptor)):
        os.close(descriptor)
        raise NotRegularError(errno.ENOENT, "no regular file", os.fsdecode(name))
    return descriptor


def _is_of_kernel(descriptor: int) -> bool:
    facts = ctypes.create_string_buffer(_STATFS_BYTES)
    if _libc.fstatfs(descriptor, facts) != 0:
        return True
    return ctypes.cast(facts, ctypes.POINTER(ctypes.c_long))[0] & 0xFFFFFFFF in _KERNEL_FILE_SYSTEMS


def is_device(path: str | bytes) -> bool:
    """Whether a path is that of a device or of an open file, as /dev/stderr, in a folder of the system."""
    path = os.fsencode(path)
    return os.path.dirname(path) in _DEVICE_FOLDERS and os.path.basename(path) not in (b"", b".", b"..")


def open_log(path: str | bytes, identity: FileCredentials | None, is_captured: bool) -> int:
    """Opens a log file for append and creates it and its folder; the server's own file if `is_captured`.

    Raises `UnsafePathError`, `OSError`.
    """
    flags, mode = os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600 if is_captured else 0o640
    more = os.O_NOCTTY | os.O_NONBLOCK | os.O_CLOEXEC
    if is_captured:
        os.makedirs(os.path.dirname(path), exist_ok=True)
        descriptor = os.open(path, flags | more | os.O_NOFOLLOW, mode)
    elif is_device(path):
        descriptor = os.open(path, flags | more, mode)
    else:
        with place_of(path, identity, create=True) as place, _named(path, place):
            descriptor = open_at(place, flags, mode, fifo=True)
    os.set_blocking(descriptor, True)  # a FIFO without a reader has failed already
    return descriptor


def open_input(path: str | bytes, identity: FileCredentials | None) -> int:
    """Opens what a process reads from. A FIFO is opened for writing too, so that it never ends. Raises `OSError`."""
    if is_device(path):
        return os.open(path, os.O_RDONLY | os.O_NOCTTY | os.O_CLOEXEC)
    with place_of(path, identity) as place, _named(path, place):
        descriptor = open_at(place, os.O_RDONLY, fifo=True, follow=True)
        if stat.S_ISFIFO(os.fstat(descriptor).st_mode):
            os.close(descriptor)
            descriptor = open_at(place, os.O_RDWR, fifo=True, follow=True)
    os.set_blocking(descriptor, True)
    return descriptor


def open_settings(path: str, identity: FileCredentials | None) -> int:
    """Opens an environment file. A FIFO is taken only where nobody but root could have put it. Raises `OSError`."""
    if is_device(path):
        return os.open(path, os.O_RDONLY | os.O_NOCTTY | os.O_CLOEXEC | os.O_NONBLOCK)
    with place_of(path, identity) as place, _named(path, place):
        return open_at(place, os.O_RDONLY, fifo=place.is_checked, follow=True)


@contextlib.contextmanager
def _named(path: str | bytes, place: FilePlace) -> Iterator[None]:
    """Errors name the whole path, and whose rights did not suffice."""
    try:
        yield
    except NotRegularError:
        raise OSError(errno.EINVAL, "is no regular file", os.fsdecode(path)) from None
    except OSError as error:
        reason = error.strerror
        if isinstance(error, PermissionError) and place.identity is not None:
            reason = f"{reason}: others than root can change the path, so the user of the process must have access"
        raise type(error)(error.errno, reason, os.fsdecode(path)) from None


def is_safe(path: str | bytes | os.PathLike[str]) -> bool:
    """Whether only root can change which folder this path names. Raises `OSError`."""
    walk = _FolderWalk(os.path.join(os.getcwdb(), os.fsencode(path)))
    try:
        return walk.run()
    finally:
        os.close(walk.folder)


def request_identity(request: dict[str, Any]) -> FileCredentials | None:
    """That of a launch request; `None` for the server's."""
    if request["uid"] is None:
        return None
    return FileCredentials(request["uid"], request["gid"], tuple(request["groups"]))
