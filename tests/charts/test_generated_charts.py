"""Charts made by rule, compared with both versions of helm: a few, and a hundred with `make proof`."""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import chart_servers
import pytest
import yaml
from attrs import frozen
from chart_servers import WebServer, chart_archive, post_json
from conftest import IS_PROOF, Server
from generated_charts import Made, made
from http_checks import running_server
from small_charts import HELMS, files_of, helm_path, post_chart, unpack

NUMBERS = range(100) if IS_PROOF else range(3)
API = "/api/v1"


@frozen
class Lab:
    helm: str
    server: Server
    web: WebServer

    def run_helm(self, folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
        homes = {f"HELM_{kind}_HOME": str(folder / "home" / kind) for kind in ("CACHE", "CONFIG", "DATA")}
        environment = {"PATH": "/usr/bin:/bin", "HOME": str(folder), "KUBECONFIG": "/nonexistent", **homes}
        command = [helm_path(self.helm), *arguments]
        return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True)

    def post(self, path: str, chart: bytes, **parts: Any) -> Any:
        return post_chart(self.server, API + path, {"X-API-Key": chart_servers.KEY}, chart=chart, **parts)


@pytest.fixture(scope="module", params=HELMS)
def lab(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    folder = tmp_path_factory.mktemp(request.param)
    with ExitStack() as stack:
        web = stack.enter_context(chart_servers.web_server())
        versions = ("1.0.0", "1.1.0", "1.2.0", "2.0.0")
        parts = [(name, one, chart_archive(name, one)) for name in ("cache", "queue") for one in versions]
        web.serve(*parts)
        charts = [made(number, web.url) for number in NUMBERS]
        web.serve(*((one.name, one.version, one.archive) for one in charts), folder="/made")
        svc = {
            "security": chart_servers.FULL | {"allowed-hosts": [web.host_port]},
            "helm": {"binary": helm_path(request.param)},
            "kube": {"kubeconfig": str(folder / "none")},
        }
        server = stack.enter_context(running_server(folder, svc=svc))
        assert post_json(server, "/repos", {"name": "made", "url": f"{web.url}/made"}).status == 201
        yield Lab(request.param, server, web)


@pytest.fixture(params=NUMBERS)
def chart(request: pytest.FixtureRequest, lab: Lab) -> Made:
    return made(request.param, lab.web.url)


def test_it_renders_as_with_helm(lab: Lab, chart: Made, tmp_path: Path) -> None:
    (tmp_path / "chart.tgz").write_bytes(chart.archive)
    (tmp_path / "values.json").write_text(json.dumps(chart.values))
    for fields, flags in (
        ({}, []),
        ({"includeCrds": True, "isUpgrade": True}, ["--include-crds", "--is-upgrade"]),
        ({"skipTests": True, "kubeVersion": "1.29"}, ["--skip-tests", "--kube-version=1.29"]),
    ):
        ours = lab.post("/charts/template/upload", chart.archive, request={"values": chart.values, **fields})
        theirs = lab.run_helm(tmp_path, "template", "release-name", "chart.tgz", "-f", "values.json", *flags)
        assert (ours.status == 200) == (theirs.returncode == 0), (ours, theirs.stderr)
        if ours.status == 200:
            assert ours.text == theirs.stdout
        else:
            assert ours.status in (400, 422)


def test_it_is_shown_as_with_helm(lab: Lab, chart: Made, tmp_path: Path) -> None:
    (tmp_path / "chart.tgz").write_bytes(chart.archive)
    for what in ("values", "readme", "crds"):
        ours = lab.post("/charts/show/upload", chart.archive, what=what)
        theirs = lab.run_helm(tmp_path, "show", what, "chart.tgz")
        assert theirs.returncode == 0, theirs.stderr
        assert ours.text.strip("\n-") == theirs.stdout.strip("\n-"), what


def test_lint_finds_what_helm_finds(lab: Lab, chart: Made, tmp_path: Path) -> None:
    (tmp_path / "values.json").write_text(json.dumps(chart.values))
    folder = unpack(tmp_path, chart.archive)
    ours = lab.post("/charts/lint/upload", chart.archive, request={"values": chart.values}).json
    theirs = lab.run_helm(tmp_path, "lint", str(folder), "-f", "values.json")
    assert ours["ok"] == (theirs.returncode == 0)
    text = theirs.stdout + theirs.stderr
    for level, found in (("ERROR", "errors"), ("WARNING", "warnings"), ("INFO", "infos")):
        assert len(ours[found]) == len(re.findall(rf"^\[{level}\]", text, re.MULTILINE)), (level, ours, text)


def test_its_package_and_archive_equal_those_of_helm(lab: Lab, chart: Made, tmp_path: Path) -> None:
    pulled = post_json(lab.server, "/repos/pull", {"chart": f"made/{chart.name}", "version": chart.version})
    assert pulled.body == chart.archive
    folder = unpack(tmp_path, chart.archive)
    ours = lab.post("/charts/package", chart.archive, request={"version": "3.0.0", "appVersion": "x"})
    theirs = lab.run_helm(tmp_path, "package", str(folder), "--version=3.0.0", "--app-version=x", "--destination=out")
    assert (ours.status == 200) == (theirs.returncode == 0), (ours, theirs.stderr)
    if ours.status == 200:
        assert files_of(ours.body) == files_of(next((tmp_path / "out").glob("*.tgz")).read_bytes())


def test_its_dependencies_are_listed_as_with_helm(lab: Lab, chart: Made, tmp_path: Path) -> None:
    folder = unpack(tmp_path, chart.archive)
    listed = lab.server.get(f"{API}/dependencies?chartRef=made/{chart.name}:{chart.version.replace('+', '%2B')}").json
    theirs = lab.run_helm(tmp_path, "dependency", "list", str(folder))
    rows = [[cell.strip() for cell in line.split("\t")] for line in theirs.stdout.splitlines()[1:] if "\t" in line]
    assert [[row["name"], row["version"], row["repository"], row["status"]] for row in listed] == rows


def test_its_dependencies_are_built_as_with_helm(lab: Lab, chart: Made, tmp_path: Path) -> None:
    folder = unpack(tmp_path, chart.archive)
    ours = lab.post("/dependencies/build", chart.archive)
    done = lab.run_helm(tmp_path, "dependency", "update", str(folder))
    if re.search(r"directory \S+ not found", done.stderr):  # helm needs a folder where there is no repository
        assert set(files_of(chart.archive)) <= set(files_of(ours.body))
        return
    assert (ours.status == 200) == (done.returncode == 0), (ours, done.stderr)
    if ours.status == 200:
        built = {str(path.relative_to(tmp_path)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}
        found, lock = files_of(ours.body), f"{chart.name}/Chart.lock"
        assert _locked(found.pop(lock, None)) == _locked(built.pop(lock, None))
        assert found == built


def _locked(text: bytes | None) -> Any:
    return None if text is None else {**yaml.safe_load(text), "generated": ""}
