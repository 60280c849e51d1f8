"""What a project reports to its forge: its own settings, and those of the server where it has none."""

from __future__ import annotations

from typing import get_args

from attrs import evolve

from models.config.settings import ForgeReportSettings, ReportComment, ReportPublish, ReportStatuses, UntrustedReport
from models.tracker.tables import Project

OF_PROJECT = ("enabled", "comment", "statuses", "context", "untrusted", "publish")
"""The settings that a project may have; their columns begin with `forge_reports_`."""
STATUSES = get_args(ReportStatuses)
COMMENTS = get_args(ReportComment)
UNTRUSTED = get_args(UntrustedReport)
PUBLISH = get_args(ReportPublish)


def of_project(project: Project, settings: ForgeReportSettings) -> ForgeReportSettings:
    own = {name: getattr(project, f"forge_reports_{name}") for name in OF_PROJECT}
    return evolve(settings, **{name: value for name, value in own.items() if value is not None})
