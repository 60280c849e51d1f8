"""Pictures as SVG: what they show, in which proportions, and in words."""

from __future__ import annotations

import re
from xml.etree import ElementTree

import pytest

from handlers.web import svg as pictures
from handlers.web.svg import Bar

NAMESPACE = {"s": "http://www.w3.org/2000/svg"}


def drawn(*bars: Bar, title: str = "a title", description: str = "a description") -> ElementTree.Element:
    svg = pictures.bars("name", bars, title, description)
    return ElementTree.fromstring(svg.replace("<svg ", '<svg xmlns="http://www.w3.org/2000/svg" ', 1))  # noqa: S314 (ours)


def heights(picture: ElementTree.Element, kind: str) -> list[float]:
    return [float(one.get("height", "")) for one in picture.iterfind(f".//s:rect[@class='{kind}']", NAMESPACE)]


def line(picture: ElementTree.Element) -> str:
    found = picture.find("s:path[@class='line']", NAMESPACE)
    return "" if found is None else found.get("d", "")


def test_parts_are_as_tall_as_their_amounts() -> None:
    picture = drawn(Bar([("good", 30), ("bad", 10)], "one"), Bar([("good", 20)], "two"))
    assert heights(picture, "good") == [75, 50]
    assert heights(picture, "bad") == [25]


def test_one_failure_of_ten_thousand_is_seen_and_nothing_grows_out_of_the_picture() -> None:
    picture = drawn(Bar([("good", 9_999), ("rest", 1), ("bad", 1)], "one"))
    assert min(heights(picture, "bad") + heights(picture, "rest")) >= 3
    tops = [float(one.get("y", "")) for one in picture.iterfind(".//s:g/s:rect", NAMESPACE)]
    assert min(tops) >= 0


def test_what_is_nothing_has_no_part() -> None:
    assert heights(drawn(Bar([("good", 5), ("bad", 0)], "one")), "bad") == []


@pytest.mark.parametrize("bars", [(), (Bar([], "nothing"),), (Bar([("good", 0)], "zero"),)])
def test_a_picture_of_nothing_is_a_picture(bars: tuple[Bar, ...]) -> None:
    assert heights(drawn(*bars), "good") == []


def test_the_line_goes_over_the_middle_of_the_places_and_stops_where_there_is_no_value() -> None:
    values = (0.0, 100.0, None, 50.0)
    found = line(drawn(*(Bar([("good", 1)], "one", line=value) for value in values)))
    assert re.findall(r"([ML])([\d.]+) ([\d.]+)", found) == [
        ("M", "5", "100.00"), ("L", "15", "0.00"), ("M", "35", "50.00"),
    ]  # fmt: skip


def test_without_values_there_is_no_line() -> None:
    assert line(drawn(Bar([("good", 1)], "one"))) == ""


def test_it_is_named_and_described_by_what_it_holds() -> None:
    picture = drawn(Bar([("good", 1)], "<run 1>"), title="a & b", description="<b>")
    ids = {one.get("id"): one.text for one in picture.iter() if one.get("id")}
    assert [ids[id] for id in picture.get("aria-labelledby", "").split()] == ["a & b", "<b>"]
    assert picture.get("role") == "img"
    assert picture.findtext("s:g/s:title", namespaces=NAMESPACE) == "<run 1>"


def test_what_failed_is_washed_whole() -> None:
    picture = drawn(Bar([("bad", 1)], "one", bad=True), Bar([("good", 1)], "two"))
    assert heights(picture, "wash") == [100]
