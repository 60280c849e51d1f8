"""The budgets of the dashboard, measured in Chromium on a server with the largest expected data.

    python benchmarks/browser.py [--processes 500] [--projects 200] [--runs 500] [--releases 1000] [--rounds 5]
                                 [--out FILE] [--claims FILE]

Sizes are those of transfer, compressed. `LCP` is the largest contentful paint, `slow` the same with a processor four
times slower, `INP` the slowest response to a click or a key (switch the theme, search, filter), `shift` the layout
shift before these, `idle` the share of the main thread over five seconds without input. The log is followed while a
process writes 2,000 lines a second. Needs Chromium; releases need an API server (`--releases 0` does without).
"""

import argparse
import gzip
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), *(str(ROOT / "tests" / part) for part in ("", "web"))]

from browser_pages import PROGRAM, need_browser  # noqa: E402

from benchmarks import claims, report  # noqa: E402
from benchmarks.claims import Claim  # noqa: E402
from benchmarks.large_server import large_server  # noqa: E402

PAGES = {
    "/": "/",
    "/processes": "/processes",
    "/processes/{name}": "/processes/c0007",
    "/history": "/history",
    "/releases": "/releases",
    "/releases/{namespace}/{name}": "/releases/team-00/app-0000",
    "… manifest": "/releases/team-00/app-0000?show=manifest",
    "… form with editor": "/releases/team-00/app-0000?show=change",
    "/projects": "/projects",
    "/projects/{id}": "/projects/7",
    "/runs/{id}": "/runs/500",
    "/search": "/search?q=app",
    "/swagger-ui.html": "/swagger-ui.html?operation=ingest",
}
BUDGETS = {
    "js, kB": 60.0, "css, kB": 14.0, "html, kB": 40.0, "nodes": 2500.0, "LCP, ms": 400.0, "slow, ms": 1200.0,
    "INP, ms": 100.0, "shift": 0.02, "idle, %": 1.0,
}  # fmt: skip
IDLE_SECONDS, LOG_SECONDS, SLOWER = 5.0, 20.0, 4
MAX_LOG_SHARE = 20.0
OBSERVE = """
window.found = { lcp: 0, shift: 0, longest: 0, inp: 0 };
const observe = (type, use) => new PerformanceObserver((list) => list.getEntries().forEach(use))
  .observe({ type, buffered: true, durationThreshold: 16 });
observe("largest-contentful-paint", (one) => { found.lcp = one.startTime; });
observe("layout-shift", (one) => { if (!one.hadRecentInput) found.shift += one.value; });
observe("event", (one) => { if (one.interactionId) found.inp = Math.max(found.inp, one.duration); });
observe("longtask", (one) => { found.longest = Math.max(found.longest, one.duration); });
"""
FLOOD = (
    "import sys, time\nwhile True:\n for n in range(200): print('2026-11-22 INFO request', n, 'served in 12 ms')\n"
    " sys.stdout.flush(); time.sleep(0.1)\n"
)


def busy(session: Any) -> float:
    """The seconds that the main thread has worked."""
    metrics = session.send("Performance.getMetrics")["metrics"]
    return float(next(one["value"] for one in metrics if one["name"] == "TaskDuration"))


def share(page: Any, session: Any, seconds: float) -> float:
    """The share of the main thread, in percent, over this time."""
    before, begin = busy(session), time.monotonic()
    page.wait_for_timeout(seconds * 1000)
    return 100 * (busy(session) - before) / (time.monotonic() - begin)


def visit(chromium: Any, base: str, path: str, is_slow: bool) -> dict[str, float]:
    """One visit with an empty cache."""
    context = chromium.new_context(base_url=base, viewport={"width": 1440, "height": 900})
    try:
        page = context.new_page()
        page.add_init_script(OBSERVE)
        session = context.new_cdp_session(page)
        session.send("Performance.enable")
        if is_slow:
            session.send("Emulation.setCPUThrottlingRate", {"rate": SLOWER})
        responses: list[Any] = []  # read later: a handler that reads bodies would miss other responses meanwhile
        page.on("response", lambda response: responses.append(response))
        page.goto(path)
        page.wait_for_timeout(1500)
        found = page.evaluate("found")
        if is_slow:
            return {"slow, ms": found["lcp"]}
        sizes_kb = sizes(responses)
        nodes = page.evaluate("document.querySelectorAll('*').length")
        idle = share(page, session, IDLE_SECONDS)
        facts = {"nodes": nodes, "LCP, ms": found["lcp"], "INP, ms": interact(page)}
        return {**sizes_kb, **facts, "shift": found["shift"], "idle, %": idle}
    finally:
        context.close()


def interact(page: Any) -> float:
    """Clicks and types as a user does; returns the duration of the slowest response to it, in ms, 0 below 16."""
    page.locator("#theme").click()
    page.keyboard.press("Control+k")
    page.keyboard.type("app", delay=50)
    page.wait_for_timeout(500)
    page.keyboard.press("ArrowDown")
    page.keyboard.press("Escape")
    for field in page.locator("main input[type=search]:visible").all()[:1]:
        field.click()
        page.keyboard.type("c00", delay=50)
    page.wait_for_timeout(1000)
    return float(page.evaluate("found.inp"))


def sizes(responses: Sequence[Any]) -> dict[str, float]:
    """The sums of the compressed sizes of these responses by their kind, in kB."""
    kinds = {"text/javascript": "js", "application/javascript": "js", "text/css": "css", "text/html": "html"}
    found = {"js, kB": 0.0, "css, kB": 0.0, "html, kB": 0.0}
    for response in responses:
        kind = kinds.get(response.headers.get("content-type", "").partition(";")[0])
        if kind and response.status == 200:
            found[f"{kind}, kB"] += len(gzip.compress(response.body())) / 1000
    return found


def measure(chromium: Any, base: str, rounds: int) -> dict[str, dict[str, float]]:
    """The medians of each page."""
    found = {}
    for name, path in PAGES.items():
        visits = [visit(chromium, base, path, False) | visit(chromium, base, path, True) for _ in range(rounds)]
        found[name] = {key: statistics.median(one[key] for one in visits) for key in visits[0]}
    return found


def follow_log(chromium: Any, base: str) -> tuple[float, float, int]:
    """The share of the main thread, the longest task in ms, and the nodes while a log of 2,000 lines/s is followed."""
    context = chromium.new_context(base_url=base, viewport={"width": 1440, "height": 900})
    page = context.new_page()
    page.add_init_script(OBSERVE)
    session = context.new_cdp_session(page)
    session.send("Performance.enable")
    page.goto("/processes/flood")
    page.wait_for_timeout(3000)
    page.evaluate("found.longest = 0")
    used = share(page, session, LOG_SECONDS)
    longest, nodes = page.evaluate("[found.longest, document.querySelectorAll('*').length]")
    context.close()
    return used, longest, nodes


def document(scale: str, found: dict[str, dict[str, float]], log: tuple[float, float, int], rounds: int) -> str:
    """The results as Markdown; values over their budget are marked."""

    def cell(key: str, value: float) -> str:
        text = f"{value:.3f}" if key == "shift" else f"{value:.1f}" if value < 100 else f"{value:.0f}"
        return f"**{text}**" if value > BUDGETS[key] else text

    rows = [[name, *(cell(key, values[key]) for key in BUDGETS)] for name, values in found.items()]
    head = ["page", *(f"{key} (≤ {budget:g})" for key, budget in BUDGETS.items())]
    return f"""# The dashboard in Chromium

{scale}. {report.machine()}. `python benchmarks/browser.py`, which explains the columns; medians of
{rounds} visits with an empty cache. Bold: over the budget.

{report.table(head, rows)}

A log of 2,000 lines a second takes {log[0]:.0f} % of the main thread (≤ {MAX_LOG_SHARE:g}); its longest task takes
{log[1]:.0f} ms (≤ 50; 0: none took 50 ms). The page has {log[2]} nodes (≤ {BUDGETS["nodes"]:g}).
"""


def claimed(found: dict[str, dict[str, float]], log: tuple[float, float, int]) -> list[Claim]:
    def worst(key: str) -> float:
        return max(values[key] for values in found.values())

    made = [
        Claim(
            "browser",
            f"slowest or largest page: {key.split(',')[0]}",
            key.partition(", ")[2],
            [worst(key)],
            target=budget,
        )
        for key, budget in BUDGETS.items()
    ]
    return [
        *made,
        Claim("browser", "main thread while a log grows by 2,000 lines/s", "%", [log[0]], target=MAX_LOG_SHARE),
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description="The budgets of the dashboard.")
    for name, default in (("processes", 500), ("projects", 200), ("runs", 500), ("releases", 1000), ("rounds", 5)):
        parser.add_argument(f"--{name}", type=int, default=default)
    claims.add_outputs(parser)
    options = parser.parse_args()
    amounts = (options.processes, options.projects, options.runs, options.releases)
    with (
        tempfile.TemporaryDirectory(prefix="ph-bench-", ignore_cleanup_errors=True) as name,
        large_server(Path(name), *amounts, flood=[sys.executable, "-c", FLOOD]) as (server, _),
        need_browser().sync_playwright() as playwright,
    ):
        base = f"http://127.0.0.1:{server.port}"
        chromium = playwright.chromium.launch(executable_path=PROGRAM, args=["--no-sandbox"])
        found = measure(chromium, base, options.rounds)
        server.ask("POST", "/api/v1/processes/start/flood")
        log = follow_log(chromium, base)
        chromium.close()
    scale = "{} processes, {} projects of {} runs, {} releases".format(*amounts)
    text = document(scale, found, log, options.rounds)
    claims.publish(options, text, claimed(found, log))


if __name__ == "__main__":
    main()
