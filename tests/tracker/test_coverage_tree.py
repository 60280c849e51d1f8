"""Coverage by folder: sums, collapsed chains of single folders, the change against the baseline, and the treemap."""

from __future__ import annotations

import pytest
from browser_pages import PageText, get_page
from conftest import Server
from uploads import jacoco, junit, upload

from models.tracker.coverage.coverage_tree import TreeEntry, level, treemap

FILES = {"src/main/a/x.py": (8, 2), "src/main/a/y.py": (0, 10), "src/main/b.py": (5, 0), "top.py": (1, 1)}


def level_entries(folder: str) -> list[tuple[object, ...]]:
    found = level(FILES, folder, {})
    return [(one.name, one.path, one.is_folder, one.covered, one.missed, one.files) for one in found.entries]


@pytest.mark.parametrize(
    ("folder", "expected"),
    [
        ("", [("src/main", "src/main", True, 13, 12, 3), ("top.py", "top.py", False, 1, 1, 1)]),
        ("src/main", [("a", "src/main/a", True, 8, 12, 2), ("b.py", "src/main/b.py", False, 5, 0, 1)]),
        ("/src/main/", [("a", "src/main/a", True, 8, 12, 2), ("b.py", "src/main/b.py", False, 5, 0, 1)]),
        ("src", [("main", "src/main", True, 13, 12, 3)]),
        ("nothing", []),
        ("sr", []),
    ],
)
def test_a_level_has_the_sums_of_its_folders(folder: str, expected: list[tuple[object, ...]]) -> None:
    assert level_entries(folder) == expected


def test_the_change_is_against_the_same_folder_of_the_baseline() -> None:
    before = {"src/main/a/x.py": (5, 5), "src/main/a/y.py": (5, 5), "top.py": (0, 0)}
    found = {one.name: one.change for one in level(FILES, "src/main", before).entries}
    assert found == {"a": pytest.approx(-10.0), "b.py": None}
    assert level(FILES, "", before).entries[1].change is None


@pytest.mark.parametrize("counts", [[1], [0, 3], [5, 1, 1, 1], list(range(1, 60))])
def test_treemap_areas_are_proportional_to_the_lines(counts: list[int]) -> None:
    entries = [TreeEntry(str(place), str(place), False, lines, 0, 1, None) for place, lines in enumerate(counts)]
    tiles = treemap(entries, 900, 160)
    assert len(tiles) == sum(lines > 0 for lines in counts)
    for tile in tiles:
        assert tile.width * tile.height == pytest.approx(900 * 160 * tile.entry.lines / sum(counts))
        assert 0 <= tile.x <= tile.x + tile.width <= 900.001
        assert 0 <= tile.y <= tile.y + tile.height <= 160.001


def test_the_page_of_a_run_shows_coverage_by_folder(serve: object) -> None:
    server: Server = serve()  # type: ignore[operator]
    sources = {"com/shop/A.java": {1: True, 2: False}, "com/shop/inner/B.java": {1: True}, "C.java": {1: True}}
    run = upload(server, ("project", "shop"), ("junit", junit(1)), ("jacoco", jacoco(sources)))["runId"]
    top = get_page(server, f"/runs/{run}/coverage")
    links = [
        link for tag, attributes in top.tags if tag == "a" and (link := attributes.get("href")) and "folder=" in link
    ]
    assert links
    assert isinstance(top, PageText)
    assert "inner" in get_page(server, str(links[0]).split("#")[0]).words


def test_the_tiles_of_a_treemap_are_nearly_square() -> None:
    tiles = treemap([TreeEntry(str(n), str(n), False, n, 0, 1, None) for n in range(1, 21)], 1200, 280)
    assert max(max(tile.width / tile.height, tile.height / tile.width) for tile in tiles) < 4
    assert treemap([], 1200, 280) == []
