"""The GitHub Action and the GitLab template of docs/ci, run as these systems run them; summaries; a long outage."""

from __future__ import annotations

import hashlib
import os
import re
import subprocess
import urllib.request
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import yaml
from conftest import ROOT, Serve, Server
from http_checks import running_server
from run_streams import junit
from uploader import Outcome, run_upload

from supervisor.cli import upload_request
from supervisor.cli.upload_summary import code_span, summary

CI = ROOT / "docs" / "ci"
GITHUB = {
    "GITHUB_ACTIONS": "true", "GITHUB_RUN_ID": "77", "GITHUB_RUN_ATTEMPT": "1", "GITHUB_JOB": "unit",
    "GITHUB_REF_NAME": "main", "GITHUB_SHA": "c" * 40, "GITHUB_REPOSITORY": "o/r", "RUNNER_TRACKING_ID": "github_1",
    "GITHUB_SERVER_URL": "https://github.com", "GITHUB_WORKFLOW": "ci",
}  # fmt: skip
GITLAB = {
    "GITLAB_CI": "true", "CI_PIPELINE_ID": "5", "CI_JOB_NAME": "unit", "CI_JOB_ID": "9", "CI_COMMIT_REF_NAME": "main",
    "CI_COMMIT_SHA": "d" * 40, "CI_PROJECT_PATH": "g/p", "CI_PROJECT_URL": "https://gitlab.example/g/p",
}  # fmt: skip
pytestmark = pytest.mark.needs("curl")


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with running_server(tmp_path_factory.mktemp("recipes")) as server:
        yield server


def shell(script: str, folder: Path, server: Server, environ: Mapping[str, str], *command: str) -> Outcome:
    known = {
        "PATH": os.environ["PATH"], "HOME": str(folder), "PILOTHOUSE_URL": f"http://127.0.0.1:{server.port}", **environ,
    }  # fmt: skip
    done = subprocess.run(
        [*command, script], cwd=folder, env=known, capture_output=True, text=True, timeout=60, stdin=subprocess.DEVNULL
    )
    return Outcome(done.returncode, done.stdout, done.stderr)


def action(folder: Path, server: Server, **inputs: str) -> Outcome:
    """Runs the action like a step of a job with these inputs."""
    described = yaml.safe_load((CI / "github-action" / "action.yml").read_text())
    assert described["runs"]["using"] == "composite"
    (step,) = described["runs"]["steps"]
    values = {f"inputs.{name}": field.get("default", "") for name, field in described["inputs"].items()}
    values |= {f"inputs.{name.replace('_', '-')}": value for name, value in inputs.items()}
    values["github.repository"] = "o/r"

    def evaluated(text: str) -> str:
        while match := re.search(r"\$\{\{ ([\w.-]+) \}\}", text):
            text = text.replace(match[0], values[match[1]])
        return text

    environ = {name: evaluated(text) for name, text in step["env"].items()}
    (folder / "runner").mkdir(exist_ok=True)
    environ |= {
        **GITHUB, "RUNNER_TEMP": str(folder / "runner"), "GITHUB_STEP_SUMMARY": str(folder / "summary.md"),
        "PILOTHOUSE_URL": f"http://127.0.0.1:{server.port}",
    }  # fmt: skip
    return shell(step["run"], folder, server, environ, "bash", "--noprofile", "--norc", "-eo", "pipefail", "-c")


def only_run(server: Server, project: str) -> Any:
    (found,) = server.get(f"/api/v1/projects?name={project}").json
    (run,) = server.get(f"/api/v1/projects/{found['id']}/runs").json
    return run


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "TEST-good.xml").write_bytes(junit(3))
    (tmp_path / "bad.xml").write_bytes(junit(1, 1, mark="bad"))
    return tmp_path


def test_the_github_action_uploads_with_the_facts_of_the_job(server: Server, folder: Path) -> None:
    source = urllib.request.urlopen(f"http://127.0.0.1:{server.port}/upload.py").read()
    done = action(
        folder, server, junit="TEST-*.xml\nbad.xml\n", job_key="unit/3.12", checksum=hashlib.sha256(source).hexdigest(),
        expect="2",
    )  # fmt: skip
    assert done.returncode == 1, done
    assert "gate: FAILED" in done.stdout
    run = only_run(server, "o/r")
    assert (run["branch"], run["commit"], run["total"], run["ciProvider"]) == ("main", "c" * 40, 5, "github")
    assert (run["state"], run["buildUrl"]) == ("PENDING", "https://github.com/o/r/actions/runs/77")
    (upload,) = server.get(f"/api/v1/runs/{run['id']}/attempts").json["items"]
    assert (upload["jobKey"], upload["attempt"], upload["jobInstance"]) == ("unit/3.12", 1, "github_1")
    text = (folder / "summary.md").read_text()
    assert text.startswith("### Gate failed: `o/r`\n\n5 tests: 4 passed, 1 failed\n")
    assert "| complete-run | **failed** | `1 of 2 uploads` |" in text
    assert f"/runs/{run['id']})" in text


def test_the_github_action_refuses_another_uploader(server: Server, folder: Path) -> None:
    done = action(folder, server, junit="TEST-*.xml", project="pinned", checksum="0" * 64)
    assert done.returncode != 0
    assert server.get("/api/v1/projects?name=pinned").json == []


def test_the_github_action_can_ignore_the_gate_and_takes_options(server: Server, folder: Path) -> None:
    options = "--branch\nside\n--no-gzip\n"
    done = action(folder, server, project="options", junit="bad.xml", gate="false", flag="api", arguments=options)
    assert done.returncode == 0, done
    run = only_run(server, "options")
    assert (run["branch"], run["flag"]) == ("side", "api")


def test_the_gitlab_template_uploads_and_finishes(server: Server, folder: Path) -> None:
    jobs = yaml.safe_load((CI / "gitlab.yml").read_text())
    variables = {**GITLAB, "PILOTHOUSE_JUNIT": "TEST-*.xml", "PILOTHOUSE_EXPECT": "3"}
    done = shell("\n".join(jobs[".pilothouse"]["script"]), folder, server, variables, "sh", "-ec")
    assert done.returncode == 0, done
    run = only_run(server, "g/p")
    assert (run["branch"], run["commit"], run["total"], run["state"]) == ("main", "d" * 40, 3, "PENDING")
    (found,) = server.get(f"/api/v1/runs/{run['id']}/attempts").json["items"]
    assert (found["jobKey"], found["attempt"], found["jobInstance"]) == ("unit", 9, "9")
    done = shell("\n".join(jobs[".pilothouse-finish"]["script"]), folder, server, GITLAB, "sh", "-ec")
    assert done.returncode == 1, done
    assert only_run(server, "g/p")["state"] == "INCOMPLETE", "only one of the three expected uploads came"


# Summaries and files


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("plain", "`plain`"),
        ("@name #1 <b>", "`@name #1 <b>`"),
        ("a ` b", "``a ` b``"),
        ("`` ` ``", "``` `` ` `` ```"),
        ("two\nlines", "`two lines`"),
        ("", "`  `"),
    ],
)
def test_report_text_is_a_code_span_without_markup(text: str, shown: str) -> None:
    assert code_span(text) == shown


def test_a_summary_names_new_failures_and_cuts_them() -> None:
    failure = {"className": "A", "name": "b", "failureMessage": "x | y", "firstFailing": {"commit": "0123456789"}}
    run = {
        "runId": 7, "runPath": "/runs/7", "project": "shop", "passed": 1, "failed": 12, "errors": 0, "skipped": 1,
        "commit": "abc", "lineCoveragePct": 84.3, "patchCoveragePct": 91.7,
    }  # fmt: skip
    rule = {"name": "new-failures", "passed": False, "detail": "12 | A", "flag": None}
    detail = {
        "run": {**run, "total": 14}, "gate": {"coverageDelta": 1.2, "rules": []}, "failures": [failure] * 12,
        "failureCount": 12,
    }  # fmt: skip
    text = summary(run, detail, {"status": "FAILED", "rules": [rule]}, "https://ci.example")
    assert "Coverage 84.3% (+1.2); changed lines 91.7%" in text
    assert "| new-failures | **failed** | `12 \u00a6 A` |" in text
    assert text.count("- `A b`: `x | y`, failing since `0123456`") == 10
    assert "- and 2 more" in text
    assert text.endswith("[Run 7](https://ci.example/runs/7), commit `abc`")


def test_a_summary_has_the_rules_of_all_flags_of_the_commit(server: Server, folder: Path) -> None:
    (folder / "TEST-bad.xml").write_text("<testsuite name='s'><testcase name='x'><failure/></testcase></testsuite>")
    known = ("--project", "flags", "--commit", "c1", "--branch", "main")
    assert run_upload(folder, server, *known, "--flag", "ui", "--junit", "TEST-bad.xml").returncode == 0
    text = run_upload(folder, server, *known, "--flag", "unit", "--junit", "TEST-good.xml", "--summary").stdout
    assert "### Gate failed: `flags`" in text
    assert "| new-failures (`ui`) | **failed** |" in text
    assert "| new-failures (`unit`) | passed |" in text


def test_a_summary_goes_to_a_file_or_to_standard_output(server: Server, folder: Path) -> None:
    known = ("--project", "summaries", "--junit", "TEST-good.xml", "--summary")
    assert "### Gate passed: `summaries`" in run_upload(folder, server, *known).stdout
    assert run_upload(folder, server, *known, "own.md").returncode == 0
    assert (folder / "own.md").read_text().startswith("### Gate passed")
    assert run_upload(folder, server, *known, "none/x.md").returncode == 2


@pytest.mark.needs("git")
def test_owners_and_paths_of_the_repository_are_sent(server: Server, folder: Path) -> None:
    for arguments in (["init", "-q"], ["add", "TEST-good.xml"]):
        subprocess.run(["git", *arguments], cwd=folder, check=True)
    (folder / ".github").mkdir()
    (folder / ".github" / "CODEOWNERS").write_text("* @all\n")
    known = ("--project", "owned", "--junit", "TEST-good.xml", "--branch", "main", "--codeowners")
    done = run_upload(folder, server, *known, environ={"PATH": os.environ["PATH"]})
    assert "codeowners was ignored: only uploads with a token of WRITE" in done.stderr
    assert run_upload(folder, server, *known, "nowhere").returncode == 2


def test_attachments_are_files_of_the_work_tree_only(server: Server, folder: Path) -> None:
    tree = folder / "tree"
    (tree / ".git").mkdir(parents=True)
    (tree / "shot.png").write_bytes(b"x")
    (tree / ".git" / "config").write_bytes(b"x")
    (tree / "link.png").symlink_to("/etc/passwd")
    files = [argument for name in ("shot.png", "link.png", ".git/config") for argument in ("--attachments", name)]
    done = run_upload(tree, server, "--project", "files", "--junit", "../TEST-good.xml", *files)
    assert done.returncode == 0, done
    assert [line.split(": ")[2] for line in done.stderr.splitlines()] == [
        "link.png is not a file of the work tree", ".git/config is not a file of the work tree",
    ]  # fmt: skip


def test_an_outage_of_a_minute_loses_no_upload(serve: Serve, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The pauses are skipped; the server is started again after a minute of pauses."""
    server = serve()
    server.stop()
    now = [0.0]

    def sleep(seconds: float) -> None:
        now[0] += seconds
        if now[0] >= 60 and server.process is not None and server.process.poll() is not None:
            server.start()

    monkeypatch.setattr(upload_request, "time", SimpleNamespace(sleep=sleep, monotonic=lambda: now[0]))
    done = run_upload(folder, f"http://127.0.0.1:{server.port}", "--project", "away", "--junit", "TEST-good.xml")
    assert done.returncode == 0, done
    assert 60 <= now[0] < 120
    assert only_run(server, "away")["total"] == 3
