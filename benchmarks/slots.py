"""Waiting times of other callers while anonymous callers fill helm's slots with slow templates.

    python benchmarks/slots.py [--templates 200] [--addresses 1] [--timeout 5] [--runs 3] [--helm FILE] [--out FILE]
                               [--claims FILE]

Each template generates RSA keys until `svc.helm.template-timeout` ends it. `--addresses` is the number
of client addresses (from 127.0.0.2 on). The install runs on the API server of the tests (KUBEBUILDER_ASSETS), with the
same requests at rest and under load.
"""

import argparse
import http.client
import statistics
import sys
import threading
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "tests"), str(ROOT / "tests" / "charts")]  # it is run as a program

from conftest import Server  # noqa: E402
from small_charts import FULL, KEY, chart_archive, multipart, sample_chart  # noqa: E402

from benchmarks import claims, report  # noqa: E402
from benchmarks.candidates import until  # noqa: E402
from benchmarks.charts import with_cluster  # noqa: E402
from benchmarks.claims import Claim  # noqa: E402

API = "/api/v1"
SLOW = '{{ range until 1000 }}{{ genPrivateKey "rsa" }}{{ end }}'
PROBES = 200


@dataclass
class Waits:
    """Of one run, in milliseconds; `other` is in units of `svc.helm.template-timeout`."""

    install: list[float] = field(default_factory=list)
    probe: list[float] = field(default_factory=list)
    other: float = 0


def call(port: int, source: str, path: str, body: bytes | None, headers: dict[str, str]) -> tuple[int, float]:
    """The status of a request from an address, and the milliseconds until its response."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=600, source_address=(source, 0))
    begin = time.perf_counter()
    try:
        connection.request("GET" if body is None else "POST", path, body, headers)
        response = connection.getresponse()
        response.read()
        return response.status, (time.perf_counter() - begin) * 1000
    finally:
        connection.close()


class Load:
    """Clients that send slow templates until `stop`; each has one request at a time."""

    def __init__(self, port: int, templates: int, addresses: int) -> None:
        self._port, self._stopped = port, threading.Event()
        self.statuses: Counter[int] = Counter()
        self._body, self._headers = multipart(
            chart=chart_archive(templates__slow=SLOW), request={"releaseName": "slow"}
        )
        sources = [f"127.0.0.{2 + number % addresses}" for number in range(templates)]
        self._threads = [threading.Thread(target=self._send, args=(source,), daemon=True) for source in sources]

    def start(self) -> None:
        for thread in self._threads:
            thread.start()

    def _send(self, source: str) -> None:
        while not self._stopped.is_set():
            try:
                status, _ = call(self._port, source, f"{API}/charts/template/upload", self._body, self._headers)
            except (OSError, http.client.HTTPException):
                if self._stopped.is_set():  # the server has stopped
                    return
                raise
            self.statuses[status] += 1
            if status in (429, 503):
                self._stopped.wait(1)  # as Retry-After says

    def stop(self) -> None:
        self._stopped.set()


def install(server: Server, name: str) -> float:
    body, headers = multipart(chart=sample_chart(), request={"releaseName": name, "namespace": "default"})
    status, took = call(server.port, "127.0.0.1", f"{API}/releases/upload", body, {**KEY, **headers})
    if status not in (200, 201):
        raise SystemExit(f"the install failed: {status}")
    return took


def probe(server: Server) -> float:
    """The 99th percentile of `/healthz`."""
    times = [call(server.port, "127.0.0.1", "/healthz", None, {})[1] for _ in range(PROBES)]
    return statistics.quantiles(times, n=100)[98]


def measure(options: argparse.Namespace) -> tuple[Waits, Waits, Counter[int]]:
    quiet, loaded = Waits(), Waits()
    helm = {"binary": options.helm, "template-timeout": f"{options.timeout}s"}
    with with_cluster(lambda _: None, **FULL, helm=helm) as (server, _, _):
        install(server, "first")  # helm is detected, its caches are filled
        quiet.install = [install(server, f"quiet-{number}") for number in range(3)]
        quiet.probe = [probe(server)]
        load = Load(server.port, options.templates, options.addresses)
        load.start()
        until(lambda: len(load.statuses) > 1, 600, "the first end of a template and the first refusal")
        loaded.install = [install(server, f"loaded-{number}") for number in range(3)]
        loaded.probe = [probe(server)]
        body, headers = multipart(chart=sample_chart(), request={"releaseName": "other"})
        status, took = call(server.port, "127.0.1.1", f"{API}/charts/template/upload", body, headers)
        load.stop()
        if status != 200:
            raise SystemExit(f"the template of another address failed: {status}")
        loaded.other = took / 1000 / options.timeout
        return quiet, loaded, load.statuses


def document(options: argparse.Namespace, runs: list[tuple[Waits, Waits, Counter[int]]]) -> str:
    rows = []
    for number, (quiet, loaded, statuses) in enumerate(runs, 1):
        rows.append([
            str(number), f"{statistics.median(quiet.install):.0f}", f"{statistics.median(loaded.install):.0f}",
            f"{quiet.probe[0]:.1f}", f"{loaded.probe[0]:.1f}", f"{loaded.other:.2f}",
            ", ".join(f"{status}: {count}" for status, count in sorted(statuses.items(), key=str)),
        ])  # fmt: skip
    head = ["run", "install at rest, ms", "under load, ms", "/healthz p99 at rest, ms", "under load, ms",
            "another address's template, template-timeouts", "responses"]  # fmt: skip
    return f"""# Slots of helm

{options.templates} anonymous clients of {options.addresses} address(es), each template takes {options.timeout} s;
{report.machine()}. `python benchmarks/slots.py`.

{report.table(head, rows)}
"""


def claimed(templates: int, runs: list[tuple[Waits, Waits, Counter[int]]]) -> list[Claim]:
    def added(run: tuple[Waits, Waits, Counter[int]]) -> float:
        return statistics.median(run[1].install) - statistics.median(run[0].install)

    load = f"{templates} anonymous templates"
    return [
        Claim(
            "helm slots",
            f"additional time of an install during {load}",
            "ms",
            [added(run) for run in runs],
            target=1000,
        ),
        Claim("helm slots", f"/healthz during {load}, p99", "ms", [run[1].probe[0] for run in runs], target=100),
        Claim(
            "helm slots",
            f"template of another address during {load}",
            "template-timeouts",
            [run[1].other for run in runs],
            target=2,
        ),
    ]


def main() -> None:
    parser = argparse.ArgumentParser(
        description="Measures waiting times while anonymous templates fill the slots of helm."
    )
    parser.add_argument("--templates", type=int, default=200)
    parser.add_argument("--addresses", type=int, default=1)
    parser.add_argument("--timeout", type=int, default=5, help="svc.helm.template-timeout, in seconds")
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--helm", default=str(ROOT / ".tools" / "helm"))
    claims.add_outputs(parser)
    options = parser.parse_args()
    runs = [measure(options) for _ in range(options.runs)]
    text = document(options, runs)
    claims.publish(options, text, claimed(options.templates, runs))


if __name__ == "__main__":
    main()
