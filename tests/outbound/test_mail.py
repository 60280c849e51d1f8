"""Mail by a real SMTP server: STARTTLS, a certificate that is not trusted, a wrong password, a server that hangs."""

from __future__ import annotations

import asyncio
import contextlib
import email
import email.policy
import socket
import ssl
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import trustme
from aiosmtpd.controller import Controller
from aiosmtpd.smtp import AuthResult, Envelope, LoginPassword, Session
from conftest import Serve, free_port
from mailboxes import Mailbox
from outbound_stores import FixedClock
from receivers import FAST_RULE, Admin, hanging_port, listening

from models.config.settings import ChannelSettings, Config, NotifySettings, ServerSettings, SmtpSettings
from models.outbound import channels
from models.tracker.project_secrets import ProjectSecrets
from supervisor.outbound import mail
from supervisor.outbound import notifier as notifier_module
from supervisor.outbound.mail import Mailer, MailServer
from supervisor.outbound.notifier import Notifier

BOOM = {"command": ["sh", "-c", "exit 3"], "restart": "never"}
PASSWORD = "correct-mail-password"


def authenticate(server: Any, session: Session, envelope: Envelope, mechanism: str, data: LoginPassword) -> AuthResult:
    is_right = (data.login, data.password) == (b"pilot", PASSWORD.encode())
    return AuthResult(success=is_right, handled=is_right)  # not handled: aiosmtpd answers 535


@pytest.fixture(scope="module")
def authority() -> trustme.CA:
    return trustme.CA()


@pytest.fixture
def mailbox() -> Mailbox:
    return Mailbox()


@pytest.fixture
def smtp_port(authority: trustme.CA, mailbox: Mailbox) -> Iterator[int]:
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    authority.issue_cert("localhost", "127.0.0.1").configure_cert(context)
    controller = Controller(
        mailbox, "127.0.0.1", free_port(), tls_context=context, require_starttls=True, authenticator=authenticate,
        auth_required=True, ready_timeout=60,
    )  # fmt: skip
    controller.start()
    yield controller.port
    controller.stop()


@pytest.fixture
def ca_file(authority: trustme.CA, tmp_path: Path) -> str:
    authority.cert_pem.write_to_path(tmp_path / "ca.pem")
    return str(tmp_path / "ca.pem")


def sections(port: int, ca_file: str | None, *to: str, **smtp: Any) -> dict[str, Any]:
    channel = {"type": "email", "to": list(to) or ["team@example.com"]}
    server = {"host": "127.0.0.1", "port": port, "username": "pilot", "password": PASSWORD, "from": "ops@example.com"}
    return {
        "server": {"outbound": {"ca-file": ca_file}} if ca_file else {},
        "notify": {"smtp": {**server, **smtp}, "channels": {"team": channel}, "rules": [FAST_RULE]},
    }


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_mail_by_starttls_with_a_login(serve: Serve, smtp_port: int, ca_file: str, mailbox: Mailbox) -> None:
    server = serve({"boom": BOOM}, **sections(smtp_port, ca_file, "a@example.com", "b@example.com"))
    server.do("start", "boom")
    (row,) = Admin(server).until_outbox("DONE")
    (mail,) = mailbox.mails
    assert mail["Subject"] == "[Pilothouse] boom ended with exit code 3"
    assert (mail["Message-ID"], row["status"]) == (f"<{row['messageId']}@example.com>", 250)
    assert mailbox.recipients == ["a@example.com", "b@example.com"]
    assert "boom ended with exit code 3" in mail.get_content()


def test_a_certificate_that_is_not_trusted(serve: Serve, smtp_port: int, mailbox: Mailbox) -> None:
    server = serve({}, **sections(smtp_port, None))
    answer = Admin(server).ask("POST", "/notify/channels/config:team/test").json
    assert (answer["delivered"], mailbox.mails) == (False, [])
    assert answer["error"].startswith("the certificate of the mail server is not valid: ")


def test_a_wrong_password_is_final_and_not_shown(serve: Serve, smtp_port: int, ca_file: str) -> None:
    server = serve({"boom": BOOM}, **sections(smtp_port, ca_file, password="wrong-mail-password"))
    server.do("start", "boom")
    (row,) = Admin(server).until_outbox("DEAD")
    assert row["status"] == 535
    assert "wrong-mail-password" not in row["error"] + server.log.read_text()


def test_a_recipient_that_is_refused_is_reported(serve: Serve, smtp_port: int, ca_file: str, mailbox: Mailbox) -> None:
    server = serve({}, **sections(smtp_port, ca_file, "a@example.com", "b@refused.example"))
    answer = Admin(server).ask("POST", "/notify/channels/config:team/test").json
    assert (answer["delivered"], answer["status"]) == (True, 550)
    assert answer["error"] == "1 recipients were refused: 550 no such mailbox"
    assert mailbox.recipients == ["a@example.com"]


@pytest.mark.parametrize("others", [[], ["c@refused.example"]])
def test_a_recipient_that_is_refused_for_now_is_tried_again_alone(
    serve: Serve, smtp_port: int, ca_file: str, mailbox: Mailbox, others: list[str]
) -> None:
    mailbox.later = ["b@example.com"]
    server = serve({"boom": BOOM}, **sections(smtp_port, ca_file, "a@example.com", "b@example.com", *others))
    server.do("start", "boom")
    (row,) = Admin(server).until_outbox("DONE")
    assert (row["attempts"], mailbox.recipients) == (2, ["a@example.com", "b@example.com"])
    assert len({mail["Message-ID"] for mail in mailbox.mails}) == 1


def test_if_all_are_refused_those_that_are_refused_for_now_are_tried_again(
    serve: Serve, smtp_port: int, ca_file: str, mailbox: Mailbox
) -> None:
    mailbox.later = ["b@example.com"]
    server = serve({"boom": BOOM}, **sections(smtp_port, ca_file, "a@refused.example", "b@example.com"))
    server.do("start", "boom")
    (row,) = Admin(server).until_outbox("DONE")
    assert (row["attempts"], mailbox.recipients) == (2, ["b@example.com"])


PAYLOAD = {"data": {"title": "boom", "rule": "all", "lines": [], "more": 0}}


def notifier_of(port: int, folder: Path) -> tuple[Notifier, channels.Channel]:
    """One that mails by this port, and a channel with two recipients."""
    smtp = SmtpSettings(host="127.0.0.1", port=port, tls="none", from_="ops@example.com")
    unused: Any = None
    secrets = ProjectSecrets(ServerSettings(data_dir=folder))
    (channel,) = channels.of_config({"team": ChannelSettings("email", to=("a@example.com", "b@example.com"))})
    return Notifier(Config(notify=NotifySettings(smtp=smtp)), FixedClock(), unused, secrets), channel


def test_the_recipients_that_are_left_are_kept_of_the_newest_messages(
    mailbox: Mailbox, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A message that expires has no last try: what is kept of it goes with the newer ones."""
    monkeypatch.setattr(notifier_module, "_MAX_REMAINING", 2)
    mailbox.later = ["b@example.com"] * 3
    controller = Controller(mailbox, "127.0.0.1", free_port(), ready_timeout=60)
    notifier, channel = notifier_of(controller.port, tmp_path)

    async def work() -> None:
        for number in range(3):
            await notifier.send_to(channel, PAYLOAD, f"msg_{number}")

    controller.start()
    try:
        asyncio.run(work())
    finally:
        controller.stop()
    assert list(notifier._remaining) == ["msg_1", "msg_2"]


def test_a_failure_between_two_tries_mails_nobody_twice(mailbox: Mailbox, tmp_path: Path) -> None:
    mailbox.later = ["b@example.com"]
    controller = Controller(mailbox, "127.0.0.1", free_port(), ready_timeout=60)
    notifier, channel = notifier_of(controller.port, tmp_path)

    async def send(is_busy: bool = False) -> int | None:
        mailbox.is_busy = is_busy
        return (await notifier.send_to(channel, PAYLOAD, "msg_1")).status

    async def three_tries() -> list[int | None]:
        return [await send(), await send(is_busy=True), await send()]

    controller.start()
    try:
        assert asyncio.run(three_tries()) == [451, 452, 250]
    finally:
        controller.stop()
    assert mailbox.recipients == ["a@example.com", "b@example.com"]
    assert notifier._remaining == {}


def test_a_server_without_tls_gets_no_password(serve: Serve, mailbox: Mailbox) -> None:
    controller = Controller(mailbox, "127.0.0.1", free_port(), ready_timeout=60)
    controller.start()
    try:
        server = serve({}, **sections(controller.port, None))
        answer = Admin(server).ask("POST", "/notify/channels/config:team/test").json
    finally:
        controller.stop()
    assert answer["error"] == "the mail server cannot be used: STARTTLS extension not supported by server."
    assert mailbox.mails == []


def test_a_mail_server_that_hangs_ends_in_an_error(serve: Serve) -> None:
    with hanging_port() as (port, _):
        server = serve({}, **sections(port, None))
        answer = Admin(server).ask("POST", "/notify/channels/config:team/test").json
    assert not answer["delivered"]
    assert "timed out" in answer["error"]


def test_a_greeting_without_end_holds_no_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    ended, pause = threading.Event(), threading.Event()

    def drip(connection: socket.socket) -> None:
        with contextlib.suppress(OSError), connection:
            while not pause.wait(0.01):
                connection.sendall(b"2")
        ended.set()

    monkeypatch.setattr(mail, "_WHOLE_SECONDS", 0.5)
    with listening(drip) as port:
        server = MailServer(SmtpSettings(host="127.0.0.1", port=port, tls="none"), "127.0.0.1")
        message = email.message.EmailMessage()
        outcome = asyncio.run(Mailer(ssl.create_default_context).send(server, message, ["a@example.com"]))
        assert outcome.error == "the mail server took longer than 0.5 s"
        assert ended.wait(30)
