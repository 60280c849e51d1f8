"""The page of a run with many failures: how high it is, and that its details are one click away."""

from __future__ import annotations

import random

import uploads
from browser_pages import Browser, faults_in_all_views, url_of
from conftest import Serve

CAUSES, FAILURES, SUITES, FILES = 30, 500, 44, 60
MOST = 2600
"""Pixels at a width of 1440."""


def report(failing: int) -> str:
    """JUnit of 2,000 tests in `SUITES` suites, of which the first `failing` fail from `CAUSES` causes."""
    suites: list[list[str]] = [[] for _ in range(SUITES)]
    words = random.Random(7)
    subjects = [
        " ".join(words.choices(("cart", "order", "stock", "price", "login", "mail"), k=6)) for _ in range(CAUSES)
    ]
    for number in range(2000):
        name = f"<testcase classname='shop.Part{number % SUITES}' name='case_{number}' time='0.{number % 90}'"
        message = f"{subjects[number % CAUSES]} cause {number % CAUSES}: expected 200, got 50{number % 4}"
        failure = f"<failure type='AssertionError' message='{message}'>at shop/file{number % CAUSES}.py:10</failure>"
        suites[number % 9 if number < failing else number % SUITES].append(
            f"{name}>{failure}</testcase>" if number < failing else f"{name}/>"
        )
    return "".join(
        (
            "<testsuites>",
            *(f"<testsuite name='suite {n}'>{''.join(s)}</testsuite>" for n, s in enumerate(suites)),
            "</testsuites>",
        )
    )


def test_a_run_with_500_failures_is_short_and_everything_can_be_opened(serve: Serve, chromium: Browser) -> None:
    server = serve({})
    lines = {f"src/part{file}/module{file}.py": {line: line % 3 > 0 for line in range(1, 90)} for file in range(FILES)}
    diff = "".join(f"--- a/{path}\n+++ b/{path}\n@@ -2,0 +3,2 @@\n+x\n+y\n" for path in lines)
    facts = (("project", "shop"), ("branch", "main"), ("jacoco", uploads.jacoco(lines)), ("diff", diff))
    uploads.upload(server, *facts, ("commit", "a" * 40), ("junit", report(480)))
    run = uploads.upload(server, *facts, ("commit", "b" * 40), ("junit", report(FAILURES)))["runId"]
    with chromium.page(url_of(server), viewport={"width": 1440, "height": 900}) as one:
        one.goto(f"/runs/{run}")
        assert one.evaluate("document.documentElement.scrollHeight") <= MOST
        assert one.locator("details.group[open]").count() == 1
        one.locator("details.group").nth(1).locator("> summary").press("Enter")
        one.locator("details.group").nth(1).locator("details.failure").first.wait_for()
        one.locator("#changed-Newly-failing > summary").press("Enter")
        one.locator("#changed-Newly-failing li").first.wait_for()
        one.locator("#slowest-tests > summary").press("Enter")
        one.locator("#slowest").wait_for()
        one.locator("#patch > summary").press("Enter")
        one.locator("#changed-lines").wait_for()
        one.evaluate("scrollTo(0, 0)")
        assert faults_in_all_views(one) == {}
