"""The write-ahead log of the tracker's store under load: two clients upload without a pause while others read.

    python benchmarks/wal.py [--minutes 15] [--short] [--cases 20000]

Prints the largest size of the log, and fails where it passes 64 MB and twice what the largest upload adds to it.
"""

from __future__ import annotations

import argparse
import json
import sys
import threading
import time
import urllib.request
import uuid
from collections.abc import Callable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))  # it is run as a program

from benchmarks.streams import Pilothouse, running

MIB = 1024 * 1024
BOUNDARY = "boundary-of-the-benchmark"


def upload(cases: int) -> bytes:
    """A request with new test names, so that each upload writes as much as it can."""
    name = uuid.uuid4().hex
    rows = "".join(
        f'<testcase classname="c.{name}" name="case number {n}">' + ("<failure>why</failure>" if n % 50 == 0 else "")
        + "</testcase>"
        for n in range(cases)
    )  # fmt: skip
    report = f'<testsuite name="s">{rows}</testsuite>'
    head = f'--{BOUNDARY}\r\nContent-Disposition: form-data; name="'
    parts = f'{head}project"\r\n\r\nload\r\n{head}junit"; filename="a.xml"\r\n\r\n{report}\r\n--{BOUNDARY}--\r\n'
    return parts.encode()


class Load:
    def __init__(self, url: str, wal: Path, cases: int) -> None:
        self._url = f"{url}/api/v1"
        self._wal = wal
        self._cases = cases
        self._over = threading.Event()
        self.uploads = self.reads = 0
        self.largest = self.largest_upload = 0

    def run(self, seconds: float) -> None:
        before = self._size()
        self._post()
        self.largest_upload = self._size() - before
        workers = [*[threading.Thread(target=self._repeat, args=(self._post,)) for _ in range(2)],
                   *[threading.Thread(target=self._repeat, args=(self._read,)) for _ in range(3)]]  # fmt: skip
        for worker in workers:
            worker.start()
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            self.largest = max(self.largest, self._size())
            time.sleep(0.05)
        self._over.set()
        for worker in workers:
            worker.join()

    def _size(self) -> int:
        return self._wal.stat().st_size if self._wal.exists() else 0

    def _repeat(self, work: Callable[[], None]) -> None:
        while not self._over.is_set():
            work()

    def _post(self) -> None:
        media_type = {"Content-Type": f"multipart/form-data; boundary={BOUNDARY}"}
        request = urllib.request.Request(f"{self._url}/ingest", upload(self._cases), media_type)
        with urllib.request.urlopen(request, timeout=300) as answer:
            json.load(answer)
        self.uploads += 1

    def _read(self) -> None:
        with urllib.request.urlopen(f"{self._url}/projects", timeout=60) as answer:
            answer.read()
        self.reads += 1


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--minutes", type=float, default=15.0)
    parser.add_argument("--short", action="store_true", help="twenty seconds")
    parser.add_argument("--cases", type=int, default=20_000, help="tests of an upload")
    arguments = parser.parse_args()
    with running(Pilothouse) as server:
        load = Load(f"http://127.0.0.1:{server.port}", server.place / "data" / "tracker.db-wal", arguments.cases)
        load.run(20 if arguments.short else arguments.minutes * 60)
    bound = max(64 * MIB, 2 * load.largest_upload)
    print(
        f"{load.uploads} uploads of {arguments.cases} tests, {load.reads} reads;"
        f" one upload adds {load.largest_upload / MIB:.1f} MiB;"
        f" the log had at most {load.largest / MIB:.1f} MiB of {bound / MIB:.0f}"
    )
    return 0 if load.largest <= bound else 1


if __name__ == "__main__":
    raise SystemExit(main())
