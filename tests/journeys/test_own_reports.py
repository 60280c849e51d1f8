"""Reports of this test suite: a part of it runs with coverage, is uploaded as by a CI job, and passes the gate."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from conftest import ROOT, Serve

_PART = "tests/supervision/test_processes.py"


def test_uploaded_reports_of_this_suite_pass_the_quality_gate(serve: Serve, tmp_path: Path) -> None:
    junit, coverage = tmp_path / "junit.xml", tmp_path / "coverage.xml"
    own = [f"--data-file={tmp_path / 'coverage'}"]
    measured = [sys.executable, "-m", "coverage", "run", *own, "--source=models", "-m", "pytest", "-q", _PART]
    subprocess.run([*measured, f"--junitxml={junit}", "-p", "no:cacheprovider"], cwd=ROOT, check=True, timeout=120)
    subprocess.run([sys.executable, "-m", "coverage", "xml", *own, "-o", str(coverage), "-q"], cwd=ROOT, check=True)
    server = serve(tracker={"quality-gate": {"min-line-coverage": 1}})
    upload = [sys.executable, str(ROOT / "run.py"), "upload", "--url", f"http://127.0.0.1:{server.port}"]
    what = ["--project", "pilothouse", "--branch", "main", "--commit", "0" * 40]
    files = ["--junit", str(junit), "--jacoco", str(coverage), "--gate"]
    done = subprocess.run([*upload, *what, *files], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done
    result = server.get("/api/v1/gate?project=pilothouse&branch=main").json
    assert result["status"] == "PASSED"
    assert [rule["name"] for rule in result["rules"]] == ["min-coverage", "new-failures"]
    run = server.get(f"/api/v1/runs/{result['runId']}").json["run"]
    counted = junit.read_text().count("<testcase ")
    assert (run["total"], run["failed"], run["errors"]) == (counted, 0, 0)
    assert run["total"] > 40
    assert run["lineCoveragePct"] > 1
