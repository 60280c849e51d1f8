"""Resources: what an agent may attach to a conversation by its address. Each is the result of one tool."""

from __future__ import annotations

import re
from collections.abc import Mapping
from urllib.parse import unquote

from attrs import frozen

from models.errors import NotFound


@frozen
class ResourceTemplate:
    """`address` has variables in braces, which are arguments of `tool`."""

    address: str
    name: str
    about: str
    tool: str
    media_type: str

    def match(self, address: str) -> Mapping[str, str] | None:
        """The arguments that an address has."""
        pattern = re.sub(r"\\\{(\w+)\\\}", r"(?P<\1>[^/?#]{1,1000})", re.escape(self.address))
        found = re.fullmatch(pattern, address)
        return None if found is None else {name: unquote(text) for name, text in found.groupdict().items()}


TEMPLATES = (
    ResourceTemplate(
        "pilothouse://processes/{name}/log", "process log", "The end of a process's log", "process_logs", "text/plain"
    ),
    ResourceTemplate(
        "pilothouse://runs/{id}", "run", "A run of a project's tests, with its totals", "run_detail", "application/json"
    ),
    ResourceTemplate(
        "pilothouse://releases/{namespace}/{name}/manifest", "manifest", "The manifest of a release",
        "helm_get_manifest", "application/yaml",
    ),
)  # fmt: skip


def find(address: str) -> tuple[ResourceTemplate, Mapping[str, str]]:
    """The template of an address and the arguments of its tool. Raises `NotFound`."""
    for template in TEMPLATES:
        if (arguments := template.match(address)) is not None:
            return template, arguments
    known = ", ".join(template.address for template in TEMPLATES)
    raise NotFound(f"there is no resource {address[:200]}; these are: {known}")
