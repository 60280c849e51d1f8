"""Runs all benchmarks one after another and writes one table of all claims: `make bench`.

    python benchmarks/everything.py [--quick] [--only NAME,NAME] [--check]

Writes benchmarks/results.md (the table, why targets are missed, the output of each program), benchmarks/claims.jsonl
(raw values) and the small table in README.md. With --only the results of the other programs stay; each part names its
own time. With --check nothing is written: ratios that are worse than those in claims.jsonl by more than noise are
printed, and the exit code is 1 if there are any.
"""

import argparse
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable
from importlib import metadata
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))  # it is run as a program

from benchmarks import claims, published, report  # noqa: E402
from benchmarks.claims import Claim  # noqa: E402

PROGRAMS = {
    "supervision": ("--install --children 1,500 --runs 2 --events 1000,1000000", "--quick --children 100"),
    "terminal": ("--install", "--processes 20 --runs 2"),
    "schedules": ("--runs 1", "--jobs 50 --seconds 2 --runs 1"),
    "at_rest": ("", "--processes 3 --seconds 2 --settle 1 --runs 1"),
    "earlier_commit": ("--runs 5", "--runs 1"),
    "metrics": ("", "--processes 20 --minutes 60 --runs 2"),
    "ingest": ("--runs 3", "--cases 10000 --files 500 --runs 1"),
    "workers": ("--before none --runs 2", "--before none --cases 2000 --files 100 --runs 1"),
    "streams": ("--streams 10000 --runs 2 --events 5", "--streams 500 --runs 1 --events 3"),
    "finished_runs": ("", "--cases 2000 --failures 50 --seconds 0.3 --runs 1"),
    "insights": ("", "--tests 500 --history 20 --seconds 0.2 --runs 1"),
    "repository": ("--runs 1", "--versions 2000 --runs 1"),
    "charts": ("--runs 15", "--quick"),
    "slots": ("--runs 3", "--templates 20 --timeout 1 --runs 1"),
    "outbox": ("", "--waiting 200 --messages 2 --runs 1"),
    "pages": ("", "--processes 20 --projects 10 --runs 10 --releases 10 --seconds 0.2"),
    "browser": ("--rounds 3", "--processes 20 --projects 10 --runs 60 --releases 10 --rounds 1"),
}
"""Their options, for a quarter of an hour in all, and those of a short run, which only shows that they work."""
RESULTS, STORED, README = HERE / "results.md", HERE / "claims.jsonl", HERE.parent / "README.md"
BEGIN, END = "<!-- figures: made by `make bench` -->\n", "<!-- end of figures -->\n"


def run(name: str, options: str, folder: Path) -> str:
    """Runs one program and returns its output as Markdown. Raises `CalledProcessError` if it fails."""
    out, begin = folder / f"{name}.md", time.monotonic()
    command = [sys.executable, str(HERE / f"{name}.py"), *options.split(), "--out", str(out)]
    subprocess.run([*command, "--claims", str(folder / "claims.jsonl")], check=True, stdout=subprocess.DEVNULL)
    print(f"{name}: {time.monotonic() - begin:.0f} s", file=sys.stderr, flush=True)
    return out.read_text()


def versions() -> str:
    named = [f"{name} {metadata.version(name)}" for name in ("tornado", "peewee", "attrs", "cattrs")]
    return f"{report.machine()}; {', '.join(named)}"


def write(results: list[Claim], parts: list[str], only: str | None) -> None:
    facts = versions() + (f"; all but {only.replace(',', ', ')} measured earlier" if only else "")
    RESULTS.write_text("\n\n".join([overview(facts, results), *parts]))
    STORED.unlink(missing_ok=True)
    claims.save(STORED, results)
    README.write_text(with_summary(README.read_text(), results))


def overview(facts: str, results: list[Claim]) -> str:
    """The first part of results.md."""
    table, missed = claims.claims_table(results), published.missed_table(results)
    return (
        f"# Benchmark results\n\n{facts}.\n\n"
        "Ratios are the value of Pilothouse divided by that of the other program; ranges are in brackets.\n\n"
        f"{table}\n\n## Missed targets\n\n{missed}"
    )


def with_summary(text: str, results: list[Claim]) -> str:
    """README.md with the small table between its marks."""
    before, rest = text.split(BEGIN)
    return f"{before}{BEGIN}\n{published.summary_table(results)}\n\n{END}{rest.split(END)[1]}"


def stored_parts() -> list[str]:
    """The parts of results.md, one of each program, without the table before them."""
    return [part.strip("\n") + "\n" for part in re.split("^(?=# )", RESULTS.read_text(), flags=re.MULTILINE)[2:]]


def merged_parts(stored: Iterable[str], new: Iterable[str]) -> list[str]:
    """The stored parts, replaced by new ones of the same title, and the other new ones."""
    titled = {part.partition("\n")[0]: part for part in (*stored, *new)}
    return list(titled.values())


def merged_claims(stored: Iterable[Claim], new: Iterable[Claim]) -> list[Claim]:
    """The stored claims, those of an area replaced by its new ones: an area belongs to one program."""
    return [claim for area in (_by_area(stored) | _by_area(new)).values() for claim in area]


def _by_area(results: Iterable[Claim]) -> dict[str, list[Claim]]:
    areas: dict[str, list[Claim]] = {}
    for claim in results:
        areas.setdefault(claim.area, []).append(claim)
    return areas


def main() -> int:
    parser = argparse.ArgumentParser(description="Runs all benchmarks and writes the table of claims.")
    parser.add_argument("--quick", action="store_true", help="the short run of each")
    parser.add_argument("--only", help="names, separated by commas")
    parser.add_argument("--check", action="store_true", help="compare with the stored ratios, write nothing")
    options = parser.parse_args()
    names = options.only.split(",") if options.only else list(PROGRAMS)
    with tempfile.TemporaryDirectory(prefix="ph-bench-") as place:
        folder = Path(place)
        parts = [run(name, PROGRAMS[name][options.quick], folder) for name in names]
        results = claims.load(folder / "claims.jsonl")
    print(claims.claims_table(results))
    if options.check:
        worse = claims.regressions(results, claims.load(STORED))
        print("\n".join(["", *worse] if worse else ["", "no ratio is worse than the stored ones"]))
        return int(bool(worse))
    if not options.quick:
        if options.only:
            results = merged_claims(claims.load(STORED), results)
            parts = merged_parts(stored_parts(), parts)
        write(results, parts, options.only)
    return 0


if __name__ == "__main__":
    sys.exit(main())
