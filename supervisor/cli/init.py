"""`pilothouse init [DIR]`: writes a starting configuration, or one that is translated from supervisord's."""

from __future__ import annotations

import argparse
import json
import shlex
import sys
from pathlib import Path

from supervisor.cli import import_supervisord

OK, EXISTS, BAD_FILE = 0, 1, 2

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
"""Has the starting configuration, the example and the units, in the checkout, the wheel and the executable alike."""

_FILE = "pilothouse.yaml"
_DATA_DIR = "data-dir: data "
_UNITS = ("pilothouse.service", "pilothouse.socket")


def add_to(parser: argparse.ArgumentParser) -> None:
    """Adds the arguments of the command."""
    parser.description = (
        f"Writes a commented configuration, {_FILE}, and prints where. An existing file is never changed."
    )
    parser.epilog = (
        "Exit codes: 0 written, 1 a file exists, 2 a file cannot be read or written, "
        "3 something of the other configuration was left out or changed."
    )
    parser.set_defaults(alone=main)
    parser.add_argument("directory", type=Path, nargs="?", default=Path(), metavar="DIR", help="(default: this folder)")
    source = parser.add_mutually_exclusive_group()
    source.add_argument("--from-supervisord", type=Path, metavar="FILE", help="translate this supervisord.conf")
    source.add_argument("--example", action="store_true", help="write the example with every kind of process")
    parser.add_argument("--units", action="store_true", help="write the units for systemd too")


def main(arguments: argparse.Namespace) -> int:
    """Returns the exit code."""
    folder: Path = arguments.directory
    names = (_FILE, *_UNITS) if arguments.units else (_FILE,)
    if existing := [str(folder / name) for name in names if (folder / name).exists()]:
        print(f"{', '.join(existing)}: exists already; nothing was written", file=sys.stderr)
        return EXISTS
    try:
        folder.mkdir(parents=True, exist_ok=True)
        code = _write(folder, arguments)
    except OSError as error:
        print(f"{error.filename}: {error.strerror}", file=sys.stderr)
        return BAD_FILE
    if code != import_supervisord.BAD_FILE:
        options = "" if folder == Path() else f" --config {shlex.quote(str(folder / _FILE))}"
        print(f"wrote {', '.join(str(folder / name) for name in names)}\nnext: pilothouse serve{options}")
    return code


def _write(folder: Path, arguments: argparse.Namespace) -> int:
    """Writes the files; returns the exit code. Raises `OSError`."""
    code = OK
    if arguments.from_supervisord is not None:
        options = argparse.Namespace(file=arguments.from_supervisord, output=folder / _FILE)
        code = import_supervisord.main(options)
    else:
        text = (EXAMPLES / (_FILE if arguments.example else "init.yaml")).read_text()
        data = json.dumps(str(folder.absolute() / "data"), ensure_ascii=False)  # YAML holds JSON
        (folder / _FILE).write_text(text.replace(_DATA_DIR, f"data-dir: {data} ", 1))
    if code != import_supervisord.BAD_FILE and arguments.units:
        for name in _UNITS:
            (folder / name).write_text((EXAMPLES / name).read_text())
    return code
