"""Follows a document: in a fresh checkout, with one terminal for commands and one for the server."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import yaml
from conftest import ROOT, children_of, free_port, wait_for
from requirements import require

BLOCK = re.compile(
    r"<!-- (run|serve|steps|client)(?:: ([a-z0-9 -]+))? -->\n```(?:sh|yaml|json)\n(.*?)```\n(?:```\n(.*?)```\n)?",
    re.DOTALL,
)
_CHECKOUT = ("run.py", "Makefile", "docs")
_OLDER = ("setup.cfg", "setup.py", ".ci/fetch_helm.py")
_MADE = (".venv/run", ".tools/ready")
"""Files that `make run` creates; they must be newer than `_OLDER`."""
_COMMAND_SECONDS = 120
_RETRY_SECONDS = 60.0
_GLUED = re.compile(r"[}\]](?=[{\[])")
"""Two answers on one line: the first one needs `; echo`."""
_ERROR = re.compile(r'"status":[45]\d\d\b')
_QUERY = re.compile(r"(?:curl (?!.*-[XdFT]).*\n)+")
"""Commands that may be repeated, because the response may show a change that is still in progress."""
_HELLO = {
    "jsonrpc": "2.0",
    "id": 1,
    "method": "initialize",
    "params": {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": {"name": "test", "version": "1"}},
}
_JOBS: Mapping[str, Mapping[str, str]] = {
    "github": {
        "GITHUB_ACTIONS": "true", "GITHUB_SHA": "5ca1ab1e", "GITHUB_REF": "refs/heads/main", "GITHUB_REF_NAME": "main",
        "GITHUB_RUN_ID": "17", "GITHUB_REPOSITORY": "me/shop", "GITHUB_SERVER_URL": "https://github.com",
    },
    "gitlab": {
        "GITLAB_CI": "true", "CI_COMMIT_SHA": "7e57ab1e", "CI_COMMIT_REF_NAME": "main", "CI_PIPELINE_ID": "18",
        "CI_PROJECT_URL": "https://gitlab.com/me/shop",
    },
}  # fmt: skip


class Block(NamedTuple):
    kind: str
    needs: tuple[str, ...]
    text: str
    printed: str | None


def blocks(text: str) -> list[Block]:
    return [Block(found[1], tuple((found[2] or "").split()), found[3], found[4]) for found in BLOCK.finditer(text)]


class DocumentReader:
    def __init__(self, folder: Path, swaps: Mapping[str, str], environ: Mapping[str, str]) -> None:
        """`swaps`: texts of documents and their replacements on this machine; ports become free ones."""
        require("curl")
        self.folder = folder
        self.swaps = {**swaps, "8080": str(free_port()), "9000": str(free_port())}
        self.url = f"http://127.0.0.1:{self.swaps['8080']}"
        self.environ = {
            **os.environ, **environ, "PATH": f"{folder / '.venv' / 'bin'}:{os.environ['PATH']}", "HOME": str(folder),
            "SERVER_PORT": self.swaps["8080"], "PILOTHOUSE_URL": self.url,
        }  # fmt: skip
        self._server: subprocess.Popen[bytes] | None = None
        self._check_out()

    def _check_out(self) -> None:
        """Makes a checkout as after `make run`, without downloads."""
        for name in _CHECKOUT:
            (self.folder / name).symlink_to(ROOT / name)
        for folder in (".ci", ".tools"):
            (self.folder / folder).mkdir()
        for name in _OLDER:
            shutil.copyfile(ROOT / name, self.folder / name)
        shutil.copytree(ROOT / "examples", self.folder / "examples")
        example = self.folder / "examples" / "pilothouse.yaml"
        example.write_text(self.here(example.read_text()))
        _program(self.folder / ".venv" / "bin" / "python", sys.executable)
        _program(self.folder / ".venv" / "bin" / "pip", "false")
        _program(self.folder / ".venv" / "bin" / "pilothouse", f"{sys.executable} {ROOT / 'run.py'}")
        for name in _MADE:
            (self.folder / name).touch()
        if (ROOT / ".tools" / "helm").exists():
            (self.folder / ".tools" / "helm").symlink_to(ROOT / ".tools" / "helm")

    def here(self, text: str) -> str:
        for theirs, own in self.swaps.items():
            text = re.sub(rf"(?<!\d){re.escape(theirs)}(?!\d)", own, text)
        return text

    def follow(self, block: Block) -> None:
        if block.kind == "serve":
            self.serve(block.text)
        elif block.kind == "steps":
            for commands in steps(block.text):
                self.run(commands, more=_JOBS[block.needs[0]])
        elif block.kind == "client":
            for server in json.loads(self.here(block.text))["mcpServers"].values():
                reply = self._reply_over_http(server) if "url" in server else self._reply_over_stdio(server)
                assert '"serverInfo"' in reply, reply
        else:
            self.run(block.text, block.printed)

    def serve(self, commands: str) -> None:
        """Runs the commands in the second terminal, in place of its current server."""
        self._interrupt()
        with (self.folder / "server.log").open("ab") as log:
            self._server = subprocess.Popen(
                ["/bin/sh", "-eu", "-c", self.here(commands)], cwd=self.folder, env=self.environ,
                start_new_session=True, stdin=subprocess.DEVNULL, stdout=log, stderr=log,
            )  # fmt: skip
        wait_for(self._serves, about=f"{commands} to serve")

    def _serves(self) -> bool:
        assert self._server is not None
        assert self._server.poll() is None, (self.folder / "server.log").read_text()
        try:
            with urllib.request.urlopen(f"{self.url}/readyz", timeout=10) as answer:
                return bool(answer.status == 200)
        except (urllib.error.URLError, ConnectionError):
            return False

    def run(self, commands: str, printed: str | None = None, more: Mapping[str, str] | None = None) -> None:
        """Runs the commands in the first terminal, which keeps exported variables and its folder.

        As a reader sees it, the output ends with a line, and no two answers are on one line.
        """
        kept = self.folder / ".terminal"
        whole = f"[ ! -e {kept} ] || . {kept}\n{self.here(commands)}\n(export -p; echo cd \"'$PWD'\") > {kept}\n"
        end = time.monotonic() + _RETRY_SECONDS
        while True:
            done = self._done(["/bin/sh", "-eu", "-c", whole], b"", more or {})
            reply = done.stdout.decode()
            assert done.returncode == 0, f"{commands}\n{reply}\n{done.stderr.decode()}"
            assert not reply or reply.endswith("\n"), f"{commands}\nprints no line break at its end\n{reply}"
            assert _GLUED.search(reply) is None, f"{commands}\nprints answers on one line\n{reply}"
            assert _ERROR.search(reply) is None or _ERROR.search(printed or ""), f"{commands}\nfails\n{reply}"
            if printed is None or matches(self.here(printed), reply):
                return
            message = f"{commands}\nshould print\n{printed}\nand printed\n{reply!r}"
            assert _QUERY.fullmatch(commands), message
            assert time.monotonic() < end, message

    def _done(self, command: list[str], given: bytes, more: Mapping[str, str]) -> subprocess.CompletedProcess[bytes]:
        return subprocess.run(
            command,
            cwd=self.folder,
            env={**self.environ, **more},
            input=given,
            capture_output=True,
            timeout=_COMMAND_SECONDS,
        )

    def _reply_over_http(self, server: Mapping[str, Any]) -> str:
        kinds = {"Content-Type": "application/json", "Accept": "application/json, text/event-stream"}
        request = urllib.request.Request(
            server["url"], json.dumps(_HELLO).encode(), {**kinds, **server.get("headers", {})}
        )
        with urllib.request.urlopen(request, timeout=_COMMAND_SECONDS) as answer:
            return str(answer.read().decode())

    def _reply_over_stdio(self, server: Mapping[str, Any]) -> str:
        command = [word.replace("/opt/pilothouse", str(self.folder)) for word in (server["command"], *server["args"])]
        return self._done(command, f"{json.dumps(_HELLO)}\n".encode(), server.get("env", {})).stdout.decode()

    def _interrupt(self) -> None:
        """Sends Ctrl-C to make and its child processes."""
        if self._server is not None and self._server.poll() is None:
            os.killpg(self._server.pid, signal.SIGINT)
            self._server.wait(_COMMAND_SECONDS)

    def close(self) -> None:
        self._interrupt()
        for data in (self.folder / "data", self.folder / "try" / "data"):  # of a server that was killed by a document
            for pid in children_of(data, with_helm=True):
                os.kill(pid, signal.SIGKILL)


def matches(expected: str, found: str) -> bool:
    wanted = ".*".join(re.escape(re.sub(r"\s", "", piece)) for piece in expected.split("…"))
    return re.fullmatch(wanted, re.sub(r"\s", "", found)) is not None


def _program(file: Path, command: str) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(f'#!/bin/sh\nexec {command} "$@"\n')
    file.chmod(0o755)


def steps(text: str) -> list[str]:
    """The steps of a GitHub workflow or a GitLab job that call the server, without the installation of programs."""
    file = yaml.safe_load(text)
    found = [step.get("run", "") for job in file.get("jobs", {}).values() for step in job["steps"]]
    found += ["\n".join(job["script"]) for job in file.values() if "script" in job]
    own = [commands for commands in found if "pilothouse" in commands.lower()]
    assert own, text
    return ["\n".join(line for line in commands.splitlines() if is_here(line)) for commands in own]


def is_here(line: str) -> bool:
    """Whether a line can run here: not the installation, and not the tests of the example project."""
    return not line.startswith(("pip install", "./run-the-tests"))
