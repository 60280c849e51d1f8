"""docs/api.md lists every operation of the OpenAPI document; docs/supervision.md lists every status."""

from __future__ import annotations

import re

from conftest import ROOT, load_script

from models.supervision.process import STATUSES

DOCUMENT = ROOT / "docs" / "api.md"
SUPERVISION = (ROOT / "docs" / "supervision.md").read_text()

tables = load_script(".ci/interface.py")


def test_the_tables_equal_the_openapi_document() -> None:
    text = DOCUMENT.read_text()
    assert tables.generate(text) == text, "run python .ci/interface.py"


def test_every_service_has_a_table() -> None:
    found = re.findall(r"<!-- operations: ([a-z]+) -->\n\| Request ", DOCUMENT.read_text())
    assert found == ["supervision", "charts", "tracker", "server"]
    assert len(re.findall(r"^\| `(GET|POST|PUT|DELETE) /", DOCUMENT.read_text(), re.MULTILINE)) > 60


def test_a_difference_from_the_openapi_document_is_detected() -> None:
    text = DOCUMENT.read_text()
    for before, after in (
        (r"\| `GET /healthz.*\n", ""),
        ("`helm_install`", "`install`"),
        (r"the key \|", r"an account |"),
    ):
        changed = re.sub(before, after, text, count=1)
        assert changed != text
        assert tables.generate(changed) == text


def test_every_status_is_documented_once() -> None:
    rows = re.findall(r"^\| (`[^|]+) \|", SUPERVISION.split("`exitCode` is")[0], re.MULTILINE)
    statuses = [status for row in rows for status in re.findall("`([a-z_]+)`", row)]
    assert sorted(statuses) == sorted(status.value for status in STATUSES)
