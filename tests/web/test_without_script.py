"""Every page of supervision, the tracker and accounts without script, with all its forms."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import uploads
import users
from browser_pages import Browser, url_of
from conftest import Server
from forms import Forms
from http_checks import running_server

REPORT = """<testsuite name='s'><testcase classname='c.A' name='fine' time='0.5'/>
    <testcase classname='c.A' name='broken'><failure message='it broke'/></testcase></testsuite>"""
JTL = "timeStamp,elapsed,label,success\n1700000000000,100,GET /cart,true\n"
PAGES = ["/", "/processes", "/processes/web", "/history", "/search?q=web",
         "/swagger-ui.html", "/projects",
         "/projects/1", "/projects/1/test?className=c.A&name=broken", "/projects/1/settings", "/projects/1/clusters",
         "/projects/1/insights",
         "/projects/1/triage",
         "/projects/1/owners", "/projects/1/search?q=broke", "/projects/1/perf", "/projects/1/commits",
         "/projects/1/commits/abc123", "/projects/1/pulls", "/projects/1/pulls/7", "/runs/2", "/runs/2/tests",
         "/runs/2/coverage", "/compare",
         "/compare?base=1&head=2", "/profile", "/users"]  # fmt: skip


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    folder = tmp_path_factory.mktemp("without-script")
    (folder / "web.log").write_text("".join(f"line {number}\n" for number in range(300)))
    web = {"command": "sleep 1000", "stdout-logfile": str(folder / "web.log")}
    with running_server(folder, {"web": web}) as one:
        for _ in range(2):
            facts = (
                ("project", "shop"),
                ("branch", "main"),
                ("commit", "abc123"),
                ("prNumber", "7"),
                ("junit", REPORT),
            )
            uploads.upload(one, *facts, ("jacoco", uploads.jacoco({"a.py": {1: True, 2: False}})), ("perf", JTL))
        yield one


STEPS: list[tuple[str, str, dict[str, str], str]] = [
    ("/processes", "/processes start", {}, "Stop<"),
    ("/processes", "/processes restart", {}, "Stop<"),
    ("/processes", "/processes stop", {}, "stopped"),
    ("/processes/web", "/processes/web start", {}, "running"),
    ("/processes/web", "/processes/web restart", {}, "running"),
    ("/processes/web", "/processes/web stop", {}, "stopped"),
    ("/projects/1/settings", "/projects/N/settings", {"base_branch": "trunk"}, 'value="trunk"'),
    ("/projects/1/settings", "/projects/N/settings", {"base_branch": ""}, "Base branch"),
    ("/projects/1/settings", "/projects/N/rules", {"quarantine_within": "72h"}, 'value="3d"'),
    ("/projects/1/settings", "/projects/N/members", {"username": "jo", "role": "OWNER"}, "Remove<"),
    ("/projects/1/settings", "/projects/N/members/N/remove", {}, "No members"),
    ("/projects/1/settings", "/projects/N/visibility", {"visibility": "PRIVATE"}, '"PRIVATE" selected'),
    ("/projects/1/settings", "/projects/N/visibility", {"visibility": "PUBLIC"}, '"PUBLIC" selected'),
    ("/projects/1/settings", "/projects/N/forge", {"source_mode": "upload"}, 'selected="">upload'),
    ("/projects/1/triage", "/projects/N/triage", {"name": "net", "category": "network", "pattern": "broke"}, "network"),
    ("/projects/1/triage", "/projects/N/triage/N/delete", {}, "No rules."),
    ("/projects/1/owners", "/projects/N/owners", {"codeowners": "*.py @me"}, "@me"),
    ("/projects/1/test?className=c.A&name=broken", "/projects/N/flaky/status",
     {"status": "QUARANTINED", "note": "looked at"}, "looked at"),
    ("/runs/2", "/runs/N/delete", {}, "shop"),
    ("/profile", "/profile", {"displayName": "Root of all"}, 'value="Root of all"'),
    ("/profile", "/profile/tokens", {"name": "ci", "scope": "INGEST"}, "Copy the token"),
    ("/profile", "/profile/tokens/N/revoke", {}, "revoked"),
    ("/profile", "/profile/sessions/N/end", {}, "this one"),
    ("/users", "/users", {"username": "zoe", "password": users.PASSWORD}, "zoe"),
    ("/users", "/users/N/role", {"role": "ADMIN"}, "zoe"),
    ("/users", "/users/N/password", {"password": "quite another one"}, "zoe"),
    ("/users", "/users/N/delete", {}, "jo"),
    ("/profile", "/profile/password", {"currentPassword": users.PASSWORD, "newPassword": "fresh secret"}, "Root of"),
    ("/", "/logout", {}, "Log in"),
    ("/login", "/login", {"username": "root", "password": "fresh secret"}, "Log out"),
]  # fmt: skip
"""The page, the kind of form, its fields, and a text of the next page."""


def test_every_page_and_every_form_works_without_script(server: Server, chromium: Browser) -> None:
    users.ensure_user(server.data, "jo")
    sessions = [users.create_session(server.data, "root", "ADMIN") for _ in range(2)]
    with chromium.page(url_of(server), java_script_enabled=False) as page:
        cookie = {"name": f"pilothouse_{server.port}", "value": sessions[1], "url": url_of(server)}
        page.context.add_cookies([cookie])
        forms = Forms(page)
        for path in PAGES:
            forms.visit(path)
        for path, kind, fields, expected in STEPS:
            forms.send(path, kind, **fields)
            assert expected in page.content(), (kind, page.locator("main").inner_text())
        assert forms.seen - forms.sent == set()


def test_the_newest_lines_of_a_log_stand_at_the_bottom(server: Server, chromium: Browser) -> None:
    with chromium.page(url_of(server), java_script_enabled=False) as page:
        page.goto("/processes/web")
        assert not page.locator("[data-topic]").is_visible()
        lines = page.frame_locator("iframe.log").locator("main")
        lines.get_by_text("line 299").wait_for()
        assert lines.evaluate("node => node.scrollHeight > node.clientHeight && node.scrollTop === 0")  # reversed
        assert "line 99" not in lines.inner_text()
        assert page.locator("#metrics ~ section").first.bounding_box()["height"] < 700
