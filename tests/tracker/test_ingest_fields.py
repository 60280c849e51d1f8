"""The parts of an upload: their effects, and the responses to invalid ones."""

from __future__ import annotations

import gzip
import json
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from conftest import Server, wait_for
from http_checks import check_problem, parse_compact, running_server, send_raw
from requirements import require
from uploads import (
    BOUNDARY,
    FORM,
    INGEST,
    RESULT_FIELDS,
    body,
    form,
    incoming_files,
    jacoco,
    junit,
    part,
    post,
    query_store,
    send,
    upload,
)

from models.paging import INT64

JUNIT = ("junit", junit(passed=1))


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with running_server(tmp_path_factory.mktemp("ingest")) as server:
        yield server


@pytest.fixture(autouse=True)
def no_incoming_files_remain(server: Server) -> Iterator[None]:
    yield
    wait_for(lambda: not incoming_files(server), about="the incoming files to be removed")
    assert "Traceback" not in server.log.read_text()


def run(server: Server, id: int) -> dict[str, Any]:
    names = (
        "branch", "commit_sha", "flag", "run_key", "repo_url", "build_url", "build_name", "ci_provider", "base_branch",
        "pr_number",
    )  # fmt: skip
    (row,) = query_store(server, f"SELECT {', '.join(names)} FROM run WHERE id = ?", id)  # noqa: S608 (ours)
    return dict(zip(names, row, strict=True))


# The response


def test_response_has_the_specified_fields_in_order_and_is_compact(server: Server) -> None:
    answer = post(
        server, ("project", "whole"), ("branch", "main"), ("commit", "abcdef0123"),
        ("junit", junit(passed=5, failed=1, errors=2, skipped=3)),
        ("jacoco", jacoco({"A.java": {1: True, 2: True, 3: False}})),
    )  # fmt: skip
    assert answer.status == 201
    assert answer.headers.get_all("Content-Type") == ["application/json"]
    outcome = parse_compact(answer)
    assert tuple(outcome) == RESULT_FIELDS
    assert outcome == outcome | {
        "project": "whole", "tests": 11, "failures": 3, "skipped": 3, "lineCoveragePct": 2 * 100 / 3,
        "passed": 5, "failed": 1, "errors": 2, "status": "FAILED", "flag": "default", "branch": "main",
        "commit": "abcdef0123", "uploads": 1, "gateStatus": "FAILED", "runPath": f"/runs/{outcome['runId']}",
    }  # fmt: skip
    assert isinstance(outcome["runId"], int)
    assert isinstance(outcome["projectId"], int)


def test_coverage_and_omitted_fields_are_null_in_the_response(server: Server) -> None:
    outcome = upload(server, ("project", "bare"), JUNIT)
    assert (outcome["lineCoveragePct"], outcome["branch"], outcome["commit"]) == (None, None, None)
    assert (outcome["status"], outcome["gateStatus"]) == ("PASSED", "PASSED")


@pytest.mark.parametrize("prefix", ["", "/tracker"])
def test_ingest_is_served_at_the_root_and_under_the_tracker_prefix(server: Server, prefix: str) -> None:
    answer = send(server, form([("project", "both"), JUNIT]), path=f"{prefix}{INGEST}")
    assert answer.status == 201


def test_totals_in_the_response_are_those_of_the_whole_run(server: Server) -> None:
    first = upload(server, ("project", "merge"), ("runKey", "k"), ("junit", junit(passed=2)))
    second = upload(server, ("project", "merge"), ("runKey", "k"), ("junit", junit(failed=1)))
    again = upload(server, ("project", "merge"), ("runKey", "k"), ("junit", junit(failed=1)))
    assert (first["tests"], first["status"], first["uploads"]) == (2, "PASSED", 1)
    assert (second["tests"], second["failures"], second["status"], second["uploads"]) == (3, 1, "FAILED", 2)
    assert second["runId"] == first["runId"]
    assert again == second


def test_every_upload_without_a_run_key_creates_a_run(server: Server) -> None:
    assert len({upload(server, ("project", "keyless"), JUNIT)["runId"] for _ in range(3)}) == 3


# Text parts


def test_every_field_is_stored(server: Server) -> None:
    outcome = upload(
        server, ("project", " every \r\n"), ("branch", "\tmain "), ("commit", "abc"), ("flag", "api"),
        ("runKey", "build 7"), ("repoUrl", "javascript:alert(1)"), ("buildUrl", "http://ci/7"), ("buildName", "#7"),
        ("ciProvider", "some ci"), ("baseBranch", "develop"), ("prNumber", "12"), ("module", "core"), JUNIT,
    )  # fmt: skip
    assert (outcome["project"], outcome["branch"], outcome["commit"], outcome["flag"]) == (
        "every",
        "main",
        "abc",
        "api",
    )
    assert run(server, outcome["runId"]) == {
        "branch": "main", "commit_sha": "abc", "flag": "api", "run_key": "build 7",
        "repo_url": "javascript:alert(1)", "build_url": "http://ci/7", "build_name": "#7", "ci_provider": "some ci",
        "base_branch": "develop", "pr_number": 12,
    }  # fmt: skip
    assert query_store(server, "SELECT module FROM report WHERE run_id = ?", outcome["runId"]) == [("core",)]


def test_blank_fields_count_as_absent(server: Server) -> None:
    fields = [
        "branch", "commit", "flag", "runKey", "repoUrl", "buildUrl", "buildName", "ciProvider", "baseBranch",
        "prNumber", "module",
    ]  # fmt: skip
    first = upload(server, ("project", "blank"), *((name, " \t\r\n") for name in fields), JUNIT)
    second = upload(server, ("project", "blank"), *((name, "") for name in fields), JUNIT)
    assert first["runId"] != second["runId"], "a blank runKey counts as absent"
    kept = run(server, first["runId"])
    assert kept.pop("flag") == first["flag"] == "default"
    assert set(kept.values()) == {None}


@pytest.mark.parametrize("name", ["p" * 255, "ü" * 255, "a b/c.d:e", "日本語 🎉", "<script>", "'; DROP TABLE run; --"])
def test_valid_project_names_are_accepted(server: Server, name: str) -> None:
    assert upload(server, ("project", f"  {name} "), JUNIT)["project"] == name


@pytest.mark.parametrize("name", ["p" * 256, "a\nb", "a\x07b", "a\x7fb", "a\u200bb", "a\u2028b", "a\x00b"])
def test_invalid_project_names_are_400(server: Server, name: str) -> None:
    outcome = check_problem(post(server, ("project", name), JUNIT), 400, INGEST, has_timestamp=False)
    assert "project" in outcome["detail"]


@pytest.mark.parametrize(
    "parts", [[JUNIT], [("project", ""), JUNIT], [("project", "  \r\n"), JUNIT], [("Project", "p"), JUNIT]]
)
def test_a_project_is_required(server: Server, parts: list[tuple[str, str]]) -> None:
    outcome = check_problem(post(server, *parts), 400, INGEST, has_timestamp=False)
    assert outcome["detail"] == "project is required"


@pytest.mark.parametrize("field", ["branch", "commit", "flag", "runKey", "buildUrl", "module"])
@pytest.mark.parametrize(
    "value", [b"a\0b", b"\xed\xa0\x80", b"\xff", b"x" * 2001], ids=["nul", "surrogate", "bytes", "long"]
)
def test_invalid_text_is_400_and_names_its_part(server: Server, field: str, value: bytes) -> None:
    outcome = check_problem(post(server, ("project", "text"), (field, value), JUNIT), 400, INGEST, has_timestamp=False)
    assert field in outcome["detail"]
    assert query_store(server, "SELECT 1 FROM project WHERE name = 'text'") == []


@pytest.mark.parametrize(("number", "kept"), [("0", 0), (" 12 ", 12), ("007", 7), (str(INT64), INT64)])
def test_valid_pull_request_numbers_are_accepted(server: Server, number: str, kept: int) -> None:
    outcome = upload(server, ("project", "pr"), ("prNumber", number), JUNIT)
    assert run(server, outcome["runId"])["pr_number"] == kept


@pytest.mark.parametrize("number", ["x", "1.5", "-1", "1e3", "0x10", "1 2", str(INT64 + 1), "9" * 400, "१२"])
def test_invalid_pull_request_numbers_are_400(server: Server, number: str) -> None:
    outcome = check_problem(
        post(server, ("project", "pr"), ("prNumber", number), JUNIT), 400, INGEST, has_timestamp=False
    )
    assert "prNumber" in outcome["detail"]


def test_last_of_repeated_parts_counts(server: Server) -> None:
    outcome = upload(server, ("project", "one"), ("branch", "a"), ("project", "last"), ("branch", "b"), JUNIT)
    assert (outcome["project"], outcome["branch"]) == ("last", "b")


def test_unknown_parts_are_ignored_however_large(server: Server) -> None:
    outcome = upload(
        server, ("project", "unknown"), ("perfFlag", "x"), ("sourceManifest", b"\xff\0" * 2_000_000), JUNIT,
        ("JUNIT", "no report"),
    )  # fmt: skip
    assert outcome["tests"] == 1


def test_part_is_recognised_by_its_name_with_or_without_a_file_name(server: Server) -> None:
    sent = body(
        [
            part("project", "named", "project.txt"),
            part("branch", "b", "x"),
            part("junit", junit(passed=4)),
        ]
    )
    answer = send(server, sent)
    assert answer.status == 201, answer
    assert (answer.json["project"], answer.json["branch"], answer.json["tests"]) == ("named", "b", 4)


def test_text_part_may_declare_its_charset(server: Server) -> None:
    latin = part("project", "Grüße".encode("latin-1"), None, "Content-Type: text/plain; charset=ISO-8859-1")
    answer = send(server, body([latin, part("junit", junit(passed=1), "a.xml")]))
    assert answer.status == 201, answer
    assert answer.json["project"] == "Grüße"
    for charset in ("windows-1252", "UTF-16", "us-ascii", "utf_8"):
        sent = part("project", "p".encode(charset), None, f"Content-Type: text/plain; charset={charset}")
        assert send(server, body([sent, part("junit", junit(passed=1), "a.xml")])).json["project"] == "p"
    for charset in ("nonsense", "rot13", "undefined", "idna", "punycode", "utf-7", "unicode_escape", "uu"):
        odd = part("project", "p", None, f"Content-Type: text/plain; charset={charset}")
        outcome = check_problem(send(server, body([odd, part("junit", junit(1))])), 400, INGEST, has_timestamp=False)
        assert charset in outcome["detail"]


# File parts


def test_many_files_plain_or_gzipped_are_one_run(server: Server) -> None:
    files = [junit(passed=1, failed=1, prefix=f"f{number}") for number in range(50)]
    parts = [("junit", gzip.compress(one.encode()) if place % 2 else one) for place, one in enumerate(files)]
    outcome = upload(server, ("project", "fifty"), *parts)
    assert (outcome["tests"], outcome["failures"], outcome["uploads"]) == (100, 50, 1)
    assert query_store(server, "SELECT count(*) FROM report WHERE run_id = ?", outcome["runId"]) == [(50,)]


def test_gzipped_copy_of_a_file_counts_once(server: Server) -> None:
    file = junit(passed=3)
    outcome = upload(server, ("project", "same"), ("junit", file), ("junit", gzip.compress(file.encode())))
    assert outcome["tests"] == 3


def test_empty_files_are_skipped_with_a_warning(server: Server) -> None:
    outcome = upload(server, ("project", "empty"), ("junit", ""), JUNIT, ("jacoco", ""))
    assert (outcome["tests"], outcome["lineCoveragePct"]) == (1, None)
    assert outcome["warnings"] == ["junit junit1.xml: the file is empty", "jacoco jacoco3.xml: the file is empty"]
    parts = [part("project", "empty"), part("junit", junit(passed=1), "a.xml"), part("jacoco", "", "")]
    assert send(server, body(parts)).json["warnings"] == []  # of a form, in which no file was chosen
    parts += [part("tests", "", f"{n}.xml") for n in range(12)]
    warnings = send(server, body(parts)).json["warnings"]
    assert (len(warnings), warnings[0], warnings[-1]) == (
        11,
        "junit 0.xml: the file is empty",
        "2 more reports are empty",
    )


@pytest.mark.parametrize(
    "parts",
    [
        [],
        [("junit", "")],
        [("jacoco", jacoco({"A": {1: True}}))],
        [("jacoco", ""), ("junit", ""), ("other", "x")],
    ],
)
def test_a_test_report_is_required(server: Server, parts: list[tuple[str, str]]) -> None:
    outcome = check_problem(post(server, ("project", "none"), *parts), 400, INGEST, has_timestamp=False)
    assert "junit" in outcome["detail"]
    assert query_store(server, "SELECT 1 FROM project WHERE name = 'none'") == []


def test_misspelt_part_name_is_shown_in_the_response(server: Server) -> None:
    parts = [("project", "p"), ("juint" + "\u0085" * 50, JUNIT[1])]
    outcome = check_problem(send(server, form(parts)), 400, INGEST, has_timestamp=False)
    assert outcome["detail"].endswith("(there is: project, juint" + "\ufffd" * 25 + ")")


def test_several_coverage_reports_are_merged(server: Server) -> None:
    outcome = upload(
        server, ("project", "union"), JUNIT, ("jacoco", jacoco({"A.java": {1: True, 2: False}, "B.java": {1: True}})),
        ("jacoco", jacoco({"A.java": {1: False, 2: True, 3: False}})),
    )  # fmt: skip
    assert outcome["lineCoveragePct"] == 3 * 100 / 4


@pytest.mark.parametrize(
    ("kind", "content", "line"),
    [
        ("junit", "<testsuite>\n<oops></testsuite>", "line 2"), ("jacoco", "<report>\n<oops></report>", "line 2"),
        *[(kind, bad, "") for kind in ("junit", "jacoco") for bad in ("no report", "<html/>", b"\x1f\x8bno gzip")],
        ("junit", jacoco({"A": {1: True}}), ""), ("jacoco", junit(passed=1), ""),
    ],
)  # fmt: skip
def test_an_unreadable_report_is_400_with_file_and_reason(
    server: Server, kind: str, content: str | bytes, line: str
) -> None:
    bad = part(kind, content, "bad one.xml")
    sent = body([part("project", "unread"), part("junit", junit(passed=5), "good.xml"), bad])
    outcome = check_problem(send(server, sent), 400, INGEST, has_timestamp=False)
    assert outcome["detail"].startswith(f"{kind} bad one.xml: ")
    assert line in outcome["detail"]
    assert query_store(server, "SELECT 1 FROM project WHERE name = 'unread'") == []


def test_invalid_last_file_leaves_the_run_unchanged(server: Server) -> None:
    before = upload(server, ("project", "whole or not"), ("runKey", "k"), JUNIT)
    bad = post(server, ("project", "whole or not"), ("runKey", "k"), ("junit", junit(failed=3)), ("junit", "<a"))
    check_problem(bad, 400, INGEST, has_timestamp=False)
    assert upload(server, ("project", "whole or not"), ("runKey", "k"), JUNIT) == before


def test_missing_and_unprintable_file_names_are_readable_in_errors(server: Server) -> None:
    for file, result in ((None, "without a file name"), ("a\x07\u202eb.xml", "a\ufffd\ufffdb.xml")):
        sent = body([part("project", "odd"), part("junit", "<a", file)])
        outcome = check_problem(send(server, sent), 400, INGEST, has_timestamp=False)
        assert outcome["detail"].startswith(f"junit {result}: ")


# The body


@pytest.mark.parametrize(
    "media_type",
    [
        "application/json",
        "application/x-www-form-urlencoded",
        "text/xml",
        "multipart/mixed; boundary=x",
        "nonsense",
        "",
    ],
)
def test_another_media_type_is_415(server: Server, media_type: str) -> None:
    answer = send(server, form([("project", "p"), JUNIT]), Content_Type=media_type)
    check_problem(answer, 415, INGEST, has_timestamp=False)


def test_a_form_that_is_gzipped_as_a_whole_is_415_with_a_hint(server: Server) -> None:
    sent = form([("project", "p"), JUNIT])
    outcome = check_problem(
        send(server, gzip.compress(sent), Content_Encoding="gzip"), 415, INGEST, has_timestamp=False
    )
    assert "compress its files" in outcome["detail"]
    assert send(server, sent, Content_Encoding="identity").status == 201


def test_no_media_type_is_415_with_a_body_or_without(server: Server) -> None:
    for sent in (b"", b"x"):
        check_problem(server.post(INGEST, sent), 415, INGEST, has_timestamp=False)


@pytest.mark.parametrize(
    "media_type", ["multipart/form-data", "multipart/form-data; boundary=", "multipart/form-data;x=y"]
)
def test_a_body_without_a_boundary_is_400(server: Server, media_type: str) -> None:
    outcome = check_problem(send(server, form([JUNIT]), Content_Type=media_type), 400, INGEST, has_timestamp=False)
    assert "boundary" in outcome["detail"]


@pytest.mark.parametrize(
    "sent",
    [
        b"", b"no multipart", b"--other\r\n\r\n", form([("project", "p"), JUNIT])[:-30], form([JUNIT])[:-4],
        f"--{BOUNDARY}\r\nX: y\r\n\r\nno name\r\n--{BOUNDARY}--\r\n".encode(),
        f"--{BOUNDARY}\r\nno head\r\n--{BOUNDARY}--\r\n".encode(), f"--{BOUNDARY}--\r\n".encode(),
    ],
)  # fmt: skip
def test_body_that_is_not_multipart_or_is_truncated_is_400(server: Server, sent: bytes) -> None:
    check_problem(send(server, sent), 400, INGEST, has_timestamp=False)


def test_the_boundary_may_be_quoted_and_the_media_type_of_any_case(server: Server) -> None:
    media_type = f'Multipart/Form-Data; charset=utf-8; Boundary="{BOUNDARY}"'
    assert send(server, form([("project", "quoted"), JUNIT]), Content_Type=media_type).status == 201


def test_chunked_body_without_a_length_is_accepted(server: Server) -> None:
    sent = form([("project", "chunked"), ("junit", junit(passed=50))])
    pieces = b"".join(b"%x\r\n%s\r\n" % (len(sent[at : at + 7]), sent[at : at + 7]) for at in range(0, len(sent), 7))
    head = f"POST {INGEST} HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\nContent-Type: {FORM}\r\n\r\n"
    answer = send_raw(server, head.encode() + pieces + b"0\r\n\r\n", "POST")
    assert answer.status == 201, answer
    assert json.loads(answer.body)["tests"] == 50


def test_large_body_is_accepted(server: Server) -> None:
    large = "<testsuite><testcase name='one'><system-out>" + "x" * 3_000_000 + "</system-out></testcase></testsuite>"
    outcome = upload(server, ("project", "large"), ("junit", large), ("branch", "after"))
    assert (outcome["tests"], outcome["branch"]) == (1, "after")


@pytest.mark.parametrize("method", ["GET", "PUT", "DELETE"])
def test_other_methods_are_405(server: Server, method: str) -> None:
    answer = server.ask(method, INGEST)
    check_problem(answer, 405, INGEST, has_timestamp=False)
    assert answer.headers["Allow"] == "POST, OPTIONS"


def test_options_lists_the_methods(server: Server) -> None:
    answer = server.ask("OPTIONS", INGEST)
    assert (answer.status, answer.headers["Allow"], answer.body) == (204, "POST, OPTIONS", b"")


# curl


def curl(server: Server, *arguments: str) -> tuple[int, Any]:
    require("curl")
    done = subprocess.run(
        ["curl", "-sS", "-w", "\n%{http_code}", *arguments, f"http://127.0.0.1:{server.port}{INGEST}"],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    outcome, _, status = done.stdout.rpartition("\n")
    return int(status), json.loads(outcome)


def test_curl_posts_reports(server: Server, tmp_path: Path) -> None:
    (tmp_path / "a.xml").write_text(junit(passed=2))
    (tmp_path / "b.xml.gz").write_bytes(gzip.compress(junit(failed=1).encode()))
    (tmp_path / "large.xml").write_text("<testsuite>" + "<testcase name='x'/>" * 100_000 + "</testsuite>")
    (tmp_path / "jacoco.xml").write_text(jacoco({"A": {1: True}}))
    files = [f"-Fjunit=@{tmp_path / name}" for name in ("a.xml", "b.xml.gz", "large.xml")]
    status, outcome = curl(
        server, "-Fproject=curled", "-Fbranch=main", *files, f"-Fjacoco=@{tmp_path / 'jacoco.xml'}",
        "-H", "Expect: 100-continue",
    )  # fmt: skip
    assert (status, outcome["tests"], outcome["failures"], outcome["lineCoveragePct"]) == (
        201,
        100_003,
        1,
        100,
    )


def test_curl_receives_the_reason_of_a_refusal(server: Server, tmp_path: Path) -> None:
    (tmp_path / "large.xml").write_bytes(b"x" * 5_000_000)
    status, outcome = curl(server, "-Fproject=p", f"-Fjunit=@{tmp_path / 'large.xml'}")
    assert (status, outcome["status"]) == (400, 400)
    status, outcome = curl(server, "-d", "project=p")
    assert (status, outcome["title"]) == (415, "Unsupported Media Type")


@pytest.mark.parametrize(
    ("url", "kept"),
    [
        ("https://gitlab-ci-token:s3cret@git.example/g/p.git", "https://git.example/g/p.git"),
        ("HTTPS://s3cret@git.example:8443/p?a=b@c#d", "HTTPS://git.example:8443/p?a=b@c#d"),
        ("https://user:s3@cret@git.example/p", "https://git.example/p"),
        ("https://git.example/p@1?x=y@z", "https://git.example/p@1?x=y@z"),
        ("ssh://git:s3cret@git.example/p", "ssh://git@git.example/p"),
        ("git@git.example:g/p.git", "git@git.example:g/p.git"),
    ],
)
def test_no_password_of_a_url_is_kept(server: Server, url: str, kept: str) -> None:
    project = f"login {url}"
    run = upload(server, ("project", project), ("junit", junit(1)), ("repoUrl", url), ("buildUrl", url))
    assert server.get(f"/api/v1/projects/{run['projectId']}").json["repoUrl"] == kept
    assert server.get(f"/api/v1/runs/{run['runId']}").json["run"]["buildUrl"] == kept


def test_a_pull_request_is_compared_with_what_its_diff_begins_at(server: Server) -> None:
    def on(branch: str, commit: str, *parts: tuple[str, str]) -> Any:
        return upload(server, ("project", "order"), ("branch", branch), ("commit", commit), *parts, JUNIT)

    runs = [on("main", commit) for commit in ("a1", "b2", "c3")]
    diff = '{"base":"unknown","baseCommits":["b2","a1"],"files":{"x.py":[[1,2]]}}'
    on("patch", "d4", ("diff", diff), ("baseBranch", "main"), ("headRepo", "someone/order"))
    gate = server.get("/api/v1/gate?project=order&commit=d4").json
    assert gate["baseline"] == {
        "runId": runs[1]["runId"], "commit": "b2", "branch": "main", "reason": "MERGE_BASE", "behind": 1,
    }  # fmt: skip
    page = server.get(gate["runPath"]).text
    assert "Compared with b2, 1 commit behind main, where its branch begins" in page


def test_an_unknown_base_branch_is_a_warning(server: Server) -> None:
    upload(server, ("project", "unknown base"), ("branch", "main"), ("commit", "a"), JUNIT)
    answer = upload(server, ("project", "unknown base"), ("branch", "x"), ("baseBranch", "nowhere"), JUNIT)
    assert answer["warnings"] == ["the base branch nowhere has no run: the run is compared with main"]


@pytest.mark.parametrize("commits", ['"a"', "[1]", '{"a":1}'])
def test_base_commits_must_be_a_list_of_texts(server: Server, commits: str) -> None:
    diff = f'{{"base":"a","baseCommits":{commits},"files":{{}}}}'
    check = post(server, ("project", "base commits"), ("diff", diff), JUNIT)
    assert check.status == 400


def test_tests_and_coverage_are_other_names_of_parts(server: Server) -> None:
    coverage = ("coverage", b"mode: set\nexample.com/a.go:1.1,2.2 1 1\n")
    answer = upload(server, ("project", "aliases"), ("tests", JUNIT[1]), coverage)
    assert (answer["tests"], answer["lineCoveragePct"], answer["warnings"]) == (1, 100.0, [])


def test_an_unknown_part_is_a_warning_that_names_the_known_ones(server: Server) -> None:
    (warning,) = upload(server, ("project", "unknown parts"), ("brnach", "x"), ("brnach", "y"), JUNIT)["warnings"]
    assert warning.startswith("part brnach was ignored: it is not one of junit, jacoco,")
    assert "branch" in warning


def test_expected_uploads_need_a_run_key(server: Server) -> None:
    answer = post(server, ("project", "expected"), ("expectedUploads", "2"), JUNIT)
    assert (answer.status, "runKey" in answer.json["detail"]) == (400, True)


def test_at_most_ten_unknown_parts_are_named(server: Server) -> None:
    unknown = [part(f"odd{number}", "x") for number in range(50)]
    answer = send(server, body([part("project", "odd parts"), *unknown, part("junit", junit(passed=1), "a.xml")]))
    assert [warning.split()[1] for warning in answer.json["warnings"]] == [f"odd{number}" for number in range(10)]
