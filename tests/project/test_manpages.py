"""The man pages have what `--help` and docs/configuration.md have."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import ROOT
from requirements import require

PAGES = ("pilothouse.1", "pilothouse-ctl.1", "pilothouse.yaml.5")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("man")
    subprocess.run([sys.executable, str(ROOT / "packing" / "manpages.py"), str(out)], check=True, timeout=60)
    assert sorted(path.name for path in out.iterdir()) == sorted(PAGES)
    return out


def plain(file: Path) -> str:
    """The text without the marks of roff."""
    return re.sub(r"\\f[BR]|\\&", "", file.read_text().replace(r"\-", "-"))


def help_of(*arguments: str) -> str:
    command = [sys.executable, str(ROOT / "run.py"), *arguments, "--help"]
    return subprocess.run(command, capture_output=True, text=True, check=True, timeout=60).stdout


@pytest.mark.parametrize(
    ("page", "arguments"),
    [
        ("pilothouse.1", []), ("pilothouse.1", ["init"]), ("pilothouse.1", ["upload"]),
        ("pilothouse.1", ["user", "add"]),
        ("pilothouse-ctl.1", ["ctl"]), ("pilothouse-ctl.1", ["ctl", "tail"]), ("pilothouse-ctl.1", ["ctl", "start"]),
    ],
)  # fmt: skip
def test_a_page_has_every_option_of_the_help(folder: Path, page: str, arguments: list[str]) -> None:
    text = plain(folder / page)
    found = re.findall(r"^ +(?:-\w[^,]*, )?(--[\w-]+)(?=\s)", help_of(*arguments), re.MULTILINE)
    listed = [word for word in found if word != "--help"]
    assert listed
    assert [word for word in listed if word not in text] == []


def test_the_page_of_the_configuration_has_every_property(folder: Path) -> None:
    document = (ROOT / "docs" / "configuration.md").read_text()
    properties = re.findall(r"^\| `([\w.-]+)` \|", document, re.MULTILINE)
    assert len(properties) > 150
    text = plain(folder / "pilothouse.yaml.5")
    assert [name for name in properties if f".TP\n{name}\n" not in text] == []
    assert "](" not in text
    assert "`" not in text


@pytest.mark.parametrize("page", PAGES)
def test_groff_reads_a_page_without_a_warning(folder: Path, page: str) -> None:
    require("groff")
    done = subprocess.run(
        ["groff", "-man", "-ww", "-Tutf8", str(folder / page)], capture_output=True, check=True, timeout=60
    )
    assert done.stderr == b""
    assert len(done.stdout) > 1000
