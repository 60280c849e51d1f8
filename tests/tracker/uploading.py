"""Calls of the uploader within the process of a test."""

from __future__ import annotations

import contextlib
import io
import os
from collections.abc import Mapping
from pathlib import Path
from unittest import mock

from attrs import frozen
from conftest import Server

import run
from supervisor.cli import upload_request


@frozen
class Done:
    returncode: int
    stdout: str
    stderr: str


def upload(folder: Path, url: Server | str, *arguments: str, environ: Mapping[str, str] | None = None) -> Done:
    """One call in `folder`, with nothing of the CI system that the tests themselves may run in."""
    url = url if isinstance(url, str) else f"http://127.0.0.1:{url.port}"
    out, err = io.StringIO(), io.StringIO()
    with (
        contextlib.chdir(folder),
        mock.patch.dict(os.environ, environ or {}, clear=True),
        mock.patch.object(upload_request, "_FIRST_PAUSE_SECONDS", 0.01),
        contextlib.redirect_stdout(out),
        contextlib.redirect_stderr(err),
    ):
        try:
            code = run.main(["upload", "--url", url, *arguments])
        except SystemExit as end:
            code = int(end.code or 0)
    return Done(code, out.getvalue(), err.getvalue())
