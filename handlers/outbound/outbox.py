"""The outbox: what waits, what was delivered, and what was given up, with the answers."""

from __future__ import annotations

from handlers.base import Base
from handlers.http.permissions import SIGNED_IN
from handlers.operations import Operation, operation_routes
from handlers.outbound.scopes import project_of
from handlers.routing import Route
from models.errors import Denied, NotFound
from models.inputs import ID, ID_TEXT, choice, free_text, path, query, whole
from models.json_format import Instant, http_message
from models.outbound import outbox
from models.outbound.outbox import STATES, Delivery
from models.outbound.rules import SERVER
from models.paging import INT64, cut, decode_cursor

_DEFAULT_LIMIT, _MAX_LIMIT = 100, 500


@http_message
class DeliveryInfo:
    """A message of the outbox. `error` is what the target answered to the last try that failed."""

    id: int
    kind: str
    target: str
    project_id: int | None
    message_id: str
    type: str | None
    title: str | None
    state: str
    attempts: int
    next_at: Instant | None
    status: int | None
    error: str | None
    created_at: Instant
    done_at: Instant | None


@http_message
class OutboxPage:
    """Messages, newest first; `nextCursor` selects the next page, and is null on the last."""

    items: list[DeliveryInfo]
    next_cursor: str | None


def delivery_info(one: Delivery) -> DeliveryInfo:
    """For a worker: the payload is parsed."""
    content = one.content
    data = content.get("data") if isinstance(content.get("data"), dict) else {}
    return DeliveryInfo(
        one.id,
        one.kind,
        one.target,
        one.project_id,
        one.message_id,
        content.get("type"),
        data.get("title"),
        one.state,
        one.attempts,
        Instant(one.next_at) if one.state == "PENDING" else None,
        one.status,
        one.error,
        Instant(one.created_at),
        None if one.done_at is None else Instant(one.done_at),
    )


@http_message
class OutboxRequest:
    state: str | None = query("Only messages in this state", kind=choice(*STATES))
    kind: str | None = query("Only of this kind", kind=free_text("notify"))
    target: str | None = query("Only to this target", kind=free_text("channel:config:team"))
    project_id: str | None = query("Only of this project; an OWNER of it may ask", kind=ID_TEXT)
    limit: int = query("The maximum number of items", _DEFAULT_LIMIT, kind=whole(1, _MAX_LIMIT))
    cursor: str | None = query("`nextCursor` of the page before", kind=free_text("WzQyXQ"))


async def list_messages(handler: Base, request: OutboxRequest) -> OutboxPage:
    project_id = await project_of(handler, request.project_id)
    before = decode_cursor(request.cursor, int)[0] if request.cursor else INT64
    core = await handler.services.outbound.core()
    only = None if project_id == SERVER else project_id

    def read() -> list[DeliveryInfo]:
        found = outbox.listing(request.limit + 1, before, request.state, request.kind, only, request.target)
        return [delivery_info(one) for one in found]

    shown, next_cursor = cut(await core.run(read), request.limit, lambda one: (one.id,))
    return OutboxPage(list(shown), next_cursor)


@http_message
class MessageRequest:
    id: int = path("The message", kind=ID)


async def _message(handler: Base, id: int) -> Delivery:
    """The message. Raises `NotFound`, also where the caller may not change it: both answers are the same."""
    core = await handler.services.outbound.core()
    user = handler.caller.user
    if user is not None and user.is_admin:
        return await core.run(lambda: outbox.get(id))
    try:
        found = await core.run(lambda: outbox.get(id))
        await project_of(handler, None if found.project_id is None else str(found.project_id))
    except (Denied, NotFound):
        raise NotFound(f"there is no message {id} in the outbox") from None
    return found


async def retry_message(handler: Base, request: MessageRequest) -> DeliveryInfo:
    await _message(handler, request.id)
    core, now = await handler.services.outbound.core(), handler.clock.now()

    def retry() -> DeliveryInfo:
        outbox.retry(request.id, now, core.limits)
        return delivery_info(outbox.get(request.id))

    found = await core.run(retry)
    core.dispatcher.wake()
    return found


async def delete_message(handler: Base, request: MessageRequest) -> None:
    await _message(handler, request.id)
    core = await handler.services.outbound.core()
    await core.run_deletion(lambda: outbox.delete(request.id, handler.clock.now()))
    core.dispatcher.wake()


OPERATIONS = [
    Operation(
        None, "GET", "/outbox", "List the messages of the outbox, newest first (ADMIN; OWNER with projectId)",
        OutboxRequest, list_messages, OutboxPage, error_statuses=[404], name="outbox_list", permission=SIGNED_IN,
    ),
    Operation(
        None, "POST", "/outbox/{id}/retry", "Try a dead message again, with the same id (ADMIN; OWNER of its project)",
        MessageRequest, retry_message, DeliveryInfo, 202, error_statuses=[404, 409], name="outbox_retry",
        permission=SIGNED_IN,
    ),
    Operation(
        None, "DELETE", "/outbox/{id}", "Delete a message of the outbox (ADMIN; OWNER of its project)", MessageRequest,
        delete_message, None, 204, error_statuses=[404, 409], name="outbox_delete", permission=SIGNED_IN,
    ),
]  # fmt: skip
routes: list[Route] = operation_routes(OPERATIONS)
