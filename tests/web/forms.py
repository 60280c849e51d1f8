"""The forms of the pages, filled in and sent in Chromium without script."""

from __future__ import annotations

from typing import Any

KINDS = """(buttons) => buttons.map((button) => {
    const url = new URL(button.hasAttribute("formaction") ? button.formAction : button.form.action);
    const verb = button.form.querySelector("input[type=hidden][name=verb]")?.value ?? "";
    return `${url.pathname.replace(/[0-9]+/g, "N")} ${verb} ${button.value}`.replace(/ +/g, " ").trim();
})"""
BUTTONS = "form[method=post] button:not([type=button], [hidden], [hidden] *)"


class Forms:
    """A tab without script that sends forms.

    `seen` and `sent` are their kinds: the path with `N` for numbers, the form's verb and the button's value.
    """

    def __init__(self, page: Any) -> None:
        self.page = page
        self.seen: set[str] = set()
        self.sent: set[str] = set()

    def visit(self, path: str) -> None:
        """Opens a page and sends each of its searches and filters as it is."""
        assert self.page.goto(path).status == 200
        assert self.page.locator("[data-needs-script]:visible").count() == 0, path
        assert self.page.locator("main h1").first.is_visible(), path
        self._look()
        for place in range(self.page.locator("form[method=get]").count()):
            if place:
                self.page.goto(path)
            form = self.page.locator("form[method=get]").nth(place)
            form.evaluate("form => form.closest('details')?.setAttribute('open', '')")
            if form.locator(":invalid").count() == 0:
                with self.page.expect_response(lambda got: got.request.is_navigation_request()) as answer:
                    form.locator("button:visible").first.click()
                assert answer.value.status == 200, answer.value.url

    def _look(self) -> list[str]:
        kinds = list(self.page.locator(BUTTONS).evaluate_all(KINDS))
        self.seen.update(kinds)
        return kinds

    def send(self, path: str, kind: str, **fields: str) -> None:
        """Fills in the last form of this kind on the page, and sends it."""
        self.page.goto(path)
        assert kind in self._look(), f"{kind} is not on {path}"
        buttons = self.page.locator(BUTTONS)
        buttons.evaluate_all("all => all.forEach((node) => node.closest('details')?.setAttribute('open', ''))")
        kinds = buttons.evaluate_all(KINDS)
        button = next(
            buttons.nth(place)
            for place in reversed(range(len(kinds)))
            if kinds[place] == kind and buttons.nth(place).is_visible()
        )
        form = button.locator("xpath=ancestor::form")
        for name, value in fields.items():
            field = form.locator(f"[name='{name}']").first
            if field.evaluate("node => node.tagName") == "SELECT":
                field.select_option(value)
            else:
                field.fill(value)
        with self.page.expect_navigation() as answer:
            button.click()
        assert answer.value.status == 200, (kind, answer.value.status)
        self.sent.add(kind)
