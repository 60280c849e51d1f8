"""Projects by name: tools about a project take its id or its name, REST only the id."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Mapping
from typing import Any
from urllib.parse import urlencode

from handlers.mcp.derived_tools import PROJECT, Forwarded
from models.errors import Invalid

_MAX_NAME_CHARACTERS = 200

Send = Callable[[str, str, bytes], Awaitable[tuple[int, str, bytes]]]


async def with_id(request: Forwarded, given: Mapping[str, Any], send: Send) -> dict[str, Any]:
    """The arguments with the project's id in `id`, found by the name in `project` or `id`.

    A name that no project has stays, and REST reports it. Raises `Invalid` if `id` and `project` are given.
    """
    arguments = dict(given)
    is_named = PROJECT in arguments
    if is_named and "id" in arguments:
        raise Invalid("give id or project, not both")
    value = arguments.pop(PROJECT, None) if is_named else arguments.get("id")
    text = str(value) if isinstance(value, str | int) else ""
    if is_named:
        arguments["id"] = value
    if not text.strip() or len(text) > _MAX_NAME_CHARACTERS or (not is_named and text.isdigit()):
        return arguments
    base = request.path.partition("/projects/")[0]
    status, _, body = await send("GET", f"{base}/projects?{urlencode({'name': text})}", b"")
    found = json.loads(body) if status == 200 else []
    return {**arguments, "id": str(found[0]["id"])} if found else arguments
