"""Times in query parameters, by RFC 3339."""

from __future__ import annotations

import pytest

from handlers.http.serializers import duration_text
from models.errors import Invalid
from models.json_format import read_rfc3339, rfc3339

AT = 1_795_514_400_000_000


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("2026-11-24T10:00:00Z", AT),
        ("2026-11-24T12:00:00+02:00", AT),
        ("2026-11-24T12:00:00 02:00", AT),
        ("2026-11-24T10:00:00.000001Z", AT + 1),
        ("2026-11-24T10:00:00", AT),
        ("2026-11-24", AT - 36_000_000_000),
        ("9999-12-31T23:59:59.999999Z", 253_402_300_799_999_999),
        ("0001-01-01T00:00:00Z", -62_135_596_800_000_000),
    ],
)
def test_a_time_is_read_in_microseconds(text: str, expected: int) -> None:
    assert read_rfc3339("since", text, zone_needed=False) == expected
    assert read_rfc3339("since", rfc3339(expected)) == expected


@pytest.mark.parametrize(
    "text",
    ["", "yesterday", "10:00", "2026-13-01T00:00:00Z", "0001-01-01T00:00:00+23:59x", "0001-01-01T00:00:00+00:01",
     "9999-12-31T23:59:59-00:01", "2026-11-24T10:00:60Z"],
)  # fmt: skip
def test_an_invalid_time_is_refused_with_the_name_of_its_parameter(text: str) -> None:
    with pytest.raises(Invalid, match="since must be a time by RFC 3339"):
        read_rfc3339("since", text, zone_needed=False)


@pytest.mark.parametrize("text", ["2026-11-24T10:00:00", "2026-11-24"])
def test_a_zone_can_be_required(text: str) -> None:
    with pytest.raises(Invalid, match="from needs a zone"):
        read_rfc3339("from", text)


@pytest.mark.parametrize(
    ("seconds", "expected"), [(-7200, "0s"), (59.9, "59s"), (3600, "1h 0m"), (2 * 86_400 + 60, "2d 0h 1m")]
)
def test_a_duration_is_text_and_never_negative(seconds: float, expected: str) -> None:
    """The clock may be set back between the beginning and the end."""
    assert duration_text(round(seconds * 1_000_000)) == expected
