"""Unknown names in requests, and the filters of the list of releases."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from attrs import frozen
from conftest import Server
from http_checks import check_problem, running_server
from small_charts import send_json

from models.charts import releases
from models.charts.responses import ListRow
from models.errors import Invalid
from models.inputs import body, check_arguments, check_names, path, query, read


@frozen
class ExampleRequest:
    name: str = path("name")
    all_namespaces: bool = query("all", False)
    values: dict[str, Any] | None = body("values")
    owner: str = body("owner", "", or_query=True)
    status: tuple[str, ...] = query("status", (), choices=("a", "b"))


@pytest.mark.parametrize(
    ("parameters", "fields", "fault"),
    [
        ({}, {"valeus": {}}, 'unknown field "valeus"; did you mean "values"?'),
        ({"allNamespace": "x"}, {}, 'unknown parameter "allNamespace"; did you mean "allNamespaces"?'),
        ({}, {"nothing": 1}, 'unknown field "nothing"'),
        ({"values": "x"}, {}, 'unknown parameter "values"; it is a field of the body or path'),
        ({}, {"allNamespaces": True}, 'unknown field "allNamespaces"; it is a query parameter'),
        ({}, {"certFile": "/x"}, "certFile is not supported: files of this machine are not read"),
        ({}, {"recreatePods": True}, "recreatePods is not supported: helm has removed it"),
        ({}, {"x" * 10_000: 1}, 'unknown field "' + "x" * 64 + '"'),
    ],
)
def test_an_unknown_name_is_refused_with_the_closest_known_name(
    parameters: dict[str, str], fields: dict[str, Any], fault: str
) -> None:
    with pytest.raises(Invalid) as refused:
        check_names(ExampleRequest, parameters, fields)
    assert refused.value.message.startswith(fault)


@pytest.mark.parametrize(
    ("parameters", "fields"),
    [
        ({"allNamespaces": "true", "owner": "x"}, {"values": {"valeus": 1}, "owner": "y"}),
        ({}, {"certFile": None, "keyFile": "", "noUpdate": False, "recreatePods": None}),
    ],
)
def test_known_names_and_empty_fields_of_other_clients_are_accepted(
    parameters: dict[str, str], fields: dict[str, Any]
) -> None:
    check_names(ExampleRequest, parameters, fields)


def test_unknown_arguments_of_a_tool_are_refused() -> None:
    check_arguments({"name", "allNamespaces"}, {"name": "x", "allNamespaces": True})
    with pytest.raises(Invalid, match='did you mean "name"'):
        check_arguments({"name"}, {"nam": "x"})


def test_a_list_in_a_query_is_separated_by_commas() -> None:
    assert read(ExampleRequest, {"name": "x"}, {"status": "a, b"}, {}).status == ("a", "b")
    with pytest.raises(Invalid, match="is not one of a, b"):
        read(ExampleRequest, {"name": "x"}, {"status": "a,c"}, {})


# Over HTTP


@pytest.fixture(scope="module", params=["REFUSE", "IGNORE"])
def server(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Server, bool]]:
    svc = {"rest": {"unknown-fields": request.param}, "helm": {"binary": "/nonexistent"}}
    with running_server(tmp_path_factory.mktemp(request.param), svc=svc) as running:
        yield running, request.param == "REFUSE"


@pytest.mark.parametrize(
    ("method", "path", "fields", "fault"),
    [
        ("POST", "/api/v1/charts/create", {"name": "a/b", "nmae": "x"}, 'unknown field "nmae"; did you mean "name"?'),
        ("POST", "/api/v1/charts/create?x=1", {"name": "a/b"}, 'unknown parameter "x"'),
        ("GET", "/api/v1/hub/search?maxResults=x&keyword=a&keyword=b", None, "keyword is given more than once"),
    ],
)
def test_unknown_and_duplicate_names_are_400(
    server: tuple[Server, bool], method: str, path: str, fields: Any, fault: str
) -> None:
    running, is_refused = server
    answer = send_json(running, method, path, fields)
    detail = check_problem(answer, 400, path.partition("?")[0], has_timestamp=True)["detail"]
    assert (fault in detail) is is_refused
    assert json.loads(answer.text)["code"] == "bad-request"


@pytest.mark.parametrize(
    ("parts", "fault"),
    [
        (["chart", "values"], 'unknown part "values"; it is a field of the part request'),
        (["chart", "reqest"], 'unknown part "reqest"; did you mean "request"?'),
        (["chart", "more"], 'unknown part "more"'),
        (["chart", "chart"], "chart is given more than once"),
        (["chart", "request", "request"], "request is given more than once"),
    ],
)
def test_unknown_and_duplicate_parts_are_400(server: tuple[Server, bool], parts: list[str], fault: str) -> None:
    running, is_refused = server
    head = '--limit\r\nContent-Disposition: form-data; name="{}"\r\n\r\n{{}}\r\n'
    body = "".join(map(head.format, parts)).encode() + b"--limit--\r\n"
    path = "/api/v1/charts/template/upload"
    answer = running.ask("POST", path, body, {"Content-Type": "multipart/form-data; boundary=limit"})
    assert (fault in check_problem(answer, 400, path, has_timestamp=True)["detail"]) is is_refused


# The list


def row(name: str, status: str = "deployed", updated: str | None = None) -> ListRow:
    return ListRow(name, "n", 1, updated, status, "c-1", "1")


ROWS = [row("api"), row("web", "failed", "2026-01-02T00:00:00Z"), row("web-api", "superseded", "2026-01-01T00:00:00Z")]


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("api", ["api", "web-api"]),
        ("^api", ["api"]),
        ("web$", ["web"]),
        ("^w.*i$", ["web-api"]),
        ("^api$|^web$", ["api", "web"]),
        (".*", ["api", "web", "web-api"]),
        (".*.*.*x", []),
    ],
)
def test_a_filter_matches_any_part_of_the_name(text: str, names: list[str]) -> None:
    releases.check_filter(text)
    assert [found.name for found in releases.select_rows(ROWS, text, (), "name")] == names


@pytest.mark.parametrize("text", ["a+", "(a)", "[a]", "a?", "a{2}", "a*", "\\d", "x" * 1000])
def test_other_regular_expression_characters_are_refused(text: str) -> None:
    with pytest.raises(Invalid, match="filter"):
        releases.check_filter(text)


def test_rows_are_filtered_by_status_and_sorted_by_time() -> None:
    chosen = releases.select_rows(ROWS, None, ("failed", "superseded"), "updated")
    assert [found.name for found in chosen] == ["web-api", "web"]
    assert [found.name for found in releases.select_rows(ROWS, None, (), "-updated")] == ["web", "web-api", "api"]


@pytest.mark.parametrize(
    ("selector", "is_match"),
    [("a=b", True), ("a==b", True), ("a!=b", False), ("c!=d", True), ("a=b, c!=d", True), ("a=", False), ("c=", False)],
)
def test_a_selector_matches_if_all_requirements_match(selector: str, is_match: bool) -> None:
    releases.check_selector(selector)
    assert releases.is_selected({"a": "b"}, selector) is is_match


@pytest.mark.parametrize("selector", ["", "a", "a in (b)", "=b", "a=b,", "a=b=c", "!a"])
def test_invalid_selectors_are_refused(selector: str) -> None:
    with pytest.raises(Invalid, match="selector"):
        releases.check_selector(selector)


def test_a_selector_is_matched_against_the_newest_revision() -> None:
    def item(number: int, **labels: str) -> dict[str, Any]:
        known = {"owner": "helm", "name": "web", "version": str(number)}
        return {"metadata": {"name": releases.key("web", number), "namespace": "n", "labels": known | labels}}

    items = [item(1, team="a"), item(2, team="b")]
    assert releases.selected(items, "team=b") == {("n", "web")}
    assert releases.selected(items, "team=a") == set()
