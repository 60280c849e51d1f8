"""The PostgreSQL server of the tests ends with the test process, even if that is killed."""

from __future__ import annotations

import socket
import subprocess
import sys

from conftest import ROOT, wait_for
from requirements import POSTGRESQL, require

_CODE = """
from postgresql import Postgresql
import sys
print(Postgresql().port, flush=True)
sys.stdin.read()
"""


def is_listening(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def test_a_killed_test_process_leaves_no_postgresql() -> None:
    require(POSTGRESQL)
    environ = {"PYTHONPATH": ":".join(map(str, (ROOT, ROOT / "tests", ROOT / "tests" / "tracker")))}
    with subprocess.Popen(
        [sys.executable, "-c", _CODE],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env={**environ, "PATH": "/usr/bin:/bin"},
    ) as tests:
        assert tests.stdout is not None
        port = int(tests.stdout.readline())
        assert is_listening(port)
        tests.kill()
        tests.wait()
    wait_for(lambda: not is_listening(port), about="the end of PostgreSQL")
