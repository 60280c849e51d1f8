"""Values in the variables and files of CI systems: refs, branches, repositories, properties.

Only the standard library is used: this is a part of the stand-alone uploader.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

Environ = Mapping[str, str]
Fields = dict[str, str]


def joined(environ: Environ, *names: str) -> str:
    """The values of the variables that are set, with slashes between them."""
    return "/".join(value for name in names if (value := environ.get(name, "")))


def short_ref(ref: str) -> str:
    """The name of a branch or tag, without the beginning of a full ref."""
    return re.sub(r"^refs/(heads|tags)/", "", ref)


def branch_of(branch: str, owner: str, is_fork: bool) -> str:
    """The branch of a pull request, as `owner:branch` if it is one of a fork: its `main` is another one than ours."""
    return f"{owner}:{branch}" if branch and owner and is_fork else branch


def place_of(repository: str) -> str:
    """Host and path of a repository, whose URL may have another scheme: `git://host/a/b.git` is `git@host:a/b`."""
    place = re.sub(r"^(\w+://)?([^@/]*@)?", "", repository).replace(":", "/", 1)
    return place.removesuffix("/").removesuffix(".git")


def without_secrets(url: str) -> str:
    """The URL without user name and password: CI systems clone with tokens in it."""
    try:
        parts = urlsplit(url)
    except ValueError:
        return ""
    if parts.scheme not in ("http", "https"):
        return url
    return parts._replace(netloc=parts.netloc.rpartition("@")[2]).geturl()


def properties(file: str) -> Fields:
    """A file of Java properties; empty if it cannot be read."""
    try:
        lines = Path(file).read_text(encoding="latin-1").splitlines() if file else []
    except OSError:
        return {}
    pairs = (re.match(r"\s*([^#!\s](?:[^=:\\]|\\.)*?)\s*[=:]\s*(.*)", line) for line in lines)
    return {re.sub(r"\\(.)", r"\1", pair[1]): re.sub(r"\\(.)", r"\1", pair[2]) for pair in pairs if pair}


def text_in(value: Any, *names: str) -> str:
    """The text or number at a path of nested objects, else an empty text."""
    for name in names:
        value = value.get(name) if isinstance(value, dict) else None
    return str(value) if isinstance(value, (str, int)) else ""
