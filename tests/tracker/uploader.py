"""Runs the uploader in the process of the test."""

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
class Outcome:
    returncode: int
    stdout: str
    stderr: str


def run_upload(folder: Path, url: Server | str, *arguments: str, environ: Mapping[str, str] | None = None) -> Outcome:
    """Runs the uploader in `folder`, without the environment of the CI system that runs the tests."""
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
    return Outcome(code, out.getvalue(), err.getvalue())
