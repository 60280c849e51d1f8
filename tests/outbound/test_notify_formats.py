"""What each kind of channel is sent, by the verifier of Standard Webhooks and with hostile texts."""

from __future__ import annotations

import base64
import email
import email.policy
import json
import time
from typing import Any

import pytest
from standardwebhooks.webhooks import Webhook, WebhookVerificationError

from models.config.parsers import ValidationError
from models.outbound import formats
from models.outbound.channels import Channel, Credentials, StoredSettings
from models.outbound.formats import HttpMessage, Try

HOSTILE = "<!channel> @here *b* <https://evil.example|x> & [a](http://b)\r\nX-Evil: 1\x00 \u202egnp.exe"
OLD, NEW = (formats.generated_secret(bytes([number]) * 32) for number in (1, 2))
URL = "https://hooks.example/services/T0/B0/very-secret"


def payload(*titles: str, state: str = "bad", more: int = 0) -> dict[str, Any]:
    lines = [
        {"event": "process.crashed", "subject": "process:web", "state": state, "title": title, "count": 1,
         "at": "2026-11-27T10:00:00Z", "link": "/processes/web"}
        for title in titles
    ]  # fmt: skip
    data = {"rule": "all", "title": titles[0], "lines": lines, "more": more}
    return {"type": "process.crashed", "timestamp": "2026-11-27T10:00:00Z", "data": data}


def made(type: str, content: dict[str, Any], **more: Any) -> HttpMessage:
    names = {"preset", "priority"}
    settings = StoredSettings(type, **{name: value for name, value in more.items() if name in names})
    found = Credentials(url=URL, **{name: value for name, value in more.items() if name not in names})
    trial = Try("msg_1", int(time.time()), "https://p.example")
    return formats.http_message(Channel("c", 0, "team", settings), found, content, trial)


def test_a_webhook_is_verified_by_standardwebhooks_with_both_secrets() -> None:
    message = made("webhook", payload("web crashed"), secret=NEW, old_secret=OLD)
    for secret in (OLD, NEW):
        found = Webhook(secret).verify(message.body, dict(message.headers))
        assert found["data"]["lines"][0]["link"] == "https://p.example/processes/web"
    with pytest.raises(WebhookVerificationError):
        Webhook(formats.generated_secret(b"3" * 32)).verify(message.body, dict(message.headers))
    with pytest.raises(WebhookVerificationError):
        Webhook(NEW).verify(message.body + b" ", dict(message.headers))


@pytest.mark.parametrize("secret", ["whsec_", "secret", "whsec_!!!!", "whsec_" + base64.b64encode(b"short").decode()])
def test_a_secret_that_is_none_is_refused_and_not_shown(secret: str) -> None:
    with pytest.raises(ValidationError) as refused:
        made("webhook", payload("x"), secret=secret)
    assert str(refused.value) == "must be whsec_ and 24 to 64 bytes in base64"


@pytest.mark.parametrize(
    ("type", "most"), [("webhook", 20_000), ("slack", 28_000), ("teams", 28_000), ("post", 20_000)]
)
def test_a_message_has_a_limit_and_says_how_many_lines_it_lacks(type: str, most: int) -> None:
    body = made(type, payload(*(f"{number} " + "\N{SNOWMAN}" * 300 for number in range(50))), secret=NEW).body
    assert most - 4000 < len(body) <= most
    assert json.loads(body)
    if type == "webhook":
        data = json.loads(body)["data"]
        assert len(data["lines"]) + data["more"] == 50
    else:
        assert b'"more":' in body or b"and " in body


def test_slack_markup_and_mentions_of_a_text_are_not_live() -> None:
    body = json.loads(made("slack", payload(HOSTILE)).body)
    for text in (body["text"], body["attachments"][0]["text"], body["attachments"][0]["fallback"]):
        assert "<!channel>" not in text
        assert "@here" not in text
        assert "*b*" not in text
        assert "evil.example|x>" not in text.replace("&gt;", "")
        assert "[a](" not in text
        assert "\u202e" not in text
    assert body["attachments"][0]["text"].endswith(" <https://p.example/processes/web|open>")
    assert body["attachments"][0]["color"] == "#c0392b"


def test_a_card_for_teams_has_text_runs_which_have_no_markup() -> None:
    (attachment,) = json.loads(made("teams", payload(HOSTILE, state="good")).body)["attachments"]
    card = attachment["content"]
    assert (attachment["contentType"], card["version"]) == ("application/vnd.microsoft.card.adaptive", "1.4")
    assert {block["type"] for block in card["body"]} == {"RichTextBlock"}
    run = card["body"][1]["inlines"][0]
    assert (run["color"], run["selectAction"]["url"]) == ("good", "https://p.example/processes/web")
    assert "\n" not in run["text"]


def test_headers_of_ntfy_hold_no_line_of_an_event() -> None:
    message = made("post", payload(HOSTILE), preset="ntfy", token="tk_1")
    assert (message.token, message.headers["Priority"], message.headers["Tags"]) == ("tk_1", "4", "x")
    assert all(value.isascii() and value.isprintable() for value in message.headers.values())
    assert message.body.decode().startswith("\N{CROSS MARK} <!channel>")
    snow = made("post", payload("\N{SNOWMAN} fell"), preset="ntfy", priority=9).headers
    assert (snow["Title"], snow["Priority"]) == ("=?utf-8?b?4piDIGZlbGw=?=", "5")


def test_gotify_text_and_json() -> None:
    message = made("post", payload("web crashed"), preset="gotify", token="app", priority=8)
    assert (message.token_header, message.auth_scheme, message.token) == ("X-Gotify-Key", "", "app")
    body = json.loads(message.body)
    assert (body["title"], body["priority"]) == ("web crashed", 8)
    assert "https://p.example/processes/web" in body["message"]
    assert made("post", payload("web crashed"), preset="text").body.decode().endswith("processes/web")
    assert json.loads(made("post", payload("web crashed"), preset="json").body)["type"] == "process.crashed"


def test_a_mail_has_no_header_of_an_event_and_one_id() -> None:
    trial = Try("msg_7", 1_763_000_000, None)
    raw = formats.mail("ops@example.com", ["a@example.com", "b@example.com"], payload(HOSTILE), trial).as_bytes()
    found = email.message_from_bytes(raw, policy=email.policy.default)
    assert found["X-Evil"] is None
    assert found["Message-ID"] == "<msg_7@example.com>"
    assert found["To"] == "a@example.com, b@example.com"
    assert found["Auto-Submitted"] == "auto-generated"
    assert "\N{CROSS MARK} <!channel>" in found.get_content()
    assert "None" not in found.get_content()


def test_what_is_secret_is_in_no_representation() -> None:
    message = made("webhook", payload("x"), secret=NEW, token="tok-secret")
    shown = repr((message, Credentials(url=URL, secret=NEW, token="tok-secret", old_secret=OLD)))
    assert not any(secret in shown for secret in (URL, NEW, OLD, "tok-secret"))
