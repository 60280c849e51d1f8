"""The commands for CI jobs on the pages: a shell parses them as intended."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from html import unescape
from pathlib import Path

import pytest
import uploads
import users
from conftest import Serve, Server
from http_checks import running_server

NAMES = [
    "shop",
    "two words",
    "it's",
    '"; rm -rf $HOME; `id` $(id)',
    "@/etc/passwd",
    "a\\b;type=x",
    "ü & <b>",
    "-x",
    "!!",
]
REPORT = uploads.junit(passed=1)
SHOWN = 'curl() { printf "%s\\n" "$@" END; }; git() { echo "of-$1"; }; grep() { cat; }\n'
"""Programs that print their arguments."""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with running_server(tmp_path_factory.mktemp("snippets")) as one:
        yield one


def snippet(text: str) -> str:
    return unescape(text.partition('<pre id="snippet"')[2].partition(">")[2].partition("</pre>")[0])


def program_arguments(commands: str, folder: Path) -> list[list[str]]:
    """The arguments of the programs that a shell starts for these commands."""
    done = subprocess.run(["bash", "-c", SHOWN + commands], capture_output=True, text=True, cwd=folder, check=True)
    assert done.stderr == ""
    return [one.strip("\n").split("\n") for one in done.stdout.split("END\n") if one]


@pytest.mark.parametrize("name", NAMES)
def test_a_shell_passes_the_name_to_curl_unchanged(server: Server, tmp_path: Path, name: str) -> None:
    project = uploads.upload(server, ("project", name), ("junit", REPORT))["projectId"]
    post, gate = program_arguments(snippet(server.get(f"/projects/{project}").text), tmp_path)
    base = f"http://127.0.0.1:{server.port}/api/v1"
    assert post == [
        "-fsS", "--form-string", f"project={name}", "-F", "branch=of-branch", "-F", "commit=of-rev-parse",
        "-F", "junit=@junit.xml", "-F", "jacoco=@coverage.xml", f"{base}/ingest",
    ]  # fmt: skip
    answer = server.get(gate[-1].removeprefix(f"http://127.0.0.1:{server.port}").replace("of-rev-parse", "x"))
    assert answer.status == 404
    assert "no project" not in answer.json["detail"]  # only this commit is unknown


def test_the_command_uses_the_tracker_prefix_of_the_page(server: Server) -> None:
    uploads.upload(server, ("project", "shop"), ("junit", REPORT))
    assert f"http://127.0.0.1:{server.port}/tracker/api/v1/ingest" in snippet(server.get("/tracker/projects/1").text)
    assert f"http://127.0.0.1:{server.port}/api/v1/ingest" in snippet(server.get("/charts/projects/1").text)


def test_the_command_has_a_token_if_one_is_required(serve: Serve, server: Server) -> None:
    assert "TOKEN" not in snippet(server.get("/projects/1").text)
    asking = serve({}, tracker={"security": {"require-ingest-token": True}})
    assert "Bearer $PILOTHOUSE_TOKEN" in snippet(asking.get("/projects").text)
    token = users.create_token(asking.data, "ci")
    uploads.upload(asking, ("project", "shop"), ("junit", REPORT), **users.bearer(token))
    assert "Bearer $PILOTHOUSE_TOKEN" in snippet(asking.get("/projects/1").text)
