"""Paths are found by their ends: the same as by comparing each with each, in much less time."""

from __future__ import annotations

import json
import random
import time
from pathlib import Path

import records

from models.tracker.coverage import patch
from models.tracker.coverage.patch import Matcher
from models.tracker.files import attachment_paths
from models.tracker.files.path_suffixes import PathSuffixes
from models.tracker.files.repository_paths import PathIndex
from models.tracker.tables import reports

COUNT = 50_000
MAX_SECONDS = 20
"""Of the processor; each took minutes or hours before."""


def test_ends_and_matches_equal_those_of_a_plain_search() -> None:
    chance = random.Random(7)

    def path() -> str:
        return "/".join(chance.choice(("a", "b", "ab", "x.py")) for _ in range(chance.randint(1, 5)))

    for _ in range(2000):
        paths = {path() for _ in range(chance.randint(0, 8))}
        index, wanted = PathSuffixes.of(paths), path()
        fitting = {one for one in paths if f"/{one}".endswith(f"/{wanted}")}
        found = index.ending_with(wanted)
        assert set(found) <= fitting
        assert len(found) == min(2, len(fitting))
        assert set(index.ending_with(wanted, len(paths))) == fitting
        parts = wanted.split("/")
        ends = ["/".join(parts[at:]) for at in range(len(parts))]
        assert list(index.ends(wanted)) == [end for end in ends if index.ending_with(end)]


def test_many_files_of_one_name_and_long_paths_are_matched_in_linear_time() -> None:
    begun = time.process_time()
    files = [f"{number}/a.py" for number in range(COUNT)]
    long = "z" + "/q" * 2500 + "/a.py"
    index, matcher = PathIndex(files, "module"), Matcher(files[:10], files)
    for number in range(100):
        assert index.file(f"{number}{long}") is None
        assert matcher.match(f"{number}{long}", "module") is None
        assert index.of_class(".".join(["A"] * 2000) + str(number)) is None
    assert index.file(f"{long}/7/a.py") == "7/a.py"
    assert time.process_time() - begun < MAX_SECONDS


def test_many_attachments_of_one_name_are_matched_in_linear_time() -> None:
    begun = time.process_time()
    paths = [f"{number}/a.png" for number in range(COUNT)]
    names = ["x/" * 400 + f"{number}/a.png" for number in range(1000)] + ["a.png"] * 1000
    found = attachment_paths.owners(dict.fromkeys(paths, ""), names)
    assert found == {name: f"{number}/a.png" for number, name in enumerate(names[:1000])}
    assert time.process_time() - begun < MAX_SECONDS


def test_many_renames_of_files_of_one_name_are_found_in_linear_time(tmp_path: Path, database_url: str | None) -> None:
    renames = {f"src/{number}/a.py": f"lib/{number}/b.py" for number in range(10_000)}
    paths = [*(f"/home/ci/{old}" for old in renames), *(f"{number}/a.py" for number in range(100_000)), "a.py"]
    with records.open_store(tmp_path / "tracker.db", database_url):
        run = records.create_run(records.create_project("demo"), {})
        columns = "run_id, base, head, ranges, paths, problem, renames"
        query = f"INSERT INTO patch ({columns}) VALUES (?, 'b', 'h', '{{}}', '[]', NULL, ?)"  # noqa: S608 (constants)
        reports.execute_sql(query, (run.id, json.dumps(renames)))
        begun = time.process_time()
        found = patch.renamed_files(run.id, paths)
        assert time.process_time() - begun < MAX_SECONDS
    assert found == {f"/home/ci/{old}": f"/home/ci/{new}" for old, new in renames.items()}
