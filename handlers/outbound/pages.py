"""The page of what is sent: dead messages first, then channels with a button that tests each, rules and deliveries."""

from __future__ import annotations

from handlers.base import HtmlPage, write_page
from handlers.http.permissions import ADMINISTER
from handlers.outbound.channels import ChannelInfo, ChannelTest, get_channel, list_channels, test_channel
from handlers.outbound.outbox import DeliveryInfo, MessageRequest, delete_message, delivery_info, retry_message
from handlers.outbound.rules import list_rules
from handlers.outbound.scopes import OneOfServer
from handlers.routing import Route
from models.outbound import outbox
from models.paging import INT64

_SHOWN = 50
STATE_KINDS = {"PENDING": "busy warn", "DONE": "good", "DEAD": "bad", "SUPERSEDED": ""}


class Notifications(HtmlPage):
    permission = ADMINISTER
    back = "/notifications"
    tested: ChannelTest | None = None
    """The outcome of the test that was just made, of `tested_channel`."""
    tested_channel: ChannelInfo | None = None

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
            tested_channel=self.tested_channel,
        )


class ChannelTestForm(Notifications):
    """Tests a channel, and shows the page with the answer."""

    async def post(self, id: str) -> None:
        request = OneOfServer(id=id)
        self.tested_channel = await get_channel(self, request)
        self.tested = await test_channel(self, request)
        await self.show()


class MessageForm(HtmlPage):
    permission = ADMINISTER
    back = "/notifications"

    def leave(self) -> None:
        self.redirect(f"{self.prefix}/notifications", status=303)


class Retry(MessageForm):
    async def post(self, id: str) -> None:
        await retry_message(self, MessageRequest(id=int(id)))
        self.leave()


class Delete(MessageForm):
    async def post(self, id: str) -> None:
        await delete_message(self, MessageRequest(id=int(id)))
        self.leave()


routes: list[Route] = [
    (r"/notifications", Notifications),
    (r"/notifications/channels/([^/]+)/test", ChannelTestForm),
    (r"/notifications/([0-9]{1,18})/retry", Retry),
    (r"/notifications/([0-9]{1,18})/delete", Delete),
]
