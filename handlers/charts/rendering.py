"""The operations on charts that helm does without a cluster: template, lint, create."""

from __future__ import annotations

from handlers.charts.operations import GZIP, TEXT, Operation
from models.charts import asks
from models.charts.shapes import Lint
from supervisor.charts import rendering

_FAILS = (400, 404, 413, 422, 500, 502, 503, 504)

operations: list[Operation] = [
    Operation(
        "helm_template", "POST", "/charts/template", "Render the templates of a chart", asks.Template,
        rendering.template, TEXT, group="charts", needs="helm", fails=_FAILS,
    ),
    Operation(
        None, "POST", "/charts/template/upload", "Render the templates of an uploaded chart", asks.TemplateUpload,
        rendering.template, TEXT, group="charts", needs="helm", fails=(*_FAILS, 415),
        name="helm_template_upload",
    ),
    Operation(
        "helm_lint", "POST", "/charts/lint", "Look a chart over for what is wrong", asks.Lint, rendering.lint, Lint,
        group="charts", needs="helm", fails=_FAILS,
    ),
    Operation(
        "helm_create", "POST", "/charts/create", "Make a new chart", asks.Create, rendering.create, GZIP,
        group="charts", needs="helm", fails=(400, 413, 422, 500, 503),
    ),
]  # fmt: skip
