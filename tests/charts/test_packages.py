"""Packages and dependency builds equal those of helm; signatures need the key and the operator's keyring."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import chart_servers
import pytest
import yaml
from chart_servers import WebServer, chart_archive, post_json, run_helm, running_registry
from conftest import Answer, Server
from http_checks import check_problem, running_server
from small_charts import files_of, helm_path, post_chart, unpack
from test_provenance import Signer

API = "/api/v1"
PACKAGE, BUILD = f"{API}/charts/package", f"{API}/dependencies/build"
KEY = {"X-API-Key": "the-key"}


@pytest.fixture(scope="module")
def web() -> Iterator[WebServer]:
    with chart_servers.web_server() as one:
        one.serve(*(("cache", version, chart_archive("cache", version)) for version in ("1.0.0", "1.2.0", "2.0.0")))
        yield one


@pytest.fixture(scope="module")
def registry(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    folder = tmp_path_factory.mktemp("registry")
    with running_registry(folder) as place:
        (folder / "queue.tgz").write_bytes(chart_archive("queue", "1.1.0"))
        run_helm(folder, "push", "--plain-http", "queue.tgz", f"oci://{place}/charts")
        yield place


@pytest.fixture(scope="module")
def signer(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Signer]:
    import subprocess

    from requirements import require

    require("gpg", "gpgconf")
    folder = Path(subprocess.run(["mktemp", "-d"], check=True, capture_output=True, text=True).stdout.strip())
    one = Signer(folder / "a", "alice")
    yield one
    one.close()
    shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory, web: WebServer, registry: str, signer: Signer) -> Iterator[Server]:
    svc = {
        "security": chart_servers.FULL | {"allowed-hosts": [web.host_port, registry]},
        "helm": {"binary": helm_path("helm")},
        "package": {"keyring": str(signer.secret), "key": "alice"},
    }
    with running_server(tmp_path_factory.mktemp("server"), svc=svc) as one:
        assert post_json(one, "/repos", {"name": "lab", "url": web.url}).status == 201
        yield one


def ok(answer: Answer) -> Answer:
    assert answer.status == 200, answer
    return answer


def needing(*dependencies: dict[str, str], api: str = "v2", **files: bytes | str) -> bytes:
    named = {name.replace("__", "/"): data for name, data in files.items()}
    if api == "v2":
        return chart_archive("needing", files=named, dependencies=list(dependencies))
    named["requirements.yaml"] = yaml.safe_dump({"dependencies": list(dependencies)})
    return chart_archive("needing", files=named, apiVersion="v1")


def test_a_package_equals_that_of_helm(server: Server, tmp_path: Path) -> None:
    chart = chart_archive(
        "demo", files={"README.md": "# x\n", "charts/cache-1.0.0.tgz": chart_archive("cache", "1.0.0")}
    )
    request = {"version": "2.0.0-rc.1", "appVersion": "v 7"}
    answer = ok(post_chart(server, PACKAGE, chart=chart, request=request))
    assert answer.headers["Content-Type"] == "application/gzip"
    assert answer.headers["Content-Disposition"] == 'attachment; filename="demo-2.0.0-rc.1.tgz"'
    folder = unpack(tmp_path, chart)
    run_helm(tmp_path, "package", str(folder), "--version=2.0.0-rc.1", "--app-version=v 7")
    assert files_of(answer.body) == files_of((tmp_path / "demo-2.0.0-rc.1.tgz").read_bytes())
    assert files_of(ok(post_chart(server, PACKAGE, chart=chart)).body)["demo/README.md"] == b"# x\n"


@pytest.mark.parametrize("request_", [{"version": "one"}, {"version": "--sign"}, {"versoin": "1.0.0"}, {"sign": "yes"}])
def test_bad_requests_are_refused(server: Server, request_: dict[str, Any]) -> None:
    answer = post_chart(server, PACKAGE, chart=chart_archive("demo"), request=request_)
    check_problem(answer, 400, PACKAGE, has_timestamp=True)


def test_a_package_without_its_dependencies_fails_as_with_helm(server: Server, web: WebServer) -> None:
    chart = needing({"name": "cache", "version": "^1", "repository": web.url})
    answer = post_chart(server, PACKAGE, chart=chart)
    assert answer.status in (400, 422), answer
    updated = files_of(ok(post_chart(server, PACKAGE, chart=chart, request={"dependencyUpdate": True})).body)
    assert "needing/charts/cache/Chart.yaml" in updated or "needing/charts/cache-1.2.0.tgz" in updated
    assert yaml.safe_load(updated["needing/Chart.lock"])["dependencies"][0]["version"] == "1.2.0"


def test_a_signed_package_is_verified_by_helm(server: Server, signer: Signer, tmp_path: Path) -> None:
    answer = ok(post_chart(server, PACKAGE, KEY, chart=chart_archive("demo"), request={"sign": True}))
    assert answer.headers["Content-Type"] == "application/x-tar"
    for name, data in files_of(answer.body).items():
        (tmp_path / name).write_bytes(data)
    assert sorted(files_of(answer.body)) == ["demo-0.1.0.tgz", "demo-0.1.0.tgz.prov"]
    run_helm(tmp_path, "verify", f"--keyring={signer.public}", "demo-0.1.0.tgz")


def test_a_signature_needs_the_permission_to_change_charts(server: Server, tmp_path: Path) -> None:
    answer = post_chart(server, PACKAGE, chart=chart_archive("demo"), request={"sign": True})
    check_problem(answer, 401, PACKAGE, has_timestamp=True)
    with running_server(tmp_path) as closed:
        answer = post_chart(closed, PACKAGE, KEY, chart=chart_archive("demo"), request={"sign": True})
        check_problem(answer, 403, PACKAGE, has_timestamp=True)


def test_a_signature_needs_a_configured_key(tmp_path: Path) -> None:
    with running_server(tmp_path, svc={"security": chart_servers.FULL}) as one:
        answer = post_chart(one, PACKAGE, KEY, chart=chart_archive("demo"), request={"sign": True})
        assert "svc.package.keyring" in check_problem(answer, 400, PACKAGE, has_timestamp=True)["detail"]


def _wanted(chart: Path) -> list[dict[str, str]]:
    files = (chart / "requirements.yaml", chart / "Chart.yaml")
    found = next(file for file in files if file.exists())
    listed: list[dict[str, str]] = yaml.safe_load(found.read_text())["dependencies"]
    return listed


def helm_build(folder: Path, archive: bytes) -> dict[str, bytes]:
    """The files of a chart after helm has built its dependencies."""
    chart = unpack(folder, archive)
    for number, one in enumerate(
        {entry["repository"] for entry in _wanted(chart) if entry["repository"][:4] == "http"}
    ):
        run_helm(folder, "repo", "add", f"r{number}", one)
    run_helm(folder, "dependency", "build", "--plain-http", str(chart))
    return {str(path.relative_to(folder)): path.read_bytes() for path in chart.rglob("*") if path.is_file()}


def without_time(files: dict[str, bytes]) -> dict[str, Any]:
    """The files, with the time taken out of the lock."""
    return {
        name: {**yaml.safe_load(data), "generated": ""} if name.endswith(".lock") else data
        for name, data in files.items()
    }


@pytest.mark.parametrize("api", ["v1", "v2"])
def test_a_chart_without_a_lock_is_built_like_by_helm(
    server: Server, web: WebServer, registry: str, tmp_path: Path, api: str
) -> None:
    chart = needing(
        {"name": "cache", "version": "^1", "repository": web.url},
        {"name": "cache", "version": "2.x", "repository": f"{web.url}/", "alias": "second"},
        {"name": "queue", "version": "1.1.0", "repository": f"oci://{registry}/charts"},
        api=api,
        charts__old__Chart__yaml="",
        **{"charts/old-1.0.0.tgz": chart_archive("old", "1.0.0")},
    )
    files = files_of(chart)
    files.pop("needing/charts/old/Chart/yaml")
    chart = chart_servers.tar_archive(list(files.items()))
    answer = ok(post_chart(server, BUILD, chart=chart))
    assert answer.headers["Content-Disposition"] == 'attachment; filename="needing-0.1.0.tgz"'
    assert without_time(files_of(answer.body)) == without_time(helm_build(tmp_path, chart))


def test_an_archive_of_a_dependency_without_a_repository_stays(server: Server, web: WebServer) -> None:
    own, other = {"name": "own", "version": "0.1.0"}, {"name": "cache", "version": "^1", "repository": web.url}
    files: dict[str, Any] = {
        "charts__own-0.1.0.tgz": chart_archive("own"),
        "charts__old-0.1.0.tgz": chart_archive("old"),
        "charts__own-part-0.1.0.tgz": chart_archive("own-part"),
    }
    built = files_of(ok(post_chart(server, BUILD, chart=needing(own, other, **files))).body)
    archives = {path.rpartition("/")[2]: data for path, data in built.items() if path.startswith("needing/charts/")}
    assert archives == {"own-0.1.0.tgz": chart_archive("own"), "cache-1.2.0.tgz": chart_archive("cache", "1.2.0")}


def test_the_lock_decides_unless_an_update_is_requested(server: Server, web: WebServer, tmp_path: Path) -> None:
    wanted = {"name": "cache", "version": "1.0.0", "repository": web.url}
    built = files_of(ok(post_chart(server, BUILD, chart=needing(wanted))).body)
    lock = built["needing/Chart.lock"].decode()
    chart = needing(wanted, **{"Chart.lock": lock})
    again = ok(post_chart(server, BUILD, chart=chart)).body
    assert files_of(again) == helm_build(tmp_path, chart)
    stale = needing(wanted | {"version": "^1"}, **{"Chart.lock": lock})
    problem = check_problem(post_chart(server, BUILD, chart=stale), 400, BUILD, has_timestamp=True)
    assert "out of sync" in problem["detail"]
    updated = files_of(ok(post_chart(server, BUILD, chart=stale, request={"update": True})).body)
    assert "needing/charts/cache-1.2.0.tgz" in updated


@pytest.mark.parametrize("repository", ["file://../cache", "http://169.254.169.254/", "http://127.0.0.1:9/"])
def test_dependencies_are_fetched_by_the_guarded_client(server: Server, repository: str) -> None:
    chart = needing({"name": "cache", "version": "1.0.0", "repository": repository})
    problem = check_problem(post_chart(server, BUILD, chart=chart), 400, BUILD, has_timestamp=True)
    assert "refused" in problem["detail"] or "cache" in problem["detail"]


def test_a_chart_without_dependencies_is_returned_as_it_is(server: Server) -> None:
    chart = chart_archive("demo")
    assert files_of(ok(post_chart(server, BUILD, chart=chart)).body) == files_of(chart)
