"""`run.py ctl` on a terminal: the shell, `top`, colours, completion; and what it needs."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import ROOT, TIMEOUT_SECONDS, Serve, wait_for
from ctl_runs import PROCESSES, Ctl, by_socket, read_until, terminal
from requirements import require


@pytest.fixture
def ctl(serve: Serve) -> Ctl:
    return by_socket(serve(PROCESSES))


def test_the_shell_has_completion_and_history(ctl: Ctl, tmp_path: Path) -> None:
    state = tmp_path / "state"
    with terminal(ctl, "shell", XDG_STATE_HOME=str(state)) as (process, master):
        read_until(master, b"pilothouse> ")
        os.write(master, b"start we\t\n")
        read_until(master, rb"web has been started \(pid \d+\)")
        os.write(master, b"status none\n")
        read_until(master, b"no process matches 'none'")
        os.write(master, b"status --nonsense\n")
        read_until(master, b"unrecognized arguments")
        os.write(master, b"stop 'web\n")
        read_until(master, b"No closing quotation")
        os.write(master, b"exit\n")
        assert process.wait(TIMEOUT_SECONDS) == 0
    history = state / "pilothouse" / "ctl-history"
    assert history.read_text().splitlines()[0] == "start web "
    assert history.stat().st_mode & 0o777 == 0o600
    with terminal(ctl, "shell", XDG_STATE_HOME=str(state)) as (process, master):
        read_until(master, b"pilothouse> ")
        os.write(master, b"\x1b[A")  # the last line
        read_until(master, b"exit")
        os.write(master, b"\n")
        assert process.wait(TIMEOUT_SECONDS) == 0


def test_ctl_without_a_command_is_the_shell_on_a_terminal_only(ctl: Ctl) -> None:
    with terminal(ctl) as (_, master):
        read_until(master, b"pilothouse> ")
        os.write(master, b"pid web\n")
        read_until(master, b"web is not running")
    assert ctl().returncode == 2


def test_the_shell_reads_a_pipe(ctl: Ctl) -> None:
    result = subprocess.run(
        ctl.command("shell"),
        input="start web\nstatus web\nquit\n",
        capture_output=True,
        text=True,
        timeout=TIMEOUT_SECONDS,
    )
    assert result.returncode == 0
    assert re.fullmatch(r"web has been started \(pid \d+\)\nweb  running  pid \d+, uptime \d+s\n", result.stdout)


def test_top_redraws_until_q(ctl: Ctl) -> None:
    with terminal(ctl, "top", "-d", "100ms") as (process, master):
        read_until(master, rb"\x1b\[\?1049h(?s:.*)web +not_started")
        ctl.server.do("start", "web")
        read_until(master, rb"web +running +\d+ +[\d.]+ % +[\d.]+ [KM]B")
        os.write(master, b"q")
        read_until(master, rb"\x1b\[\?1049l")
        assert process.wait(TIMEOUT_SECONDS) == 0


def test_top_shows_the_table_once_on_a_dumb_terminal(ctl: Ctl) -> None:
    with terminal(ctl, "top", TERM="dumb") as (process, master):
        assert b"\x1b" not in read_until(master, b"web")
        assert process.wait(TIMEOUT_SECONDS) == 0


def test_q_ends_top_after_keys_of_several_bytes(ctl: Ctl) -> None:
    with terminal(ctl, "top", "-d", "1h") as (process, master):
        read_until(master, b"web +not_started")
        os.write(master, b"\x1b[A")  # an arrow
        read_until(master, b"web +not_started")
        os.write(master, b"q")
        assert process.wait(TIMEOUT_SECONDS) == 0


def test_a_terminal_gets_only_colour_sequences_of_logs(ctl: Ctl) -> None:
    ctl.done("start", "lines")
    wait_for(lambda: "red" in ctl.done("tail", "lines"))
    with terminal(ctl, "tail", "lines") as (_, master):
        seen = read_until(master, b"title")
    assert b"\x1b[31mred\x1b[0m \\x1b]0;title" in seen
    with terminal(ctl, "tail", "--raw", "lines") as (_, master):
        assert b"\x1b]0;title\x07" in read_until(master, b"title\x07")


@pytest.mark.parametrize(
    ("environ", "is_coloured"), [({}, True), ({"NO_COLOR": "1"}, False), ({"TERM": "dumb"}, False)]
)
def test_statuses_are_coloured_on_a_terminal_only(ctl: Ctl, environ: dict[str, str], is_coloured: bool) -> None:
    ctl.done("start", "web")
    assert "\x1b" not in ctl.done("status")
    assert "\x1b[32mrunning" in ctl.done("status", "--color", "always")
    with terminal(ctl, "status", "web", **environ) as (_, master):
        assert (b"\x1b[32m" in read_until(master, b"uptime")) == is_coloured


# Standard streams and locales

ASCII = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}


def test_names_beyond_the_locale_are_escaped(serve: Serve) -> None:
    ctl = by_socket(serve({"w\u00e4b": {"command": "sleep 1000"}}))
    for name in ("w\u00e4b", "w\u00e4*"):
        shown = ctl("status", name, **ASCII)
        assert (shown.returncode, shown.stdout.split()[0], shown.stderr) == (3, "w\\xe4b", "")
    assert json.loads(ctl("--json", "status", **ASCII).stdout)[0]["name"] == "w\u00e4b"
    unknown = ctl("status", "\udcff")
    assert (unknown.returncode, unknown.stderr) == (4, "pilothouse ctl: no process matches '\ufffd'\n")


@pytest.mark.parametrize(
    ("command", "streams", "code", "message"),
    [
        ("status", ">&-", 0, ""),
        ("shell", "<&-", 0, ""),
        ("status", ">/dev/full", 1, "pilothouse ctl: No space left on device\n"),
    ],
)
def test_a_closed_or_full_stream_is_no_traceback(ctl: Ctl, command: str, streams: str, code: int, message: str) -> None:
    done = subprocess.run(
        ["sh", "-c", f'exec "$@" {streams}', "sh", *ctl.command(command)], cwd=ctl.server.folder,
        stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=TIMEOUT_SECONDS,
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (code, message)


# Completion


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_a_completion_script_completes(ctl: Ctl, tmp_path: Path, shell: str) -> None:
    script = ctl.done("completion", shell)
    assert "ctl names" in script
    require(shell)
    (tmp_path / "script").write_text(script)
    (tmp_path / "pilothouse").write_text(f'#!/bin/sh\nshift\nexec {" ".join(ctl.command())} "$@"\n')
    (tmp_path / "pilothouse").chmod(0o755)
    environ = {**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}"}

    def completed(*words: str) -> set[str]:
        line, given = " ".join(("pilothouse", "ctl", *words)), " ".join(f"'{word}'" for word in words)
        programs = {
            "bash": f"COMP_WORDS=(pilothouse ctl {given}); COMP_CWORD={len(words) + 1}; _pilothouse; "
            "printf '%s\\n' \"${COMPREPLY[@]}\"",
            "fish": f"complete -C '{line}' | cut -f 1",
            "zsh": f"words=(pilothouse ctl {given}); CURRENT={len(words) + 2}; PREFIX='{words[-1]}'; _pilothouse",
        }
        before = "compdef() { }; compadd() { print -l -- ${@:#--} }; " if shell == "zsh" else ""
        program = f"{before}source {tmp_path}/script; {programs[shell]}"
        result = subprocess.run(
            [shell, "-c", program], env=environ, capture_output=True, text=True, timeout=TIMEOUT_SECONDS
        )
        return {word.strip() for word in result.stdout.splitlines() if word.startswith(words[-1])}

    if shell == "zsh":  # as a file in fpath it is loaded by the first completion, which it must answer
        script = f"_pilothouse() {{ {script} }}"
        (tmp_path / "script").write_text(script)
        assert completed("st") == {"start", "status", "stop"}
        (tmp_path / "script").write_text(ctl.done("completion", shell))
    assert completed("st") == {"start", "status", "stop"}
    assert completed("start", "w") == {"web"}
    assert completed("start", "@") == {"@front"}
    assert "--dry-run" in completed("reload", "--d")
    assert completed("completion", "z") == {"zsh"}


def test_status_imports_no_module_of_the_server(ctl: Ctl) -> None:
    code = (
        "import sys; sys.argv[:] = ['run.py', 'ctl', *sys.argv[1:]]\n"
        "from supervisor.cli.ctl.main import main\n"
        "main(sys.argv[2:])\n"
        "theirs = {'tornado', 'attrs', 'attr', 'cattrs', 'yaml', 'peewee', 'psutil', 'handlers', 'models'}\n"
        "print(sorted(theirs & {name.split('.')[0] for name in sys.modules}))\n"
        "print(next(line for line in open('/proc/self/status') if line.startswith('VmHWM')))"
    )
    result = subprocess.run(
        [sys.executable, "-c", code, *ctl.options, "status"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=TIMEOUT_SECONDS,
    )
    *_, loaded, memory, _, _ = result.stdout.split("\n")
    assert loaded == "[]", result
    assert int(memory.split()[1]) < 30 * 1024
