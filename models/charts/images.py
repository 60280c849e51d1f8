"""The container images that a manifest names. Nothing here queries a cluster."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import yaml

from models.charts import yaml_values
from models.charts.responses import Image
from models.json_format import list_of, part_of, text_of

_LISTS = {"initContainers": True, "containers": False, "ephemeralContainers": False}
"""The lists of containers in the specification of a Pod, and whether they are init containers."""
_MAX_DEPTH = 50


def images(manifest: str) -> list[Image]:
    """The images of all containers in order, those of pod templates in custom resources too.

    CPU-bound: call it in a worker. Documents that are not YAML name none. Raises `Invalid` for YAML beyond its bounds.
    """
    return [image for document in _documents(manifest) for image in _of_object(document)]


def _documents(manifest: str) -> Iterator[Any]:
    loader: Any = getattr(yaml, "CBaseLoader", yaml.BaseLoader)  # every scalar stays text
    for text in yaml_values.split_documents(manifest):
        if "image" not in text:
            continue
        try:
            yaml_values.check(text, loader, "the manifest")
            yield from list(yaml.load_all(text, loader))
        except (yaml.YAMLError, UnicodeError, TypeError):
            continue


def _of_object(document: Any) -> Iterator[Image]:
    if not isinstance(document, dict):
        return
    items = list_of(document, "items")
    if text_of(document, "kind").endswith("List") and items:
        for item in items:
            yield from _of_object(item)
        return
    kind, name = text_of(document, "kind"), text_of(part_of(document, "metadata"), "name")
    for container, image, is_init in _containers(document, 0):
        yield Image(image, kind, name, container, is_init)


def _containers(node: Any, depth: int) -> Iterator[tuple[str, str, bool]]:
    """Yields name, image and whether it is an init container, of all containers below a node."""
    if depth > _MAX_DEPTH:
        return
    if isinstance(node, list):
        for item in node:
            yield from _containers(item, depth + 1)
    elif isinstance(node, dict):
        for key, value in node.items():
            if key in _LISTS and isinstance(value, list):
                for container in value:
                    if isinstance(container, dict) and text_of(container, "image"):
                        yield text_of(container, "name"), container["image"], _LISTS[key]
            else:
                yield from _containers(value, depth + 1)
