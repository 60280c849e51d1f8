"""What each kind of channel is sent: HTTP requests and mails, made from the payload of a message.

All text of events is untrusted: it is escaped for each format, cut, and stands in no header unencoded.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import re
from collections.abc import Callable, Mapping, Sequence
from email.header import Header
from email.message import EmailMessage
from email.utils import formatdate, parseaddr
from typing import Any

from attrs import field, frozen

from models.config.secret_files import SIGNING_PREFIX, signing_key
from models.outbound.channels import Channel, Credentials

MAX_WEBHOOK_BYTES = 20 * 1000
MAX_CARD_BYTES = 28 * 1000
MAX_TEXT_BYTES = 4000
"""What ntfy takes as a message, and not as an attachment."""
_SYMBOLS = {"bad": "\N{CROSS MARK}", "good": "\N{WHITE HEAVY CHECK MARK}", "info": "\N{INFORMATION SOURCE}"}
_COLORS = {"bad": "#c0392b", "good": "#2e8b57", "info": "#607d8b"}
_CARD_COLORS = {"bad": "attention", "good": "good", "info": "default"}
_CONTROLS = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069]+")


@frozen
class HttpMessage:
    """A request. `token` goes into `token_header`, after `auth_scheme`."""

    url: str = field(repr=False)
    body: bytes = field(repr=False)
    """Empty: none."""
    headers: Mapping[str, str] = field(repr=False)
    token: str | None = field(default=None, repr=False)
    token_header: str = "Authorization"  # noqa: S105 (a header)
    auth_scheme: str = "Bearer"
    method: str = "POST"


@frozen
class Try:
    """One try to send a message: its fixed id, the time in seconds, and the address of the server for links."""

    message_id: str
    at: int
    public_url: str | None


def generated_secret(random: bytes) -> str:
    return SIGNING_PREFIX + base64.b64encode(random).decode()


def plain(text: str) -> str:
    """A text on one line, without control characters and those that change the direction."""
    return _CONTROLS.sub(" ", text)


def absolute(payload: Mapping[str, Any], public_url: str | None) -> dict[str, Any]:
    """The payload with links that have the server's address; without one it has none."""
    data = payload["data"]
    lines = [
        {**line, "link": f"{public_url}{line['link']}" if public_url and line["link"] else None}
        for line in data["lines"]
    ]
    return {**payload, "data": {**data, "lines": lines}}


def http_message(channel: Channel, found: Credentials, payload: Mapping[str, Any], trial: Try) -> HttpMessage:
    """The request for a channel that has a URL. Raises `ValidationError` for a secret that is none."""
    make = _MAKERS[channel.settings.type]
    return make(channel, found, absolute(payload, trial.public_url), trial)


def _json(value: Any) -> bytes:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode("utf-8", "replace")


def _cut(payload: Mapping[str, Any], make: Callable[[Mapping[str, Any]], Any], most: int) -> bytes:
    """What `make` makes of the payload, with as many lines as fit."""
    data = payload["data"]
    lines, more = list(data["lines"]), data["more"]
    while len(body := _json(make({**payload, "data": {**data, "lines": lines, "more": more}}))) > most and lines:
        dropped = max(1, len(lines) // 8)
        lines, more = lines[:-dropped], more + dropped
    return body


def _webhook(channel: Channel, found: Credentials, payload: Mapping[str, Any], trial: Try) -> HttpMessage:
    body = _cut(payload, lambda fitting: fitting, MAX_WEBHOOK_BYTES)
    signed = f"{trial.message_id}.{trial.at}.".encode() + body
    signatures = []
    for secret in (found.secret, found.old_secret):
        if secret is not None:
            digest = hmac.new(signing_key(secret), signed, hashlib.sha256).digest()
            signatures.append(f"v1,{base64.b64encode(digest).decode()}")
    headers = {
        "Content-Type": "application/json",
        "webhook-id": trial.message_id,
        "webhook-timestamp": str(trial.at),
        **({"webhook-signature": " ".join(signatures)} if signatures else {}),
    }
    return HttpMessage(found.url or "", body, headers)


def _escaped(text: str) -> str:
    """For Slack and what follows its format: no link, mention or markup of a text is live."""
    text = plain(text).replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    return re.sub(r"([*_~`@#:\[\]()])", "\\1\N{WORD JOINER}", text)


def _slack(channel: Channel, found: Credentials, payload: Mapping[str, Any], trial: Try) -> HttpMessage:
    def make(fitting: Mapping[str, Any]) -> Mapping[str, Any]:
        data = fitting["data"]
        shown = [
            {
                "color": _COLORS[line["state"]],
                "fallback": _escaped(line["title"]),
                "text": _escaped(line["title"]) + (f" <{line['link']}|open>" if line["link"] else ""),
            }
            for line in data["lines"]
        ]
        more = [{"color": _COLORS["info"], "fallback": _more(data), "text": _more(data)}] if data["more"] else []
        return {"text": f"{_symbol(data)} {_escaped(data['title'])}", "attachments": [*shown, *more]}

    return HttpMessage(found.url or "", _cut(payload, make, MAX_CARD_BYTES), {"Content-Type": "application/json"})


def _teams(channel: Channel, found: Credentials, payload: Mapping[str, Any], trial: Try) -> HttpMessage:
    """Text runs have no markup, unlike text blocks."""

    def make(fitting: Mapping[str, Any]) -> Mapping[str, Any]:
        data = fitting["data"]
        blocks = [_runs({"text": plain(data["title"]), "weight": "bolder", "size": "medium"})]
        for line in data["lines"]:
            action = {"selectAction": {"type": "Action.OpenUrl", "url": line["link"]}} if line["link"] else {}
            blocks.append(_runs({"text": plain(line["title"]), "color": _CARD_COLORS[line["state"]], **action}))
        if data["more"]:
            blocks.append(_runs({"text": _more(data)}))
        card = {
            "$schema": "http://adaptivecards.io/schemas/adaptive-card.json",
            "type": "AdaptiveCard",
            "version": "1.4",
            "body": blocks,
        }
        attachment = {"contentType": "application/vnd.microsoft.card.adaptive", "contentUrl": None, "content": card}
        return {"type": "message", "attachments": [attachment]}

    return HttpMessage(found.url or "", _cut(payload, make, MAX_CARD_BYTES), {"Content-Type": "application/json"})


def _runs(run: Mapping[str, Any]) -> Mapping[str, Any]:
    return {"type": "RichTextBlock", "inlines": [{"type": "TextRun", **run}]}


def _post(channel: Channel, found: Credentials, payload: Mapping[str, Any], trial: Try) -> HttpMessage:
    url, token, data = found.url or "", found.token, payload["data"]
    preset, priority = channel.settings.preset, channel.settings.priority
    if preset == "gotify":
        message = {"title": plain(data["title"])[:250], "message": text_of(data), "priority": priority or 5}
        headers = {"Content-Type": "application/json"}
        return HttpMessage(url, _json(message), headers, token, "X-Gotify-Key", "")
    if preset == "json":
        body = _cut(payload, lambda fitting: fitting, MAX_WEBHOOK_BYTES)
        return HttpMessage(url, body, {"Content-Type": "application/json"}, token)
    body = text_of(data, MAX_TEXT_BYTES).encode("utf-8", "replace")
    headers = {"Content-Type": "text/plain; charset=utf-8"}
    if preset == "ntfy":
        headers["Title"] = _encoded(data["title"])
        headers["Priority"] = str(min(max(priority or (4 if _worst(data) == "bad" else 3), 1), 5))
        headers["Tags"] = {"bad": "x", "good": "white_check_mark", "info": "information_source"}[_worst(data)]
    return HttpMessage(url, body, headers, token)


_MAKERS = {"webhook": _webhook, "slack": _slack, "teams": _teams, "post": _post}


def _encoded(text: str) -> str:
    """A text for a header: encoded by RFC 2047 on one line, unless it is ASCII."""
    text = plain(text)[:200]
    return text if text.isascii() else Header(text, "utf-8", maxlinelen=10_000).encode().replace("\n", "")


def _worst(data: Mapping[str, Any]) -> str:
    states = {line["state"] for line in data["lines"]}
    return next((state for state in ("bad", "good", "info") if state in states), "info")


def _symbol(data: Mapping[str, Any]) -> str:
    return _SYMBOLS[_worst(data)]


def _more(data: Mapping[str, Any]) -> str:
    return f"and {data['more']} more"


def text_of(data: Mapping[str, Any], most: int = MAX_WEBHOOK_BYTES) -> str:
    """The message as plain text, with the links."""
    rows: list[str] = []
    left = most
    for line in data["lines"]:
        row = f"{_SYMBOLS[line['state']]} {plain(line['title'])}" + (f"\n  {line['link']}" if line["link"] else "")
        left -= len(row.encode("utf-8", "replace")) + 1
        if left < 0:
            break
        rows.append(row)
    more = data["more"] + len(data["lines"]) - len(rows)
    if more:
        rows.append(f"and {more} more")
    return "\n".join(rows) or plain(data["title"])


def by_profile(trial: Try) -> str:
    """Why an account gets a mail."""
    where = f": {trial.public_url}/profile" if trial.public_url else ""
    return f"Sent because of the mails that are chosen in your profile{where}"


def mail(
    sender: str, to: Sequence[str], payload: Mapping[str, Any], trial: Try, reason: str | None = None
) -> EmailMessage:
    """The message as a mail in plain text, with the same `Message-ID` on every try. `reason`: why it is sent."""
    data = absolute(payload, trial.public_url)["data"]
    made = EmailMessage()
    host = parseaddr(sender)[1].rpartition("@")[2]
    made["From"] = sender
    made["To"] = ", ".join(to)
    made["Subject"] = plain(f"[Pilothouse] {data['title']}")[:250]
    made["Date"] = formatdate(trial.at)
    made["Message-ID"] = f"<{trial.message_id}@{host}>"
    made["Auto-Submitted"] = "auto-generated"
    if data.get("rule"):
        reason = f"Sent by the rule {plain(data['rule'])} of Pilothouse."
    made.set_content(text_of(data) + (f"\n\n-- \n{reason}\n" if reason else "\n"))
    return made
