"""The page of what is sent: dead messages first, then channels with a button that tests each, rules and deliveries."""

from __future__ import annotations

import time
from typing import Any

from handlers.base import Page, write_page
from handlers.http.permissions import ADMINISTER
from handlers.outbound.channels import channel_info, check_test, found_in, list_channels
from handlers.outbound.outbox import DeliveryInfo, delivery_info
from handlers.outbound.rules import list_rules
from handlers.routing import Route
from models.outbound import outbox
from models.outbound.rules import SERVER
from models.paging import INT64

_SHOWN = 50
STATE_KINDS = {"PENDING": "busy warn", "DONE": "good", "DEAD": "bad", "SUPERSEDED": ""}


class Notifications(Page):
    permission = ADMINISTER
    back = "/notifications"
    tested: dict[str, Any] | None = None
    """The outcome of the test that was just made."""

    async def get(self, *_: str) -> None:
        """Also at the address of a test, which a browser loads again."""
        await self.show()

    async def show(self) -> None:
        core = await self.services.outbound.core()

        def read() -> tuple[list[DeliveryInfo], list[DeliveryInfo]]:
            dead = outbox.listing(_SHOWN, INT64, "DEAD")
            return [delivery_info(one) for one in dead], [delivery_info(one) for one in outbox.listing(_SHOWN, INT64)]

        dead, newest = await core.run(read)
        names = {f"channel:{one.id}": one.name for one in core.notifier.channels.values()}
        write_page(
            self,
            "outbound/notifications.html",
            channels=await list_channels(self, None),
            rules=await list_rules(self, None),
            names=names,
            dead=dead,
            newest=newest,
            counts=core.dispatcher.counts,
            state_kinds=STATE_KINDS,
            tested=self.tested,
        )


class ChannelTest(Notifications):
    """Tests a channel, and shows the page with the answer."""

    async def post(self, id: str) -> None:
        core = await self.services.outbound.core()
        await core.run(core.notifier.read)
        channel = found_in(core, id, SERVER)
        check_test(self, core, channel)
        begun = time.monotonic()
        outcome = await core.test(channel)
        took = round((time.monotonic() - begun) * 1000)
        self.tested = {"channel": channel_info(channel), "outcome": outcome, "took": took}
        await self.show()


class Retry(Page):
    permission = ADMINISTER
    back = "/notifications"

    async def post(self, id: str) -> None:
        core, now = await self.services.outbound.core(), self.clock.now()
        await core.run(lambda: outbox.retry(int(id), now, core.limits))
        core.dispatcher.wake()
        self.redirect(f"{self.prefix}/notifications", status=303)


class Delete(Page):
    permission = ADMINISTER
    back = "/notifications"

    async def post(self, id: str) -> None:
        core = await self.services.outbound.core()
        await core.run(lambda: outbox.delete(int(id), self.clock.now()))
        core.dispatcher.wake()
        self.redirect(f"{self.prefix}/notifications", status=303)


routes: list[Route] = [
    (r"/notifications", Notifications),
    (r"/notifications/channels/([^/]+)/test", ChannelTest),
    (r"/notifications/([0-9]{1,18})/retry", Retry),
    (r"/notifications/([0-9]{1,18})/delete", Delete),
]
