"""A mail server for tests, which keeps what arrives."""

from __future__ import annotations

import contextlib
import email
import email.policy
from collections.abc import Iterator
from typing import Any

from aiosmtpd.controller import Controller
from aiosmtpd.smtp import Envelope, Session
from conftest import free_port


class Mailbox:
    """Keeps what arrives; refuses recipients of refused.example, and once those of `later`."""

    def __init__(self) -> None:
        self.mails: list[Any] = []
        self.recipients: list[str] = []
        self.later: list[str] = []
        self.is_busy = False

    async def handle_RCPT(
        self, server: Any, session: Session, envelope: Envelope, address: str, options: list[str]
    ) -> str:
        if address.endswith("@refused.example"):
            return "550 no such mailbox"
        if address in self.later:
            self.later.remove(address)
            return "451 greylisted"
        envelope.rcpt_tos.append(address)
        return "250 OK"

    async def handle_DATA(self, server: Any, session: Session, envelope: Envelope) -> str:
        if self.is_busy:
            return "452 out of space"
        assert isinstance(envelope.content, bytes)
        self.mails.append(email.message_from_bytes(envelope.content, policy=email.policy.default))
        self.recipients += envelope.rcpt_tos
        return "250 OK"


@contextlib.contextmanager
def open_mailbox() -> Iterator[tuple[Mailbox, int]]:
    """A mail server on loopback without TLS and login, and its port."""
    box = Mailbox()
    controller = Controller(box, "127.0.0.1", free_port(), ready_timeout=60)
    controller.start()
    try:
        yield box, controller.port
    finally:
        controller.stop()
