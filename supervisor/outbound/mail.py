"""Sends mail, in a thread of its own: smtplib waits for the server."""

from __future__ import annotations

import asyncio
import contextlib
import smtplib
import socket
import ssl
from collections.abc import Callable, Mapping
from email.message import EmailMessage

from attrs import field, frozen

from models.config import secret_files
from models.config.parsers import MAX_REQUEST_SECONDS
from models.config.settings import SmtpSettings
from models.outbound.formats import plain
from models.outbound.outbox import MAX_ERROR_CHARACTERS, DeliveryOutcome
from supervisor.scheduling import DaemonThreads

_STEP_SECONDS = 10.0
_WHOLE_SECONDS = float(MAX_REQUEST_SECONDS)
"""Less than a lease: then the connection is closed."""
_FINAL = 500
_MAX_CONNECTIONS = 16


@frozen
class MailServer:
    """The server of `notify.smtp`, with its password."""

    settings: SmtpSettings
    host: str
    password: str | None = field(default=None, repr=False)


def server_of(settings: SmtpSettings) -> MailServer | None:
    """None where no server is configured. Raises `ValidationError`."""
    if settings.host is None:
        return None
    password = settings.password
    if settings.password_file is not None:
        password = secret_files.token_of(settings.password_file)
    return MailServer(settings, settings.host, password)


class Mailer:
    """`context` makes the TLS context; by default it trusts what the system and `server.outbound.ca-file` trust."""

    def __init__(self, context: Callable[[], ssl.SSLContext]) -> None:
        self._context = context
        self._threads = DaemonThreads(_MAX_CONNECTIONS, "mail")

    async def send(self, server: MailServer, message: EmailMessage, to: list[str]) -> DeliveryOutcome:
        """Sends to all recipients in one connection. 5xx is final, what TLS or the network says is not."""
        sending = _Sending(server, message, to, self._context)
        try:
            async with asyncio.timeout(_WHOLE_SECONDS):
                return await asyncio.get_running_loop().run_in_executor(self._threads, sending.run)
        except TimeoutError:
            return DeliveryOutcome(False, None, f"the mail server took longer than {_WHOLE_SECONDS:g} s")
        finally:
            sending.close()


class _Sending:
    """One connection to the mail server."""

    def __init__(
        self, server: MailServer, message: EmailMessage, to: list[str], context: Callable[[], ssl.SSLContext]
    ) -> None:
        self._server, self._message, self._to, self._context = server, message, to, context
        self._client: smtplib.SMTP | None = None
        self._is_closed = False

    def close(self) -> None:
        """Ends the connection, whatever it waits for; one that is being made ends before anything is sent."""
        self._is_closed = True
        if self._client is not None and (connected := self._client.sock) is not None:
            with contextlib.suppress(OSError):
                connected.shutdown(socket.SHUT_RDWR)

    def run(self) -> DeliveryOutcome:
        try:
            refused = self._send()
        except smtplib.SMTPRecipientsRefused as error:
            refused = error.recipients
        except smtplib.SMTPResponseException as error:
            return self._refused(error.smtp_code, error.smtp_error)
        except ssl.SSLCertVerificationError as error:
            return DeliveryOutcome(
                False, None, f"the certificate of the mail server is not valid: {error.verify_message}"
            )
        except (smtplib.SMTPException, OSError, ValueError) as error:
            return DeliveryOutcome(False, None, self._shown(f"the mail server cannot be used: {error}"))
        return self._outcome(refused)

    def _outcome(self, refused: Mapping[str, tuple[int, bytes]]) -> DeliveryOutcome:
        """What came of the recipients: those that are refused for now (4xx) are tried again, the others are not."""
        if not refused:
            return DeliveryOutcome(True, 250)
        later = tuple(one for one, (code, _) in refused.items() if code < _FINAL)
        code, reason = refused[later[0]] if later else next(iter(refused.values()))
        if not later and len(refused) == len(self._to):
            return self._refused(code, reason)
        number = len(later) or len(refused)
        text = self._shown(f"{number} recipients were refused: {code} {_text(reason)}")
        return DeliveryOutcome(not later, code, text, remaining=later)

    def _send(self) -> dict[str, tuple[int, bytes]]:
        settings = self._server.settings
        with self._connected() as client:
            if self._is_closed:
                raise TimeoutError("it took too long")
            if settings.tls == "starttls":
                client.starttls(context=self._context())
            if settings.username is not None:
                client.login(settings.username, self._server.password or "")
            return client.send_message(self._message, to_addrs=self._to)

    def _connected(self) -> smtplib.SMTP:
        """Connects. `close` knows the client before it is connected, because a greeting may have no end."""
        host, settings = self._server.host, self._server.settings
        if settings.tls == "tls":
            self._client = secure = smtplib.SMTP_SSL.__new__(smtplib.SMTP_SSL)
            smtplib.SMTP_SSL.__init__(secure, host, settings.port, timeout=_STEP_SECONDS, context=self._context())
            return secure
        self._client = client = smtplib.SMTP.__new__(smtplib.SMTP)
        smtplib.SMTP.__init__(client, host, settings.port, timeout=_STEP_SECONDS)
        return client

    def _refused(self, code: int, reason: bytes | str) -> DeliveryOutcome:
        is_final = code >= _FINAL
        return DeliveryOutcome(False, code, self._shown(f"{code} {_text(reason)}"), is_final)

    def _shown(self, text: str) -> str:
        password = self._server.password
        return plain(text.replace(password, "(hidden)") if password else text)[:MAX_ERROR_CHARACTERS]


def _text(reason: bytes | str) -> str:
    return reason.decode("utf-8", "replace") if isinstance(reason, bytes) else reason
