"""Pictures as SVG: contents, proportions, and text alternatives."""

from __future__ import annotations

import re
from xml.etree import ElementTree

import pytest

from handlers.web import svg as pictures
from handlers.web.svg import Bar, LinePoint

NAMESPACE = {"s": "http://www.w3.org/2000/svg"}


def drawn(*bars: Bar, title: str = "a title", description: str = "a description") -> ElementTree.Element:
    svg = pictures.bars("name", bars, title, description)
    return ElementTree.fromstring(svg.replace("<svg ", '<svg xmlns="http://www.w3.org/2000/svg" ', 1))  # noqa: S314 (ours)


def svg_of(points: list[LinePoint], axis: tuple[float, float]) -> str:
    rendered = pictures.line("name", points, axis, "a title", "a description")
    return rendered.replace("<svg ", '<svg xmlns="http://www.w3.org/2000/svg" ', 1)


def heights(picture: ElementTree.Element, kind: str) -> list[float]:
    return [float(one.get("height", "")) for one in picture.iterfind(f".//s:rect[@class='{kind}']", NAMESPACE)]


def line(picture: ElementTree.Element) -> str:
    found = picture.find("s:path[@class='line']", NAMESPACE)
    return "" if found is None else found.get("d", "")


def test_parts_are_as_tall_as_their_amounts() -> None:
    picture = drawn(Bar([("good", 30), ("bad", 10)], "one"), Bar([("good", 20)], "two"))
    assert heights(picture, "good") == [75, 50]
    assert heights(picture, "bad") == [25]


def test_one_failure_of_ten_thousand_is_visible_and_all_else_is_to_scale() -> None:
    picture = drawn(Bar([("good", 9_899), ("rest", 100), ("bad", 1)], "one"))
    assert heights(picture, "bad") == [1.2]
    assert heights(picture, "rest") == [1]
    assert sum(heights(picture, kind) == [] for kind in ("good", "rest", "bad")) == 0
    assert sum(heights(picture, "good")) == pytest.approx(100 - 1.2 - 1)
    tops = [float(one.get("y", "")) for one in picture.iterfind(".//s:g/s:rect", NAMESPACE)]
    assert min(tops) >= 0


def test_an_amount_of_zero_has_no_part() -> None:
    assert heights(drawn(Bar([("good", 5), ("bad", 0)], "one")), "bad") == []


@pytest.mark.parametrize("bars", [(), (Bar([], "nothing"),), (Bar([("good", 0)], "zero"),)])
def test_a_picture_without_values_is_valid(bars: tuple[Bar, ...]) -> None:
    assert heights(drawn(*bars), "good") == []


def test_the_line_spans_its_axis_and_stops_where_there_is_no_value() -> None:
    points = [LinePoint(value, "a run") for value in (80.0, 90.0, None, 85.0)]
    found = line(ElementTree.fromstring(svg_of(points, (80.0, 90.0))))  # noqa: S314 (rendered here)
    assert re.findall(r"([ML])([\d.]+) ([\d.]+)", found) == [
        ("M", "5", "100.00"), ("L", "15", "0.00"), ("M", "35", "50.00"),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("values", "axis"),
    [((80.0, 90.0), (80, 90)), ((84.2, 84.9), (82, 87)), ((99.9, 100.0), (95, 100)), ((0.0, 0.1), (0, 5))],
)
def test_the_axis_fits_the_values_and_is_at_least_five_points_high(
    values: tuple[float, ...], axis: tuple[float, float]
) -> None:
    assert pictures.axis_of(values) == axis


def test_a_picture_has_a_name_and_a_description_of_its_values() -> None:
    picture = drawn(Bar([("good", 1)], "<run 1>"), title="a & b", description="<b>")
    ids = {one.get("id"): one.text for one in picture.iter() if one.get("id")}
    assert [ids[id] for id in picture.get("aria-labelledby", "").split()] == ["a & b", "<b>"]
    assert picture.get("role") == "img"
    assert picture.findtext("s:g/s:title", namespaces=NAMESPACE) == "<run 1>"


def test_a_failed_run_has_a_full_background() -> None:
    picture = drawn(Bar([("bad", 1)], "one", bad=True), Bar([("good", 1)], "two"))
    assert heights(picture, "wash") == [100]
