"""All operations of the chart service, in the order of the interface document."""

from __future__ import annotations

from handlers.charts import dependencies, hub, packages, release_reads, releases, rendering, repositories
from handlers.charts.operations import Operation

OPERATIONS: list[Operation] = [
    *releases.operations,
    *release_reads.operations,
    *rendering.operations,
    *packages.operations,
    *repositories.operations,
    *hub.operations,
    *dependencies.operations,
]
"""A group's module is added here: `*releases.operations, ...`."""
