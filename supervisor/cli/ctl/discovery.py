"""Locates the server: options, PILOTHOUSE_URL, then the data directories that servers use by default."""

from __future__ import annotations

import errno
import fcntl
import json
import os
from argparse import Namespace
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple
from urllib.parse import urlsplit

from supervisor.cli.ctl.errors import USAGE, CtlError

DEFAULT_URL = "http://127.0.0.1:8080"
ENDPOINT_FILE = "endpoint.json"
_SYSTEM_CONFIG = "/etc/pilothouse/pilothouse.yaml"
_SYSTEM_DATA = "/var/lib/pilothouse"


class Address(NamedTuple):
    """One way to a server: a URL, or the path of a socket."""

    url: str = ""
    socket: str = ""

    def __str__(self) -> str:
        return f"unix://{self.socket}" if self.socket else self.url


class ServerPlace(NamedTuple):
    """One place to look for a server: its addresses, or the reason why it has none."""

    name: str
    addresses: tuple[Address, ...] = ()
    problem: str = ""


def places(options: Namespace, environ: Mapping[str, str]) -> Iterator[ServerPlace]:
    """The places to try, in order. A place that was named is the only one. Raises `CtlError`."""
    if options.socket:
        yield ServerPlace(f"--socket {options.socket}", (Address(socket=options.socket),))
    elif options.url:
        yield ServerPlace(f"--url {options.url}", (parse_url(options.url),))
    elif url := environ.get("PILOTHOUSE_URL", ""):
        yield ServerPlace(f"PILOTHOUSE_URL {url}", (parse_url(url),))
    elif options.data_dir or options.config:
        yield data_place(Path(options.data_dir or data_dir_of(Path(options.config or ""))))
    else:
        for folder in _default_folders():
            yield data_place(folder)
        yield ServerPlace(DEFAULT_URL, (Address(url=DEFAULT_URL),))


class LocalServer(NamedTuple):
    """The server of this machine: its URL, else whether one is just starting, and a line for each place without one."""

    url: str
    is_starting: bool
    tried: tuple[str, ...]


def local_server(options: Namespace) -> LocalServer:
    """The first server with a URL on `--data-dir`, `--config` or the default data directories. Raises `CtlError`."""
    tried, is_starting = [], False
    for folder in data_dirs(options):
        place = data_place(folder)
        for address in place.addresses:
            if address.url:
                return LocalServer(address.url, False, ())
        is_starting = is_starting or (lock_holder(folder) is not None and not (folder / ENDPOINT_FILE).exists())
        tried.append(f"{place.name}: {place.problem or 'its server listens on its control socket only'}")
    return LocalServer("", is_starting, tuple(tried))


def unused_place(options: Namespace, environ: Mapping[str, str]) -> str:
    """The option that PILOTHOUSE_URL takes precedence over, or an empty text."""
    if options.socket or options.url or not environ.get("PILOTHOUSE_URL"):
        return ""
    return "--data-dir" if options.data_dir else "--config" if options.config else ""


def data_dirs(options: Namespace) -> list[Path]:
    """The data directories to look into, for what needs one. Raises `CtlError`."""
    if options.data_dir or options.config:
        return [Path(options.data_dir or data_dir_of(Path(options.config or "")))]
    return _default_folders()


def parse_url(text: str) -> Address:
    """Raises `CtlError` for what is neither http, https nor unix:///path."""
    if text.startswith("unix://"):
        return Address(socket=text.removeprefix("unix://"))
    try:
        parts = urlsplit(text)
        fits = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        fits = False
    if not fits:
        raise CtlError(f"{text!r} is not a URL such as http://host:8080 or unix:///path/control.sock", USAGE)
    return Address(url=text.rstrip("/"))


def _default_folders() -> list[Path]:
    folders: dict[Path, None] = {}
    for config, folder in (("pilothouse.yaml", "data"), (_SYSTEM_CONFIG, _SYSTEM_DATA)):
        if Path(config).exists():
            folders[data_dir_of(Path(config))] = None
        folders[Path(folder)] = None
    return list(folders)


def data_dir_of(config: Path) -> Path:
    """The `server.data-dir` of a configuration file. Raises `CtlError` where the file cannot be read."""
    try:
        text = config.read_text()
    except (OSError, UnicodeDecodeError) as error:
        raise CtlError(f"{config}: {getattr(error, 'strerror', None) or 'is not UTF-8'}", USAGE) from None
    folder = Path(_data_dir_in(text, config) if "data-dir" in text else "data")
    return folder if folder.is_absolute() or folder.is_dir() else config.parent / folder


def _data_dir_in(text: str, config: Path) -> str:
    import yaml  # only where the file has the property at all: parsing takes longer than the whole of `status`

    try:
        tree = yaml.load(text, getattr(yaml, "CSafeLoader", yaml.SafeLoader))  # noqa: S506 (both are safe)
    except yaml.YAMLError:
        raise CtlError(f"{config} is not valid YAML", USAGE) from None
    server = tree.get("server") if isinstance(tree, dict) else None
    found = server.get("data-dir") if isinstance(server, dict) else None
    found = found or (tree.get("server.data-dir") if isinstance(tree, dict) else None)
    return str(found) if found else "data"


def data_place(folder: Path) -> ServerPlace:
    """The place that a data directory is: the addresses in `endpoint.json`, if its server runs."""
    name, file = f"data directory {folder}", folder / ENDPOINT_FILE
    try:
        with file.open("rb") as opened:
            owner = os.fstat(opened.fileno()).st_uid
            content = json.load(opened)
        addresses = [Address(socket=content["socket"])] if content.get("socket") else []
        addresses += [Address(url=url) for url in content["urls"]]
    except OSError as error:
        if isinstance(error, FileNotFoundError) and folder.is_dir():
            runs = (
                f"pid {holder} is starting or stopping" if (holder := lock_holder(folder)) else "no server runs on it"
            )
            return ServerPlace(name, problem=f"{runs} (it has no {ENDPOINT_FILE})")
        return ServerPlace(name, problem=error.strerror or str(error))
    except (ValueError, TypeError, KeyError, AttributeError):
        return ServerPlace(name, problem=f"{file} is damaged")
    if owner not in (0, os.geteuid()):
        return ServerPlace(name, problem=f"{file} belongs to another user (uid {owner})")
    if lock_holder(folder) is None:
        return ServerPlace(name, problem="no server runs on it (its lock is not held)")
    return ServerPlace(name, tuple(addresses), "" if addresses else "its server listens nowhere")


def lock_holder(folder: Path) -> int | None:
    """The pid of the server that holds the lock of a data directory; `None` where none does.

    The kernel's list of locks is read, because taking the lock for a moment could make a server's start fail.
    """
    written = b""
    try:
        with (folder / "lock").open("rb") as lock:
            inode = str(os.fstat(lock.fileno()).st_ino)
            written = lock.read(16).strip()
            locks = Path("/proc/locks").read_text().splitlines()
            for fields in map(str.split, locks):
                if fields[1] == "FLOCK" and fields[3] == "WRITE" and fields[5].rpartition(":")[2] == inode:
                    return int(fields[4]) if int(fields[4]) > 0 else int(written)
            pid = int(written)
            os.kill(pid, 0)
            return pid if _is_locked(lock.fileno()) else None
    except PermissionError as error:
        return int(written) if error.errno == errno.EPERM else None
    except (OSError, ValueError, IndexError):
        return None


def _is_locked(descriptor: int) -> bool:
    """Whether a lock is held that the kernel lists under another inode, as some file systems do."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    return False
