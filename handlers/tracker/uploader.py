"""`GET /upload.py`: the code of `run.py upload` as one file, for CI jobs without an installation."""

from __future__ import annotations

import hashlib
import re
from functools import cache
from pathlib import Path

import supervisor.cli
from handlers.base import Base
from handlers.http.permissions import PUBLIC
from handlers.routing import Route

_MODULES = (
    "streams",
    "ci_fields",
    "ci_systems",
    "changed_lines",
    "attached_files",
    "upload_request",
    "upload_server",
    "upload_summary",
    "upload",
)
"""Modules of `supervisor.cli`, in the order of their imports. They are read, never imported by the server."""
_LEFT_OUT = re.compile(
    r"^from __future__ import annotations\n|^from supervisor\.cli\.\w+ import (?:\([^)]*\)|[^\n]*)\n", re.MULTILINE
)
_HEAD = '''#!/usr/bin/env python3
"""Uploads test and coverage reports to Pilothouse. Needs Python 3.9 or later, and nothing else."""

from __future__ import annotations

'''


@cache
def standalone() -> bytes:
    """The modules of the uploader as one file: they use the standard library only. Reads files: for a worker."""
    folder = Path(supervisor.cli.__path__[0])
    parts = [_LEFT_OUT.sub("", (folder / f"{name}.py").read_text()) for name in _MODULES]
    return (_HEAD + "\n\n".join(parts)).encode()


class Uploader(Base):
    """Open in every mode. CI can pin the file by its SHA-256."""

    permission = PUBLIC

    async def get(self) -> None:
        body = await self.tracker.run(standalone)
        self.set_header("X-Checksum-Sha256", hashlib.sha256(body).hexdigest())
        self.set_header("Cache-Control", "no-cache")
        self.send(body, "text/x-python; charset=utf-8")


routes: list[Route] = [(r"/upload\.py", Uploader)]
