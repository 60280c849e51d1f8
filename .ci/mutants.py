"""Changes one operator or number at a time in the modules that hold rules, and runs their tests: each should fail.

    python .ci/mutants.py [rule ...]

cosmic-ray is installed into an environment of its own, and changes the modules in a clone of this checkout. Prints the
share of the killed mutants and each survivor, and returns 1 where a rule is below 85 %. The `|` of types stays.
The survivors that were read are listed in benchmarks/mutants.md.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
LEAST_PERCENT = 85.0
TIMEOUT_SECONDS = 300
_SUPERVISION, _TRACKER, _CHARTS, _ACCOUNTS = (
    f"tests/{name}" for name in ("supervision", "tracker", "charts", "accounts")
)
RULES: Mapping[str, tuple[str, Sequence[str]]] = {
    "transitions": (
        "models/supervision/process.py",
        [f"{_SUPERVISION}/test_{name}.py" for name in ("transitions", "exits", "fleet", "dependencies")],
    ),
    "restart policy": (
        "supervisor/processes/process/restart_policy.py", [f"{_SUPERVISION}/test_restarts.py"],
    ),
    "schedule": ("models/supervision/schedule.py", [f"{_SUPERVISION}/test_schedule.py"]),
    "selectors": ("models/supervision/selectors.py", [f"{_SUPERVISION}/test_selectors.py"]),
    "attempts": ("models/tracker/runs/attempts.py", [f"{_TRACKER}/test_attempts.py"]),
    "quality gate": (
        "models/tracker/gate/quality_gate.py", [f"{_TRACKER}/test_gate_model.py", f"{_TRACKER}/test_gate_rules.py"],
    ),
    "line sets": (
        "models/tracker/coverage/line_sets.py",
        [f"{_TRACKER}/test_reports_coverage.py", f"{_TRACKER}/test_patch_coverage.py"],
    ),
    "permissions": (
        "handlers/http/permissions.py",
        [
            *(f"{_ACCOUNTS}/test_{name}.py" for name in ("closed_mode", "access", "non_loopback_permissions")),
            f"{_CHARTS}/test_chart_permissions.py",
        ],
    ),
    "address policy": ("supervisor/http/dns.py", [f"{_CHARTS}/test_fetcher.py"]),
    "archive checks": ("models/charts/archives/archive.py", [f"{_CHARTS}/test_archives.py"]),
}  # fmt: skip
"""The module of each rule, and its tests."""
_CONFIGURATION = """\
[cosmic-ray]
module-path = "{module}"
timeout = {timeout}
excluded-modules = []
test-command = "{python} -m pytest -q -x -p no:cacheprovider {tests}"

[cosmic-ray.distributor]
name = "local"
"""
_OF_ANNOTATIONS = "ReplaceBinaryOperator_BitOr_"


def run(*command: str | Path, folder: Path = ROOT) -> str:
    """The output of a command. Raises `CalledProcessError`."""
    words = [str(word) for word in command]
    return subprocess.run(words, cwd=folder, check=True, stdout=subprocess.PIPE, text=True, env=_ENVIRON).stdout


_ENVIRON = {**os.environ, "PYTHONDONTWRITEBYTECODE": "1"}


def mutate(name: str, checkout: Path, cosmic_ray: Path) -> tuple[float, list[str]]:
    """The share of killed mutants of a rule, in percent, and the changes that no test has noticed."""
    module, tests = RULES[name]
    folder = checkout.parent
    configuration, session = folder / f"{name}.toml", folder / f"{name}.sqlite"
    configuration.write_text(
        _CONFIGURATION.format(module=module, timeout=TIMEOUT_SECONDS, python=sys.executable, tests=" ".join(tests))
    )
    for words in (("baseline", configuration), ("init", configuration, session), ("exec", configuration, session)):
        run(cosmic_ray, *words, folder=checkout)
    return judged(run(cosmic_ray, "dump", session, folder=checkout).splitlines())


def judged(lines: Sequence[str]) -> tuple[float, list[str]]:
    """The share of killed mutants, in percent, and the differences of the others, from the lines of a session."""
    killed, survivors = 0, list[str]()
    for line in lines:
        job, result = json.loads(line)
        if result is None or any(_OF_ANNOTATIONS in one["operator_name"] for one in job["mutations"]):
            continue
        if result["test_outcome"] == "survived":
            survivors.append(result["diff"] or job["mutations"][0]["operator_name"])
        else:
            killed += 1
    return 100.0 * killed / max(1, killed + len(survivors)), survivors


def main() -> int:
    names = sys.argv[1:] or list(RULES)
    is_good = True
    with tempfile.TemporaryDirectory(prefix="mutants-") as name:
        folder = Path(name)
        run(sys.executable, "-m", "venv", folder / "venv")
        run(folder / "venv" / "bin" / "python", "-m", "pip", "install", "--quiet", "cosmic-ray >=8.3")
        run("git", "clone", "--quiet", ROOT, folder / "checkout")
        if (ROOT / ".tools").exists():
            (folder / "checkout" / ".tools").symlink_to(ROOT / ".tools")
        for rule in names:
            share, survivors = mutate(rule, folder / "checkout", folder / "venv" / "bin" / "cosmic-ray")
            print(f"{rule}: {share:.1f} % of the mutants are killed", *survivors, sep="\n", flush=True)
            is_good = is_good and share >= LEAST_PERCENT
    return 0 if is_good else 1


if __name__ == "__main__":
    sys.exit(main())
