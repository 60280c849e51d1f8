"""The page that installs a chart."""

from __future__ import annotations

from typing import Any

from handlers.charts.base_page import ChartPage, cut, integer
from handlers.charts.release_list import url_of
from models.charts import typed_values
from models.charts.responses import Release
from models.errors import Denied, Problem


class NewRelease(ChartPage):
    """The form of an installation, and what it would make."""

    back = "/releases"

    async def get(self) -> None:
        names = ("chartRef", "version", "releaseName", "namespace", "values")
        query = self.query()
        await self._page({name: query.get(name, "") for name in names})

    async def post(self) -> None:
        is_preview = bool(self.field("preview"))
        try:
            release = await self._install(is_preview)
        except Problem as problem:
            await self._page(self.form(), failure=self.failed(problem))
            return
        if is_preview:
            await self._page(self.form(), preview=release)
            return
        self.redirect(self.prefix + url_of(release.namespace, release.name), status=303)

    async def _install(self, is_preview: bool) -> Release:
        if self.closed:
            raise Denied(self.closed)
        body: dict[str, Any] = {
            **{name: self.field(name) for name in ("chartRef", "version", "releaseName", "namespace", "description")},
            "values": typed_values.parse(self.field("values")),
            "timeout": integer(self.field("timeout")),
            "dryRun": is_preview,
            **self.flags("wait", "atomic", "createNamespace"),
        }
        release: Release = await self.ask("helm_install", body=body)
        return release

    async def _page(self, form: dict[str, str], failure: str = "", preview: Release | None = None) -> None:
        known = None
        if reads := self.reads():
            known = await self.services.charts.overview.lately(reads)
        spaces = {one.namespace for one in known.releases} if known else set()
        self.show(
            "charts/release_new.html",
            has_cluster=reads is not None,
            form=form,
            failure=failure,
            preview=preview,
            spaces=sorted(spaces | {"default"}),
            cut=cut,
        )
