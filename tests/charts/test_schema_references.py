"""References in values.schema.json: allowed ones cause no request of helm; refused ones start no helm."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import subprocess
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from conftest import Server
from http_checks import check_problem
from small_charts import HELMS, OLD_HELM, OLD_HELMS, helm_path, post_chart, tar_archive

from models.charts.archives.schema_refs import check_schema

TEMPLATE = "/api/v1/charts/template/upload"
METASCHEMAS = [
    f"{scheme}://json-schema.org/{name}{end}"
    for scheme in ("http", "https")
    for name in (
        "draft-04/schema",
        "draft-06/schema",
        "draft-07/schema",
        "draft/2019-09/schema",
        "draft/2020-12/schema",
    )
    for end in ("", "#")
]
LATEST = [f"{scheme}://json-schema.org/schema{end}" for scheme in ("http", "https") for end in ("", "#")]
OLD_METASCHEMAS = [url for url in METASCHEMAS if url.startswith("http:") and "draft-0" in url]
LISTENER_URL = "http://LISTENER"

ALLOWED: list[Any] = [
    *({"$schema": url, "type": "object"} for url in (*METASCHEMAS, *LATEST)),
    *({"properties": {"more": {"$ref": url}}} for url in METASCHEMAS if url in OLD_METASCHEMAS),
    {"$id": f"{LISTENER_URL}/a.json", "$ref": "#/$defs/a", "$defs": {"a": {"type": "object"}}},
    {"$schema": METASCHEMAS[0], "id": f"{LISTENER_URL}/a.json", "type": "object"},
    {"default": {"$schema": f"{LISTENER_URL}/x", "$id": f"{LISTENER_URL}/x", "id": f"{LISTENER_URL}/x"}},
    {"properties": {"x": {"enum": [{"$id": f"{LISTENER_URL}/x"}], "default": {"id": "file:///etc/passwd"}}}},
    {"properties": {"$schema": {"type": "string"}, "$id": {"type": "string"}, "id": {"type": "string"}}},
    {"$ref": "#/examples/0", "examples": [{"type": "object"}]},
    {
        "properties": {"colour": {"$dynamicRef": "#paint"}},
        "$defs": {"paint": {"$dynamicAnchor": "paint", "type": "string"}},
    },
]

RECENT_HELM_ONLY: list[Any] = [
    *({"properties": {"more": {"$ref": url}}} for url in (*METASCHEMAS, *LATEST) if url not in OLD_METASCHEMAS),
    *({"properties": {"x": {name: {"$ref": f"{LISTENER_URL}/x"}}}} for name in ("default", "const", "example")),
    *({"properties": {"x": {name: [{"$ref": f"{LISTENER_URL}/x"}]}}} for name in ("enum", "examples")),
    {
        "$id": f"{LISTENER_URL}/values/root.json",
        "properties": {"colour": {"$ref": "text.json"}, "more": {"$ref": "text.json#/$defs/any"}},
        "$defs": {"text": {"$id": "text.json", "type": "string", "$defs": {"any": {}}}},
    },
    {"properties": {"colour": {"$ref": "text.json"}}, "$defs": {"text": {"$id": "text.json", "type": "string"}}},
    {
        "$id": f"{LISTENER_URL}/a.json",
        "properties": {"colour": {"$ref": f"{LISTENER_URL}/a.json#/$defs/b"}},
        "$defs": {"b": {}},
    },
    {
        "properties": {"colour": {"$ref": f"{LISTENER_URL}/b.json"}},
        "$defs": {"b": {"$id": f"{LISTENER_URL}/b.json", "type": "string"}},
    },
]
"""References that helm resolves by itself from 3.18 on."""

# As in the charts traefik and loki: an absolute $id and references within the file.
WITH_IDENTIFIERS: list[Any] = [
    {
        "$schema": METASCHEMAS[-2], "$id": f"{LISTENER_URL}/ingress.schema.json", "type": "object", "title": "Values",
        "properties": {"colour": {"$ref": "#/$defs/Text"}, "id": {"type": "string", "default": ""}},
        "$defs": {"Text": {"type": "string"}},
    },
    {
        "$schema": METASCHEMAS[4], "$id": f"{LISTENER_URL}/logs.schema.json", "additionalProperties": True,
        "definitions": {"Text": {"$id": "#text", "type": "string"}},
        "properties": {
            "colour": {"$id": f"{LISTENER_URL}/colour", "type": "string"}, "more": {"$ref": "#/definitions/Text"},
        },
    },
]  # fmt: skip

USED: Any = {"properties": {"colour": {"$ref": f"{LISTENER_URL}/a.json"}}}
NAMED: Any = {"$id": f"{LISTENER_URL}/a.json"}
DRAFT_7 = {"$schema": METASCHEMAS[4], **USED}
UNKNOWN_IDENTIFIERS: list[Any] = [
    {"x-more": NAMED, **USED},
    {"$schema": METASCHEMAS[0], "definitions": {"a": NAMED}, **USED},
    {**DRAFT_7, "definitions": {"a": {"id": NAMED["$id"]}}},
    {**DRAFT_7, "definitions": {"a": {**NAMED, "$ref": "#/definitions/b"}, "b": {}}},
    *({**DRAFT_7, name: {"a": NAMED}} for name in ("$defs", "dependentSchemas")),
    *({"$schema": METASCHEMAS[2], name: NAMED, **USED} for name in ("if", "contentSchema")),
    {
        "$schema": METASCHEMAS[4], "$id": f"{LISTENER_URL}/x/root.json",
        "definitions": {
            "a": {"$id": f"{LISTENER_URL}/y/n.json"}, "b": {"$id": f"{LISTENER_URL}/y/q.json", "$ref": "n.json"},
        },
        "allOf": [{"$ref": "#/definitions/b"}],
    },
]  # fmt: skip
"""An `$id` where the draft of the file has no schema: helm does not know it, and fetches what refers to it."""

REFUSED: list[Any] = [
    *({keyword: f"{LISTENER_URL}/x.json"} for keyword in ("$ref", "$dynamicRef", "$recursiveRef", "$schema")),
    *({"properties": {"colour": {"$ref": f"{LISTENER_URL}{path}"}}} for path in ("", "/x#", "/x#/definitions/a")),
    *({name: {"$ref": f"{LISTENER_URL}/x"}, "$ref": f"#/{name}"} for name in ("default", "const", "example")),
    {"default": [{"$ref": f"{LISTENER_URL}/x"}], "not": {"$ref": "#/d%65fault/0"}},
    *UNKNOWN_IDENTIFIERS,
    *({"$ref": url} for url in ("file:///etc/passwd", "other.json", "/etc/passwd", "//LISTENER/x")),
    *({keyword: "file:///etc/passwd"} for keyword in ("$id", "id")),
    *(
        {keyword: f"{scheme}://json-schema.org/{path}"}
        for keyword in ("$ref", "$schema")
        for scheme in ("http", "https")
        for path in ("draft-07/hyper-schema", "draft/2020-12/meta/core", "draft-07/schema#a")
    ),
    {"$id": f"{LISTENER_URL}/a.json", "$ref": "b.json"},
    {"const": {"$id": f"{LISTENER_URL}/a"}, "$ref": f"{LISTENER_URL}/a"},
]  # fmt: skip


class Listener:
    """Counts the connections to a loopback port and closes each."""

    def __init__(self) -> None:
        self._socket = socket.create_server(("127.0.0.1", 0))
        self.place = f"127.0.0.1:{self._socket.getsockname()[1]}"
        self.connections = 0
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        with self._socket, contextlib.suppress(OSError):
            while True:
                connection, _ = self._socket.accept()
                self.connections += 1
                connection.close()

    @property
    def environment(self) -> dict[str, str]:
        """Proxy variables that send requests for other hosts to this listener too."""
        return dict.fromkeys(("HTTP_PROXY", "HTTPS_PROXY"), f"http://{self.place}")

    def archive(self, schema: Any) -> bytes:
        """A chart with this schema; `LISTENER` in it is replaced by the address of the listener."""
        return tar_archive({
            "demo/Chart.yaml": "apiVersion: v2\nname: demo\nversion: 1.0.0\n",
            "demo/values.yaml": "colour: red\n",
            "demo/values.schema.json": json.dumps(schema).replace("LISTENER", self.place),
            "demo/templates/a.yaml": "colour: {{ .Values.colour }}\n",
        })  # fmt: skip

    def close(self) -> None:
        self._socket.shutdown(socket.SHUT_RDWR)  # the thread closes it: see `receivers.listening`


@pytest.fixture(scope="module")
def listener() -> Iterator[Listener]:
    listener = Listener()
    yield listener
    listener.close()


class RecordingServer:
    """A server whose helm records its commands."""

    def __init__(self, folder: Path, binary: str, listener: Listener, is_old: bool) -> None:
        self.is_old = is_old
        self.binary, self._calls = binary, folder / "calls"
        wrapper = folder / "helm"
        wrapper.write_text(f'#!/bin/sh\necho "$1" >> {self._calls}\nexec {binary} "$@"\n')
        wrapper.chmod(0o755)
        svc = {"helm": {"binary": str(wrapper)}, "kube": {"kubeconfig": str(folder / "none")}}
        self.server = Server(folder, {"svc": svc}, listener.environment, []).start()

    @property
    def renderings(self) -> int:
        return self._calls.read_text().split().count("template") if self._calls.exists() else 0


@pytest.fixture(scope="module", params=[*HELMS, *OLD_HELMS])
def recording_server(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, listener: Listener
) -> Iterator[RecordingServer]:
    recording_server = RecordingServer(
        tmp_path_factory.mktemp(request.param), helm_path(request.param), listener, request.param == OLD_HELM
    )
    yield recording_server
    recording_server.server.close()


@pytest.mark.parametrize("schema", [*ALLOWED, *WITH_IDENTIFIERS], ids=range(len(ALLOWED) + len(WITH_IDENTIFIERS)))
def test_a_schema_with_allowed_references_is_rendered_without_requests(
    recording_server: RecordingServer, listener: Listener, schema: Any
) -> None:
    renderings, connections = recording_server.renderings, listener.connections
    answer = post_chart(recording_server.server, TEMPLATE, chart=listener.archive(schema))
    assert answer.status == 200, answer
    assert "colour: red" in answer.text
    assert (recording_server.renderings, listener.connections) == (renderings + 1, connections)


@pytest.mark.parametrize("schema", RECENT_HELM_ONLY, ids=range(len(RECENT_HELM_ONLY)))
def test_a_metaschema_that_old_helm_would_fetch_is_refused_for_it(
    recording_server: RecordingServer, listener: Listener, schema: Any
) -> None:
    renderings, connections = recording_server.renderings, listener.connections
    answer = post_chart(recording_server.server, TEMPLATE, chart=listener.archive(schema))
    if recording_server.is_old:
        assert "helm 3.18" in check_problem(answer, 400, TEMPLATE, has_timestamp=True)["detail"]
    assert (answer.status, recording_server.renderings - renderings) == (
        (400, 0) if recording_server.is_old else (200, 1)
    )
    assert listener.connections == connections


@pytest.mark.parametrize("schema", WITH_IDENTIFIERS, ids=range(len(WITH_IDENTIFIERS)))
def test_a_schema_with_identifiers_is_rendered_as_by_helm(
    recording_server: RecordingServer, listener: Listener, tmp_path: Path, schema: Any
) -> None:
    (tmp_path / "demo.tgz").write_bytes(listener.archive(schema))
    done = subprocess.run(
        [recording_server.binary, "template", "release-name", "demo.tgz"], cwd=tmp_path, capture_output=True, text=True,
        env={"PATH": os.environ["PATH"], "HOME": str(tmp_path), **listener.environment},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert post_chart(recording_server.server, TEMPLATE, chart=listener.archive(schema)).text == done.stdout


@pytest.mark.parametrize("schema", REFUSED, ids=range(len(REFUSED)))
def test_a_schema_with_refused_references_is_400_and_starts_no_helm(
    recording_server: RecordingServer, listener: Listener, schema: Any
) -> None:
    renderings, connections = recording_server.renderings, listener.connections
    answer = post_chart(recording_server.server, TEMPLATE, chart=listener.archive(schema))
    detail = check_problem(answer, 400, TEMPLATE, has_timestamp=True)["detail"]
    assert detail.startswith("the chart's values.schema.json, /")
    assert (recording_server.renderings, listener.connections) == (renderings, connections)


@pytest.mark.parametrize(
    "url",
    [
        "http://LISTENER/x.json",
        "http://json-schema.org/draft-07/hyper-schema",
        "https://json-schema.org/draft-07/hyper-schema",
    ],
)
def test_helm_itself_fetches_refused_references(
    recording_server: RecordingServer, listener: Listener, tmp_path: Path, url: str
) -> None:
    """Shows that the zero counts of the tests above are meaningful."""
    (tmp_path / "demo.tgz").write_bytes(listener.archive({"$ref": url}))
    before = listener.connections
    subprocess.run(
        [recording_server.binary, "template", "demo.tgz"],
        cwd=tmp_path,
        env={"PATH": os.environ["PATH"], "HOME": str(tmp_path), **listener.environment},
        capture_output=True,
    )
    assert listener.connections > before


@pytest.mark.parametrize("schema", UNKNOWN_IDENTIFIERS, ids=range(len(UNKNOWN_IDENTIFIERS)))
def test_helm_itself_fetches_what_has_an_identifier_that_it_does_not_know(
    recording_server: RecordingServer, listener: Listener, tmp_path: Path, schema: Any
) -> None:
    (tmp_path / "demo.tgz").write_bytes(listener.archive(schema))
    before = listener.connections
    subprocess.run(
        [recording_server.binary, "template", "demo.tgz"], cwd=tmp_path, capture_output=True,
        env={"PATH": os.environ["PATH"], "HOME": str(tmp_path), **listener.environment},
    )  # fmt: skip
    assert listener.connections > before


@pytest.mark.parametrize("is_relative", [True, False])
def test_many_references_and_identifiers_are_checked_in_linear_time(is_relative: bool) -> None:
    """Of 1,500 identifiers in folders of their own, as many relative references; in values, as many metaschemas."""
    begun, count = time.process_time(), 1500
    names = [f"http://a/{number}/x" for number in range(count)]
    references = [f"x#{number}" for number in range(count)] if is_relative else [METASCHEMAS[0]] * count
    value = {"default": [{"$ref": name} for name in references], "allOf": [{"$ref": "#/default"}] * count}
    schema = {"$id": names[0], "$defs": {name: {"$id": name} for name in names}, **value}
    assert len(check_schema(json.dumps(schema).encode(), "s")) == (count if is_relative else 0)
    assert time.process_time() - begun < 0.5
