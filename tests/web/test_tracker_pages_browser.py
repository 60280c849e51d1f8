"""The pages of the tracker and of accounts in Chromium: interaction and accessibility."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import records
import uploads
import users
from browser_pages import Browser, faults_in_all_views, url_of
from conftest import Serve, Server
from http_checks import running_server

from models.accounts.tables import Session
from models.tracker.tables import Project

ADMIN = {"tracker": {"security": {"admin-password": users.PASSWORD}}}
FORGED = "<img src=x onerror=document.title='forged'>"
REPORT = f"""<testsuite name='s'>
    <testcase classname='c.A' name='fine' time='0.5'/>
    <testcase classname='c.A' name='{FORGED.replace("<", "&lt;").replace("'", "&apos;")}'>
    <properties><property name='attachment' value='shot.txt'/></properties>
    <failure message='it broke'>at line 1</failure><system-out>said so</system-out></testcase></testsuite>"""
GREEN = "<testsuite name='s'><testcase classname='c.A' name='fine' time='0.2'/></testsuite>"
COVERED = uploads.jacoco({"a.py": {1: True, 2: False}})
PAGES = ["/", "/projects", "/projects/1", "/runs/2", "/compare",
         "/compare?base=1&head=2", "/projects/1/test?className=c.A&name=fine", "/projects/1/settings", "/login",
         "/profile", "/users", "/runs/2/coverage?path=", "/runs/2/coverage", "/runs/2/tests",
         "/projects/1/clusters", "/projects/1/insights", "/projects/1/insights?sort=slowest",
         "/projects/1/owners", "/projects/1/search?q=broke", "/projects/1/perf", "/search?q=shop",
         "/projects/1/commits", "/projects/1/commits/abc123", "/projects/1/pulls", "/projects/1/pulls/7"]  # fmt: skip
STATES = [("/projects?q=nothing", 200), ("/runs/2/tests?q=nothing", 200), ("/projects/1/search?q=nothing", 200),
          ("/users?q=nothing", 200), ("/runs/2?q=nothing", 200), ("/projects/1?branch=nothing", 200),
          ("/projects/1/insights?branch=nothing", 200),
          ("/search?q=nothing", 200), ("/runs/999", 404), ("/compare?base=1&head=x", 400),
          ("/projects/1/test?className=no&name=no", 404), ("/projects/1/commits?branch=nothing", 200),
          ("/projects/1/commits/no", 404), ("/projects/1/pulls/999", 404)]  # fmt: skip
"""Pages without contents, and pages of errors."""
JTL = "timeStamp,elapsed,label,success\n1700000000000,100,GET /cart,true\n1700000001000,300,GET /cart,false\n"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with running_server(tmp_path_factory.mktemp("tracker-pages"), **ADMIN) as one:
        facts = (("project", "shop"), ("branch", "main"), ("prNumber", "7"), ("buildUrl", "javascript:alert(1)"))
        for report in (GREEN, REPORT):
            parts = [uploads.part(name, text) for name, text in (*facts, ("commit", "abc123"))]
            parts += [
                uploads.part("junit", report, "j.xml"),
                uploads.part("jacoco", COVERED, "c.xml"),
            ]
            parts += [
                uploads.part("perf", JTL, "load.jtl"),
                uploads.part("attachment", "a line\n", "shot.txt"),
            ]
            assert uploads.send(one, uploads.body(parts)).status == 201
        yield one


@pytest.fixture(scope="module")
def session(server: Server) -> str:
    return users.create_session(server.data, "admin", "ADMIN")


def log_in_as(page: Any, server: Server, session: str) -> None:
    """Sets the session of a user in the browser."""
    cookie = {"name": f"pilothouse_{server.port}", "value": session, "url": url_of(server), "httpOnly": True}
    page.context.add_cookies([cookie])


# All pages


def path_of(server: Server, path: str) -> str:
    """The path of a page; the one of a file's coverage is linked from the page of its run."""
    if not path.endswith("path="):
        return path
    found = re.search(rf'{re.escape(path)}[^"]+', server.get(path.partition("/coverage")[0]).text)
    assert found
    return found[0]


def test_the_pages_are_accessible(server: Server, chromium: Browser, session: str) -> None:
    faults = {}
    with chromium.page(url_of(server), allow=("Failed to load",)) as one:
        log_in_as(one, server, session)
        for path, status in [*((path, 200) for path in PAGES), *STATES]:
            assert one.goto(path_of(server, path)).status == status
            assert one.title() != "forged"
            if found := faults_in_all_views(one):
                faults[path] = found
    assert faults == {}


@pytest.mark.parametrize("width", [375, 1280, 1440])
def test_very_long_names_do_not_widen_pages_or_tables(server: Server, chromium: Browser, width: int) -> None:
    name = "x" * 250
    report = (
        f"<testsuite name='{name}'><testcase classname='{name}' name='{name}'><failure message='{name}'/></testcase>"
    )
    parts = [(part, name) for part in ("project", "branch", "commit", "buildName")]
    runs = [uploads.upload(server, *parts, ("junit", f"{report}</testsuite>")) for _ in range(2)]
    project, pair = runs[0]["projectId"], [run["runId"] for run in runs]
    test = f"/projects/{project}/test?className={name}&name={name}"
    with chromium.page(url_of(server), viewport={"width": width, "height": 700}) as one:
        for path in ("/", "/projects", f"/projects/{project}", f"/runs/{pair[1]}", test,
                     "/compare?base={}&head={}".format(*pair)):  # fmt: skip
            one.goto(path)
            assert one.evaluate("document.documentElement.scrollWidth <= innerWidth"), path
            wide = (
                "[...document.querySelectorAll('.wide')].filter((one) => one.scrollWidth > one.clientWidth + 1).length"
            )
            assert one.evaluate(wide) == 0, path


def test_arrow_keys_read_a_run_in_all_plots_of_a_project(server: Server, chromium: Browser) -> None:
    with chromium.page(url_of(server)) as one:
        one.goto("/projects/1")
        one.locator("svg.plot").first.focus()
        one.keyboard.press("ArrowRight")
        one.keyboard.press("ArrowLeft")
        texts = one.locator("#trend-plots output").all_inner_texts()
        assert len(texts) == 3
        assert all(text.startswith("Run 1") for text in texts)
        one.keyboard.press("Enter")
        one.wait_for_url("**/runs/1")


def test_the_filters_of_a_project_act_at_once_and_its_plots_share_their_left_edge(
    server: Server, chromium: Browser
) -> None:
    with chromium.page(url_of(server), viewport={"width": 1440, "height": 900}) as one:
        one.goto("/projects/1")
        edges = "[...document.querySelectorAll('#trend-plots svg.plot')].map((svg) => svg.getBoundingClientRect().left)"
        assert len(one.evaluate(edges)) == 3
        assert len(set(one.evaluate(edges))) == 1
        one.get_by_label("Runs in the plots").select_option("60")
        one.wait_for_url("**/projects/1?*range=60*")


def test_a_page_is_navigated_by_keyboard(server: Server, chromium: Browser) -> None:
    with chromium.page(url_of(server)) as one:
        one.goto("/projects")
        one.keyboard.press("Tab")
        assert one.evaluate("document.activeElement.textContent") == "Skip to content"
        for _ in range(30):
            one.keyboard.press("Tab")
            if one.evaluate("document.activeElement.textContent") == "shop":
                break
        one.keyboard.press("Enter")
        one.get_by_role("heading", name="shop", level=1).wait_for()


def test_a_javascript_url_is_not_linked(server: Server, chromium: Browser) -> None:
    with chromium.page(url_of(server)) as one:
        one.goto("/runs/2")
        assert one.get_by_text("javascript:alert(1)").count() == 1
        assert one.locator("a[href^='javascript']").count() == 0


def test_a_picture_has_the_values_of_its_table_as_text(server: Server, chromium: Browser) -> None:
    with chromium.page(url_of(server)) as one:
        one.goto("/projects/1")
        picture = one.get_by_role("img", name=re.compile("Tests of the last"))
        assert "failed" in picture.locator("desc").text_content()
        titles = picture.locator("g > title").all_text_contents()
        assert any(title.startswith("Run 2,") and "1 failed" in title for title in titles)
        assert one.locator("#trend-table tbody tr").count() == len(titles)
        coverage = one.get_by_role("img", name=re.compile("Line coverage of the last"))
        assert "Line coverage went from" in coverage.locator("desc").text_content()


# Journeys


def test_an_upload_with_a_new_token_shows_without_a_reload(server: Server, chromium: Browser) -> None:
    with chromium.page(url_of(server)) as one:
        one.goto("/profile")  # which needs a login, and comes after it
        one.get_by_label("User name").fill("admin")
        one.get_by_label("Password").fill(users.PASSWORD)
        one.get_by_role("button", name="Log in").click()
        one.get_by_role("heading", name="Profile of admin").wait_for()
        one.get_by_label("Name", exact=True).fill("ci")
        one.get_by_label("Scope").select_option("INGEST")
        one.get_by_role("button", name="Make a token").click()
        one.wait_for_load_state()  # the script, which copies, has run
        token = one.locator("#token").inner_text()
        assert users.RAW_TOKEN.fullmatch(token)
        one.context.grant_permissions(["clipboard-read", "clipboard-write"])
        one.get_by_role("button", name="Copy the token").click()
        one.get_by_role("button", name="copied").wait_for()
        assert one.evaluate("navigator.clipboard.readText()") == token
        one.goto("/projects")
        one.locator("#live[data-is=on]").wait_for()
        one.evaluate("window.stayed = true")
        parts = ("project", "fresh from ci"), ("branch", "main"), ("junit", GREEN)
        uploads.upload(server, *parts, **users.bearer(token))
        one.get_by_role("link", name="fresh from ci").wait_for()
        assert one.evaluate("window.stayed")
        one.goto("/profile")
        assert token not in one.content()


def test_a_form_without_a_page_of_its_own_is_not_sent_again_by_reload_or_back(
    server: Server, chromium: Browser
) -> None:
    admin = users.create_session(server.data, "admin", "ADMIN")
    with chromium.page(url_of(server), allow=("the server responded with a status of 400",)) as one:
        log_in_as(one, server, admin)
        one.goto("/profile")
        one.locator("form[action$='/tokens'] [name=name]").fill("made-once")
        one.get_by_role("button", name="Make a token").click()
        one.locator("#token", has_text="plt_").wait_for()
        one.wait_for_url(f"{url_of(server)}/profile")
        one.reload()
        assert one.get_by_role("rowheader", name="made-once").count() == 1
        one.goto("/projects")
        one.go_back()
        assert one.get_by_role("rowheader", name="made-once").count() == 1
        one.goto("/users?sort=-name")
        password = one.locator("form[action*='/password'] [name=password]").first
        password.evaluate("field => field.removeAttribute('minlength')")
        password.fill("short")
        one.locator("form[action*='/password'] button").first.click()
        one.locator("#reason").wait_for()
        one.wait_for_url("**/users?sort=-name")


def test_a_wrong_password_is_reported_in_the_form(server: Server, chromium: Browser) -> None:
    with chromium.page(url_of(server), allow=("401",)) as one:
        one.goto("/login")
        one.get_by_label("User name").fill("admin")
        one.get_by_label("Password").fill("wrong password")
        one.get_by_role("button", name="Log in").click()
        assert "not right" in one.get_by_role("alert").inner_text()


def test_a_run_of_many_uploads_grows_on_its_open_page(server: Server, chromium: Browser) -> None:
    first = uploads.upload(server, ("project", "sharded"), ("runKey", "1"), ("junit", GREEN))
    with chromium.page(url_of(server)) as one:
        one.goto(first["runPath"])
        one.locator("#live[data-is=on]").wait_for()
        uploads.upload(server, ("project", "sharded"), ("runKey", "1"), ("junit", REPORT))
        one.locator("#failures").wait_for()
        one.locator("summary", has_text=FORGED).first.wait_for()  # that of the group names it too


def test_an_empty_server_reports_what_to_do(serve: Serve, chromium: Browser) -> None:
    server = serve({})
    with chromium.page(url_of(server)) as one:
        one.goto("/projects")
        commands = one.locator("#snippet").inner_text()
        assert f"{url_of(server)}/api/v1/ingest" in commands
        one.locator("#live[data-is=on]").wait_for()
        uploads.upload(server, ("project", "first"), ("junit", GREEN))
        one.get_by_role("link", name="first").wait_for()


def test_a_private_project_is_hidden_from_other_users(server: Server, chromium: Browser) -> None:
    owner = users.create_token(server.data, "owner")
    uploads.upload(server, ("project", "secret"), ("branch", "main"), ("junit", GREEN), **users.bearer(owner))
    id = uploads.query_store(server, "SELECT id FROM project WHERE name = 'secret'")[0][0]
    with chromium.page(url_of(server)) as one:
        log_in_as(one, server, users.create_session(server.data, "owner"))
        one.goto(f"/projects/{id}/settings")
        one.get_by_label("Visible to").select_option("PRIVATE")
        one.locator("form[action$=visibility] button").click()
        one.goto(f"/projects/{id}")
        assert "PILOTHOUSE_TOKEN" in one.locator("#snippet").inner_text()
    with chromium.page(url_of(server), allow=("404",)) as one:
        log_in_as(one, server, users.create_session(server.data, "other"))
        one.goto("/projects")
        one.locator("#live[data-is=on]").wait_for()
        uploads.upload(server, ("project", "secret"), ("junit", REPORT), **users.bearer(owner))
        uploads.upload(server, ("project", "open to all"), ("junit", REPORT))
        one.get_by_role("link", name="open to all").wait_for()
        assert "secret" not in one.content()
        assert one.goto(f"/projects/{id}").status == 404


def test_a_test_is_quarantined_and_a_run_deleted_by_forms(server: Server, chromium: Browser, session: str) -> None:
    run = uploads.upload(server, ("project", "forms"), ("branch", "main"), ("junit", REPORT))
    with chromium.page(url_of(server)) as one:
        log_in_as(one, server, session)
        one.goto(run["runPath"])
        one.get_by_role("link", name="This test over time").click()
        one.get_by_label("Status").select_option("QUARANTINED")
        one.get_by_label("Reason").fill("being fixed")
        one.get_by_role("button", name="Save").click()
        one.get_by_text("being fixed").wait_for()
        one.goto(run["runPath"])
        assert one.locator("#gate .state").first.inner_text().endswith("passed")
        one.get_by_text("Delete this run").click()
        one.get_by_role("button", name=f"Delete run {run['runId']}").click()
        one.get_by_text("No runs yet").wait_for()


def test_a_page_reports_a_lost_server_and_shows_missed_runs(serve: Serve, chromium: Browser, tmp_path: Path) -> None:
    server = serve({})
    uploads.upload(server, ("project", "shop"), ("junit", GREEN))
    with chromium.page(url_of(server), allow=("ERR_", "Failed to load")) as one:
        one.goto("/projects/1")
        one.locator("#live[data-is=on]").wait_for()
        server.kill()
        one.get_by_text("connection lost").wait_for()
        server.start()
        run = uploads.upload(server, ("project", "shop"), ("junit", REPORT))
        one.locator(f"[data-key='run {run['runId']}']").wait_for()


def test_private_pages_are_hidden_after_a_logout_in_another_tab(server: Server, chromium: Browser) -> None:
    hal, token = users.ensure_user(server.data, "hal"), users.create_token(server.data, "hal")
    uploads.upload(server, ("project", "hidden"), ("junit", GREEN), **users.bearer(token))
    with records.store_of(server):
        Project.update(visibility="PRIVATE").where(Project.name == "hidden").execute()
    id = uploads.query_store(server, "SELECT id FROM project WHERE name = 'hidden'")[0][0]
    with chromium.page(url_of(server)) as one:
        session = users.create_session(server.data, "hal")
        log_in_as(one, server, session)
        one.goto(f"/projects/{id}")
        one.locator("#live[data-is=on]").wait_for()
        with records.store_of(server):
            Session.delete().where(Session.account == hal.id).execute()
        uploads.upload(server, ("project", "shop"), ("junit", GREEN))
        one.wait_for_url("**/login?next=*")


def test_a_login_in_one_tab_leaves_the_other_tabs_live(server: Server, chromium: Browser) -> None:
    users.ensure_user(server.data, "ines")
    refused = "the server responded with a status of 404"  # the stream of the anonymous caller
    with chromium.page(url_of(server), allow=(refused,)) as one:
        one.goto("/projects")
        one.locator("#live[data-is=on]").wait_for()
        other = one.context.new_page()
        other.goto("/login?next=/projects")
        other.get_by_label("User name").fill("ines")
        other.get_by_label("Password").fill(users.PASSWORD)
        other.get_by_role("button", name="Log in").click()
        other.wait_for_url("**/projects")
        uploads.upload(server, ("project", "made-after-the-login"), ("junit", GREEN))
        for page in (one, other):
            page.locator("#list", has_text="made-after-the-login").wait_for()
            page.locator("#live[data-is=on]").wait_for()


def test_pages_and_forms_work_without_script(server: Server, chromium: Browser) -> None:
    users.ensure_user(server.data, "nora", "ADMIN")
    with chromium.page(url_of(server), java_script_enabled=False) as one:
        one.goto("/login?next=/runs/2")
        one.get_by_label("User name").fill("nora")
        one.get_by_label("Password").fill(users.PASSWORD)
        one.get_by_role("button", name="Log in").click()
        one.wait_for_load_state()
        assert "at line 1" in one.content()
        assert one.locator("button[data-copy]:visible").count() == 0
        one.goto("/projects/1/settings")
        one.get_by_label("Base branch").fill("trunk")
        one.locator("form[action$='/settings'] button").click()
        assert one.get_by_label("Base branch").input_value() == "trunk"
        one.get_by_label("Base branch").fill("")
        one.locator("form[action$='/settings'] button").click()
        one.goto("/users")
        one.locator("#new ~ form input[name=username]").fill("made")
        one.locator("#new ~ form input[name=password]").fill(users.PASSWORD)
        one.get_by_role("button", name="Make the account").click()
        row = one.locator("tr", has=one.get_by_role("rowheader", name="made"))
        row.locator("summary").click()
        row.get_by_role("button", name="Delete made").click()
        one.wait_for_load_state()
        assert one.get_by_role("rowheader", name="made").count() == 0
        assert one.goto("/compare?base=1&head=2").status == 200


def test_the_overview_is_small_and_names_what_fails(server: Server, chromium: Browser) -> None:
    with chromium.page(url_of(server)) as one:
        answers: list[Any] = []
        one.on("response", lambda answer: answers.append(answer) if not answer.url.endswith("/live") else None)
        one.goto("/")
        one.get_by_role("link", name="shop").first.wait_for()
        assert 0 < sum(len(answer.body()) for answer in answers) < 100_000
