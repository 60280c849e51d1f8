"""The documents are true: their commands run, their links lead somewhere, and the calls that they name are answered.

A block of commands after `<!-- run -->` is run, in the order of the document, in a folder where `make run` would have
been, with what the blocks before it have exported. One after `<!-- serve -->` starts the server that the others talk
to, in the place of the one before; a document without one has the example configuration served. Ports, and addresses
that are not of this machine, become ones that are (`swaps`). `<!-- run: helm -->` needs that program, `cluster` a
Kubernetes API server, `registry` an OCI registry. A block without a language right after it is what it must print,
where … stands for anything and white space does not count.

`<!-- steps: github -->` (or `gitlab`) before YAML: what its job sends to us is run as that CI system would run it.
`<!-- client -->` before JSON: an agent with that configuration is answered.
"""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import chart_servers
import pytest
from conftest import ROOT
from document_reader import DocumentReader, blocks, matches, steps
from requirements import missing_part
from tornado.routing import PathMatches

from handlers import app
from handlers.base import methods
from handlers.http.sse import Streams
from models.config.settings import Config
from supervisor.services import Services

DOCUMENTS = [*sorted(ROOT.glob("*.md")), *sorted((ROOT / "docs").glob("*.md"))]
NAMES = [str(file.relative_to(ROOT)) for file in DOCUMENTS]
RULES = app.rules(cast("Services", SimpleNamespace(config=Config())), Streams(Config().server))
DEFAULT = "make run"
ELSEWHERE = ("cluster", "registry")


def text(name: str) -> str:
    return (ROOT / name).read_text()


RUN = [name for name in NAMES if blocks(text(name))]


@pytest.fixture
def reader(name: str, tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[DocumentReader]:
    needs = {need for block in blocks(text(name)) for need in block.needs}
    with ExitStack() as stack:
        swaps = dict(reached(stack, tmp_path)) if "registry" in needs else {}
        more = {"KUBECONFIG": request.getfixturevalue("cluster").config()} if "cluster" in needs else {}
        (tmp_path / "checkout").mkdir()
        one = DocumentReader(tmp_path / "checkout", swaps, more)
        stack.callback(one.leave)
        if not any(block.kind == "serve" for block in blocks(text(name))):
            one.serve(DEFAULT)
        yield one


def reached(stack: ExitStack, folder: Path) -> Mapping[str, str]:
    """A repository and a registry of this machine, in the place of those that the documents name."""
    registry, web = (
        stack.enter_context(chart_servers.running_registry(folder)),
        stack.enter_context(chart_servers.web_server()),
    )
    web.serve(
        *(
            ("podinfo", version, chart_servers.chart_archive("podinfo", version, PODINFO))
            for version in ("6.7.1", "6.8.0")
        )
    )
    return {
        "HOSTS=localhost:5000": f"HOSTS={registry},{web.host_port}",
        "localhost:5000": registry,
        "https://stefanprodan.github.io/podinfo": web.url,
    }


PODINFO = {
    "values.yaml": "replicaCount: 1\nui:\n  message: hello\n",
    "README.md": "# Podinfo\n",
    "templates/map.yaml": """apiVersion: v1
kind: ConfigMap
metadata: {name: {{ .Release.Name }}-podinfo}
data: {message: {{ .Values.ui.message | quote }}, replicas: {{ .Values.replicaCount | quote }}}
""",
}


def is_there(program: str) -> bool:
    if program in ELSEWHERE or shutil.which(program) or (ROOT / ".tools" / program).exists():
        return True
    if os.environ.get("CI") == "true":
        missing_part(program)
    return False


@pytest.mark.parametrize("name", RUN)
def test_the_commands_of_a_document_have_its_output(name: str, reader: DocumentReader) -> None:
    for block in blocks(text(name)):
        if block.kind == "steps" or all(map(is_there, block.needs)):
            reader.follow(block)


def test_files_that_a_document_creates_in_the_checkout_are_ignored() -> None:
    """A token or key that a reader commits by accident is published."""
    ignored = (ROOT / ".gitignore").read_text().split()
    created = {
        target
        for name in RUN
        for block in blocks(text(name))
        for target in re.findall(r"(?<![0-9&])> *([\w.-]+)$|(?<![0-9&])> *([\w.-]+)\)$", block.text, re.MULTILINE)
    }
    names = {first or second for first, second in created}
    assert {"ci-token", "key"} <= names
    assert sorted(name for name in names if f"/{name}" not in ignored) == []


def test_something_is_run() -> None:
    assert "README.md" in RUN
    assert len(blocks(text("README.md"))) >= 4
    kinds = [block.kind for name in RUN for block in blocks(text(name))]
    assert {kind: kinds.count(kind) for kind in ("serve", "steps", "client")} == {"serve": 6, "steps": 2, "client": 3}


@pytest.mark.parametrize("name", [name for name in NAMES if "quickstart" in name])
def test_a_quickstart_is_run_whole(name: str) -> None:
    """Except for blocks marked with a reason."""
    bare = re.findall(r"(?<! -->\n)^```(?:sh|yaml|json)\n.*", text(name), re.MULTILINE)
    assert bare == []
    assert len(re.findall("<!-- not run: .+ -->\n```sh", text(name))) <= 2


def test_of_a_workflow_what_speaks_to_us_is_run() -> None:
    github = "jobs: {test: {steps: [{uses: it}, {run: make}, {run: 'pip install pilothouse\n\npilothouse upload'}]}}"
    assert steps(github) == ["pilothouse upload"]
    assert steps("test: {script: [./run-the-tests || true, pilothouse upload]}") == ["pilothouse upload"]
    with pytest.raises(AssertionError):
        steps("test: {script: [make]}")


@pytest.mark.parametrize(("expected", "found", "fits"), [("{a…}\n", '{a"b"}', True), ("{a}", "{b}", False)])
def test_what_is_printed_is_looked_at(expected: str, found: str, fits: bool) -> None:
    assert matches(expected, found) is fits


# Links


def anchors(file: Path) -> set[str]:
    """Of its headings, as the places where documents are shown make them."""
    prose = re.sub(r"^```.*?^```", "", file.read_text(), flags=re.DOTALL | re.MULTILINE)
    heads = re.findall(r"^#+ (.+)$", prose, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", head.lower()).strip().replace(" ", "-") for head in heads}


@pytest.mark.parametrize("name", NAMES)
def test_links_lead_somewhere(name: str) -> None:
    prose = re.sub(r"^```.*?^```", "", text(name), flags=re.DOTALL | re.MULTILINE)
    for target in re.findall(r"\]\(([^)\s]+)\)", prose):
        if "://" in target:
            continue
        path, _, anchor = target.partition("#")
        file = (ROOT / name).parent / path if path else ROOT / name
        assert file.exists(), target
        assert not anchor or anchor in anchors(file), target


# Calls


def is_served(method: str, path: str) -> bool:
    """Whether a handler serves this; a path of a document may leave out the base path, and has variables in braces."""
    concrete = re.sub(r"\{\w*[iI]d\}", "1", re.sub(r"\{status\}", "running", path))
    concrete = re.sub(r"\{\w+\}", "x", concrete)
    for rule in RULES:
        matcher = cast("PathMatches", rule.matcher)
        for whole in (concrete, f"/api/v1{concrete}"):
            if matcher.regex.match(whole) and method in methods(rule.target):
                return True
    return False


def calls(text: str) -> Iterator[tuple[str, str]]:
    """Each method and path; `…/values` after a path is another below it, or beside it."""
    for line in text.splitlines():
        method, path = "", ""
        for word, target, rest in re.findall(r"`(?:(GET|POST|PUT|DELETE) (/[^\s`?]*)|…(/[^\s`?]*)[^`]*)", line):
            if word:
                method, path = word, target
                yield method, path
            elif method:
                below, beside = path + rest, path.rpartition("/")[0] + rest
                yield method, below if is_served(method, below) else beside


CALLS = [(name, *call) for name in NAMES for call in sorted(set(calls(text(name))))]


@pytest.mark.parametrize(("name", "method", "path"), CALLS)
def test_the_calls_that_a_document_names_are_answered(name: str, method: str, path: str) -> None:
    assert is_served(method, path)


def test_an_undocumented_endpoint_is_detected() -> None:
    assert not is_served("GET", "/api/v1/nothing")
    assert not is_served("DELETE", "/api/v1/processes")
    assert len(CALLS) > 60


def test_the_commands_call_what_is_answered() -> None:
    """Also those that are not run: their paths are there."""
    found = re.findall(r"localhost:8080(/[^\s'\"?]*)", "".join(text(name) for name in NAMES))
    assert found
    assert [path for path in found if not any(is_served(method, path) for method in ("GET", "POST"))] == []
