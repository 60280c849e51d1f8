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
from supervisor.cli.changed_lines import checked_out

_CHECKOUT = {"branch": "main", "commit": "5b6a1f0c2d3e4f5061728394a5b6c7d8e9f00112"}


@frozen
class Outcome:
    returncode: int
    stdout: str
    stderr: str


def _reported(field: str, _: Mapping[str, str]) -> str:
    return _CHECKOUT[field]


def run_upload(
    folder: Path,
    url: Server | str | None,
    *arguments: str,
    environ: Mapping[str, str] | None = None,
    is_checkout: bool = True,
) -> Outcome:
    """Runs the uploader in `folder`, without the environment of the CI system that runs the tests.

    Without `url` no address is given. With `is_checkout`, git reports a branch and a commit, also where the folder is
    no repository.
    """
    address = url if url is None or isinstance(url, str) else f"http://127.0.0.1:{url.port}"
    out, err = io.StringIO(), io.StringIO()
    with (
        contextlib.chdir(folder),
        mock.patch.dict(os.environ, environ or {}, clear=True),
        mock.patch("supervisor.cli.upload.checked_out", _reported if is_checkout else checked_out),
        mock.patch.object(upload_request, "_FIRST_PAUSE_SECONDS", 0.01),
        contextlib.redirect_stdout(out),
        contextlib.redirect_stderr(err),
    ):
        try:
            code = run.main(["upload", *(["--url", address] if address else []), *arguments])
        except SystemExit as end:
            code = int(end.code or 0)
    return Outcome(code, out.getvalue(), err.getvalue())
