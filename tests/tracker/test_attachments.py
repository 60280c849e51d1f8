"""Attachments: their tests, media types, and deletion."""

from __future__ import annotations

import asyncio
import hashlib
import io
import os
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import http_checks
import pytest
import records
from conftest import Serve, Server, wait_for
from uploads import FORM, INGEST, body, junit, part, query_store

from models.config.settings import AttachmentSettings as Settings
from models.tracker.files import attachment_paths
from models.tracker.files.attachment_files import INLINE, OTHER, TEXT, AttachmentFolder, type_of
from models.tracker.reports.base import Case, Limits
from models.tracker.reports.detect import read_tests
from models.tracker.reports.staging import references
from models.tracker.tables import reports
from supervisor.clock import Clock
from supervisor.tracker.attachments import Attachments

PNG = b"\x89PNG\r\n\x1a\n" + b"picture" * 100
API = "/api/v1"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    limits: dict[str, dict[str, Any]] = {"attachments": {"file": "4K", "per-run": "10K", "per-case": 2, "total": "48K"}}
    folder = tmp_path_factory.mktemp("attachments")
    limits["attachments"]["dir"] = str(folder / "data" / "attachments")
    with http_checks.running_server(folder, tracker=limits) as server:
        yield server


def report_with(*paths: str, name: str = "broken", more: str = "") -> str:
    """A failed case whose output names these files, as Playwright's reporter does."""
    marks = "\n\n".join(f"[[ATTACHMENT|{path}]]" for path in paths)
    return (
        f'<testsuites><testsuite name="e2e"><testcase classname="a.spec.ts" name="{name}"><failure message="no"/>'
        f"<system-out><![CDATA[\n{marks}\n]]></system-out>{more}</testcase></testsuite></testsuites>"
    )


def upload(
    server: Server,
    project: str,
    report: str,
    files: dict[str, bytes] | None = None,
    texts: dict[str, str] | None = None,
    headers: dict[str, str] | None = None,
) -> dict[str, Any]:
    texts = {"project": project, "branch": "main", **(texts or {})}
    parts = [part(name, value) for name, value in texts.items()] + [part("junit", report, "a.xml")]
    parts += [part("attachment", content, name) for name, content in (files or {}).items()]
    answer = server.post(INGEST, body(parts), Content_Type=FORM, **(headers or {}))
    assert answer.status == 201, answer
    reply: dict[str, Any] = answer.json
    return reply


def failure_attachments(server: Server, run: int) -> list[dict[str, object]]:
    found: list[dict[str, object]] = server.get(f"{API}/runs/{run}").json["failures"][0]["attachments"]
    return found


def stored_files(server: Server) -> set[str]:
    return {path.name for path in (server.data / "attachments").glob("*/*")}


@pytest.mark.parametrize(
    ("content", "kind"),
    [
        (PNG, "image/png"),
        (b"\xff\xd8\xff\xe0jpeg", "image/jpeg"),
        (b"GIF89a..", "image/gif"),
        (b"RIFF\0\0\0\0WEBPVP8 ", "image/webp"),
        (b"RIFF\0\0\0\0WAVEfmt ", OTHER),
        (b"\0\0\0\x18ftypmp42", "video/mp4"),
        (b"\x1a\x45\xdf\xa3webm", "video/webm"),
        (b"plain text, \xc3\xa4", TEXT),
        (b"x" * 8191 + "ä".encode()[:1], TEXT),
        (b"latin \xe4 text", OTHER),
        (b"<!DOCTYPE html><script>alert(1)</script>", OTHER),
        (b"\xef\xbb\xbf \n<html>", OTHER),
        (b"hello <ScRipt>alert(1)</script>", OTHER),
        (b"<svg xmlns='http://www.w3.org/2000/svg'/>", OTHER),
        (b"%PDF-1.7", OTHER),
        (b"PK\x03\x04\0\0", OTHER),
        (b"\xff\xfe<\0s\0", OTHER),
    ],
)
def test_media_type_is_detected_from_the_first_bytes(content: bytes, kind: str) -> None:
    assert type_of(content[:8192]) == kind
    assert (kind in INLINE) == (kind != OTHER)


_NUNIT = (
    '<test-run><test-suite name="s"><test-case name="t" fullname="N.C.t" classname="N.C" result="Passed">'
    r"<attachments><attachment><filePath>C:\out\shot.png</filePath></attachment></attachments>"
    "</test-case></test-suite></test-run>"
)
_TRX = (
    '<TestRun xmlns="http://microsoft.com/schemas/VisualStudio/TeamTest/2010"><Results><UnitTestResult testId="1"'
    r' testName="t" outcome="Passed"><ResultFiles><ResultFile path="HOST\shot.png"/></ResultFiles></UnitTestResult>'
    "</Results></TestRun>"
)
_CTRF = (
    '{"results":{"tool":{"name":"x"},"summary":{"tests":1},"tests":[{"name":"t","status":"passed","duration":1,'
    '"attachments":[{"name":"shot","contentType":"image/png","path":"out/shot.png"}]}]}}'
)
_PROPERTY = (
    '<testsuite name="s"><testcase name="t"><properties><property name="owner" value="me"/>'
    '<property name="attachment" value="out/shot.png"/><property name="attachment">out/b.png</property></properties>'
    "</testcase></testsuite>"
)


@pytest.mark.parametrize(
    ("report", "paths"),
    [
        (_NUNIT, [r"C:\out\shot.png"]),
        (_TRX, [r"HOST\shot.png"]),
        (_CTRF, ["out/shot.png"]),
        (_PROPERTY, ["out/shot.png", "out/b.png"]),
    ],
)
def test_attachment_paths_are_read_from_reports(report: str, paths: list[str]) -> None:
    read: list[Case] = []
    read_tests(io.BytesIO(report.encode()), Limits(), read.append)
    assert [list(case.attachments) for case in read] == [paths]


def test_attachment_references_are_read_from_outputs() -> None:
    text = "a [[ATTACHMENT|x y/ü.png]] b [[ATTACHMENT|]] [[ATTACHMENT|z.zip]][[ATTACHMENT|cut"
    assert references(text, None, "[[ATTACHMENT|err.txt]]") == ["x y/ü.png", "z.zip", "err.txt"]


def test_an_attachment_is_shown_with_its_test_and_served(server: Server) -> None:
    path = "test-results/a-broken/test-failed-1.png"
    run = upload(server, "shown", report_with(path), {path: PNG})
    assert run["warnings"] == []
    (found,) = failure_attachments(server, run["runId"])
    assert (found["name"], found["type"], found["size"]) == (path, "image/png", len(PNG))
    answer = server.get(str(found["path"]))
    assert (answer.status, answer.body) == (200, PNG)
    assert answer.headers["Content-Type"] == "image/png"
    assert answer.headers["X-Content-Type-Options"] == "nosniff"
    assert answer.headers["Content-Security-Policy"] == "sandbox; default-src 'none'"
    assert answer.headers["Content-Disposition"].startswith('inline; filename="test-failed-1.png"')
    assert f'href="{found["path"]}"' in server.get(f"/runs/{run['runId']}").text
    test = server.get(f"/projects/{run['projectId']}/test?className=a.spec.ts&name=broken").text
    assert f'href="{found["path"]}"' in test
    (listed,) = server.get(f"{API}/runs/{run['runId']}/attachments").json["items"]
    assert (listed["id"], listed["className"], listed["testName"]) == (found["id"], "a.spec.ts", "broken")


@pytest.mark.parametrize(
    ("requested", "status", "expected", "range"),
    [
        ("bytes=0-3", 206, PNG[:4], f"bytes 0-3/{len(PNG)}"),
        ("bytes=4-", 206, PNG[4:], f"bytes 4-{len(PNG) - 1}/{len(PNG)}"),
        ("bytes=-5", 206, PNG[-5:], f"bytes {len(PNG) - 5}-{len(PNG) - 1}/{len(PNG)}"),
        ("bytes=700-9999", 206, PNG[700:], f"bytes 700-{len(PNG) - 1}/{len(PNG)}"),
        ("bytes=9999-", 416, b"", f"bytes */{len(PNG)}"),
        ("bytes=-0", 416, b"", f"bytes */{len(PNG)}"),
        ("bytes=5-3", 200, PNG, None),
        ("bytes=0-1,4-5", 200, PNG, None),
        ("lines=1-2", 200, PNG, None),
    ],
)
def test_range_requests_of_an_attachment(
    server: Server, requested: str, status: int, expected: bytes, range: str | None
) -> None:
    run = upload(server, "ranges", report_with("a.png"), {"a.png": PNG}, {"runKey": "one"})
    path = str(failure_attachments(server, run["runId"])[0]["path"])
    answer = server.get(path, Range=requested)
    assert (answer.status, answer.body, answer.headers["Content-Range"]) == (status, expected, range)
    assert server.get(path, If_None_Match=answer.headers["Etag"]).status == 304
    assert server.get(path, Range=requested, If_Range='"other"').body == PNG


def test_html_named_as_an_image_is_served_as_a_download(server: Server) -> None:
    run = upload(server, "html", report_with("shot.png"), {"shot.png": b"<html><script>alert(1)</script></html>"})
    answer = server.get(str(failure_attachments(server, run["runId"])[0]["path"]))
    assert answer.headers["Content-Type"] == OTHER
    assert answer.headers["Content-Disposition"].startswith('attachment; filename="shot.png"')


def test_attachment_name_is_never_used_as_a_path(server: Server, tmp_path: Path) -> None:
    names = ["../../../etc/passwd", "/etc/passwd", "a/../../b\r\nX-Evil: 1.txt", 'quo"te;.txt', "..", "ü.txt"]
    before = sorted(path for path in server.data.parent.rglob("*") if "attachments" not in path.parts)
    for number, name in enumerate(names):
        run = upload(server, f"names {number}", junit(1), {name.replace("\r\n", " "): f"content {number}".encode()})
        (found,) = server.get(f"{API}/runs/{run['runId']}/attachments").json["items"]
        answer = server.get(found["path"])
        assert answer.body == f"content {number}".encode()
        assert answer.headers["X-Evil"] is None
        assert "/" not in answer.headers["Content-Disposition"].partition("filename=")[2].partition(";")[0]
    assert sorted(path for path in server.data.parent.rglob("*") if "attachments" not in path.parts) == before
    assert all(len(name) == 64 for name in stored_files(server))


def test_the_same_content_is_stored_once_and_a_retry_adds_nothing(server: Server) -> None:
    files = {"a.png": PNG, "b.png": PNG}
    first, second = (upload(server, "once", report_with("a.png", "b.png"), files, {"runKey": "k"}) for _ in range(2))
    assert first["runId"] == second["runId"]
    assert [found["name"] for found in failure_attachments(server, first["runId"])] == ["a.png", "b.png"]
    assert hashlib.sha256(PNG).hexdigest() in stored_files(server)


def test_attachments_uploaded_after_their_report_belong_to_its_test(server: Server) -> None:
    first = upload(server, "late", report_with("a.png"), None, {"runKey": "k"})
    assert first["warnings"] == ["attachments that the reports name were not uploaded: a.png"]
    upload(server, "late", report_with("a.png"), {"a.png": PNG}, {"runKey": "k"})
    assert [found["name"] for found in failure_attachments(server, first["runId"])] == ["a.png"]


def test_attachments_over_a_limit_are_reported_as_warnings(server: Server) -> None:
    run = upload(server, "large", report_with("big.bin"), {"big.bin": b"x" * 5000, "c.txt": b"small"})
    assert run["warnings"] == [
        "the attachment big.bin was not stored: more than 4096 bytes",
        "attachments that the reports name were not uploaded: big.bin",
    ]
    names = [f"{number}.txt" for number in range(4)]
    run = upload(server, "many", report_with(*names), {name: f"many {name}".encode() for name in names})
    assert run["warnings"] == ["2 attachment(s) were not stored: more than 2 for one test"]
    assert len(failure_attachments(server, run["runId"])) == 2
    sized = {f"{number}.txt": f"{number}".encode() * 4000 for number in range(4)}
    run = upload(server, "full run", junit(1), sized)
    assert run["warnings"] == ["2 attachment(s) were not stored: more than 10240 bytes for one run"]


def test_oldest_attachments_of_a_project_are_deleted_over_its_share(server: Server) -> None:
    other = upload(server, "other", report_with("a.txt"), {"a.txt": b"of another project"})
    oldest = upload(server, "busy", report_with("a.txt"), {"a.txt": b"the oldest of its project"})
    (found,) = failure_attachments(server, oldest["runId"])
    newer = [
        upload(server, "busy", report_with("a.txt", name=f"n{number}"), {"a.txt": os.urandom(1250).hex().encode()})
        for number in range(12)
    ]
    assert [run["warnings"] for run in newer] == [[]] * 12
    assert server.get(str(found["path"])).status == 404
    assert failure_attachments(server, oldest["runId"]) == []
    assert hashlib.sha256(b"the oldest of its project").hexdigest() not in stored_files(server)
    assert failure_attachments(server, newer[-1]["runId"])
    assert server.get(str(failure_attachments(server, other["runId"])[0]["path"])).body == b"of another project"
    (used,) = query_store(server, "SELECT attachment_bytes FROM project WHERE name = 'busy'")[0]
    assert used == 10_000, "four of 2500 bytes are the most in a quarter of 48 KiB"
    stored_hashes = {row[0] for row in query_store(server, "SELECT hash FROM attachment")}
    assert stored_hashes == stored_files(server)


def stored_of(server: Server, project: str) -> int:
    """The number of attachments of a project."""
    query = "SELECT count(*) FROM attachment a JOIN project p ON p.id = a.project_id WHERE p.name = ?"
    return int(query_store(server, query, project)[0][0])


def attachment_limits(data: Path, **limits: str) -> dict[str, dict[str, str]]:
    """The settings `tracker` of a server with this data directory. With PostgreSQL the folder must be given."""
    return {"attachments": {"dir": str(data / "attachments"), **limits}}


def test_uploads_beyond_the_total_delete_nothing_of_another_project(serve: Serve, tmp_path: Path) -> None:
    limits = {"total": "9000", "per-project": "6000"}
    server = serve(tracker=attachment_limits(tmp_path / "server0" / "data", **limits))
    for project, size, letters in (("first", 2000, "abc"), ("second", 2500, "d")):
        for letter in letters:
            run = upload(server, project, junit(1, prefix=letter), {"a.txt": letter.encode() * size})
            assert run["warnings"] == []
    run = upload(server, "second", junit(1, prefix="e"), {"a.txt": b"e" * 2500})
    assert (run["warnings"], stored_of(server, "second")) == ([], 1), "its own older attachment made room"
    run = upload(server, "third", junit(1), {"a.txt": b"f" * 900})
    assert run["warnings"] == ["1 attachment(s) were not stored: more than 9000 bytes for all projects"]
    large = {f"{letter}.txt": letter.encode() * 3500 for letter in "gh"}
    run = upload(server, "first", junit(1, prefix="g"), large)
    assert run["warnings"] == ["1 attachment(s) were not stored: more than 6000 bytes for one project"]
    assert [stored_of(server, project) for project in ("first", "second", "third")] == [1, 1, 0]


def test_attachments_of_anonymous_uploaders_are_deleted_first(serve: Serve, tmp_path: Path) -> None:
    limits = {"total": "90000", "per-project": "6000"}
    server = serve(tracker=attachment_limits(tmp_path / "server0" / "data", **limits))
    with records.store_of(server):
        known = records.bearer(records.create_user("known", "ADMIN"))
    for letter, headers in (("a", known), ("b", {}), ("c", {})):
        upload(server, "shared", junit(1, prefix=letter), {"a.txt": letter.encode() * 2000}, headers=headers)
    run = upload(server, "shared", junit(1, prefix="d"), {"a.txt": b"d" * 4000}, headers=known)
    assert run["warnings"] == []
    sizes = "SELECT size, is_anonymous FROM attachment ORDER BY id"
    assert query_store(server, sizes) == [(2000, 0), (4000, 0)], "those of anonymous uploaders made room"
    run = upload(server, "shared", junit(1, prefix="e"), {"a.txt": b"e" * 1000})
    assert run["warnings"] == ["1 attachment(s) were not stored: more than 6000 bytes for one project"]
    assert query_store(server, sizes) == [(2000, 0), (4000, 0)], "an anonymous upload takes nothing of others"


def test_a_lowered_share_deletes_the_excess_of_each_project(serve: Serve, tmp_path: Path) -> None:
    server = serve(tracker=attachment_limits(tmp_path / "server0" / "data"))
    for project, letters in (("first", "abc"), ("second", "d")):
        for letter in letters:
            upload(server, project, junit(1, prefix=letter), {"a.txt": letter.encode() * 2000})
    server.stop()
    server.configure({"tracker": attachment_limits(server.data, **{"per-project": "4000"})})
    server.start()
    wait_for(lambda: stored_of(server, "first") == 2, about="the excess to be deleted")
    assert stored_of(server, "second") == 1
    wait_for(lambda: hashlib.sha256(b"a" * 2000).hexdigest() not in stored_files(server), about="its content to go")


def test_attachments_are_deleted_with_their_run(server: Server) -> None:
    run = upload(server, "deleted", report_with("only.txt"), {"only.txt": b"only of this run"})
    name = hashlib.sha256(b"only of this run").hexdigest()
    assert name in stored_files(server)
    with records.store_of(server):
        admin = records.bearer(records.create_user("deleter", "ADMIN"))
    assert server.ask("DELETE", f"{API}/runs/{run['runId']}", headers=admin).status == 204
    assert name not in stored_files(server)


def test_attachment_of_a_private_project_is_404_for_others(server: Server) -> None:
    run = upload(server, "private", report_with("a.txt"), {"a.txt": b"secret"})
    path = str(failure_attachments(server, run["runId"])[0]["path"])
    with records.store_of(server):
        project = records.ensure_project("private")
        project.visibility = "PRIVATE"
        project.save()
        reader = records.create_user("reader")
        records.add_member(project, reader, "READ")
        token, other = records.bearer(reader), records.bearer(records.create_user("outsider"))
    assert [server.get(path).status, server.get(path, **other).status, server.get(path, **token).status] == [
        404, 404, 200
    ]  # fmt: skip
    for missing in ("9999999", "-1", "0"):
        assert server.get(f"{API}/attachments/{missing}").status == 404
    assert server.get(f"{API}/attachments/..%2f..%2fetc%2fpasswd").status == 400


def test_no_file_without_a_row_remains_after_a_kill(serve: Serve, tmp_path: Path) -> None:
    server = serve(tracker={"attachments": {"dir": str(tmp_path / "server0" / "data" / "attachments")}})
    upload(server, "kept", report_with("a.txt"), {"a.txt": b"kept"})
    folder = server.data / "attachments"
    stop = threading.Event()

    def store() -> None:
        number = 0
        while not stop.is_set():
            number += 1
            parts = [part("project", "p"), part("junit", junit(1, prefix=f"n{number}"), "a.xml")]
            parts += [part("attachment", os.urandom(100), f"{file}.bin") for file in range(5)]
            try:
                server.post(INGEST, body(parts), Content_Type=FORM)
            except OSError:
                return

    thread = threading.Thread(target=store)
    thread.start()
    wait_for(lambda: len(stored_files(server)) > 20, about="attachments")
    server.kill()
    stop.set()
    thread.join()
    (folder / "incoming-0123").write_bytes(b"left")
    (folder / "ab").mkdir(exist_ok=True)
    (folder / "ab" / ("ab" * 32)).write_bytes(b"an orphan")
    server.start()
    wait_for(
        lambda: {row[0] for row in query_store(server, "SELECT hash FROM attachment")} == stored_files(server),
        about="the orphans to be removed",
    )
    assert Server.is_on_postgresql or not (folder / "incoming-0123").exists()  # another node may write it


async def in_store(work: Callable[[], Any]) -> Any:
    """Runs `work` in a worker thread, which closes its connection."""
    return await asyncio.to_thread(reports.run_with_timeout, work, 60)


def test_the_content_of_an_upload_that_failed_is_removed(tmp_path: Path) -> None:
    folder = AttachmentFolder(tmp_path / "attachments")
    made = Attachments(tmp_path / "attachments", Settings(), Clock(), in_store)
    (tmp_path / "file").write_bytes(b"content")
    (staged,), warnings = made.stage([("a.txt", tmp_path / "file", 7)])
    folder.keep(staged)  # then the transaction failed
    made.discard([staged], is_stored=False)
    assert warnings == []
    with records.open_store(tmp_path / "tracker.db"):
        asyncio.run(made._delete_expired())
    assert not folder.place(staged.hash).exists()


def test_reports_are_stored_if_the_attachment_folder_cannot_be_written(serve: Serve, tmp_path: Path) -> None:
    server = serve(tracker={"attachments": {"dir": str(tmp_path / "server0" / "data" / "attachments")}})
    (server.data / "attachments").write_bytes(b"no folder")
    run = upload(server, "broken store", report_with("a.txt"), {"a.txt": b"lost"})
    assert run["tests"] == 1
    assert "the attachment a.txt was not stored" in run["warnings"][0]


def test_no_attachment_is_stored_if_attachments_are_disabled(serve: Serve) -> None:
    server = serve(tracker={"attachments": {"enabled": False}})
    run = upload(server, "off", report_with("a.txt"), {"a.txt": b"x"})
    assert run["warnings"] == ["attachments are not stored here (tracker.attachments.enabled)"]
    assert failure_attachments(server, run["runId"]) == []


def test_attachment_is_matched_to_a_report_by_a_unique_path_suffix() -> None:
    paths = ['a/quo"te.png', "50%22.txt", "HOST/shot.png", "../out/trace.zip", "a/log.txt", "b/log.txt"]
    folder = AttachmentFolder(Path("/nowhere"))
    assert folder.place("ab" * 32) == Path("/nowhere/ab") / ("ab" * 32)
    with pytest.raises(ValueError, match="passwd"):
        folder.place("../passwd")

    def owner(name: str) -> str | None:
        return attachment_paths.owners(paths, [name]).get(name)

    assert owner("TestResults/1/In/HOST/shot.png") == "HOST/shot.png"
    assert owner("out/trace.zip") == "../out/trace.zip"
    assert owner("shot.png") == "HOST/shot.png"
    assert owner("a/quo%22te.png") == 'a/quo"te.png'
    assert owner("50%22.txt") == "50%22.txt"
    assert owner("log.txt") is None
    assert owner("b/log.txt") == "b/log.txt"
    assert owner("ot.png") is None
