"""Writes the man pages: pilothouse(1) and pilothouse-ctl(1) from the parsers, pilothouse.yaml(5) from its document.

python packing/manpages.py FOLDER
"""

from __future__ import annotations

import argparse
import os
import re
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from models import VERSION  # noqa: E402 (found by the line above)
from run import VERBS, command_parser  # noqa: E402
from supervisor.cli.ctl.options import parser as ctl_parser  # noqa: E402

_BLOCKS = re.compile(r"^```[^`]*^```$|^#.*$|(?:^\|.*\n?)+|(?:^- (?:.+\n?)+)|(?:^(?!```|#|\|).+\n?)+", re.MULTILINE)
_CELLS = re.compile(r"(?<!\\)\|")
_INLINE = re.compile(r"``(.+?)``|`([^`]+)`|\*\*(.+?)\*\*|\[([^\]]+)\]\([^)]+\)")


def text(plain: str) -> str:
    """Escapes a text for roff."""
    escaped = plain.replace("\\", r"\e").replace("-", r"\-")
    escaped = re.sub(r"[^\x00-\x7f]", lambda found: f"\\[u{ord(found[0]):04X}]", escaped)
    return re.sub(r"^(?=[.'])", r"\\&", escaped, flags=re.MULTILINE)


def inline(markdown: str) -> str:
    """Translates code, emphasis and links within a paragraph; links lose their targets."""
    out, at = "", 0
    for found in _INLINE.finditer(markdown):
        out += text(markdown[at : found.start()])
        linked = found[4]
        out += inline(linked) if linked else rf"\fB{text(found[1] or found[2] or found[3])}\fR"
        at = found.end()
    return out + text(markdown[at:])


def head(name: str, section: int, about: str) -> str:
    title = text(name.upper())
    return f'.TH "{title}" {section} "" "Pilothouse {VERSION}" "Pilothouse"\n.SH NAME\n{text(name)} \\- {text(about)}\n'


def options(parser: argparse.ArgumentParser, above: argparse.ArgumentParser | None = None) -> Iterator[str]:
    """The arguments of a parser, without its verbs, its help and the options of the parser above."""
    known = [action.option_strings for action in above._actions if action.option_strings] if above else []
    formatter = parser._get_formatter()
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction | argparse._HelpAction) or action.help == argparse.SUPPRESS:
            continue
        if action.option_strings in known:
            continue
        given = formatter._format_action_invocation(action)
        about = formatter._expand_help(action) if action.help else ""
        yield f".TP\n\\fB{text(given)}\\fR\n{text(about) or '.br'}\n"


def verbs(parser: argparse.ArgumentParser) -> Iterator[tuple[str, str, argparse.ArgumentParser]]:
    """Name, help and parser of each verb that the help shows."""
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for choice in action._choices_actions:
                yield choice.dest, choice.help or "", action.choices[choice.dest]


def synopsis(parser: argparse.ArgumentParser) -> str:
    usage = " ".join(parser.format_usage().removeprefix("usage: ").split())
    return f"{text(usage)}\n"


def command_page(name: str, parser: argparse.ArgumentParser, also: str) -> str:
    """The page of a command and its verbs."""
    parser.prog = name.replace("pilothouse-", "pilothouse ")
    about = " ".join((parser.description or "").split())
    page = head(name, 1, about.rstrip(".")) + f".SH SYNOPSIS\n{synopsis(parser)}.SH DESCRIPTION\n{text(about)}\n"
    page += ".SH OPTIONS\n" + "".join(options(parser)) + ".SH COMMANDS\n"
    for verb, help_text, inner in verbs(parser):
        inner.prog = f"{parser.prog} {verb}"
        page += f".SS {text(verb)}\n{text(inner.description or help_text)}\n"
        page += (
            (".PP\n" + synopsis(inner) + "".join(options(inner, parser)))
            if verb != "ctl"
            else "See pilothouse\\-ctl(1).\n"
        )
        page += f".PP\n{text(inner.epilog)}\n" if inner.epilog else ""
        for below, below_help, lowest in verbs(inner):
            page += f".PP\n\\fB{text(f'{inner.prog} {below}')}\\fR: {text(below_help)}\n" + "".join(
                options(lowest, inner)
            )
    if parser.epilog:
        page += f".SH NOTES\n.nf\n{text(parser.epilog)}\n.fi\n"
    return page + f".SH SEE ALSO\n{also}\n"


def configuration_page(markdown: str) -> str:
    """The page of the configuration: each row of a table is a paragraph with its property."""
    page = head("pilothouse.yaml", 5, "the configuration of pilothouse")
    page += ".SH DESCRIPTION\n"
    body = re.sub(r"<!--.*?-->\n?", "", markdown.partition("\n")[2], flags=re.DOTALL)
    for block in _BLOCKS.findall(body):
        page += _block(block.strip("\n"))
    return page + ".SH SEE ALSO\npilothouse(1), pilothouse\\-ctl(1)\n"


def _block(block: str) -> str:
    """One heading, table, listing, list or paragraph."""
    if block.startswith("```"):
        return ".PP\n.nf\n.RS 4\n" + text("\n".join(block.splitlines()[1:-1])) + "\n.RE\n.fi\n"
    if block.startswith("#"):
        marks, _, title = block.partition(" ")
        return f".{'SH' if len(marks) == 2 else 'SS'} {inline(title)}\n"
    if block.startswith("|"):
        return "".join(_row(*rows) for rows in _rows(block))
    if block.startswith("- "):
        return "".join(
            f".IP \\[bu] 2\n{inline(' '.join(item.split()))}\n" for item in re.split(r"^- ", block, flags=re.M)[1:]
        )
    return f".PP\n{inline(' '.join(block.split()))}\n"


def _rows(table: str) -> Iterator[tuple[list[str], list[str]]]:
    """The heads of a table with each of its rows."""
    lines = [[cell.strip().replace(r"\|", "|") for cell in _CELLS.split(line)[1:-1]] for line in table.splitlines()]
    for row in lines[2:]:
        yield lines[0], row


def _row(heads: list[str], row: list[str]) -> str:
    facts = [
        f"{inline(name)}: {inline(cell)}"
        for name, cell in zip(heads[1:-1], row[1:-1], strict=True)
        if cell not in ("-", "")
    ]
    return f".TP\n{inline(row[0])}\n{inline(row[-1])}" + (f"\n.br\n{'; '.join(facts)}" if facts else "") + "\n"


def pages() -> dict[str, str]:
    """The text of each page by the name of its file."""
    main = command_parser(["pilothouse", *VERBS])
    return {
        "pilothouse.1": command_page("pilothouse", main, "pilothouse\\-ctl(1), pilothouse.yaml(5)"),
        "pilothouse-ctl.1": command_page("pilothouse-ctl", ctl_parser(), "pilothouse(1), pilothouse.yaml(5)"),
        "pilothouse.yaml.5": configuration_page((ROOT / "docs" / "configuration.md").read_text()),
    }


if __name__ == "__main__":
    os.environ["NO_COLOR"] = "1"  # argparse colours its texts from 3.14 on
    for name, page in pages().items():
        Path(sys.argv[1]).mkdir(parents=True, exist_ok=True)
        (Path(sys.argv[1]) / name).write_text(page)
