"""Source lines: contents of archives, matching of files, and permissions."""

from __future__ import annotations

import gzip
import io
import re
import tarfile
import tracemalloc
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal
from urllib.parse import quote

import http_checks
import pytest
import records
import uploads
from browser_pages import Browser, url_of
from conftest import Server
from uploads import FORM, INGEST, body, jacoco, junit, part, query_store

from handlers.tracker.pages import coverage_strip
from models.config.settings import ForgeSettings, SourceSettings
from models.tracker.files import source_archive, sources
from models.tracker.files.source_archive import BadArchive, text_files
from models.tracker.files.sources import CoveredFile
from models.tracker.forges import project_forge
from models.tracker.forges.forge_links import file_url, line_url, pages_of
from models.tracker.reports.staging import StagedRows
from models.tracker.tables import Project, reports

API = "/api/v1"
SHA = "9fceb02d0ae598e95dc970b74767f19372d61af8"
OTHER = "6dcb09b5b57875f334f61aebed695e2e4193db5e"


def archive(files: dict[str, bytes], form: int = tarfile.PAX_FORMAT) -> bytes:
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w:gz", format=form) as tar:
        for name, content in files.items():
            entry = tarfile.TarInfo(name)
            entry.size = len(content)
            tar.addfile(entry, io.BytesIO(content))
    return packed.getvalue()


def read(data: bytes, most: int = 1000) -> dict[str, str]:
    return dict(text_files(io.BytesIO(data), most))


LONG = "/".join(["folder"] * 40) + "/ü.py"


@pytest.mark.parametrize("form", [tarfile.PAX_FORMAT, tarfile.GNU_FORMAT, tarfile.USTAR_FORMAT])
def test_the_text_files_of_an_archive_are_read(form: int) -> None:
    files = {"./a.py": b"one\n", "b/c.py": "zwei ü".encode(), "empty.py": b"", "binary": b"\0", "large": b"x" * 1001}
    if form != tarfile.USTAR_FORMAT:
        files[LONG] = b"deep"
    expected = {"a.py": "one\n", "b/c.py": "zwei ü", "empty.py": ""}
    assert read(archive(files, form)) == expected | ({LONG: "deep"} if form != tarfile.USTAR_FORMAT else {})


def test_links_folders_and_paths_outside_the_archive_are_skipped() -> None:
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w:gz") as tar:
        for name, kind in {"link": tarfile.SYMTYPE, "hard": tarfile.LNKTYPE, "dir": tarfile.DIRTYPE,
                           "fifo": tarfile.FIFOTYPE}.items():  # fmt: skip
            entry = tarfile.TarInfo(name)
            entry.type, entry.linkname = kind, "/etc/passwd"
            tar.addfile(entry)
        for name in ("../up.py", "a/../../up.py", "/etc/passwd", "good.py"):
            entry = tarfile.TarInfo(name)
            entry.size = 1
            tar.addfile(entry, io.BytesIO(b"x"))
    assert read(packed.getvalue()) == {"etc/passwd": "x", "good.py": "x"}


def bomb() -> bytes:
    """An archive whose extended header claims eight gigabytes."""
    entry = tarfile.TarInfo("x")
    entry.type, entry.size = tarfile.XHDTYPE, 8**11 - 1
    return gzip.compress(entry.tobuf(tarfile.USTAR_FORMAT) + b"\0" * 3_000_000, 1)


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"no archive", "it is not a tar.gz"),
        (gzip.compress(b"text" * 500), "it is not a tar.gz"),
        (gzip.compress(b"x" * 100), "it ends within a file"),
        (archive({"a.py": b"x" * 900})[:-40], "it (ends within a file|is not a tar.gz)"),
    ],
    ids=["text", "gzip of text", "short", "cut"],
)
def test_invalid_archive_is_refused(data: bytes, reason: str) -> None:
    with pytest.raises(BadArchive, match=reason):
        read(data)


def test_an_archive_that_inflates_too_much_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(source_archive, "MAX_INFLATED_BYTES", 1_000_000)
    for data in (bomb(), archive({"a.py": b"x" * 1_100_000})):
        with pytest.raises(BadArchive, match="more than 1000000 bytes when inflated"):
            read(data)
    monkeypatch.setattr(source_archive, "MAX_FILES", 3)
    with pytest.raises(BadArchive, match="more than 3 files"):
        read(archive({f"{number}.py": b"" for number in range(4)}))


@pytest.mark.parametrize(
    ("repo", "provider", "expected"),
    [
        ("https://code.example.com/a/b", None, None),
        ("https://code.example.com/a/b", "azure", None),
        ("javascript:alert(1)//github.com/a/b", None, None),
        ("https://github.com/a", None, None),
        ("https://github.com:x/a/b", None, None),
        (None, "github", None),
        ("https://user:secret@github.com/a/b", None, f"https://github.com/a/b/blob/{SHA}/x%20y.py"),
    ],
)
def test_links_lead_to_the_file_at_the_commit(repo: str | None, provider: str | None, expected: str | None) -> None:
    assert file_url(repo, SHA, "x y.py", provider) == expected
    assert file_url(repo, 'main"><script>', "x y.py", provider) is None
    assert file_url(repo, SHA, "../x.py", provider) is None


GITHUB = ("/commit/{0}", "/pull/7", "/compare/{1}...{0}", "/blob/{0}/x%20y.py#L3")
GITLAB = ("/-/commit/{0}", "/-/merge_requests/7", "/-/compare/{1}...{0}", "/-/blob/{0}/x%20y.py#L3")
FORGEJO = ("/commit/{0}", "/pulls/7", "/compare/{1}...{0}", "/src/commit/{0}/x%20y.py#L3")
BITBUCKET = ("/commits/{0}", "/pull-requests/7", "/branches/compare/{0}%0D{1}", "/src/{0}/x%20y.py#lines-3")
BITBUCKET_SERVER = (
    "/commits/{0}", "/pull-requests/7/overview", "/compare/commits?sourceBranch={0}&targetBranch={1}",
    "/browse/x%20y.py?at={0}#3",
)  # fmt: skip
AZURE = (
    "/commit/{0}", "/pullrequest/7", "/branchCompare?baseVersion=GC{1}&targetVersion=GC{0}",
    "?path=/x%20y.py&version=GC{0}&line=3&lineEnd=3&lineStartColumn=1&lineEndColumn=1000",
)  # fmt: skip


@pytest.mark.parametrize(
    ("repo", "provider", "address", "paths"),
    [
        ("https://github.com/a/b", None, "https://github.com/a/b", GITHUB),
        ("git@github.com:a/b.git", "azure", "https://github.com/a/b", GITHUB),
        ("https://github.acme.example:8443/a/b", None, "https://github.acme.example:8443/a/b", GITHUB),
        ("ssh://git@gitlab.com/g/s/p.git", None, "https://gitlab.com/g/s/p", GITLAB),
        ("https://code.example.com:8443/g/p", "gitlab", "https://code.example.com:8443/g/p", GITLAB),
        ("https://codeberg.org/a/b", None, "https://codeberg.org/a/b", FORGEJO),
        ("http://git.acme.example:3000/a/b", "gitea", "http://git.acme.example:3000/a/b", FORGEJO),
        ("https://forgejo.acme.example/a/b", None, "https://forgejo.acme.example/a/b", FORGEJO),
        ("git@bitbucket.org:a/b.git", None, "https://bitbucket.org/a/b", BITBUCKET),
        ("https://bitbucket.acme.example/scm/b", None,
         "https://bitbucket.acme.example/projects/scm/repos/b", BITBUCKET_SERVER),
        ("https://bitbucket.acme.example/scm/PRJ/scm.git", None,
         "https://bitbucket.acme.example/projects/PRJ/repos/scm", BITBUCKET_SERVER),
        ("https://bitbucket.acme.example/scm//scm", None,
         "https://bitbucket.acme.example/projects/scm/repos/scm", BITBUCKET_SERVER),
        ("https://bitbucket.acme.example:7990/scm/PRJ/b.git", None,
         "https://bitbucket.acme.example:7990/projects/PRJ/repos/b", BITBUCKET_SERVER),
        ("https://code.acme.example/x/scm/~me/b.git", "bitbucket", "https://code.acme.example/x/users/me/repos/b",
         BITBUCKET_SERVER),
        ("https://dev.azure.com/org/my%20app/_git/b", None, "https://dev.azure.com/org/my%20app/_git/b", AZURE),
        ("git@ssh.dev.azure.com:v3/org/app/b", "azure", "https://dev.azure.com/org/app/_git/b", AZURE),
        ("http://tfs.acme.example:8080/tfs/main/app/_git/b", "azure",
         "http://tfs.acme.example:8080/tfs/main/app/_git/b", AZURE),
    ],
)  # fmt: skip
def test_pages_of_each_forge(repo: str, provider: str | None, address: str, paths: tuple[str, ...]) -> None:
    pages = pages_of(repo, provider)
    assert pages is not None
    file = pages.file(SHA, "x y.py")
    assert file is not None
    found = (pages.commit(SHA), pages.pull(7), pages.comparison(OTHER, SHA), line_url(file, 3))
    assert found == tuple(address + path.format(SHA, OTHER) for path in paths)
    assert pages.commit("main") is None


def test_a_confirmed_repository_has_the_pages_of_its_forge() -> None:
    forges = {"own": ForgeSettings(type="gitlab", url="http://code.acme.example:8080/lab")}
    project = Project(forge_repo="git@code.acme.example:lab/group/app.git", repo_url="https://github.com/a/b")
    pages = project_forge.pages(project, "https://github.com/fork/b", forges, "github")
    assert pages is not None
    assert pages.commit(SHA) == f"http://code.acme.example:8080/lab/group/app/-/commit/{SHA}"
    project.forge_repo = None
    pages = project_forge.pages(project, "https://github.com/fork/b", forges, "github")
    assert pages is not None
    assert pages.commit(SHA) == f"https://github.com/fork/b/commit/{SHA}"


def test_the_token_of_a_project_goes_to_no_other_port_of_its_host() -> None:
    forges = {
        name: ForgeSettings(type="forgejo", url=f"https://git.example:{port}", repositories=(f"{name}/*",))
        for name, port in (("one", 3000), ("two", 4000))
    }
    project = Project(forge_repo="https://git.example:3000/one/app", forge_token_at=1)
    project.forge_token_host = "https://git.example:3000"
    assert project_forge.link(project, forges).state == "OK"
    project.forge_repo = "git@git.example:two/app.git"
    found = project_forge.link(project, forges)
    assert (found.state, found.reason) == (
        "NO_TOKEN",
        "the token of the project was set for https://git.example:3000, not for https://git.example:4000",
    )
    project.forge_token_host = "git.example"  # as an earlier version kept it
    assert project_forge.link(project, forges).state == "NO_TOKEN"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    source = {"mode": "upload", "cache": "8K", "file": "4K"}
    with http_checks.running_server(tmp_path_factory.mktemp("sources"), tracker={"source": source}) as server:
        yield server


CODE = b"def a():\r\n    return '<script>alert(1)</script>'\n\nb = {{ 1 }} & {% end %}\n"
DIFF = f'{{"base":"{SHA}","head":"{SHA}","files":{{"src/main/com/x/a.py":[[2,3]]}}}}'


def upload(server: Server, project: str, files: dict[str, bytes] | bytes, **texts: str) -> dict[str, Any]:
    report = jacoco({"a.py": {1: True, 2: False, 4: True}})
    data = files if isinstance(files, bytes) else archive(files)
    parts = [part(name, value) for name, value in {"project": project, "commit": SHA, **texts}.items()]
    parts += [
        part("junit", junit(1, prefix=project), "a.xml"),
        part("jacoco", report, "c.xml"),
    ]
    parts += [part("source", data, "source.tar.gz"), part("diff", DIFF, "diff")]
    answer = server.post(INGEST, body(parts), Content_Type=FORM)
    assert answer.status == 201, answer
    reply: dict[str, Any] = answer.json
    return reply


def path_of(server: Server, run: int) -> str:
    return str(server.get(f"{API}/runs/{run}").json["coverage"]["files"][0]["path"])


def test_file_is_shown_with_its_lines_and_escaped_markup(server: Server) -> None:
    files = {"src/main/com/x/a.py": CODE, "src/secret.env": b"TOKEN=1"}
    run = upload(server, "shown", files, repoUrl="git@github.com:shop/shop.git")
    assert run["warnings"] == []
    path = path_of(server, run["runId"])
    answer = server.get(f"{API}/runs/{run['runId']}/coverage?path={quote(path)}")
    assert answer.json == {
        "runId": run["runId"], "path": path, "repositoryPath": "src/main/com/x/a.py", "modules": [],
        "coveredRanges": [[1, 1], [4, 4]], "missedRanges": [[2, 2]], "changedRanges": [[2, 3]],
        "url": f"https://github.com/shop/shop/blob/{SHA}/src/main/com/x/a.py", "source": CODE.decode(), "reason": None,
    }  # fmt: skip
    page = server.get(f"/runs/{run['runId']}/coverage?path={quote(path)}").text
    assert "&lt;script&gt;alert(1)&lt;/script&gt;" in page
    assert "<script>alert" not in page
    assert "b = {{ 1 }} &amp; {% end %}" in page
    assert '<tr id="L2" class="missed changed">' in page
    assert f'href="https://github.com/shop/shop/blob/{SHA}/src/main/com/x/a.py#L4"' in page
    assert f"/runs/{run['runId']}/coverage?path=" in server.get(f"/runs/{run['runId']}").text
    assert query_store(server, "SELECT path FROM source WHERE run_id = ?", run["runId"]) == [("src/main/com/x/a.py",)]


LCOV = "\n".join(
    [f"SF:{name}\n" + "\n".join(f"DA:{n},{int(n not in missed)}" for n in range(1, 61)) + "\nend_of_record"
     for name, missed in (("a.py", {14, 15, 16, 40}), ("b.py", {1}), ("c.py", set(range(2, 9))))]
)  # fmt: skip


def test_a_file_without_source_is_a_strip_with_its_missed_lines_as_links(server: Server) -> None:
    parts = [("commit", SHA), ("repoUrl", "git@github.com:shop/shop.git")]
    run = uploads.upload(server, ("project", "strip"), *parts, ("junit", junit(1)), ("jacoco", LCOV))["runId"]
    page = server.get(f"/runs/{run}/coverage?path=a.py").text
    line = re.search(r'<p class="missed-lines">(.*)</p>', page)
    assert line
    assert re.sub("<[^>]*>", "", line[1]) == "Missed: 14\N{EN DASH}16, 40 (4 lines)"
    assert f'href="https://github.com/shop/shop/blob/{SHA}/a.py#L14"' in line[1]
    assert page.count("<tr") == 0
    assert re.findall(r'<rect class="(\w+)" x="(\d+)" y="0" width="(\d+)"', page) == [
        ("good", "0", "13"), ("bad", "13", "3"), ("good", "16", "23"), ("bad", "39", "1"), ("good", "40", "20"),
    ]  # fmt: skip
    assert re.findall(r'rel="(prev|next)" title="([^"]+)" href="\?path=([^"]+)"', page) == [
        ("prev", "c.py", "c.py"), ("next", "b.py", "b.py"),
    ]  # fmt: skip


def test_n_goes_to_the_next_missed_lines(server: Server, chromium: Browser) -> None:
    report = jacoco({"a.py": {1: True, 2: False, 3: False, 4: True, 6: False}})
    parts: list[tuple[str, str | bytes]] = [("project", "keys"), ("junit", junit(1)), ("jacoco", report)]
    run = uploads.upload(server, *parts, ("source", archive({"src/main/com/x/a.py": b"a = 1\n" * 6})))["runId"]
    with chromium.page(url_of(server)) as one:
        one.goto(f"/runs/{run}/coverage?path={quote(path_of(server, run))}")
        for line in (2, 6, 2):
            one.keyboard.press("n")
            one.wait_for_function("(name) => location.hash === name", arg=f"#L{line}")


def test_the_strip_of_a_long_file_has_at_most_a_thousand_cells() -> None:
    file = CoveredFile("a", "a", [], list(range(1, 5000)), [4000], [], None, None)
    assert 'viewBox="0 0 1000 12"' in coverage_strip.strip(file)
    assert '<rect class="bad" x="799" y="0" width="1" height="12"/>' in coverage_strip.strip(file)


def test_a_file_that_the_run_does_not_cover_is_not_found(server: Server) -> None:
    run = upload(server, "missing", {"src/main/com/x/a.py": CODE})["runId"]
    for query, status in (("path=src/secret.env", 404), ("path=../../etc/passwd", 404), ("", 400)):
        assert server.get(f"{API}/runs/{run}/coverage?{query}").status == status, query
        shown = 302 if query else 200  # without a path it is the page of the run's coverage
        assert server.get(f"/runs/{run}/coverage?{query}").status == shown, query


def test_file_with_an_ambiguous_path_is_not_shown(server: Server) -> None:
    run = upload(server, "ambiguous", {"one/com/x/a.py": b"1", "two/com/x/a.py": b"2"})["runId"]
    assert server.get(f"{API}/runs/{run}/coverage?path={quote(path_of(server, run))}").json["source"] is None


def test_source_of_a_private_project_is_404_for_others(server: Server) -> None:
    run = upload(server, "private", {"a.py": CODE})["runId"]
    path = f"{API}/runs/{run}/coverage?path={quote(path_of(server, run))}"
    assert server.get(path).json["source"]
    with records.store_of(server):
        project = records.ensure_project("private")
        project.visibility = "PRIVATE"
        project.save()
    assert server.get(path).status == 404


def test_sources_are_deleted_with_their_run(server: Server) -> None:
    run = upload(server, "gone", {"a.py": b"only of this run"})["runId"]
    with records.store_of(server):
        admin = records.bearer(records.create_user("source-admin", "ADMIN"))
    before = query_store(server, "SELECT count(*) FROM source_content")
    assert server.ask("DELETE", f"{API}/runs/{run}", headers=admin).status == 204
    assert query_store(server, "SELECT count(*) FROM source_content")[0][0] == before[0][0] - 1


def test_source_that_cannot_be_stored_is_a_warning(server: Server) -> None:
    assert upload(server, "bad", b"no archive")["warnings"] == ["the part source was ignored: it is not a tar.gz"]
    upload(server, "off", {"a.py": CODE})
    with records.store_of(server):
        project = records.ensure_project("off")
        project.source_mode = "off"
        project.save()
    run = upload(server, "off", {"a.py": CODE + b"2"})
    assert run["warnings"] == ["the part source was ignored: tracker.source.mode is off"]
    path = path_of(server, run["runId"])
    assert server.get(f"{API}/runs/{run['runId']}/coverage?path={quote(path)}").json["source"] is None


def test_oldest_sources_are_evicted_first(server: Server) -> None:
    import random

    runs = []
    for number in range(6):
        text = "".join(random.Random(number).choices("abcdefghijklmnopqrstuvwxyz0123456789", k=3500))
        runs.append(upload(server, f"evicted {number}", {"a.py": text.encode()})["runId"])
    path = quote(path_of(server, runs[0]))
    shown = [server.get(f"{API}/runs/{run}/coverage?path={path}").json["source"] is not None for run in runs]
    assert shown == sorted(shown)
    assert shown[-1]
    assert not shown[0]
    (total,) = query_store(server, "SELECT sum(size) FROM source_content")
    assert total[0] <= 8 * 1024


@pytest.mark.parametrize("mode", ["off", "upload"])
def test_many_staged_files_take_little_memory_to_store(mode: Literal["off", "upload"], tmp_path: Path) -> None:
    with StagedRows(tmp_path / "staged") as rows:
        for number in range(30_000):
            rows.source(f"src/{number}.py", f"{number}", b"x")
        rows.flush()
    with records.open_store(tmp_path / "tracker.db"):
        run = records.create_run(records.create_project("many"), {})
        with reports.spooled(tmp_path / "staged"):
            tracemalloc.start()
            try:
                sources.add(run, run.project, SourceSettings(mode=mode))
                peak = tracemalloc.get_traced_memory()[1]
            finally:
                tracemalloc.stop()
    assert peak < 500_000
