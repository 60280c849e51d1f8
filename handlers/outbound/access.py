"""Who may read and change what is sent: an ADMIN that of the server, an OWNER that of a project."""

from __future__ import annotations

from handlers.base import Base
from models.errors import Denied
from models.outbound.rules import SERVER
from models.tracker import visibility


async def project_of(handler: Base, id: str | None) -> int:
    """The project that a request is about, or `SERVER`. Raises `Denied`, `NotFound`, `Invalid`."""
    user = handler.caller.user
    if id is None:
        if user is None or not user.is_admin:
            raise Denied("only an ADMIN may do this; an OWNER may for a project")
        return SERVER
    found = await handler.tracker.run(lambda: visibility.project(user, id, "OWNER"))
    return int(found.id)
