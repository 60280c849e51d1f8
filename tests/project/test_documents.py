"""Documents: their commands run, their links have targets, and the calls that they name are served.

A block after `<!-- run -->` is run in the order of the document, in a checkout as after `make run`; variables that
earlier blocks have exported are kept. A block after `<!-- serve -->` starts the server of the following blocks and
replaces the previous one; a document without such a block uses a server with the example configuration. Ports and
addresses of other machines are replaced by local ones (`swaps`). `<!-- run: helm -->` requires that program,
`cluster` a Kubernetes API server, `registry` an OCI registry. A block without a language directly after it is the
expected output, where … matches anything and white space is ignored. `curl` is that of the machine: an answer without a
line break at its end needs `; echo`, and an error is shown in the expected output.

`<!-- steps: github -->` (or `gitlab`) before YAML: the steps of the job that use Pilothouse are run as in that CI
system. `<!-- client -->` before JSON: an agent with that configuration gets responses.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import chart_servers
import pytest
from conftest import ROOT
from document_reader import DocumentReader, blocks, matches, steps
from requirements import require
from tornado.routing import PathMatches

from handlers import app
from handlers.base import methods
from handlers.http.sse import Streams
from models.config.settings import Config
from supervisor.services import Services

DOCUMENTS = [*sorted(ROOT.glob("*.md")), *sorted((ROOT / "docs").glob("*.md"))]
NAMES = [str(file.relative_to(ROOT)) for file in DOCUMENTS]
RULES = app.rules(cast("Services", SimpleNamespace(config=Config())), Streams(Config().server))
DEFAULT_COMMAND = "make run"
SERVICES = ("cluster", "registry")


def text(name: str) -> str:
    return (ROOT / name).read_text()


RUN = [name for name in NAMES if blocks(text(name))]


@pytest.fixture
def reader(name: str, tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[DocumentReader]:
    needs = {need for block in blocks(text(name)) if block.kind != "steps" for need in block.needs}
    require(*sorted(needs.difference(SERVICES)))
    with ExitStack() as stack:
        swaps = dict(local_sources(stack, tmp_path)) if "registry" in needs else {}
        more = {"KUBECONFIG": request.getfixturevalue("cluster").config()} if "cluster" in needs else {}
        (tmp_path / "checkout").mkdir()
        one = DocumentReader(tmp_path / "checkout", swaps, more)
        stack.callback(one.close)
        if not any(block.kind == "serve" for block in blocks(text(name))):
            one.serve(DEFAULT_COMMAND)
        yield one


def local_sources(stack: ExitStack, folder: Path) -> Mapping[str, str]:
    """A local repository and registry as replacements for those that the documents name."""
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


@pytest.mark.parametrize("name", RUN)
def test_the_commands_of_a_document_have_its_output(name: str, reader: DocumentReader) -> None:
    for block in blocks(text(name)):
        reader.follow(block)


def test_git_ignores_files_that_a_document_creates_in_the_checkout() -> None:
    """Otherwise a reader could commit a token or key by accident."""
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


def test_the_documents_have_the_expected_number_of_blocks_that_are_run() -> None:
    assert "README.md" in RUN
    assert len(blocks(text("README.md"))) >= 4
    kinds = [block.kind for name in RUN for block in blocks(text(name))]
    assert {kind: kinds.count(kind) for kind in ("serve", "steps", "client")} == {"serve": 6, "steps": 2, "client": 3}


@pytest.mark.parametrize("name", [name for name in NAMES if "quickstart" in name])
def test_all_blocks_of_a_quickstart_are_run(name: str) -> None:
    """Except for blocks marked with a reason."""
    bare = re.findall(r"(?<! -->\n)^```(?:sh|yaml|json)\n.*", text(name), re.MULTILINE)
    assert bare == []
    assert len(re.findall("<!-- not run: .+ -->\n```sh", text(name))) <= 2


def test_steps_of_a_workflow_that_use_pilothouse_are_run() -> None:
    github = "jobs: {test: {steps: [{uses: it}, {run: make}, {run: 'pip install pilothouse\n\npilothouse upload'}]}}"
    assert steps(github) == ["pilothouse upload"]
    assert steps("test: {script: [./run-the-tests || true, pilothouse upload]}") == ["pilothouse upload"]
    with pytest.raises(AssertionError):
        steps("test: {script: [make]}")


@pytest.mark.parametrize(("expected", "found", "fits"), [("{a…}\n", '{a"b"}', True), ("{a}", "{b}", False)])
def test_printed_output_is_compared_with_the_expected_output(expected: str, found: str, fits: bool) -> None:
    assert matches(expected, found) is fits


def test_the_notes_of_a_release_are_short() -> None:
    """Entries below `Unreleased` may be many; a release has what a user notices."""
    releases = re.split(r"^## ", text("CHANGELOG.md"), flags=re.MULTILINE)[1:]
    assert releases[0].startswith("Unreleased\n")
    assert [notes[:10] for notes in releases[1:] if len(notes.splitlines()) > 150] == []
    for notes in releases:
        heads = re.findall("^### .*", notes, re.MULTILINE)
        assert len(set(heads)) == len(heads)


# Links


def anchors(file: Path) -> set[str]:
    """The anchors of the headings, as GitHub generates them."""
    prose = re.sub(r"^```.*?^```", "", file.read_text(), flags=re.DOTALL | re.MULTILINE)
    heads = re.findall(r"^#+ (.+)$", prose, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", head.lower()).strip().replace(" ", "-") for head in heads}


@pytest.mark.parametrize("name", NAMES)
def test_links_have_existing_targets(name: str) -> None:
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
    """Whether a handler serves the call; the path may lack the base path and has variables in braces."""
    concrete = re.sub(r"\{\w*[iI]d\}", "1", re.sub(r"\{status\}", "running", path))
    concrete = re.sub(r"\{\w+\}", "x", concrete)
    for rule in RULES:
        matcher = cast("PathMatches", rule.matcher)
        for whole in (concrete, f"/api/v1{concrete}"):
            if matcher.regex.match(whole) and method in methods(rule.target):
                return True
    return False


def calls(text: str) -> Iterator[tuple[str, str]]:
    """Methods and paths in a text; `…/values` after a path is a path below it or beside it."""
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
def test_documented_calls_are_served(name: str, method: str, path: str) -> None:
    assert is_served(method, path)


def test_unknown_calls_are_not_served() -> None:
    assert not is_served("GET", "/api/v1/nothing")
    assert not is_served("DELETE", "/api/v1/processes")
    assert len(CALLS) > 60


def test_paths_in_commands_are_served() -> None:
    """Includes commands that are not run."""
    found = re.findall(r"localhost:8080(/[^\s'\"?;]*)", "".join(text(name) for name in NAMES))
    assert found
    assert [path for path in found if not any(is_served(method, path) for method in ("GET", "POST"))] == []
