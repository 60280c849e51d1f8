"""Environment files, as dotenv has them: `KEY=VALUE` lines, comments, `export`, quotes; nothing is interpolated."""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import select
import stat
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

MAX_BYTES = 1024 * 1024
_PIPE_SECONDS = 10.0

_KEY = re.compile(r"(?:export[ \t]+)?([A-Za-z_][A-Za-z0-9_.]*)[ \t]*=[ \t]*")
_SINGLE = re.compile(r"'([^']*)'")
_DOUBLE = re.compile(r'"((?:[^"\\]|\\.)*)"', re.DOTALL)
_ESCAPE = re.compile(r"\\(.)", re.DOTALL)
_END = re.compile(r"[ \t]*(?:#[^\n]*)?(?:\n|\Z)")
_ESCAPES = {"n": "\n", "t": "\t", '"': '"', "\\": "\\"}


class EnvFileError(Exception):
    """An environment file cannot be used; the message names the file and the line, never a value."""


class EnvPipe(EnvFileError):
    """An environment file is a pipe, which is read at a start only."""


def read(paths: Sequence[str], waits: bool = True, opener: Callable[[str], int] | None = None) -> dict[str, str]:
    """The variables of the files in their order; a later file wins. Raises `EnvFileError`.

    A path that begins with `-` may be missing. With `waits` a pipe is read until its writer closes it. `opener` returns
    a descriptor, as that of the process' user.
    """
    found: dict[str, str] = {}
    for path in paths:
        content = _content(path, waits, opener or _open_at_once)
        if content is not None:
            found |= parse(path.removeprefix("-"), content)
    return found


_opener_of: Callable[[str | None, str | None], Callable[[str], int]] | None = None


def use_openers(opener_of: Callable[[str | None, str | None], Callable[[str], int]]) -> None:
    """Has `digest` open the files of a process with what this returns for its user and group."""
    global _opener_of
    _opener_of = opener_of


def digest(paths: Sequence[str], user: str | None = None, group: str | None = None) -> str:
    """A text that changes when the contents of the files do; empty without files. A pipe has none here."""
    if not paths:
        return ""
    hashed = hashlib.sha256()
    for path in paths:
        try:
            content = _content(path, False, _opener_of(user, group) if _opener_of is not None else _open_at_once)
        except EnvFileError:
            content = None
        hashed.update(b"-" if content is None else b"+%d:" % len(content) + content)
    return hashed.hexdigest()[:16]


def problems(paths: Sequence[str], user: str | None = None, group: str | None = None) -> list[str]:
    """Why the files cannot be used, a text for each that cannot. A pipe is not read."""
    found = []
    for path in paths:
        try:
            read([path], False, _opener_of(user, group) if _opener_of is not None else None)
        except EnvPipe:
            continue
        except EnvFileError as error:
            found.append(str(error))
    return found


def readable_by_others(paths: Sequence[str]) -> list[str]:
    """Those of the files that every user of the machine may read."""
    names = [path.removeprefix("-") for path in paths]
    return [name for name in names if Path(name).exists() and Path(name).stat().st_mode & 0o004]


def _content(path: str, waits: bool, opener: Callable[[str], int]) -> bytes | None:
    name = path.removeprefix("-")
    try:
        if not waits and stat.S_ISFIFO(Path(name).stat().st_mode):
            raise _is_pipe(name)  # before it is opened: to open and close it would end its writer with SIGPIPE
        with os.fdopen(opener(name), "rb") as file:
            if not stat.S_ISFIFO(os.fstat(file.fileno()).st_mode):
                content = file.read(MAX_BYTES + 1)
            elif waits:
                content = _from_pipe(name, file.fileno())
            else:
                raise _is_pipe(name)
    except FileNotFoundError:
        if path.startswith("-"):
            return None
        raise EnvFileError(f"env-file {name}: there is no such file") from None
    except OSError as error:
        raise EnvFileError(f"env-file {name}: {error.strerror}") from None
    if len(content) > MAX_BYTES:
        raise EnvFileError(f"env-file {name}: is larger than 1 MiB")
    return content


def _is_pipe(name: str) -> EnvPipe:
    return EnvPipe(f"env-file {name}: is a pipe")


def _open_at_once(name: str) -> int:
    """Opens a pipe without waiting for its writer."""
    return os.open(name, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)


def _from_pipe(name: str, pipe: int) -> bytes:
    """All that is written to a pipe, until its writer closes it. Raises `EnvFileError` where that takes too long."""
    content, end, ready = b"", time.monotonic() + _PIPE_SECONDS, select.poll()
    ready.register(pipe, select.POLLIN)
    while len(content) <= MAX_BYTES:
        if not ready.poll(max(0.0, end - time.monotonic()) * 1000):
            raise EnvFileError(f"env-file {name}: is a pipe that nobody wrote to and closed within {_PIPE_SECONDS:g} s")
        with contextlib.suppress(BlockingIOError):
            if not (piece := os.read(pipe, MAX_BYTES)):
                break
            content += piece
    return content


def parse(name: str, content: bytes) -> Mapping[str, str]:
    """The variables of one file. Raises `EnvFileError`, which names the line."""
    try:
        text = content.decode("utf-8-sig").replace("\r\n", "\n")
    except UnicodeDecodeError as error:
        raise EnvFileError(f"env-file {name}:{content[: error.start].count(10) + 1}: is not UTF-8") from None
    found: dict[str, str] = {}
    place = 0
    while place < len(text):
        if blank := _END.match(text, place):
            place = max(blank.end(), place + 1)
            continue
        place += len(text[place:]) - len(text[place:].lstrip(" \t")) if text[place] in " \t" else 0
        key, value, place = _assignment(name, text, place)
        found[key] = value
    return found


def _assignment(name: str, text: str, place: int) -> tuple[str, str, int]:
    def fault(why: str) -> EnvFileError:
        return EnvFileError(f"env-file {name}:{text.count(chr(10), 0, place) + 1}: {why}")

    key = _KEY.match(text, place)
    if key is None:
        raise fault("is not KEY=VALUE")
    start = key.end()
    quoted = _SINGLE.match(text, start) or _DOUBLE.match(text, start)
    if quoted is None:
        if text[start : start + 1] in ("'", '"'):
            raise fault(f"the value of {key[1]} has no closing quote")
        line_end = text.find("\n", start)
        line_end = len(text) if line_end < 0 else line_end
        value, end = re.split(r"(?:^|[ \t])#", text[start:line_end], maxsplit=1)[0].rstrip(" \t"), line_end + 1
    else:
        is_double = text[start] == '"'
        value = _ESCAPE.sub(lambda one: _ESCAPES.get(one[1], one[0]), quoted[1]) if is_double else quoted[1]
        rest = _END.match(text, quoted.end())
        if rest is None:
            raise fault(f"something follows the quoted value of {key[1]}")
        end = rest.end()
    if "\0" in value:
        raise fault(f"the value of {key[1]} has a NUL")
    return key[1], value, end
