"""Large messages of agents: what is taken out of them, and what is refused."""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping
from typing import Any

import pytest

from models.charts.tool_messages import Kind, SmallMessage, shortened
from models.errors import TooLarge

KINDS: Mapping[str, Mapping[str, Kind]] = {"push": {"chart": "file"}, "render": {"values": "values", "chart": "file"}}


def message(tool: str, arguments: Any) -> bytes:
    return json.dumps({"id": 1, "params": {"name": tool, "arguments": arguments}}).encode()


def arguments_of(small: SmallMessage) -> Any:
    return json.loads(small.body)["params"]["arguments"]


def test_values_and_files_are_taken_out_of_the_calls_that_have_them() -> None:
    data = bytes(range(256)) * 1000
    packed = base64.encodebytes(data).decode()
    small = shortened(message("render", {"values": {"b": "x" * 90_000}, "chart": packed, "name": "a"}), KINDS)
    assert arguments_of(small) == {"values": {small.mark: True}, "chart": small.mark, "name": "a"}
    assert small.moved["chart"].data == data
    assert json.loads(small.moved["values"].data) == {"b": "x" * 90_000}


def test_other_large_arguments_are_refused_in_the_call_and_other_large_messages_at_once() -> None:
    for tool, arguments in (("push", {"values": {"b": "x" * 90_000}}), ("other", {"chart": "x" * 90_000})):
        small = shortened(message(tool, arguments), KINDS)
        assert (arguments_of(small), small.moved) == ({}, {})
        assert small.refusal == "the body is larger than 65536 bytes besides the values and archive of a chart"
    huge = shortened(message("other", {"a": "x" * 1024 * 1024}), KINDS)
    assert huge.refusal == "the body is larger than 1048576 bytes"
    with pytest.raises(TooLarge, match="65536"):
        shortened(json.dumps({"id": "x" * 90_000}).encode(), KINDS)


@pytest.mark.parametrize(
    ("arguments", "name", "fault"),
    [
        ({"chart": "no!" * 30_000}, "chart", "chart: must be a file as base64"),
        ({"values": {"a": "x" * 1024 * 1024}}, "values", "the body is larger than 1048576 bytes"),
        ({"values": {"a": float("nan"), "b": "x" * 70_000}}, "values", "the body has a number that is not finite"),
        ({"values": {"a": "\0" + "x" * 70_000}}, "values", "values: must not contain a NUL"),
    ],
)
def test_what_cannot_be_used_has_the_message_of_a_small_call(arguments: Any, name: str, fault: str) -> None:
    small = shortened(message("render", arguments), KINDS)
    assert small.moved[name].fault.startswith(fault)


@pytest.mark.parametrize("body", [b" " * 70_000, b"[" * 70_000, b"\xff" * 70_000])
def test_a_message_that_is_no_json_stays_one(body: bytes) -> None:
    assert shortened(body, KINDS) == SmallMessage(b"{", "", {})


@pytest.mark.parametrize("body", [b"[1]", b'"x"', b'{"params": [1]}', b'{"params": {"name": 1, "arguments": []}}'])
def test_other_json_stays_as_it_is(body: bytes) -> None:
    small = shortened(body, KINDS)
    assert (json.loads(small.body), small.moved) == (json.loads(body), {})
