"""Makes the schemas of tools short: an agent reads all of them before its first call.

What only validates is left out, because the server validates the arguments itself and names every fault.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

_KEPT = ("type", "enum", "contentEncoding", "additionalProperties")
SHARED = {
    "name": "of the release, the repository or the process, as the tool's name says",
    "namespace": "of the release, `default` by default",
    "context": "one of the kubeconfigs' contexts, the server's own by default",
    "chartRef": "repo/chart, repo/chart:version or oci://host/path[:tag]",
    "version": "of the chart, exact or a range, the newest stable one by default",
    "values": "override those of the chart",
    "revision": "of the release, the newest by default",
    "cursor": "nextCursor of the page before",
    "limit": "the most rows",
    "page": "its number, from 0",
    "size": "rows of a page",
    "sortBy": "the sort key",
    "sortDirection": "asc or desc",
    "commit": "or its first 7 digits or more",
    "branch": "only of this branch",
    "flag": "only of this flag",
    "format": "csv and ndjson are the whole list, without a cursor",
    "select": "names, globs, @group, label=value, all, and !term to exclude, with commas between them",
    "kubeVersion": "the assumed version of Kubernetes, such as 1.31",
    "apiVersions": "of the assumed cluster, group/version or group/version/Kind",
    "verify": "require a signature by a key in the operator's keyring",
    "showSecrets": "show the values of Secrets",
    "allNamespaces": "the releases of all namespaces",
    "upgrades": "add the newest available version of each chart",
    "minMs": "only tests that took so many milliseconds",
    "dryRun": "change nothing",
    "wait": "until every object is ready, or deleted",
    "timeout": "seconds that helm may take",
    "description": "stored in the history",
}
"""What arguments of several tools mean: the instructions of the server describe each once, for all tools."""
_MEANINGS = {
    "name": r"|The release|the (?:release|repository)'s name",
    "namespace": r"(?:the|its) namespace(?: of the releases?)?(?: `default` by default)?",
    "context": r"one of .*",
    "version": r"an exact version or a range.*",
    "revision": r"the revision the newest by default",
}
"""Of a name that has other meanings too: the descriptions, without `;` and full stop, that mean what `SHARED` says."""
_UNINFORMATIVE_DEFAULTS = (None, False, "", 0, "default")


def compact(name: str, schema: Mapping[str, Any]) -> dict[str, Any]:
    """The schema of an argument without bounds, patterns and examples, described unless it is one of `SHARED`."""
    kept = {key: schema[key] for key in _KEPT if key in schema}
    if "items" in schema:
        kept["items"] = compact("items", schema["items"])
    about = schema.get("description", "")
    if is_shared(name, about):
        return kept
    if about:
        kept["description"] = _short(about)
    if schema.get("default") not in _UNINFORMATIVE_DEFAULTS:
        kept["default"] = schema["default"]
    return kept


def is_shared(name: str, about: str) -> bool:
    """Whether an argument with this description means what `SHARED` says."""
    text = re.sub(r"[;.]+(?= |$)", "", about)
    return name in SHARED and re.fullmatch(_MEANINGS.get(name, ".*"), text, re.IGNORECASE) is not None


def _short(text: str) -> str:
    """The part of a description before a semicolon."""
    return text.partition(";")[0].rstrip(". ")
