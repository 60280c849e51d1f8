"""The first steps on a new server: a process, a report, a release."""

from __future__ import annotations

from pathlib import Path

from attrs import frozen

from handlers.base import HtmlPage
from handlers.tracker.pages.tracker_pages import upload_snippet

_PROCESS = """supervisor:
  log: capture
  processes:
    hello:
      command: ["sh", "-c", "while :; do date; sleep 5; done"]
      auto-start: true
      restart: always"""
_RELEASE = """svc:
  kube:
    kubeconfig: /etc/pilothouse/kubeconfig"""


@frozen
class Step:
    """One step: what to do, and the lines to copy."""

    name: str
    title: str
    text: str
    snippet: str
    is_done: bool


def first_steps(
    page: HtmlPage, has_process: bool, has_report: bool, has_release: bool, has_cluster: bool
) -> list[Step]:
    """The steps; none once all are done. Without a cluster no release is waited for: many servers have no charts."""
    if has_process and has_report and (has_release or not has_cluster):
        return []
    security = page.config.tracker.security
    report = upload_snippet(page, "my-project", security.require_ingest_token or not security.open_mode)
    file = Path.cwd() / "pilothouse.yaml"
    where = f"Add this to the configuration, the file given by --config or else {file}"
    return [
        Step("process", "A process", f"{where}, then run: pilothouse ctl reload", _PROCESS, has_process),
        Step("report", "A test report", "Run this in a checkout, after its tests.", report, has_report),
        Step("release", "A release", f"{where}, start the server again, then install a chart.", _RELEASE, has_release),
    ]
