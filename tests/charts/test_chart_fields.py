"""Fields of requests: read from path, query and body, from the arguments of a tool, and from JSON."""

from __future__ import annotations

from typing import Any, Literal

import pytest
from attrs import frozen

from models import inputs as parameters
from models.charts import refs
from models.config.parsers import ValidationError
from models.errors import Invalid
from models.inputs import body, inputs, path, query, read, read_arguments
from models.json_format import json_object


@frozen
class ExampleRequest:
    name: str = path("who", refs.release)
    space: str = query("where", "default", check=refs.namespace)
    all: bool = query("everything", False)
    chart_ref: str = body("what", required=True)
    revision: int = body("which", required=True, low=1)
    values: dict[str, Any] | None = body("how")
    labels: dict[str, str] | None = body("marked")
    only: tuple[str, ...] = body("some", ())
    mode: Literal["A", "B"] = body("mode", "A")
    owner: str = body("whose", "nobody", or_query=True)


GOOD = {"chartRef": "a/b", "revision": 1}


def request_for(fields: dict[str, Any], query: dict[str, str] | None = None, name: str = "r") -> ExampleRequest:
    return read(ExampleRequest, {"name": name}, query or {}, fields)


def error_message(fields: dict[str, Any], query: dict[str, str] | None = None, name: str = "r") -> str:
    with pytest.raises(Invalid) as refused:
        request_for(fields, query, name)
    return refused.value.message


def test_absent_fields_have_their_defaults() -> None:
    assert request_for(GOOD) == ExampleRequest(name="r", chart_ref="a/b", revision=1)


def test_unknown_fields_are_ignored_and_null_is_absent() -> None:
    assert request_for(
        {**GOOD, "values": None, "mode": None, "only": None, "what": {"x": 1}}, {"what": "x"}
    ) == request_for(GOOD)


def test_field_names_are_camel_case_in_json() -> None:
    assert error_message({"chart_ref": "a/b", "revision": 1}) == "chartRef is required"


@pytest.mark.parametrize("blank", [None, "", "  ", "\t\n"])
def test_a_blank_counts_as_missing(blank: str | None) -> None:
    assert error_message({**GOOD, "chartRef": blank}) == "chartRef is required"


def test_all_missing_fields_are_reported_at_once() -> None:
    assert error_message({}) == "chartRef is required; revision is required"


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("chartRef", 1, "chartRef: must be a string"),
        ("chartRef", ["a/b"], "chartRef: must be a string"),
        ("revision", "1", "revision: must be a whole number"),
        ("revision", True, "revision: must be a whole number"),
        ("revision", 1.0, "revision: must be a whole number"),
        ("revision", 0, "revision: '0' is not between 1 and 2147483647"),
        ("revision", 2**31, "is not between"),
        ("values", [], "values: must be an object"),
        ("values", "", "values: must be an object"),
        ("labels", {"a": 1}, "labels: must be an object"),
        ("only", "a", "only: must be a list of strings"),
        ("only", [1], "only: must be a list of strings"),
        ("mode", "C", "mode: 'C' is not one of A, B"),
    ],
)
def test_the_error_for_a_wrong_type_names_the_field(field: str, value: Any, message: str) -> None:
    assert message in error_message({**GOOD, field: value})


@pytest.mark.parametrize(("text", "value"), [("true", True), ("TRUE", True), ("false", False), ("", False)])
def test_booleans_of_the_query_are_parsed(text: str, value: bool) -> None:
    assert request_for(GOOD, {"all": text}).all is value


@pytest.mark.parametrize("text", ["1", "yes", "0", "truee"])
def test_an_invalid_boolean_in_the_query_is_reported(text: str) -> None:
    assert error_message(GOOD, {"all": text}) == "all: must be true or false"


def test_the_body_takes_precedence_over_the_query() -> None:
    assert request_for(GOOD, {"owner": "query"}).owner == "query"
    assert request_for({**GOOD, "owner": " "}, {"owner": "query"}).owner == "query"
    assert request_for({**GOOD, "owner": "body"}, {"owner": "query"}).owner == "body"


def test_names_are_checked_by_helms_rules() -> None:
    assert "name: 'UPPER' is not a release name" in error_message(GOOD, name="UPPER")
    assert "space: 'a.b' is not a namespace" in error_message(GOOD, {"space": "a.b"})


def test_arguments_of_a_tool_are_read_from_one_object() -> None:
    given = {**GOOD, "name": "r", "all": True, "space": "s"}
    assert read_arguments(ExampleRequest, given) == ExampleRequest(
        name="r", chart_ref="a/b", revision=1, all=True, space="s"
    )
    with pytest.raises(Invalid, match="all: must be true or false"):
        read_arguments(ExampleRequest, {**given, "all": "true"})
    with pytest.raises(Invalid, match="space"):
        read_arguments(ExampleRequest, {**given, "space": "a\0"})


def test_each_input_has_a_json_schema() -> None:
    schemas = {one.json_name: one.described_schema() for one in inputs(ExampleRequest)}
    assert schemas["revision"] == {
        "type": "integer", "description": "which", "minimum": 1, "maximum": 2**31 - 1, "format": "int32",
    }  # fmt: skip
    assert schemas["mode"] == {"type": "string", "description": "mode", "enum": ["A", "B"], "default": "A"}
    assert schemas["labels"]["additionalProperties"] == {"type": "string"}
    assert schemas["only"]["items"] == {"type": "string"}


@pytest.mark.parametrize("raw", [b"", b"  \n", b"{}"])
def test_an_empty_body_is_an_empty_object(raw: bytes) -> None:
    assert json_object(raw) == {}


@pytest.mark.parametrize(
    ("raw", "message"),
    [
        (b"[1]", "must be a JSON object"), (b"null", "must be a JSON object"), (b"{", "is not JSON"),
        (b"\xff\xfe", "not UTF-8"), (b'{"a":NaN}', "number"), (b'{"a":-Infinity}', "number"),
        (b'{"a":1e999}', "number"), (b'{"a":' + b"9" * 5000 + b"}", "number"), (b'{"a":' * 10_000, "nested"),
        (b'{"a":' + b"[" * 200 + b"]" * 200 + b"}", "nested"), (b'{"a":{"b":"\\u0000"}}', "a: must not contain"),
        (b'{"a":["\\ud800"]}', "a: must not contain"), (b'{"\\udfff":1}', "must not contain"),
        (b'{"a\\u0000":1}', "must not contain"),
    ],
)  # fmt: skip
def test_a_body_that_is_not_a_json_object_is_reported(raw: bytes, message: str) -> None:
    with pytest.raises(Invalid, match=message) as refused:
        json_object(raw)
    refused.value.message.encode()


@pytest.mark.parametrize("pair", [r'{"a":"\ud83d\ude00"}', '{"a":"😀"}'])
def test_a_surrogate_pair_is_decoded_as_one_character(pair: str) -> None:
    assert json_object(pair.encode()) == {"a": "😀"}


@pytest.mark.parametrize("name", ["a", "a.b", "a-b.c-d", "0", "a" * 53])
def test_release_names_that_helm_accepts_are_valid(name: str) -> None:
    refs.release(name)


@pytest.mark.parametrize("name", ["A", "-a", "a-", "a.", ".a", "a..b", "a.-b", "a_b", "a/b", "a" * 54, "ä", "a\n"])
def test_release_names_that_helm_refuses_are_invalid(name: str) -> None:
    with pytest.raises(ValidationError):
        refs.release(name)


@pytest.mark.parametrize("name", ["a.b", "A", "-a", "a-", "a" * 64, "a b", "a\n"])
def test_invalid_namespaces_are_refused(name: str) -> None:
    with pytest.raises(ValidationError):
        refs.namespace(name)


@pytest.mark.parametrize("name", ["", ".", "..", "a/b", "../a", "/etc", "-a", ".a", "a b", "a" * 251, 'a"b', "a\n"])
def test_invalid_names_of_new_charts_are_refused(name: str) -> None:
    with pytest.raises(ValidationError):
        refs.new_chart(name)


@pytest.mark.parametrize("file", ["/etc/passwd", "../x", "templates/../../x", "-x", "a,b", "a\\b", "a\nb", "x" * 501])
def test_invalid_template_files_are_refused(file: str) -> None:
    with pytest.raises(ValidationError):
        refs.template_file(file)


@pytest.mark.parametrize(
    ("name", "value"), [("owner", "x"), ("a b", "x"), ("a", "x y"), ("a", "-"), ("-", "x"), ("a/b/c", "x"), ("", "x")]
)
def test_invalid_labels_are_refused(name: str, value: str) -> None:
    with pytest.raises(ValidationError):
        refs.label(name, value)
    refs.label("team.example.org/name", "x_1")


def test_every_operation_has_a_summary_and_schemas() -> None:
    from handlers.charts.handler import OPERATIONS

    for one in OPERATIONS:
        assert one.summary
        variables = set(one.path.replace("}", "{").split("{")[1::2])
        assert {found.json_name for found in one.inputs if found.source == "path"} == variables
        assert all(found.schema() for found in one.inputs)
        assert parameters.inputs(one.request_type) is parameters.inputs(one.request_type)
