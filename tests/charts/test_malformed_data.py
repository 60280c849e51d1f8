"""Malformed data of other programs: stored releases, manifests, values, repositories and registries. It causes no
internal error, does not stop the process and does not delay other callers.
"""

from __future__ import annotations

import asyncio
import gzip
import json
import subprocess
import sys
import threading
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import chart_servers
import pytest
from chart_servers import Reply, WebServer
from conftest import ROOT, TIMEOUT_SECONDS
from release_secrets import TIMESTAMP, made_release
from test_cluster_faults import fake_server, json_response, release_responses, run

from models.charts import releases, yaml_values
from models.charts.refs import ChartRef
from models.charts.repositories import semver, staged_index
from models.charts.repositories import stored as repositories
from models.charts.repositories.index import IndexChart, IndexVersion
from models.charts.repositories.stored import RepositorySource, catalogue
from models.charts.resources import named
from models.config.settings import ChartSecurity, FetchSettings
from models.errors import Invalid, Upstream
from supervisor.charts.fetcher import Fetcher
from supervisor.charts.kube.releases import Native
from supervisor.charts.oci import Registries
from supervisor.charts.registry_logins import RegistryLogins
from supervisor.charts.workers import Workers
from supervisor.http import urls
from supervisor.http.client import Request


@pytest.fixture
def web() -> Iterator[WebServer]:
    with chart_servers.web_server() as one:
        yield one


def fetcher(web: WebServer) -> Fetcher:
    return Fetcher(FetchSettings(), ChartSecurity(allowed_hosts=(web.host_port,)))


def nested(depth: int) -> Any:
    value: Any = 1
    for _ in range(depth):
        value = {"a": value}
    return value


# Releases


@pytest.mark.parametrize(
    "when", ["2026-13-45T00:00:00Z", "0000-01-01T00:00:00Z", "0001-01-01T00:00:00+05:00", "9999-12-31T23:59:59-23:00"]
)
def test_an_invalid_time_is_null(when: str) -> None:
    release = made_release("a", "n")
    release["info"]["last_deployed"] = when
    assert releases.list_row(release).updated is None
    assert releases.history_row(release).updated is None
    assert releases.release(release).info.first_deployed == TIMESTAMP


@pytest.mark.parametrize(
    "hooks",
    [5, "x", {"a": 1}, [5, None], [{"events": 7, "weight": "x", "delete_policies": True, "last_run": "x"}],
     [{"events": ["test", 3], "weight": None, "last_run": {"phase": 4}}]],
)  # fmt: skip
def test_invalid_hooks_are_reported_as_far_as_possible(hooks: Any) -> None:
    release = made_release("a", "n", hooks=hooks)
    assert all(one.weight == 0 and one.delete_policy == () for one in releases.hooks(release))
    assert all(one.status == "RUNNING" for one in releases.test_results(release, None))


@pytest.mark.parametrize("value", [nested(330), nested(900), {"a": "\ud800", "b": "\0"}])
def test_values_too_deep_for_block_style_are_still_yaml(value: Any) -> None:
    assert json.loads(yaml_values.dump(value)) == value


def test_a_manifest_too_deep_for_the_parser_is_refused() -> None:
    for text in ("[" * 100_000, "a: " + "{a: " * 100_000, "- " * 100_000):
        with pytest.raises(Invalid, match="more than 500 deep"):
            named(text)


@pytest.mark.parametrize("text", ["a: \ud800", "? {a: 1}\n: x", "a: 1\n b: 2", "{{ x }}"])
def test_an_unreadable_document_is_one_faulty_object(text: str) -> None:
    (found,) = named(text)
    assert found.fault.startswith("the document is not YAML")


def test_a_manifest_as_deep_as_a_custom_resource_definition_is_read() -> None:
    deep = json.dumps({"apiVersion": "v1", "kind": "A", "spec": nested(200)})
    assert [one.kind for one in named(deep)] == ["A"]


@pytest.mark.parametrize("text", ["a: " + "[" * 200_000, "{a: " * 100_000, "- " * 100_000])
def test_values_too_deep_for_the_parser_are_refused(text: str) -> None:
    with pytest.raises(Invalid, match="more than 500 deep"):
        yaml_values.parse(text)


@pytest.mark.parametrize(
    "about", ['{name: ".."}', '{name: "."}', "{generateName: x-}", '{name: "a%b"}', '{name: a/b}',
              '{name: a, namespace: ".."}']
)  # fmt: skip
def test_an_object_with_an_invalid_name_is_not_found_and_hides_no_other(about: str) -> None:
    objects = [f"apiVersion: v1\nkind: ConfigMap\nmetadata: {one}\n" for one in (about, "{name: x}")]
    stored_releases = release_responses(made_release("a", "n", manifest="---\n".join(objects)))

    def answer(path: str, query: dict[str, list[str]], accept: str) -> tuple[int, bytes] | None:
        if path == "/api/v1":
            return json_response({"resources": [{"kind": "ConfigMap", "name": "configmaps", "namespaced": True}]})
        if path.endswith("/configmaps/x"):
            return json_response({"kind": "ConfigMap"})
        return json_response({}, 400) if "/configmaps/" in path else stored_releases(path, query, accept)

    with fake_server(answer) as api:
        found = run(api.access, lambda cluster: Native(cluster).resources("n", "a"))
    assert [one.ready for one in found] == [False, True]
    assert found[0].message.startswith("not found")


def test_status_410_of_the_cluster_is_an_upstream_error() -> None:
    with fake_server(lambda *_: json_response({}, 410)) as api:
        for method in ("stored", "history", "resources"):
            with pytest.raises(Upstream, match="expired"):
                run(api.access, lambda cluster, method=method: getattr(Native(cluster), method)("n", "a"))  # type: ignore[misc]


# Texts that could take long to parse


@pytest.mark.parametrize(
    "text",
    ["1   " * 60 + "!", "1, " * 80 + "!", "1 , " * 60 + "!", " " * 250 + "!", ">= 1 " * 40 + "!", "1 - 2 " * 40 + "!"],
)
def test_long_version_ranges_are_refused_in_linear_time(text: str) -> None:
    assert error_of_program(f"from models.charts.refs import check_version as ask\nask({text!r})") == "Invalid"


def test_a_long_registry_challenge_is_parsed_in_linear_time() -> None:
    assert error_of_program("from supervisor.charts.oci import _CHALLENGE\n_CHALLENGE.findall('a' * 1_000_000)") == ""


def test_a_long_host_name_is_refused_in_linear_time() -> None:
    assert error_of_program("from supervisor.http.urls import parse\nparse('http://' + 'é.' * 5_000_000)") == "Invalid"


def error_of_program(program: str) -> str:
    """The exception class that a Python program ends with, or an empty string; it is killed after a timeout."""
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, timeout=TIMEOUT_SECONDS
    )
    return done.stderr.strip().rpartition("\n")[2].partition(":")[0].rpartition(".")[2]


# Repositories and registries


@pytest.mark.parametrize("where", ["http://[zz", "//[", "https://[::1"])
def test_a_malformed_redirect_is_refused(web: WebServer, where: str) -> None:
    web.pages["/x"] = (302, {"Location": where}, b"")
    with pytest.raises(Invalid, match="is refused"):
        asyncio.run(fetcher(web).fetch(Request(urls.parse(f"{web.url}/x"))))
    with pytest.raises(Invalid, match="is refused"):
        urls.parse(web.url).below(where)


def test_response_headers_above_the_limit_are_reported(web: WebServer) -> None:
    web.pages["/x"] = (200, {"X": "y" * 70_000}, b"")
    with pytest.raises(Upstream, match="its headers are too long"):
        asyncio.run(fetcher(web).fetch(Request(urls.parse(f"{web.url}/x"))))


def test_unpacking_a_response_yields_to_the_loop(web: WebServer, tmp_path: Path) -> None:
    size = 64 * 1024**2
    web.pages["/x"] = (200, {"Content-Encoding": "gzip"}, gzip.compress(bytes(size)))

    async def count_loop_iterations() -> int:
        fetching = asyncio.ensure_future(
            fetcher(web).fetch(Request(urls.parse(f"{web.url}/x"), size, into=tmp_path / "x", unpack=True))
        )
        iterations = 0
        while not fetching.done():
            iterations += (tmp_path / "x").exists()  # the response has begun
            await asyncio.sleep(0)
        assert (await fetching).size == size
        return iterations

    assert asyncio.run(count_loop_iterations()) > 500


@pytest.mark.parametrize(
    ("wanted", "found"),
    [("0.1.0-a || 0.2.0", "0.2.0"), ("0.1.0-a - 0.2", "0.2.0"), (">0.1 <0.2.0-b", "0.2.0-a"),
     ("0.2.0-a", "0.2.0-a"), ("0.2.0-a+b", "0.2.0-a+b")],
)  # fmt: skip
def test_a_range_may_begin_with_a_prerelease(web: WebServer, wanted: str, found: str) -> None:
    web.pages["/v2/x/demo/tags/list"] = json.dumps({"tags": ["0.1.0", "0.2.0", "0.2.0-a"]}).encode()
    web.pages |= {f"/v2/x/demo/manifests/{tag}": b"{}" for tag in ("0.2.0-a", "0.2.0-a_b")}
    registries = Registries(fetcher(web), RegistryLogins({}), Workers())
    ref = ChartRef.parse(f"oci://{web.host_port}/x/demo", wanted)
    assert asyncio.run(registries.version(ref)) == found


def test_a_version_lookup_reads_one_state_of_the_index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    catalogue.open(tmp_path / "charts.db")
    try:
        for version in ("1.0.0", "1.1.0"):
            staged_index.write(tmp_path / version, "lab", [index_chart(version)])
        new = RepositorySource("lab", "http://x.example")
        catalogue.run_with_timeout(lambda: repositories.replace(new, tmp_path / "1.0.0"), TIMEOUT_SECONDS)
        source, chosen = repositories.named("lab"), semver.chosen

        def replace() -> None:
            catalogue.run_with_timeout(lambda: repositories.replace(source, tmp_path / "1.1.0"), TIMEOUT_SECONDS)

        def meanwhile(wanted: str, known: Iterable[str]) -> str | None:
            thread = threading.Thread(target=replace)
            thread.start()
            thread.join()
            return chosen(wanted, known)

        monkeypatch.setattr(semver, "chosen", meanwhile)
        assert repositories.find(source, "demo", "^1").version == "1.0.0"
        assert repositories.find(source, "demo", "^1").version == "1.1.0"
    finally:
        catalogue.close()


def index_chart(version: str) -> IndexChart:
    return IndexChart("demo", (IndexVersion(version, None, None, "demo.tgz", ""),))


def test_a_tag_list_with_a_malformed_link_is_refused(web: WebServer) -> None:
    reply: Reply = (200, {"Link": '<http://[zz>; rel="next"'}, b'{"tags": []}')
    web.pages["/v2/x/demo/tags/list"] = reply
    with pytest.raises(Invalid, match="is refused"):
        asyncio.run(
            Registries(fetcher(web), RegistryLogins({}), Workers()).version(
                ChartRef.parse(f"oci://{web.host_port}/x/demo")
            )
        )
