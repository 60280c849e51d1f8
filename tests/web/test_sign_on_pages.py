"""Single sign-on in a browser: the button of the login, which needs no script, and the links on the page of users."""

from __future__ import annotations

from collections.abc import Iterator

import identity_providers
import pytest
import users
from browser_pages import Browser, faults_in_all_views, url_of
from conftest import Serve, Server, free_port
from http_checks import running_server
from identity_providers import real_provider


def test_a_person_logs_in_without_script(serve: Serve, chromium: Browser) -> None:
    port = free_port()
    base = f"http://127.0.0.1:{port}"
    with real_provider(callback=f"{base}/login/oidc/callback") as provider:
        config = identity_providers.settings(provider.issuer)
        config["server"]["public-url"] = base
        server = serve(**config, wait=False)
        server.port = port
        server.start()
        provider.log_in("s-ann", "ann")
        with chromium.page(base, allow=(provider.issuer,), java_script_enabled=False) as page:
            page.goto("/profile")
            page.get_by_role("link", name="Log in with single sign-on").click()
            page.wait_for_url(f"{base}/profile")
            assert "Profile of ann" in page.locator("h1").inner_text()


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    config = identity_providers.settings("https://login.example")
    with running_server(tmp_path_factory.mktemp("pages"), **config) as server:
        yield server


def test_the_pages_have_no_faults(server: Server, chromium: Browser) -> None:
    session = users.create_session(server.data, "root", "ADMIN")
    users.ensure_user(server.data, "jo")
    with chromium.page(url_of(server)) as page:
        page.goto("/login")
        faults = {("/login", view): found for view, found in faults_in_all_views(page).items() if found}
        page.context.add_cookies([{"name": server.cookie, "value": session, "url": url_of(server)}])
        page.goto("/users")
        row = page.locator("tr", has_text="jo")
        row.get_by_text("Link", exact=False).first.click()
        row.get_by_label("Subject of jo at the identity provider").fill(f"{'s-' * 60}jo")
        row.get_by_role("button", name="Link jo").click()
        row.get_by_role("button", name="from jo").wait_for()
        faults |= {("/users", view): found for view, found in faults_in_all_views(page).items() if found}
        assert faults == {}
