"""Helpers for tests of the chart service: small charts, multipart bodies, and both versions of helm."""

from __future__ import annotations

import io
import json
import os
import shutil
import tarfile
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from conftest import ROOT, Answer, Server
from requirements import missing_part

KEY = {"X-API-Key": "open sesame"}
FULL: dict[str, Any] = {"security": {"mode": "FULL", "api-key": "open sesame"}}
HELMS = ("helm", "helm3")

MAP = """apiVersion: v1
kind: ConfigMap
metadata: {name: {{ .Release.Name }}-map}
data: {colour: {{ .Values.colour | quote }}}
"""
TEST = """apiVersion: v1
kind: Pod
metadata:
  name: {{ .Release.Name }}-test
  annotations: {"helm.sh/hook": test}
spec: {restartPolicy: Never, containers: [{name: a, image: b}]}
"""


OLD_HELM = "helm3.14"
"""helm before version 3.18; tested if PILOTHOUSE_OLD_HELM is its path."""
OLD_HELMS = [OLD_HELM] if "PILOTHOUSE_OLD_HELM" in os.environ else []


def helm_path(name: str) -> str:
    """The path of `helm` (4, or the one on PATH) or `helm3`. `make test` installs both in .tools; CI requires both."""
    if name == OLD_HELM:
        return os.environ["PILOTHOUSE_OLD_HELM"]
    found = ROOT / ".tools" / name
    path = str(found) if found.exists() else shutil.which("helm") if name == "helm" else None
    if path is None:
        missing_part(name, "not in Debian: .ci/fetch_helm.py --with-helm3 fetches it")
    return path


def chart_archive(name: str = "tint", version: str = "0.1.0", metadata: str = "", **files: str) -> bytes:
    """The archive of a chart. A keyword is a file's path with __ for /, without its suffix (.yaml; .txt for NOTES)."""
    contents = {"Chart.yaml": f"apiVersion: v2\nname: {name}\nversion: {version}\nappVersion: '7'\n{metadata}"}
    for word, text in files.items():
        path = word.replace("__", "/")
        contents[path + (".txt" if path.endswith("NOTES") else ".json" if "schema" in path else ".yaml")] = text
    return tar_archive({f"{name}/{path}": text for path, text in contents.items()})


def tar_archive(contents: Mapping[str, str]) -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w:gz") as archive:
        for path, text in contents.items():
            entry = tarfile.TarInfo(path)
            entry.size = len(text.encode())
            archive.addfile(entry, io.BytesIO(text.encode()))
    return out.getvalue()


def sample_chart(**more: str) -> bytes:
    """A chart with one ConfigMap, notes and a test."""
    return chart_archive(
        values="colour: red\n", templates__map=MAP, templates__NOTES="painted {{ .Values.colour }}\n",
        templates__test=TEST, **more,
    )  # fmt: skip


def multipart(**parts: bytes | str | dict[str, Any]) -> tuple[bytes, dict[str, str]]:
    """A multipart body and its headers; bytes are sent as a file, a dict as JSON."""
    body = b""
    for name, value in parts.items():
        file = f'; filename="{name}.tgz"' if isinstance(value, bytes) else ""
        kind = "application/gzip" if file else "application/json" if isinstance(value, dict) else "text/plain"
        content = (
            value if isinstance(value, bytes) else (json.dumps(value) if isinstance(value, dict) else value).encode()
        )
        head = f'--limit\r\nContent-Disposition: form-data; name="{name}"{file}\r\nContent-Type: {kind}\r\n\r\n'
        body += head.encode() + content + b"\r\n"
    return body + b"--limit--\r\n", {"Content-Type": "multipart/form-data; boundary=limit"}


def post_chart(server: Server, path: str, headers: Mapping[str, str] | None = None, **parts: Any) -> Answer:
    body, own = multipart(**parts)
    return server.ask("POST", path, body, {**own, **(headers or {})})


def send_json(server: Server, method: str, path: str, fields: Any = None, **headers: str) -> Answer:
    """A request with a JSON body."""
    body = None if fields is None else json.dumps(fields).encode()
    return server.ask(method, path, body, {**KEY, **headers})


def temporary_files(folder: Path) -> list[Path]:
    """The files of requests in the temporary folder of a server."""
    left: list[Path] = []
    for own in folder.glob("pilothouse-*"):
        with suppress(FileNotFoundError):  # a server removes what another has left, this folder too
            left += [path for path in own.iterdir() if path.name != ".lock"]
    return left


def files_of(archive: bytes) -> dict[str, bytes]:
    with tarfile.open(fileobj=io.BytesIO(archive)) as file:
        return {entry.name: file.extractfile(entry).read() for entry in file.getmembers() if entry.isfile()}  # type: ignore[union-attr]


def unpack(folder: Path, archive: bytes) -> Path:
    for name, data in files_of(archive).items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(data)
    return folder / next(iter(files_of(archive))).partition("/")[0]
