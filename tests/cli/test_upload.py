"""`run.py upload` as in a CI job: uploaded parts, exit codes, retries, and variables of CI systems."""

from __future__ import annotations

import ast
import contextlib
import fcntl
import hashlib
import http.server
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tarfile
import threading
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
from conftest import IS_PROOF, ROOT, Serve, Server, free_port, run_verb
from http_checks import running_server
from requirements import require
from run_streams import COVERAGE, NOW, create_accounts, junit, listen, next_event, open_store
from uploader import Outcome, run_upload
from users import bearer

from models.accounts import accounts
from models.tracker.forges.forge_links import file_url
from models.tracker.tables import Project
from supervisor.cli.attached_files import attached_files, source_archive
from supervisor.cli.ci_systems import facts
from supervisor.cli.upload import _paths

SHA = "0123456789abcdef0123456789abcdef01234567"
BIG = 200_000


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with running_server(tmp_path_factory.mktemp("uploads")) as server:
        yield server


@pytest.fixture
def reports(tmp_path: Path) -> Path:
    """A working directory with reports in it."""
    for module in ("a", "b"):
        folder = tmp_path / module / "target"
        folder.mkdir(parents=True)
        (folder / "TEST-one.xml").write_bytes(junit(3, mark=module))
        (folder / "jacoco.xml").write_bytes(COVERAGE)
    (tmp_path / "bad.xml").write_bytes(junit(1, 1, mark="bad"))
    return tmp_path


def upload_as_a_job(folder: Path, *arguments: str, **environ: str) -> Outcome:
    """Runs `upload` like a CI job."""
    kept = {name: os.environ[name] for name in ("PATH", "HOME", "LANG") if name in os.environ}
    environ = {**kept, "PYTHONWARNINGS": "error", **environ}
    done = run_verb("upload", *arguments, *COMMIT, folder=folder, environ=environ)
    return Outcome(done.returncode, done.stdout, done.stderr)


JUNIT = ("--junit", "**/TEST-*.xml")
COMMIT = ("--branch", "main", "--commit", SHA)


# What arrives


def test_all_reports_of_a_job_are_one_run(server: Server, reports: Path) -> None:
    stream = listen(server)
    done = run_upload(
        reports, server, "--project", "shop", *JUNIT, "--junit", "a/target/TEST-one.xml",
        "--jacoco", "*/target/jacoco.xml",
        "--branch", "main", "--commit", SHA, "--flag", "api", "--gate",
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (0, "")
    run = next_event(stream)
    assert (run["project"], run["branch"], run["flag"], run["shortSha"]) == ("shop", "main", "api", SHA[:7])
    assert (run["totalTests"], run["failed"], run["lineCoveragePct"], run["uploads"]) == (6, 0, 50.0, 1)
    first, *rules, last = done.stdout.splitlines()
    assert re.fullmatch(
        r"shop: 6 tests, 0 failed, 0 skipped, 50\.00 % of lines; http://127\.0\.0\.1:\d+/runs/\d+", first
    )
    assert first.endswith(f"/runs/{run['runId']}")
    assert rules == ["passed new-failures: no new failures"]
    assert last == "gate: PASSED"
    stream.close()


@pytest.mark.parametrize("prefix", ["/tracker", "/tracker/"])
def test_the_url_may_have_the_prefix_of_the_tracker(server: Server, reports: Path, prefix: str) -> None:
    url = f"http://127.0.0.1:{server.port}{prefix}"
    done = run_upload(reports, url, "--project", "prefixed", *JUNIT)
    assert (done.returncode, done.stderr) == (0, "")
    assert f"{url.rstrip('/')}/runs/" in done.stdout


def test_url_and_token_are_read_from_the_environment(serve: Serve, reports: Path) -> None:
    server = serve(wait=False, tracker={"security": {"open-mode": False, "require-ingest-token": True}})
    token = create_accounts(server.data, ["ci"])["ci"]
    server.start()
    url = f"http://127.0.0.1:{server.port}"
    done = upload_as_a_job(reports, "--project", "closed", *JUNIT, "--gate", PILOTHOUSE_URL=url, PILOTHOUSE_TOKEN=token)
    assert (done.returncode, done.stderr) == (0, "")
    (reports / "token").write_text(f"{token}\n")
    again = run_upload(reports, server, "--project", "closed", *JUNIT, "--token-file", "token")
    assert (again.returncode, again.stderr) == (0, "")
    for wrong in ("plt_" + "x" * 43, ""):
        refused = run_upload(reports, server, "--project", "closed", *JUNIT, environ={"PILOTHOUSE_TOKEN": wrong})
        assert refused.returncode == 4
        assert "401" in refused.stderr
        assert wrong == "" or wrong not in refused.stderr + refused.stdout


def test_upload_does_not_read_the_configuration_of_a_server(server: Server, reports: Path) -> None:
    (reports / "pilothouse.yaml").write_text("nonsense: [")
    assert run_upload(reports, server, "--project", "config", *JUNIT).returncode == 0


def test_links_that_form_a_loop_are_entered_once(server: Server, reports: Path) -> None:
    for name, target in (("one", "."), ("two", "."), ("a/b", "../b"), ("b/a", "../a"), ("none", "nowhere")):
        (reports / name).symlink_to(target)
    (reports / "target").symlink_to(reports / "a" / "target")
    patterns = ("--junit", "**/TEST-*.xml", "--junit", f"{reports}/**/target/**/TEST-*.xml")
    done = run_upload(reports, server, "--project", "loops", *patterns, "--jacoco", "a/**/jacoco.xml")
    assert (done.returncode, done.stderr) == (0, "")
    assert "6 tests, 0 failed" in done.stdout
    assert _paths(f"{reports}/**/**/TEST-*.xml") == _paths(f"{reports}/**/TEST-*.xml")


def test_two_calls_are_two_runs_and_two_of_one_key_are_one(server: Server, reports: Path) -> None:
    stream = listen(server)
    for _ in range(2):
        assert run_upload(reports, server, "--project", "keys", *JUNIT).returncode == 0
    for junit_of in ("a/**/TEST*.xml", "b/**/TEST*.xml"):
        assert run_upload(reports, server, "--project", "keys", "--junit", junit_of, "--run-key", "k").returncode == 0
    runs = [next_event(stream) for _ in range(4)]
    assert len({run["runId"] for run in runs}) == 3
    assert [run["totalTests"] for run in runs] == [6, 6, 3, 6]
    stream.close()


# Exit codes


def test_a_failed_gate_is_1_if_it_is_requested(server: Server, reports: Path) -> None:
    arguments = ["--project", "red", "--junit", "bad.xml", "--branch", "x"]
    assert run_upload(reports, server, *arguments).returncode == 0
    done = run_upload(reports, server, *arguments, "--gate")
    assert (done.returncode, done.stderr) == (1, "")
    assert done.stdout.splitlines()[1:] == ["FAILED new-failures: 1 new failure(s): c badf0", "gate: FAILED"]


def test_the_exit_code_does_not_depend_on_who_reads_the_output(server: Server, reports: Path) -> None:
    command = [sys.executable, str(ROOT / "run.py"), "upload", "--project", "\u4e2d", "--gate", *COMMIT]
    command += ["--url", f"http://127.0.0.1:{server.port}", "--summary", "--junit"]
    environ = {"PATH": os.environ["PATH"], "PYTHONIOENCODING": "latin-1"}
    reader, closed = os.pipe()
    os.close(reader)
    with open(os.devnull, "w") as unread:
        for output in (closed, unread.fileno()):
            for report, code in (("a/target/TEST-one.xml", 0), ("bad.xml", 1)):
                done = subprocess.run(
                    [*command, report], cwd=reports, env=environ, stdout=output, stderr=subprocess.PIPE, timeout=60,
                    check=False,
                )  # fmt: skip
                assert (done.returncode, done.stderr) == (code, b"")
    os.close(closed)


def test_a_token_of_scope_ingest_shows_the_verdict_and_its_rules(serve: Serve, reports: Path) -> None:
    server = serve(wait=False, tracker={"security": {"open-mode": False}})
    create_accounts(server.data, ["ci"])
    with open_store(server.data):
        user = accounts.user_named("ci")
        assert user
        token = accounts.create_token(user.id, "post", "INGEST", None, NOW)
    server.start()
    environ = {"PILOTHOUSE_TOKEN": token}
    for reports_of, code, verdict in ((JUNIT, 0, "PASSED"), (("--junit", "bad.xml"), 1, "FAILED")):
        for option in ("--gate", "--wait"):
            done = run_upload(reports, server, "--project", "p", *reports_of, option, environ=environ)
            assert (done.returncode, done.stderr) == (code, "")
            _, rule, gate = done.stdout.splitlines()
            assert rule.startswith("passed new-failures" if verdict == "PASSED" else "FAILED new-failures")
            assert gate == f"gate: {verdict}"
    keyed = ("--project", "p", "--run-key", "k", *JUNIT, "--expect", "2")
    late = run_upload(reports, server, *keyed, "--job-key", "a", "--wait", "0", environ=environ)
    assert (late.returncode, "not complete after 0 s (PENDING)" in late.stderr) == (3, True)
    closing = ("finish", "--partial", "--project", "p", "--run-key", "k")
    finished = run_upload(reports, server, *closing, environ=environ)
    assert (finished.returncode, finished.stderr) == (0, "")
    run = re.findall(r"/runs/(\d+)", finished.stdout)[0]
    verdict_of = f"/api/v1/runs/{run}/quality-gate"
    assert server.ask("GET", verdict_of, headers=bearer(token)).json["state"] == "COMPLETE"
    assert server.ask("GET", f"/api/v1/runs/{run}", headers=bearer(token)).status == 403
    with open_store(server.data):
        other = accounts.user_named("other") or accounts.create_user("other", "!", "USER", NOW)
        Project.update(visibility="PRIVATE").execute()
        other_token = accounts.create_token(other.id, "post", "INGEST", None, NOW)
    assert server.ask("GET", verdict_of, headers=bearer(other_token)).status == 404


@pytest.mark.parametrize(
    ("arguments", "word"),
    [
        (["--project", "p", "--junit", "none/*.xml"], "none/*.xml"),
        (["--project", "p", *JUNIT, "--jacoco", "none.xml"], "none.xml"),
        (["--project", "p", "--junit", "a"], "--junit a"),
        (["--project", "p"], "--junit"),
        (["--project", " ", *JUNIT], "--project"),
        ([*JUNIT], "--project"),
        (["--project", "p", *JUNIT, "--url", "ftp://x"], "PILOTHOUSE_URL must be a URL such as http://host:8080"),
        (["--project", "p", *JUNIT, "--url", "http://user:secret@x"], "--url"),
        (["--project", "p", *JUNIT, "--url", "http://x:99999999"], "--url"),
        (["--project", "p", *JUNIT, "--token-file", "nosuch"], "nosuch"),
        (["--project", "p", *JUNIT, "--token-file", "/dev/null"], "empty"),
        (["--project", "p", "--junit", "."], "folder"),
        (["--project", "p", *JUNIT, "--timeout", "0"], "--timeout"),
        (["--project", "p", *JUNIT, "--timeout", "9999999h"], "longer than 36500 days"),
    ],
)
def test_invalid_arguments_are_2(server: Server, reports: Path, arguments: list[str], word: str) -> None:
    done = run_upload(reports, server, *arguments)
    assert done.returncode == 2
    assert word in done.stderr
    assert "secret" not in done.stderr
    assert "Traceback" not in done.stderr


def test_a_file_that_cannot_be_read_is_2(reports: Path) -> None:
    long = "x" * 300
    done = run_upload(reports, "http://127.0.0.1:9", "--project", "p", "--junit", long)
    assert (done.returncode, done.stderr) == (2, f"pilothouse upload: {long}: File name too long\n")
    (reports / "later.xml").symlink_to("/proc/self/mem")
    done = run_upload(reports, "http://127.0.0.1:9", "--project", "p", "--junit", "later.xml", "--attachments")
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)


def test_an_unreachable_server_is_3(reports: Path) -> None:
    with socket.socket() as no_account:
        no_account.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{no_account.getsockname()[1]}"
        done = upload_as_a_job(reports, "--url", url, "--retry-for", "0", "--project", "p", *JUNIT)
    assert done.returncode == 3
    assert "cannot be reached" in done.stderr
    assert "--url" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_server_without_tls_is_3_without_retries(server: Server, reports: Path) -> None:
    done = run_upload(reports, f"https://127.0.0.1:{server.port}", "--project", "p", *JUNIT)
    assert done.returncode == 3
    assert "is it http?" in done.stderr


def test_ctrl_c_ends_upload_without_a_traceback(reports: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        silent.settimeout(60)
        command = [sys.executable, str(ROOT / "run.py"), "upload", "--project", "p", *JUNIT, *COMMIT]
        command += ["--url", f"http://127.0.0.1:{silent.getsockname()[1]}"]
        with subprocess.Popen(command, cwd=reports, stderr=subprocess.PIPE, text=True) as job:
            try:
                with silent.accept()[0]:
                    job.send_signal(signal.SIGINT)
                    assert job.communicate(timeout=60)[1] == ""
                assert job.returncode == -signal.SIGINT  # which a shell calls 130
            finally:
                job.kill()


def test_a_background_job_that_ignores_sigint_continues(reports: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        silent.settimeout(60)
        url = f"http://127.0.0.1:{silent.getsockname()[1]}"
        command = [sys.executable, str(ROOT / "run.py"), "upload", "--project", "p", *JUNIT, *COMMIT, "--url", url]
        ignoring = ["sh", "-c", 'trap "" INT; exec "$@"', "sh", *command]
        with subprocess.Popen(ignoring, cwd=reports, stderr=subprocess.PIPE, text=True) as job:
            try:
                with silent.accept()[0] as peer:
                    job.send_signal(signal.SIGINT)
                    received = b""
                    while not received.endswith(b"--\r\n"):
                        piece = peer.recv(65536)
                        assert piece, "it gave up"
                        received += piece
                    peer.sendall(b"HTTP/1.1 403 Forbidden\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")
                    assert "403" in job.communicate(timeout=60)[1]
                assert job.returncode == 4
            finally:
                job.kill()


def test_a_too_long_url_is_reported(server: Server, reports: Path) -> None:
    done = run_upload(reports, f"http://127.0.0.1:{server.port}/api/v1", "--project", "p", *JUNIT)
    assert done.returncode == 4
    assert f"requested http://127.0.0.1:{server.port}/api/v1/api/v1/ingest" in done.stderr


def test_a_refusal_is_4_with_the_message_of_the_server(server: Server, reports: Path) -> None:
    (reports / "broken.xml").write_bytes(b"<testsuite><testcase></testsuite>")
    done = run_upload(reports, server, "--project", "p", "--junit", "broken.xml")
    assert done.returncode == 4
    assert "400" in done.stderr
    assert "broken.xml" in done.stderr


def test_a_refusal_during_the_body_is_read(serve: Serve, reports: Path) -> None:
    server = serve(server={"max-body": "64K"}, tracker={"limits": {"request": "32K"}})
    (reports / "large.xml").write_bytes(b"<testsuite>" + os.urandom(20_000_000).hex().encode() + b"</testsuite>")
    done = run_upload(reports, server, "--project", "p", "--junit", "large.xml", "--no-gzip")
    assert done.returncode == 4, done.stderr
    assert "413" in done.stderr


# What is sent again


class Fake(http.server.ThreadingHTTPServer):
    """A server that responds to uploads with these statuses in turn, then with 201. None closes the connection."""

    def __init__(self, *statuses: int | None, headers: Mapping[str, str] | None = None, port: int = 0) -> None:
        super().__init__(("127.0.0.1", port), Answering)
        self.statuses = list(statuses)
        self.headers = headers or {}
        self.bodies: list[tuple[Mapping[str, str], bytes]] = []
        self.thread = threading.Thread(target=self.serve_forever, args=(0.01,), daemon=True)
        self.thread.start()

    def __exit__(self, *error: object) -> None:
        self.shutdown()
        self.thread.join()
        self.server_close()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"


class Answering(http.server.BaseHTTPRequestHandler):
    server: Fake

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        self.server.bodies.append((dict(self.headers), body))
        status = self.server.statuses.pop(0) if self.server.statuses else 201
        if status is None:
            return
        self.send_response(status)
        for name, value in self.server.headers.items():
            self.send_header(name, value)
        self.end_headers()
        run: dict[str, Any] = {"runId": 1, "project": "p", "tests": 1, "failures": 0, "skipped": 0}
        more = {"lineCoveragePct": None, "runPath": "/runs/1", "gateStatus": "PASSED"}
        self.wfile.write(json.dumps({**run, **more} if status == 201 else {"message": "not now"}).encode())

    def log_message(self, *_: object) -> None:
        """Logs nothing."""


@pytest.mark.parametrize("statuses", [(503, 502), (429,), (504, 429), (None, 503)])
def test_temporary_failures_are_retried_with_the_same_key(reports: Path, statuses: tuple[int | None, ...]) -> None:
    with Fake(*statuses) as fake:
        done = run_upload(reports, fake.url, "--project", "p", *JUNIT)
        assert done.returncode == 0
        assert done.stderr.count("trying again") == len(statuses)
        assert len(fake.bodies) == len(statuses) + 1
        assert len({body for _, body in fake.bodies}) == 1
        key = re.search(rb'name="runKey"\r\n\r\n(\S+)\r\n', fake.bodies[0][1])
        assert key
        assert len(key[1]) >= 32


def test_an_invalid_retry_after_is_ignored(reports: Path) -> None:
    with Fake(503, headers={"Retry-After": "\u00b2"}) as fake:  # a digit to isdigit(), but not to float()
        done = run_upload(reports, fake.url, "--project", "p", *JUNIT)
    assert (done.returncode, done.stderr.count("trying again in")) == (0, 1)


@pytest.mark.parametrize(("status", "code"), [(503, 3), (500, 3), (429, 4), (None, 3)])
def test_retries_end_after_the_time_limit(reports: Path, status: int | None, code: int) -> None:
    with Fake(*[status] * 1000) as fake:
        done = run_upload(reports, fake.url, "--project", "p", *JUNIT, "--retry-for", "0.1")
        assert done.returncode == code
        assert len(fake.bodies) > 1
        assert status is None or f"{status}: not now" in done.stderr


@pytest.mark.parametrize("status", [400, 401, 413])
def test_a_refusal_is_not_retried(reports: Path, status: int) -> None:
    with Fake(status) as fake:
        assert run_upload(reports, fake.url, "--project", "p", *JUNIT).returncode == 4
        assert len(fake.bodies) == 1


def test_a_restart_of_the_server_fails_no_job(reports: Path) -> None:
    port = free_port()
    with ThreadPoolExecutor(1) as one:
        job = one.submit(upload_as_a_job, reports, "--url", f"http://127.0.0.1:{port}", "--project", "p", *JUNIT)
        with socket.create_server(("127.0.0.1", port)) as dying:
            dying.settimeout(60)
            dying.accept()[0].close()
        with Fake(port=port):
            done = job.result(60)
    assert done.returncode == 0, done.stderr
    assert "trying again in 1 s" in done.stderr


def test_a_response_of_another_program_names_the_option_to_set(reports: Path) -> None:
    with Fake(200, 404, headers={}) as fake:
        for _ in range(2):
            done = run_upload(reports, fake.url, "--project", "p", *JUNIT)
            assert done.returncode == 4
            assert f"the server at {fake.url} (BaseHTTP/" in done.stderr
            assert "--url" in done.stderr


@pytest.mark.parametrize(
    ("answer", "code", "reason"),
    [
        (b"HTTP/1.1 201 Created\r\n\r\n{}", 4, "answers 201 to an upload"),
        (b"HTTP/1.1 400 Bad Request\r\n\r\n" + b"[" * 60_000, 4, "refuses: 400: no reason was given"),
        (b"\x1b[31mSSH-2.0\r\r\n", 3, "cannot be reached: [31mSSH-2.0;"),
    ],
    ids=["empty", "deep", "control characters"],
)
def test_a_malformed_response_is_one_line(reports: Path, answer: bytes, code: int, reason: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening, ThreadPoolExecutor(1) as one:

        def respond() -> None:
            connection = listening.accept()[0]
            with connection:
                connection.sendall(answer)
                connection.shutdown(socket.SHUT_WR)
                while connection.recv(65536):
                    pass

        responding = one.submit(respond)
        url = f"http://127.0.0.1:{listening.getsockname()[1]}"
        done = run_upload(reports, url, "--project", "p", "--retry-for", "0", *JUNIT)
        responding.result(60)
    assert (done.returncode, done.stderr.count("\n")) == (code, 1)
    assert reason in done.stderr
    assert done.stderr[:-1].isprintable()


def test_a_redirect_is_not_followed_with_a_token(reports: Path) -> None:
    with Fake() as elsewhere, Fake(302, headers={"Location": elsewhere.url}) as fake:
        done = run_upload(reports, fake.url, "--project", "p", *JUNIT, environ={"PILOTHOUSE_TOKEN": "plt_secret"})
        assert done.returncode == 4
        assert elsewhere.url in done.stderr
        assert elsewhere.bodies == []
        assert fake.bodies[0][0]["Authorization"] == "Bearer plt_secret"
        assert "plt_secret" not in done.stderr


def test_files_are_compressed_unless_they_already_are(reports: Path) -> None:
    (reports / "big.xml").write_bytes(junit(BIG // 50))
    size = (reports / "big.xml").stat().st_size
    with Fake() as fake:
        for more in ([], ["--no-gzip"]):
            assert run_upload(reports, fake.url, "--project", "p", "--junit", "big.xml", *more).returncode == 0
        packed, plain = (len(body) for _, body in fake.bodies)
    assert packed < size / 5
    assert plain > size


# What a CI system tells


@pytest.mark.parametrize(
    ("environ", "found"),
    [
        ({}, {}),
        ({"CI": "true"}, {}),
        ({"GITHUB_ACTIONS": "false", "GITHUB_SHA": SHA}, {}),
        (
            {
                "GITHUB_ACTIONS": "true", "GITHUB_REF": "refs/heads/main", "GITHUB_REF_NAME": "main", "GITHUB_SHA": SHA,
                "GITHUB_SERVER_URL": "https://github.com", "GITHUB_REPOSITORY": "o/r", "GITHUB_RUN_ID": "7",
                "GITHUB_RUN_ATTEMPT": "2", "GITHUB_WORKFLOW": "build", "GITHUB_JOB": "test",
                "RUNNER_TRACKING_ID": "github_x",
            },
            {
                "ciProvider": "github", "branch": "main", "commit": SHA, "repoUrl": "https://github.com/o/r",
                "buildUrl": "https://github.com/o/r/actions/runs/7", "buildName": "build", "runKey": "github-7",
                "jobKey": "test",
                "jobInstance": "github_x", "attempt": "2",
            },
        ),
        (
            {
                "GITLAB_CI": "true", "CI_COMMIT_REF_NAME": "refs", "CI_MERGE_REQUEST_SOURCE_BRANCH_NAME": "topic",
                "CI_COMMIT_SHA": "merge", "CI_MERGE_REQUEST_SOURCE_BRANCH_SHA": SHA, "CI_MERGE_REQUEST_IID": "5",
                "CI_MERGE_REQUEST_TARGET_BRANCH_NAME": "main", "CI_PROJECT_URL": "https://bot:secret@gitlab.example/p",
                "CI_JOB_URL": "https://gitlab.example/j/1", "CI_JOB_NAME": "test", "CI_PIPELINE_ID": "9",
                "CI_JOB_ID": "77",
            },
            {
                "ciProvider": "gitlab", "branch": "topic", "commit": SHA, "baseBranch": "main", "prNumber": "5",
                "repoUrl": "https://gitlab.example/p", "buildUrl": "https://gitlab.example/j/1", "buildName": "test",
                "runKey": "gitlab-9", "jobKey": "test", "jobInstance": "77", "attempt": "77",
            },
        ),
        (
            {
                "JENKINS_URL": "https://jenkins/", "GIT_BRANCH": "origin/main", "GIT_COMMIT": SHA, "JOB_NAME": "shop",
                "GIT_URL": "git@host:shop.git", "BUILD_URL": "https://jenkins/job/1/", "BUILD_TAG": "jenkins-shop-1",
                "STAGE_NAME": "Test",
            },
            {
                "ciProvider": "jenkins", "branch": "main", "commit": SHA, "repoUrl": "git@host:shop.git",
                "buildUrl": "https://jenkins/job/1/", "buildName": "shop", "runKey": "jenkins-shop-1",
                "jobKey": "Test",
            },
        ),
        (
            {
                "CIRCLECI": "true", "CIRCLE_BRANCH": "topic", "CIRCLE_SHA1": SHA, "CIRCLE_WORKFLOW_ID": "w",
                "CIRCLE_PULL_REQUEST": "https://github.com/o/r/pull/12", "CIRCLE_BUILD_URL": "https://c/1",
                "CIRCLE_REPOSITORY_URL": "https://github.com/o/r", "CIRCLE_JOB": "test",
                "CIRCLE_NODE_INDEX": "1", "CIRCLE_BUILD_NUM": "55", "CIRCLE_WORKFLOW_JOB_ID": "wj",
            },
            {
                "ciProvider": "circleci", "branch": "topic", "commit": SHA, "prNumber": "12",
                "repoUrl": "https://github.com/o/r", "buildUrl": "https://c/1", "buildName": "test",
                "runKey": "circleci-w", "jobKey": "test#1", "jobInstance": "wj", "attempt": "55",
            },
        ),
        (
            {
                "BUILDKITE": "true", "BUILDKITE_BRANCH": "main", "BUILDKITE_COMMIT": "HEAD", "BUILDKITE_BUILD_ID": "b",
                "BUILDKITE_PULL_REQUEST": "false", "BUILDKITE_PULL_REQUEST_BASE_BRANCH": "",
                "BUILDKITE_BUILD_URL": "https://b/1", "BUILDKITE_PIPELINE_SLUG": "shop",
                "BUILDKITE_STEP_ID": "s", "BUILDKITE_PARALLEL_JOB": "0", "BUILDKITE_RETRY_COUNT": "1",
                "BUILDKITE_JOB_ID": "j",
            },
            {
                "ciProvider": "buildkite", "branch": "main", "buildUrl": "https://b/1", "buildName": "shop",
                "runKey": "buildkite-b", "jobKey": "s/0", "jobInstance": "j", "attempt": "1",
            },
        ),
        (
            {
                "TF_BUILD": "True", "BUILD_SOURCEBRANCH": "refs/pull/3/merge", "BUILD_SOURCEVERSION": "merge",
                "SYSTEM_PULLREQUEST_SOURCEBRANCH": "refs/heads/topic", "SYSTEM_PULLREQUEST_SOURCECOMMITID": SHA,
                "SYSTEM_PULLREQUEST_TARGETBRANCH": "refs/heads/main", "SYSTEM_PULLREQUEST_PULLREQUESTID": "3",
                "SYSTEM_COLLECTIONURI": "https://dev.azure.com/o/", "SYSTEM_TEAMPROJECT": "my shop",
                "BUILD_BUILDID": "77", "BUILD_DEFINITIONNAME": "ci", "SYSTEM_STAGENAME": "t", "SYSTEM_PHASENAME": "p",
                "AGENT_JOBNAME": "Job linux", "SYSTEM_STAGEATTEMPT": "2", "SYSTEM_JOBATTEMPT": "3", "SYSTEM_JOBID": "x",
            },
            {
                "ciProvider": "azure", "branch": "topic", "commit": SHA, "baseBranch": "main", "prNumber": "3",
                "buildUrl": "https://dev.azure.com/o/my%20shop/_build/results?buildId=77", "buildName": "ci",
                "runKey": "azure-77", "jobKey": "t/p/Job linux", "jobInstance": "x", "attempt": "2003",
            },
        ),
    ],
    ids=["none", "only CI", "false", "github", "gitlab", "jenkins", "circleci", "buildkite", "azure"],
)  # fmt: skip
def test_the_variables_of_ci_systems_are_read(environ: dict[str, str], found: dict[str, str]) -> None:
    assert facts(environ) == found


def test_what_is_no_branch_and_no_number_is_left_out() -> None:
    jenkins = {"JENKINS_URL": "https://jenkins/", "GIT_COMMIT": SHA}
    known = {"ciProvider": "jenkins", "commit": SHA}
    assert facts({**jenkins, "GIT_BRANCH": "detached"}) == known  # where a commit or a tag was checked out
    gerrit = {"BRANCH_NAME": "21/4321/2", "CHANGE_ID": "4321/2"}
    assert facts({**jenkins, **gerrit}) == {**known, "branch": "21/4321/2"}


@pytest.mark.parametrize(("system", "number"), [("forgejo", "3"), ("gitea", "7")])
def test_forgejo_and_gitea_are_no_github(system: str, number: str) -> None:
    environ = {
        "GITHUB_ACTIONS": "true", "GITEA_ACTIONS": "true", "GITHUB_SERVER_URL": "https://code.example",
        "GITHUB_REPOSITORY": "o/r", "GITHUB_RUN_ID": "7", "GITHUB_RUN_NUMBER": "3",
    }  # fmt: skip
    if system == "forgejo":  # its runner sets both
        environ["FORGEJO_ACTIONS"] = "true"
    found = facts(environ)
    assert (found["ciProvider"], found["buildUrl"]) == (system, f"https://code.example/o/r/actions/runs/{number}")
    page = file_url(found["repoUrl"], SHA, "a.py", found["ciProvider"])
    assert page == f"https://code.example/o/r/src/commit/{SHA}/a.py"


def test_a_github_pull_request_has_the_pushed_commit(tmp_path: Path) -> None:
    event = tmp_path / "event.json"
    event.write_text(json.dumps({"pull_request": {"head": {"sha": SHA}}}))
    environ = {
        "GITHUB_ACTIONS": "true", "GITHUB_REF": "refs/pull/12/merge", "GITHUB_REF_NAME": "12/merge",
        "GITHUB_HEAD_REF": "topic", "GITHUB_BASE_REF": "main", "GITHUB_SHA": "merge", "GITHUB_EVENT_PATH": str(event),
    }  # fmt: skip
    wanted = {"ciProvider": "github", "branch": "topic", "commit": SHA, "baseBranch": "main", "prNumber": "12"}
    assert facts(environ) == wanted
    event.write_text("[]")
    assert facts(environ) == {**wanted, "commit": "merge"}


def test_a_github_pull_request_without_its_ref_is_read_from_the_event(tmp_path: Path) -> None:
    event = tmp_path / "event.json"
    event.write_text(json.dumps({"pull_request": {"number": 12, "head": {"sha": SHA, "ref": "topic"}}}))
    known = {"GITHUB_ACTIONS": "true", "GITHUB_SHA": "other", "GITHUB_EVENT_PATH": str(event)}
    target = {"GITHUB_REF": "refs/heads/main", "GITHUB_REF_NAME": "main", "GITHUB_HEAD_REF": "topic"}
    review = {"GITHUB_REF": "refs/pull/12/merge", "GITHUB_REF_NAME": "12/merge"}
    wanted = {"ciProvider": "github", "branch": "topic", "commit": SHA, "prNumber": "12"}
    assert facts({**known, **target}) == facts({**known, **review}) == wanted


def test_options_win_over_the_ci_system_and_a_flag_is_a_separate_run(server: Server, reports: Path) -> None:
    stream = listen(server)
    environ = {"BUILDKITE": "true", "BUILDKITE_BRANCH": "theirs", "BUILDKITE_COMMIT": SHA, "BUILDKITE_BUILD_ID": "b"}
    for more in ([], ["--flag", "ui"], ["--branch", "mine"]):
        assert run_upload(reports, server, "--project", "ci", *JUNIT, *more, environ=environ).returncode == 0
    runs = [next_event(stream) for _ in range(3)]
    assert [run["flag"] for run in runs] == ["default", "ui", "default"]
    assert runs[0]["branch"] == "theirs"
    assert runs[0]["runId"] == runs[2]["runId"] != runs[1]["runId"]
    stream.close()


def test_a_job_that_is_run_again_replaces_its_reports(server: Server, reports: Path) -> None:
    stream = listen(server)
    for attempt, reports_of in ((1, "bad.xml"), (2, "a/target/TEST-one.xml")):
        environ = {"GITHUB_ACTIONS": "true", "GITHUB_RUN_ID": "70", "GITHUB_JOB": "test", "RUNNER_TRACKING_ID": "t"}
        environ |= {"GITHUB_RUN_ATTEMPT": str(attempt)}
        done = run_upload(reports, server, "--project", "rerun", "--junit", reports_of, environ=environ)
        assert (done.returncode, done.stderr) == (0, "")
    first, second = next_event(stream), next_event(stream)
    assert first["runId"] == second["runId"]
    assert (first["failed"], second["failed"], second["totalTests"]) == (1, 0, 3)
    stream.close()


def test_legs_of_a_matrix_get_a_hint_about_the_option(server: Server, reports: Path) -> None:
    outcome = []
    for instance in ("a", "b"):
        environ = {"GITHUB_ACTIONS": "true", "GITHUB_RUN_ID": "71", "GITHUB_JOB": "t", "RUNNER_TRACKING_ID": instance}
        done = run_upload(reports, server, "--project", "legs", *JUNIT, environ=environ)
        assert done.returncode == 0
        outcome.append("--job-key" in done.stderr)
    assert outcome == [False, True]


def test_finish_completes_the_run_and_wait_waits_for_that(server: Server, reports: Path) -> None:
    known = ("--project", "waited", "--run-key", "waited")
    late = run_upload(reports, server, *known, *JUNIT, "--expect", "2", "--job-key", "a", "--wait", "0")
    assert late.returncode == 3
    assert "not complete" in late.stderr
    finished = run_upload(reports, server, "finish", *known, "--gate")
    assert (finished.returncode, finished.stderr) == (1, "")
    assert "is closed, but not complete; gate: FAILED" in finished.stdout
    finished = run_upload(reports, server, "finish", *known, "--gate", "--partial")
    assert (finished.returncode, finished.stderr) == (0, "")
    assert "is complete; gate:" in finished.stdout
    assert run_upload(reports, server, *known, *JUNIT, "--partial").returncode == 2
    done = run_upload(reports, server, *known, "--junit", "bad.xml", "--job-key", "b", "--wait")
    assert done.returncode == 1, done.stderr
    assert done.stdout.splitlines()[-1] == "gate: FAILED"
    assert run_upload(reports, server, "finish", "--project", "waited").returncode == 2
    assert run_upload(reports, server, "finish", "--project", "waited", "--run-key", "x").returncode == 4


def test_the_gate_is_about_all_flags_of_the_commit_unless_it_is_asked_for_one(server: Server, reports: Path) -> None:
    known = ("--project", "scopes", "--branch", "b", "--commit", "c1")
    red = run_upload(reports, server, *known, "--flag", "ui", "--junit", "bad.xml", "--gate")
    assert red.returncode == 1
    both = run_upload(reports, server, *known, "--flag", "unit", *JUNIT, "--gate")
    assert (both.returncode, both.stdout.splitlines()[-1]) == (1, "gate: FAILED")
    assert "FAILED new-failures (ui): 1 new failure(s)" in both.stdout
    assert "passed new-failures (unit): no new failures" in both.stdout
    alone = run_upload(reports, server, *known, "--flag", "unit", *JUNIT, "--gate", "flag")
    assert (alone.returncode, alone.stdout.splitlines()[1:]) == (
        0, ["passed new-failures: no new failures", "gate: PASSED"],
    )  # fmt: skip


def test_a_run_of_one_upload_is_complete_at_once(server: Server, reports: Path) -> None:
    assert run_upload(reports, server, "--project", "single", *JUNIT, "--wait", "0").returncode == 0


def git(folder: Path, *arguments: str) -> str:
    require("git")
    identity = ["-c", "user.name=t", "-c", "user.email=t@example.invalid", "-c", "init.defaultBranch=main"]
    return subprocess.run(["git", *identity, *arguments], cwd=folder, check=True, capture_output=True, text=True).stdout


def test_the_branch_of_a_fork_has_its_owner(tmp_path: Path) -> None:
    event = tmp_path / "event.json"
    github = {"GITHUB_ACTIONS": "true", "GITHUB_REF": "refs/pull/12/merge", "GITHUB_HEAD_REF": "main"}
    github["GITHUB_EVENT_PATH"] = str(event)
    head, base = {"sha": SHA, "user": {"login": "ann"}}, {"repo": {"full_name": "acme/shop"}}
    for repo in ({"full_name": "ann/shop"}, None):  # None: it has been deleted
        event.write_text(json.dumps({"pull_request": {"head": {**head, "repo": repo}, "base": base}}))
        assert facts(github)["branch"] == "ann:main"
    event.write_text(json.dumps({"pull_request": {"head": {**head, "repo": base["repo"]}, "base": base}}))
    assert facts(github)["branch"] == "main"
    gitlab = {"GITLAB_CI": "true", "CI_MERGE_REQUEST_SOURCE_BRANCH_NAME": "main"}
    gitlab |= {"CI_MERGE_REQUEST_PROJECT_PATH": "acme/shop", "CI_MERGE_REQUEST_SOURCE_PROJECT_PATH": "acme/shop"}
    assert facts(gitlab)["branch"] == "main"
    assert facts({**gitlab, "CI_MERGE_REQUEST_SOURCE_PROJECT_PATH": "people/ann/shop"})["branch"] == "people/ann:main"
    jenkins = {"JENKINS_URL": "https://jenkins/", "CHANGE_BRANCH": "main", "BRANCH_NAME": "PR-12"}
    assert facts(jenkins)["branch"] == "main"
    assert facts({**jenkins, "CHANGE_FORK": "ann"})["branch"] == "ann:main"
    source = "SYSTEM_PULLREQUEST_SOURCEREPOSITORYURI"
    azure = {"TF_BUILD": "True", "SYSTEM_PULLREQUEST_SOURCEBRANCH": "refs/heads/main"}
    assert facts({**azure, "SYSTEM_PULLREQUEST_ISFORK": "False"})["branch"] == "main"
    azure["SYSTEM_PULLREQUEST_ISFORK"] = "True"
    assert facts({**azure, source: "https://github.com/ann/shop"})["branch"] == "ann:main"
    assert facts({**azure, source: "https://dev.azure.com/acme/p/_git/shop.ann"})["branch"] == "shop.ann:main"
    assert facts({**azure, source: "https://[nonsense"})["branch"] == "fork:main"


@pytest.fixture
def repository(reports: Path) -> Path:
    """A clone with reports in it whose branch `topic` changes lines 2 and 3 of `ä/x.py`, and deletes a file."""
    (reports / "ä").mkdir()
    (reports / "ä" / "x.py").write_bytes(b"1\r\n2\r\n3\r\n4\r\n")
    (reports / "gone.py").write_text("1\n")
    git(reports, "init", "-q")
    git(reports, "add", ".")
    git(reports, "commit", "-qm", "base")
    git(reports, "checkout", "-qb", "topic")
    (reports / "ä" / "x.py").write_bytes(b"1\r\n++ two\r\nthree\r\n4\r\n")
    (reports / "gone.py").unlink()
    git(reports, "commit", "-qam", "topic")
    return reports


GIT = {"PATH": os.environ["PATH"], "HOME": "/nonexistent"}


def sent_part(body: bytes, name: str) -> bytes | None:
    match = re.search(rb'name="%b"; filename="[^"]*"\r\n[^\r]*\r\n\r\n(.*?)\r\n--' % name.encode(), body, re.DOTALL)
    return match and match[1]


def test_the_changed_lines_are_sent_as_ranges(repository: Path) -> None:
    with Fake() as fake:
        done = run_upload(repository, fake.url, "--project", "p", *JUNIT, "--base-branch", "main", environ=GIT)
        assert (done.returncode, done.stderr) == (0, "")
    diff = json.loads(sent_part(fake.bodies[0][1], "diff") or b"")
    assert diff["files"] == {"ä/x.py": [[2, 3]]}
    assert len(diff["base"]) == len(diff["head"]) == 40
    paths = (sent_part(fake.bodies[0][1], "paths") or b"").decode().splitlines()
    assert "ä/x.py" in paths
    assert b"three" not in fake.bodies[0][1]


def test_the_ranges_do_not_depend_on_the_settings_of_git(repository: Path) -> None:
    (repository / ".gitattributes").write_text("*.py diff=doubled\n")
    (repository / "sub").mkdir()
    file = repository / "sub" / "f.py"
    file.write_text("1\n2\n3\n4\n5\n")
    git(repository, "add", ".gitattributes", "sub")
    git(repository, "commit", "-qm", "before")
    git(repository, "branch", "before")
    file.write_text("one\n2\n3\nfour\n5\n")
    git(repository, "commit", "-qam", "after")
    settings = {"diff.interHunkContext": "9", "diff.relative": "true", "diff.doubled.textconv": "sed p",
                "diff.noprefix": "true", "diff.context": "5", "color.ui": "always"}  # fmt: skip
    for name, value in settings.items():
        git(repository, "config", name, value)
    with Fake() as fake:
        assert (
            run_upload(repository, fake.url, "--project", "p", *JUNIT, "--base-branch", "before", environ=GIT).stderr
            == ""
        )
    assert json.loads(sent_part(fake.bodies[0][1], "diff") or b"")["files"] == {"sub/f.py": [[1, 1], [4, 4]]}


def test_the_files_of_the_repository_are_sent_with_coverage_without_a_base_too(repository: Path) -> None:
    (repository / "cover.xml").write_text("<report name='r'/>")
    with Fake() as fake:
        for more in ((), ("--diff", "off"), ("--jacoco", "cover.xml", "--diff", "off"), ("--jacoco", "cover.xml")):
            assert run_upload(repository, fake.url, "--project", "p", *JUNIT, *more, environ=GIT).returncode == 0
    sent = [sent_part(body, "paths") for _, body in fake.bodies]
    assert sent[:3] == [None] * 3
    assert "ä/x.py" in (sent[3] or b"").decode().splitlines()


def test_a_merge_that_ci_checked_out_is_compared_with_its_first_parent(repository: Path) -> None:
    git(repository, "checkout", "-q", "main")
    (repository / "other.py").write_text("1\n")
    git(repository, "add", "other.py")
    git(repository, "commit", "-qm", "main goes on")
    git(repository, "merge", "-q", "--no-edit", "topic")
    environ = GIT | {"GITHUB_ACTIONS": "true", "GITHUB_REF": "refs/pull/1/merge", "GITHUB_BASE_REF": "elsewhere"}
    environ["GITHUB_SHA"] = git(repository, "rev-parse", "HEAD").strip()
    with Fake() as fake:
        assert run_upload(repository, fake.url, "--project", "p", *JUNIT, environ=environ).stderr == ""
    assert json.loads(sent_part(fake.bodies[0][1], "diff") or b"")["files"] == {"ä/x.py": [[2, 3]]}


@pytest.mark.parametrize("ref", ["refs/pull/1/merge", "refs/pull/1/head"])
def test_a_pushed_merge_of_the_base_branch_is_compared_with_the_merge_base(repository: Path, ref: str) -> None:
    git(repository, "checkout", "-q", "main")
    (repository / "other.py").write_text("1\n")
    git(repository, "add", "other.py")
    git(repository, "commit", "-qm", "main goes on")
    git(repository, "checkout", "-q", "topic")
    git(repository, "merge", "-q", "--no-edit", "main")
    environ = GIT | {"GITHUB_ACTIONS": "true", "GITHUB_REF": ref, "GITHUB_BASE_REF": "main", "GITHUB_SHA": SHA}
    if ref.endswith("head"):  # as Forgejo sets it
        environ["GITHUB_SHA"] = git(repository, "rev-parse", "HEAD").strip()
    with Fake() as fake:
        assert run_upload(repository, fake.url, "--project", "p", *JUNIT, environ=environ).stderr == ""
    assert json.loads(sent_part(fake.bodies[0][1], "diff") or b"")["files"] == {"ä/x.py": [[2, 3]]}


def test_a_clone_without_the_base_is_a_warning_with_the_fix(repository: Path, tmp_path: Path) -> None:
    shallow = tmp_path / "shallow"
    git(tmp_path, "clone", "-q", "--depth", "1", "--branch", "topic", f"file://{repository}", str(shallow))
    with Fake() as fake:
        known = ("--project", "p", "--junit", "**/TEST-*.xml", "--base-branch", "main")
        done = run_upload(shallow, fake.url, *known, environ=GIT)
        assert done.returncode == 0
        assert "fetch-depth: 0" in done.stderr
        assert run_upload(shallow, fake.url, *known, "--diff", "off", environ=GIT).stderr == ""
        assert run_upload(shallow, fake.url, *known, "--diff", "none.diff", environ=GIT).returncode == 2
    assert sent_part(fake.bodies[0][1], "diff") is None


def test_a_diff_may_be_given_as_a_file(reports: Path) -> None:
    (reports / "my.diff").write_text("--- a/x.py\n+++ b/x.py\n@@ -1 +1 @@\n-a\n+b\n")
    with Fake() as fake:
        assert run_upload(reports, fake.url, "--project", "p", *JUNIT, "--diff", "my.diff").returncode == 0
    assert (sent_part(fake.bodies[0][1], "diff") or b"").startswith(b"--- a/x.py")


# The stand-alone file


def test_the_server_serves_the_uploader_as_one_file(serve: Serve, reports: Path) -> None:
    server = serve(tracker={"security": {"open-mode": False, "require-ingest-token": True}})
    answer = server.get("/upload.py")
    assert answer.status == 200
    assert answer.headers["X-Checksum-Sha256"] == hashlib.sha256(answer.body).hexdigest()
    tree = ast.parse(answer.body, feature_version=(3, 9))
    names = [node.name for node in tree.body if isinstance(node, ast.FunctionDef | ast.ClassDef)]
    assert len(names) == len(set(names)), "a function of one module hides that of another"
    assert not re.search(rb"^(?:from|import) (?:supervisor|models|handlers)\b", answer.body, re.MULTILINE)


def _upload_here(folder: Path, *options: str, before: Sequence[str] = ()) -> Outcome:
    """Runs `upload` without an address."""
    command = [sys.executable, str(ROOT / "run.py"), *before, "upload", "--project", "found", *JUNIT, *COMMIT, *options]
    environ = {"PATH": os.environ["PATH"]}
    done = subprocess.run(command, cwd=folder, env=environ, capture_output=True, text=True, timeout=60)
    return Outcome(done.returncode, done.stdout, done.stderr)


def test_the_server_is_found_as_ctl_finds_it(server: Server, reports: Path) -> None:
    """By the data directory, without an address."""
    (reports / "data").symlink_to(server.data)
    done = _upload_here(reports)
    assert done.returncode == 0, done.stderr
    assert f"; http://127.0.0.1:{server.port}/runs/" in done.stdout
    (reports / "data").unlink()
    named = _upload_here(reports, before=("--data-dir", str(server.data)))
    assert named.returncode == 0, named.stderr


def test_without_a_server_an_upload_says_at_once_what_it_tried(reports: Path) -> None:
    (reports / "data").mkdir()
    url = f"http://127.0.0.1:{free_port()}"
    with mock.patch("supervisor.cli.upload_server._DEFAULT_URL", url), mock.patch("time.sleep") as slept:
        done = run_upload(reports, None, "--project", "p", *JUNIT)
        assert slept.call_count == 0, "it waited for a server of which nobody knows"
        assert done.returncode == 3
        first, *tried = done.stderr.splitlines()
        assert first.startswith(f"pilothouse upload: {url} cannot be reached: Connection refused")
        assert "  data directory data: no server runs on it (it has no endpoint.json)" in tried
        assert any(line.startswith("  data directory /var/lib/pilothouse: ") for line in tried)
        patient = run_upload(reports, None, "--project", "p", *JUNIT, "--retry-for", "0.015")
    assert patient.returncode == 3
    assert slept.call_count == 1
    assert "trying again in 0.01 s" in patient.stderr


def test_an_upload_waits_for_a_server_that_is_starting(server: Server, reports: Path) -> None:
    data = reports / "data"
    data.mkdir()
    endpoint = json.loads((server.data / "endpoint.json").read_text())
    with (data / "lock").open("w") as lock:
        lock.write(str(os.getpid()))
        lock.flush()
        fcntl.flock(lock, fcntl.LOCK_EX)
        command = [sys.executable, str(ROOT / "run.py"), "upload", "--project", "found", *JUNIT, *COMMIT]
        environ = {"PATH": os.environ["PATH"], "PYTHONUNBUFFERED": "1"}
        with subprocess.Popen(
            command, cwd=reports, env=environ, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        ) as waiting:
            assert waiting.stderr is not None
            assert waiting.stdout is not None
            assert waiting.stderr.readline() == "pilothouse upload: waiting for the server that is starting\n"
            (data / "endpoint.new").write_text(json.dumps(endpoint))
            (data / "endpoint.new").rename(data / "endpoint.json")
            assert f"; http://127.0.0.1:{server.port}/runs/" in waiting.stdout.read()
            assert waiting.wait(60) == 0


def _found(name: str) -> str | None:
    """A Python of this name on PATH or of pyenv; a shim of pyenv that cannot run does not count."""
    versions = sorted(Path.home().glob(f".pyenv/versions/{name.removeprefix('python')}.*/bin/{name}"))
    for path in (shutil.which(name), *map(str, versions)):
        if path and subprocess.run([path, "-c", ""], capture_output=True).returncode == 0:
            return path
    return None


OLDEST = "python3.9"
FOUND = {name: _found(name) for name in (OLDEST, *(f"python3.{minor}" for minor in range(10, 15)))}
PYTHONS = {
    "this": sys.executable,
    **{name: path for name, path in FOUND.items() if path or (name == OLDEST and IS_PROOF)},
}
"""Those that are found. `make proof` fails without the oldest one."""


@pytest.mark.parametrize("python", PYTHONS)
def test_the_one_file_uploads_without_an_installation(server: Server, reports: Path, python: str) -> None:
    path = PYTHONS[python]
    assert path is not None, f"{python} is not installed"
    (reports / "upload.py").write_bytes(server.get("/upload.py").body)
    url = f"http://127.0.0.1:{server.port}"
    command = [
        path,
        "-I",
        "-W",
        "error",
        "upload.py",
        "--url",
        url,
        "--project",
        f"alone {python}",
        *JUNIT,
        *COMMIT,
        "--gate",
    ]
    done = subprocess.run(command, cwd=reports, env={}, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.splitlines()[-1] == "gate: PASSED"


def test_attachments_of_playwright_are_stored_with_their_test(server: Server, tmp_path: Path) -> None:
    """The report is one of Playwright 1.65; its retry has attachments too."""
    report = (ROOT / "tests/tracker/playwright.xml").read_text()
    names = re.findall(r"\[\[ATTACHMENT\|([^]]+)\]\]", report)
    for number, name in enumerate(names):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_bytes(b"\x89PNG\r\n\x1a\n%d" % number)
    (tmp_path / "results.xml").write_text(report)
    done = run_upload(tmp_path, server, "--project", "playwright", "--junit", "results.xml", "--attachments")
    assert (done.returncode, done.stderr) == (0, "")
    run = re.search(r"/runs/(\d+)", done.stdout)
    assert run
    (failure,) = server.get(f"/api/v1/runs/{run[1]}").json["failures"]
    assert [found["name"] for found in failure["attachments"]] == names
    assert server.get(failure["attachments"][1]["path"]).body == b"\x89PNG\r\n\x1a\n1"


def test_performance_reports_alone_are_a_run_of_their_own(server: Server, reports: Path) -> None:
    (reports / "load.jtl").write_text("timeStamp,elapsed,label,success\n1700000000000,5,GET /,true\n")
    job = {"GITHUB_ACTIONS": "true", "GITHUB_RUN_ID": "77", "GITHUB_REF_NAME": "main"}
    options = ("--project", "perf", "--diff", "off")
    assert run_upload(reports, server, *options, "--junit", "bad.xml", environ=job).returncode == 0
    done = run_upload(reports, server, *options, "--perf", "*.jtl", environ=job)
    assert (done.returncode, done.stderr) == (0, "")
    run = re.search(r"/runs/(\d+)", done.stdout)
    assert run
    found = server.get(f"/api/v1/runs/{run[1]}/perf").json
    assert (found["flag"], [item["label"] for item in found["items"]]) == ("perf", ["GET /"])
    assert run_upload(reports, server, *options).returncode == 2


def test_source_files_of_the_work_tree_are_sent(server: Server, reports: Path, tmp_path: Path) -> None:
    (reports / ".git").mkdir()
    (reports / ".git" / "hidden.py").write_text("token")
    (reports / "a.py").write_text("text")
    (reports / "binary.py").write_bytes(b"\0")
    (reports / "link.py").symlink_to("/etc/passwd")
    with contextlib.chdir(reports):
        ((name, archive),) = source_archive([*reports.glob("*.py"), *reports.glob(".git/*.py")])
    with tarfile.open(archive) as tar:
        assert (name, tar.getnames()) == ("source", ["a.py"])
    done = run_upload(reports, server, "--project", "sources", "--junit", "bad.xml", "--source", "*.py")
    assert (done.returncode, done.stderr) == (
        0, "pilothouse upload: warning: the part source was ignored: tracker.source.mode is off\n"
    )  # fmt: skip


def test_only_files_of_the_work_tree_are_sent(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    tree = tmp_path / "tree"
    (tree / ".git").mkdir(parents=True)
    (tree / ".git" / "config").write_text("token")
    (tmp_path / "outside.txt").write_text("secret")
    (tree / "link.txt").symlink_to(tmp_path / "outside.txt")
    (tree / "folder").symlink_to(tmp_path)
    (tree / "good.txt").write_text("good")
    (tree / "inside.txt").symlink_to(tree / "good.txt")
    (tree / "TestResults/run/In/HOST").mkdir(parents=True)
    (tree / "TestResults/run/In/HOST/shot.png").write_bytes(b"png")
    refused = ["/etc/passwd", "../outside.txt", "link.txt", "folder/outside.txt", ".git/config", "missing.txt", "."]
    marks = "".join(f"[[ATTACHMENT|{name}]]" for name in [*refused, "good.txt", "inside.txt", str(tree / "good.txt")])
    (tree / "TestResults" / "a.xml").write_text(
        f"<testsuite><testcase><system-out>{marks}</system-out><properties>"
        '<property value="a&amp;b.txt" name="attachment"/></properties></testcase>'
        '<ResultFile path="shot.png" /><filePath>good.txt</filePath></testsuite>'
    )
    (tree / "a&b.txt").write_text("and")
    ctrf = {"results": {"tests": [{"attachments": [{"path": "good.txt"}, {"path": "../outside.txt"}, 1]}, 2]}}
    (tree / "ctrf.json").write_text(json.dumps(ctrf))
    with contextlib.chdir(tree):
        found = attached_files([Path("TestResults/a.xml"), Path("ctrf.json")])
    shot = tree / "TestResults/run/In/HOST/shot.png"
    good = (tree / "good.txt").resolve()
    assert found == {
        "good.txt": good, "inside.txt": good, str(tree / "good.txt"): good, "a&b.txt": tree / "a&b.txt",
        "shot.png": shot,
    }  # fmt: skip
    warned = capsys.readouterr().err
    assert all(f"attachment {name} is not sent" in warned for name in refused)


def test_without_a_branch_and_a_commit_nothing_is_uploaded(server: Server, reports: Path) -> None:
    done = run_upload(reports, server, "--project", "no commit", *JUNIT, is_checkout=False)
    sentence = "--commit and --branch are needed: no known CI system and no git checkout here"
    assert (done.returncode, done.stderr) == (2, f"pilothouse upload: {sentence}\n")
    done = run_upload(reports, server, "--project", "no commit", *JUNIT, "--commit", SHA, is_checkout=False)
    assert done.returncode == 2
    assert done.stderr.startswith("pilothouse upload: --branch is needed: ")
    jenkins = {"BUILDKITE": "true", "BUILDKITE_BRANCH": "main", "BUILDKITE_COMMIT": "HEAD"}
    done = run_upload(reports, server, "--project", "no commit", *JUNIT, environ=jenkins, is_checkout=False)
    assert done.stderr.startswith("pilothouse upload: --commit is needed: the CI system does not name it")
    assert server.get("/api/v1/gate?project=no%20commit&branch=main").status == 404


def test_branch_and_commit_come_from_git_where_the_ci_system_is_unknown(
    server: Server, reports: Path, tmp_path: Path
) -> None:
    checkout = tmp_path / "checkout"
    checkout.mkdir()
    git(checkout, "init", "-q", "-b", "trunk")
    git(checkout, "commit", "-q", "--allow-empty", "-m", "first")
    commit = git(checkout, "rev-parse", "HEAD").strip()
    junit = ("--junit", str(reports / "a/target/TEST-one.xml"))
    assert run_upload(checkout, server, "--project", "git", *junit, is_checkout=False).returncode == 0
    assert server.get("/api/v1/gate?project=git&branch=trunk").json["commit"] == commit
    git(checkout, "checkout", "-q", "--detach")
    environ = {"GIT_BRANCH": "origin/topic"}
    assert run_upload(checkout, server, "--project", "git", *junit, environ=environ, is_checkout=False).returncode == 0
    assert server.get("/api/v1/gate?project=git&branch=topic").json["commit"] == commit


@pytest.mark.parametrize(
    ("environ", "fork"),
    [
        ({"GITLAB_CI": "true", "CI_MERGE_REQUEST_SOURCE_PROJECT_PATH": "me/shop",
          "CI_MERGE_REQUEST_PROJECT_PATH": "shop/shop"}, "me/shop"),
        ({"GITLAB_CI": "true", "CI_MERGE_REQUEST_SOURCE_PROJECT_PATH": "shop/shop",
          "CI_MERGE_REQUEST_PROJECT_PATH": "shop/shop"}, None),
        ({"JENKINS_URL": "https://jenkins/", "CHANGE_FORK": "me"}, "me"),
        ({"CIRCLECI": "true", "CIRCLE_PR_USERNAME": "me", "CIRCLE_PR_REPONAME": "shop"}, "me/shop"),
        ({"BUILDKITE": "true", "BUILDKITE_PULL_REQUEST": "7", "BUILDKITE_REPO": "git@github.com:shop/shop.git",
          "BUILDKITE_PULL_REQUEST_REPO": "git://github.com/me/shop.git"}, "git://github.com/me/shop.git"),
        ({"BUILDKITE": "true", "BUILDKITE_PULL_REQUEST": "7", "BUILDKITE_REPO": "git@github.com:shop/shop.git",
          "BUILDKITE_PULL_REQUEST_REPO": "git://github.com/shop/shop.git"}, None),
        ({"TF_BUILD": "True", "SYSTEM_PULLREQUEST_ISFORK": "True",
          "SYSTEM_PULLREQUEST_SOURCEREPOSITORYURI": "https://x@dev.azure.com/me/_git/shop"},
         "https://dev.azure.com/me/_git/shop"),
    ],
)  # fmt: skip
def test_the_repository_of_a_fork_is_named(environ: dict[str, str], fork: str | None) -> None:
    assert facts(environ).get("headRepo") == fork
