"""The pages of the charts."""

from __future__ import annotations

from handlers.charts.release_list import Releases
from handlers.charts.release_new import NewRelease
from handlers.charts.release_pages import OneRelease
from handlers.charts.repository_pages import OneChart, OneRepository, Repositories
from handlers.routing import Route

_PART = r"([^/]+)"

routes: list[Route] = [
    (r"/releases/?", Releases),
    (r"/releases/new", NewRelease),
    (rf"/releases/{_PART}/{_PART}", OneRelease),
    (r"/repositories/?", Repositories),
    (rf"/repositories/{_PART}", OneRepository),
    (rf"/repositories/{_PART}/{_PART}", OneChart),
]
