"""All benchmarks, one after another, and one table of what is claimed: `make bench`.

    python benchmarks/everything.py [--quick] [--only NAME,NAME] [--check]

Writes benchmarks/results.md (the table, then what each program found), benchmarks/claims.jsonl (the same for a program)
and the table in README.md. With --check nothing is written: it says which ratios are worse than those in claims.jsonl,
by more than noise, and exits with 1 if any is.
"""

import argparse
import subprocess
import sys
import tempfile
import time
from importlib import metadata
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))  # it is run as a program

from benchmarks import claims, report  # noqa: E402

PROGRAMS = {
    "supervision": ("--install --children 1,500 --runs 2 --events 1000,1000000", "--quick --children 100"),
    "terminal": ("--install", "--processes 20 --runs 2"),
    "schedules": ("--runs 1", "--jobs 50 --seconds 2 --runs 1"),
    "at_rest": ("", "--processes 3 --seconds 2 --settle 1 --runs 1"),
    "earlier_commit": ("--runs 5", "--runs 1"),
    "metrics": ("", "--processes 20 --minutes 60 --runs 2"),
    "ingest": ("--runs 3", "--cases 10000 --files 500 --runs 1"),
    "streams": ("--streams 10000 --runs 2 --events 5", "--streams 500 --runs 1 --events 3"),
    "finished_runs": ("", "--cases 2000 --failures 50 --seconds 0.3 --runs 1"),
    "repository": ("--runs 1", "--versions 2000 --runs 1"),
    "charts": ("--runs 15", "--quick"),
    "slots": ("--runs 3", "--templates 20 --timeout 1 --runs 1"),
    "pages": ("", "--processes 20 --projects 10 --runs 10 --releases 10 --seconds 0.2"),
    "browser": ("--rounds 3", "--processes 20 --projects 10 --runs 60 --releases 10 --rounds 1"),
}
"""Their options: within a quarter of an hour in all; a short form, to see that they work."""
RESULTS, KEPT, README = HERE / "results.md", HERE / "claims.jsonl", HERE.parent / "README.md"
BEGIN, END = "<!-- figures: made by `make bench` -->\n", "<!-- end of figures -->\n"


def run(name: str, options: str, folder: Path) -> str:
    """Runs one program; returns what it found, as Markdown. Raises `CalledProcessError` where it failed."""
    out, begin = folder / f"{name}.md", time.monotonic()
    command = [sys.executable, str(HERE / f"{name}.py"), *options.split(), "--out", str(out)]
    subprocess.run([*command, "--claims", str(folder / "claims.jsonl")], check=True, stdout=subprocess.DEVNULL)
    print(f"{name}: {time.monotonic() - begin:.0f} s", file=sys.stderr, flush=True)
    return out.read_text()


def versions() -> str:
    named = [f"{name} {metadata.version(name)}" for name in ("tornado", "peewee", "attrs", "cattrs")]
    return f"{report.machine()}; {', '.join(named)}"


def write(found: list[claims.Claim], parts: list[str]) -> None:
    table = claims.shown(found)
    RESULTS.write_text("\n\n".join([f"# Figures\n\n{versions()}.\n\n{table}", *parts]))
    KEPT.unlink(missing_ok=True)
    claims.save(KEPT, found)
    text = README.read_text()
    before, rest = text.split(BEGIN)
    after = rest.split(END)[1]
    README.write_text(f"{before}{BEGIN}\n{versions()}.\n\n{table}\n\n{END}{after}")


def main() -> int:
    parser = argparse.ArgumentParser(description="All benchmarks, and one table of what is claimed.")
    parser.add_argument("--quick", action="store_true", help="the short form of each")
    parser.add_argument("--only", help="some of them, with commas")
    parser.add_argument("--check", action="store_true", help="compare with the ratios of last time, write nothing")
    asked = parser.parse_args()
    names = asked.only.split(",") if asked.only else list(PROGRAMS)
    with tempfile.TemporaryDirectory(prefix="ph-bench-") as place:
        folder = Path(place)
        parts = [run(name, PROGRAMS[name][asked.quick], folder) for name in names]
        found = claims.load(folder / "claims.jsonl")
    print(claims.shown(found))
    if asked.check:
        worse = claims.regressions(found, claims.load(KEPT))
        print("\n".join(["", *worse] if worse else ["", "no ratio is worse than last time"]))
        return int(bool(worse))
    if not asked.quick and not asked.only:
        write(found, parts)
    return 0


if __name__ == "__main__":
    sys.exit(main())
