"""All operations of the chart service, in the order of the interface document."""

from __future__ import annotations

from handlers.charts import charts, releases, repositories
from handlers.charts.operations import Operation

OPERATIONS: list[Operation] = [
    *releases.CHANGES,
    *releases.READS,
    *charts.RENDERING,
    *charts.PACKAGES,
    *repositories.operations,
    *charts.HUB,
    *charts.DEPENDENCIES,
]
