"""Channels as rows."""

from __future__ import annotations

from pathlib import Path

from attrs import evolve
from outbound_stores import LIMITS, NOW, in_store, open_outbox, written

from models.config.settings import ServerSettings
from models.outbound import channels, outbox
from models.outbound.channels import Channel, StoredSettings
from models.outbound.outbox import Message
from models.outbound.rules import SERVER
from models.outbound.tables import store
from models.tracker.project_secrets import ProjectSecrets

RESERVE_BYTES = 4 * 1024**2
MESSAGES = 4000


def test_a_channel_with_many_messages_is_deleted_in_little_space(tmp_path: Path) -> None:
    vault = ProjectSecrets(ServerSettings(data_dir=tmp_path))

    def make() -> Channel:
        return channels.keep(None, SERVER, "hook", StoredSettings("webhook"), {}, vault, NOW)

    with open_outbox(tmp_path / "outbox.db"):
        channel = written(make)
        targets = (f"channel:{channel.id}", "channel:config:other")
        messages = [Message("notify", targets[number % 2], {"text": "x" * 4000}) for number in range(MESSAGES)]
        written(lambda: outbox.add(messages, NOW, evolve(LIMITS, max_rows=MESSAGES)))
        log = tmp_path / "outbox.db-wal"
        assert log.stat().st_size > 3 * RESERVE_BYTES
        store.limit_log(0)
        in_store(lambda: channels.delete(channel.id, SERVER, vault, NOW))
        assert in_store(outbox.counts)["PENDING"] == MESSAGES // 2
        assert 0 < log.stat().st_size < RESERVE_BYTES // 2
    vault.close()
