"""The tags of a repository in a registry."""

from __future__ import annotations

from io import BytesIO

from models.charts.repositories import semver
from models.errors import Upstream


def parse(page: bytes, most: int) -> list[str]:
    """At most so many tags of a page, parsed as a stream. Raises `Upstream`."""
    import ijson  # type: ignore[import-untyped]  # loaded only for version ranges of registries

    tags: list[str] = []
    try:
        for tag in ijson.items(BytesIO(page), "tags.item"):
            if isinstance(tag, str):
                tags.append(tag.replace("_", "+"))
            if len(tags) >= most:
                break
    except (ijson.JSONError, UnicodeDecodeError):
        raise Upstream("the registry's tag list is not JSON") from None
    return tags


def versions(tags: list[str]) -> list[str]:
    """The tags that are versions, newest first."""
    return semver.newest_first(tag for tag in tags if semver.version(tag))
