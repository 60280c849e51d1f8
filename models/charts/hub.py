"""Packages as Artifact Hub describes them."""

from __future__ import annotations

import json
from typing import Any
from urllib.parse import quote

from models.charts.responses import HubItem
from models.errors import Invalid
from models.json_format import text_of


def items(body: bytes, root: str, limit: int) -> list[HubItem]:
    """At most `limit` charts of a response of the hub at `root`. Raises `Invalid` for any other response."""
    try:
        packages = json.loads(body)["packages"]
        return [_item(package, root) for package in packages or ()][:limit]
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        raise Invalid("it is not a list of packages") from None


def _item(package: dict[str, Any], root: str) -> HubItem:
    repository = package.get("repository") or {}
    name, repository_name = text_of(package, "normalized_name") or text_of(package, "name"), text_of(repository, "name")
    return HubItem(
        name=text_of(package, "name"),
        version=text_of(package, "version"),
        app_version=text_of(package, "app_version"),
        repo_name=repository_name,
        repo_url=text_of(repository, "url"),
        description=text_of(package, "description"),
        url=f"{root}/packages/helm/{quote(repository_name, safe='')}/{quote(name, safe='')}",
    )
