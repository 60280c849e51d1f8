"""Sends notifications to their channels, and keeps the channels and rules in memory."""

from __future__ import annotations

import asyncio
import ssl
import time
from collections.abc import Mapping, Sequence
from typing import Any

import peewee

from models.accounts.accounts import User
from models.config import parsers
from models.config.parsers import ValidationError
from models.config.settings import Config
from models.errors import Problem
from models.outbound import account_mails, channels, formats, rules
from models.outbound.channels import Channel, Credentials
from models.outbound.formats import Try
from models.outbound.outbox import Delivery, DeliveryOutcome
from models.outbound.rules import Rule
from models.storage.store import MAX_QUERY_SECONDS
from models.tracker.project_secrets import ProjectSecrets
from models.tracker.tables import reports
from supervisor.clock import Clock
from supervisor.http.client import GuardedClient, Lookup
from supervisor.http.outbound import outbound_rules
from supervisor.outbound.dispatcher import Run
from supervisor.outbound.mail import Mailer, server_of
from supervisor.outbound.requests import send, without_secrets

_GONE = 410
TARGET = "channel:"
_MAX_REMAINING = 1000


class Notifier:
    def __init__(
        self, config: Config, clock: Clock, run: Run, secrets: ProjectSecrets, lookup: Lookup | None = None
    ) -> None:
        """`run` runs work on the store in a thread."""
        self.rules: dict[str, Rule] = {}
        self.channels: dict[str, Channel] = {}
        self.secrets = secrets
        self._config = config
        self._clock = clock
        self._run = run
        self._client = GuardedClient(outbound_rules(config.server.outbound), lookup)
        self._mailer = Mailer(self._tls)
        self._remaining: dict[str, list[str]] = {}
        """The recipients that a mail has not reached, by message id. After a restart all get it once more."""

    @property
    def has_mail(self) -> bool:
        """Whether accounts can get mails."""
        return self._config.notify.has_mail

    @property
    def is_used(self) -> bool:
        """Whether there is anybody to notify."""
        return bool(self.rules) or self.has_mail

    def _tls(self) -> ssl.SSLContext:
        context = ssl.create_default_context()
        if (ca_file := self._config.server.outbound.ca_file) is not None:
            context.load_verify_locations(ca_file)
        return context

    def read(self) -> None:
        """Reads the channels and rules, for a thread: another node may have changed them."""
        notify = self._config.notify
        found = [*channels.of_config(notify.channels), *channels.stored()]
        kept = [*rules.of_config(notify.rules), *rules.stored()] if notify.enabled else []
        self.channels = {channel.id: channel for channel in found}
        self.rules = {rule.id: rule for rule in kept}

    async def send(self, delivery: Delivery) -> DeliveryOutcome:
        """One try of a message to a channel, or of a mail to an account."""
        if delivery.target.startswith(account_mails.PREFIX):
            return await self._mail_to_account(delivery)
        id = delivery.target.removeprefix(TARGET)
        channel = self.channels.get(id)
        if channel is None or not channel.is_configured:
            channel = await self._run(lambda: self._stored(id))
        if channel is None:
            return DeliveryOutcome(False, None, "the channel does not exist any more", is_final=True)
        if not channel.is_enabled:
            reason = channel.reason or "it was switched off"
            return DeliveryOutcome(False, None, f"the channel is disabled: {reason}", is_final=True)
        outcome = await self.send_to(channel, delivery.content, delivery.message_id)
        if outcome.status == _GONE and channel.settings.type == "webhook" and not channel.is_configured:
            await self._run(lambda: channels.disable(id, "its target answered 410 (gone)"))
            await self._run(self.read)
        return outcome

    @staticmethod
    def _stored(id: str) -> Channel | None:
        try:
            return channels.get(id)
        except Problem:
            return None

    async def send_to(self, channel: Channel, payload: Mapping[str, Any], message_id: str) -> DeliveryOutcome:
        """Sends a payload to a channel once."""
        now = self._clock.now()
        found = Credentials()
        try:
            found = await asyncio.to_thread(channels.credentials, channel, self.secrets, now)
            if lack := channels.check_complete(channel, found):
                return DeliveryOutcome(False, None, f"the channel cannot be used: {lack}", is_final=True)
            trial = Try(message_id, int(time.time()), self._config.server.public_url)
            if channel.settings.type == "email":
                return await self._mail(channel.settings.to, payload, trial)
            message = formats.http_message(channel, found, payload, trial)
        except ValidationError as fault:
            return DeliveryOutcome(False, None, f"the channel cannot be used: {fault}", is_final=True)
        except Problem as problem:
            return DeliveryOutcome(False, None, without_secrets(problem.message, None, _secrets(found)))
        outcome, _ = await send(self._client, message, _secrets(found), self._config.server.outbound.max_answer)
        return outcome

    async def _mail_to_account(self, delivery: Delivery) -> DeliveryOutcome:
        def read() -> User | None:
            return reports.run_with_timeout(lambda: account_mails.recipient(delivery.target), MAX_QUERY_SECONDS)

        try:
            user = await asyncio.to_thread(read)
            if user is None:
                return DeliveryOutcome(False, None, "the account does not get this mail any more", is_final=True)
            trial = Try(delivery.message_id, int(time.time()), self._config.server.public_url)
            to = [parsers.mail_address(user.email or "")]
            return await self._mail(to, delivery.content, trial, formats.by_profile(trial))
        except ValidationError as fault:
            return DeliveryOutcome(False, None, f"the mail cannot be sent: {fault}", is_final=True)
        except (Problem, peewee.PeeweeException) as error:
            return DeliveryOutcome(False, None, f"the account cannot be read: {error}")

    async def _mail(
        self, recipients: Sequence[str], payload: Mapping[str, Any], trial: Try, reason: str | None = None
    ) -> DeliveryOutcome:
        settings = self._config.notify.smtp
        server = await asyncio.to_thread(server_of, settings)
        if server is None:
            return DeliveryOutcome(False, None, "there is no mail server (notify.smtp.host)", is_final=True)
        sender = settings.from_ or f"pilothouse@{server.host}"
        to = list(recipients)
        left = self._remaining.get(trial.message_id, to)
        outcome = await self._mailer.send(server, formats.mail(sender, to, payload, trial, reason), left)
        if outcome.is_delivered or outcome.is_final:
            self._remaining.pop(trial.message_id, None)
        elif outcome.remaining:
            self._remaining[trial.message_id] = list(outcome.remaining)
            if len(self._remaining) > _MAX_REMAINING:  # the oldest, which may have expired
                del self._remaining[next(iter(self._remaining))]
        return outcome


def _secrets(found: Credentials) -> list[str | None]:
    return [found.secret, found.token, found.old_secret]
