"""Which server an upload goes to: the one that is named, else that of this machine; and its token.

Only the standard library is used: this is a part of the stand-alone uploader.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
import urllib.parse
from collections.abc import Sequence
from pathlib import Path

from supervisor.cli.upload_request import USAGE, RemoteServer, UploadError, reason_of

_URL_EXPECTED = "--url or PILOTHOUSE_URL must be a URL such as http://host:8080"


_DEFAULT_URL = "http://127.0.0.1:8080"
_RETRY_SECONDS = 120.0
_START_PAUSE_SECONDS = 0.2


def server_of(arguments: argparse.Namespace) -> RemoteServer:
    """The server that was named, else that of this machine, else whatever listens on port 8080."""
    token = _token(arguments.token_file)
    retry_for = _RETRY_SECONDS if arguments.retry_for is None else arguments.retry_for
    if url := arguments.url or os.environ.get("PILOTHOUSE_URL"):
        return RemoteServer(_base_url(url), token, arguments.timeout, retry_for)
    url, tried = _local_server(arguments, retry_for)
    is_awaited = bool(url) or arguments.retry_for is not None
    return RemoteServer(_base_url(url or _DEFAULT_URL), token, arguments.timeout, retry_for, tried, is_awaited)


def _local_server(arguments: argparse.Namespace, seconds: float) -> tuple[str, Sequence[str]]:
    """The URL of the server that `ctl` finds by its data directory, else the places that were tried.

    Waits for a server that is starting.
    """
    try:
        from supervisor.cli.ctl.discovery import local_server
        from supervisor.cli.ctl.errors import CtlError
    except ImportError:  # the stand-alone file
        return "", ()
    options = argparse.Namespace(**{name: getattr(arguments, name, None) for name in ("config", "data_dir")})
    end, is_announced = time.monotonic() + seconds, False
    try:
        while True:
            found = local_server(options)
            if not found.is_starting or time.monotonic() >= end:
                return found.url, found.tried
            if not is_announced:
                print("pilothouse upload: waiting for the server that is starting", file=sys.stderr, flush=True)
            is_announced = True
            time.sleep(_START_PAUSE_SECONDS)
    except CtlError as error:
        raise UploadError(USAGE, str(error)) from None


def _base_url(url: str) -> str:
    url = url.rstrip("/")
    try:
        parts = urllib.parse.urlsplit(url)
        is_valid = parts.scheme in ("http", "https") and bool(parts.hostname) and (parts.port is None or parts.port > 0)
    except ValueError:
        raise UploadError(USAGE, _URL_EXPECTED) from None
    if not is_valid or not url.isascii() or not url.isprintable() or " " in url:
        raise UploadError(USAGE, _URL_EXPECTED)
    if "@" in parts.netloc or parts.query or parts.fragment:
        raise UploadError(USAGE, "--url may have a host, a port and a path only")
    return url


def _token(file: Path | None) -> str:
    token = os.environ.get("PILOTHOUSE_TOKEN", "")
    if file is not None:
        try:
            token = file.read_text()
        except (OSError, ValueError) as error:
            raise UploadError(USAGE, f"--token-file {file}: {reason_of(error)}") from None
        if not token.strip():
            raise UploadError(USAGE, f"--token-file {file}: it is empty")
    token = token.strip()
    if not token.isascii() or not token.isprintable() or " " in token:
        raise UploadError(USAGE, "the token is not valid: it has characters that a token cannot have")
    return token
