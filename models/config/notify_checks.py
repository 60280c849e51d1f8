"""Checks between the properties of the section `notify`."""

from __future__ import annotations

from collections.abc import Iterator

from models.config import parsers, secret_files
from models.config.parsers import ValidationError
from models.config.settings import ChannelSettings, NotifySettings, SmtpSettings

MAX_RECIPIENTS = 50
_SECRETS = ("url", "secret", "token")


def faults(notify: NotifySettings) -> Iterator[tuple[str, object]]:
    """Each fault with the path of its property."""
    for name, channel in notify.channels.items():
        yield from _of_channel(f"notify.channels.{name}", channel, notify)
    names = [rule.name for rule in notify.rules]
    for place, rule in enumerate(notify.rules):
        at = f"notify.rules[{place}]"
        if names.index(rule.name) != place:
            yield at, f"the name {parsers.shown(rule.name)} is given twice"
        for channel_name in (
            rule.channels if isinstance(rule.channels, tuple) else ()
        ):  # else its fault is reported already
            if channel_name not in notify.channels:
                known = parsers.suggestion(channel_name, notify.channels)
                yield at, f"{parsers.shown(channel_name)} is not a channel of notify.channels{known}"
    yield from _of_smtp(notify.smtp)


def _of_smtp(smtp: SmtpSettings) -> Iterator[tuple[str, object]]:
    if smtp.tls == "none" and smtp.username is not None and smtp.host not in ("localhost", "127.0.0.1", "::1"):
        yield "notify.smtp.tls", "none would send the password in plain text to another machine"
    yield from secret_files.faults("notify.smtp", "password", smtp.password, smtp.password_file)


def _of_channel(at: str, channel: ChannelSettings, notify: NotifySettings) -> Iterator[tuple[str, object]]:
    for name in _SECRETS:
        yield from secret_files.faults(at, name, getattr(channel, name), getattr(channel, f"{name}_file"))
    if channel.type == "email":
        if not channel.to or len(channel.to) > MAX_RECIPIENTS:
            yield f"{at}.to", f"must have 1 to {MAX_RECIPIENTS} addresses"
        if notify.smtp.host is None:
            yield at, "mail needs notify.smtp.host"
    elif channel.url is None and channel.url_file is None:
        yield at, f"type {channel.type} needs url or url-file"
    if channel.type == "webhook":
        yield from _of_secret(at, channel)


def _of_secret(at: str, channel: ChannelSettings) -> Iterator[tuple[str, object]]:
    if channel.secret is None and channel.secret_file is None:
        yield at, "type webhook needs secret or secret-file"
    elif channel.secret is not None:
        try:
            secret_files.signing_key(channel.secret)
        except ValidationError as why:
            yield f"{at}.secret", why
