"""Makes the schemas of tools short: an agent reads all of them before its first call.

What only validates is left out, because the server validates the arguments itself and names every fault.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

_KEPT = ("type", "enum", "contentEncoding", "additionalProperties")
_OBVIOUS = {
    "all", "from", "keyword", "strict", "to", "upgrades", "what",
    "allNamespaces", "apiVersion", "apiVersions", "appVersion", "branch", "category", "chart", "chartRef", "class",
    "commit", "context", "createNamespace", "cursor", "description", "devel", "dryRun", "file", "id", "includeCrds",
    "kind", "labels", "limit", "name", "namespace", "object", "objectNamespace", "offset", "owner", "page",
    "password", "process", "project", "releaseName", "revision", "signal", "since", "size", "skipTests", "sort",
    "sortBy", "sortDirection", "status", "test", "timeout", "type", "url", "username", "values", "version",
    "versions", "wait",
}  # fmt: skip
"""Arguments that their names describe."""
_UNINFORMATIVE_DEFAULTS = (None, False, "", 0, "default")


def compact(name: str, schema: Mapping[str, Any]) -> dict[str, Any]:
    """The schema of an argument without bounds, patterns and examples, described only if its name does not."""
    kept = {key: schema[key] for key in _KEPT if key in schema}
    if "items" in schema:
        kept["items"] = compact("items", schema["items"])
    if name not in _OBVIOUS:
        if schema.get("description"):
            kept["description"] = _short(schema["description"])
        if schema.get("default") not in _UNINFORMATIVE_DEFAULTS:
            kept["default"] = schema["default"]
    return kept


def _short(text: str) -> str:
    """The part of a description before a semicolon."""
    return text.partition(";")[0].rstrip(". ")
