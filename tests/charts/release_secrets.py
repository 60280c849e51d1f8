"""Secrets of releases in helm's format, for states that helm cannot be made to leave."""

from __future__ import annotations

import base64
import gzip
import json
from pathlib import Path
from typing import Any

import pytest
from conftest import ROOT
from requirements import HELM

TIMESTAMP = "2026-11-21T12:47:45.081663072Z"


def made_release(
    name: str, namespace: str, number: int = 1, status: str = "deployed", at: str = TIMESTAMP, **parts: Any
) -> dict[str, Any]:
    """The JSON of one revision of this time; `parts` replace its top-level fields."""
    return {
        "name": name,
        "namespace": namespace,
        "version": number,
        "info": {
            "first_deployed": at,
            "last_deployed": at,
            "deleted": "",
            "description": f"revision {number}",
            "status": status,
        },
        "chart": {"metadata": {"name": "made", "version": "1.2.3", "appVersion": "9", "apiVersion": "v2"}},
        "manifest": "",
        **parts,
    }


def encoded_release(what: Any, is_zipped: bool = True) -> str:
    """The value of a Secret's key `release`."""
    plain = json.dumps(what).encode()
    return base64.b64encode(base64.b64encode(gzip.compress(plain) if is_zipped else plain)).decode()


def release_secret(release: dict[str, Any], **labels: str) -> dict[str, Any]:
    name, number = release["name"], str(release["version"])
    marks = {"owner": "helm", "name": name, "version": number, "status": release["info"]["status"], **labels}
    return {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": {"name": f"sh.helm.release.v1.{name}.v{number}", "labels": marks},
        "type": "helm.sh/release.v1",
        "data": {"release": encoded_release(release)},
    }


def store_release(cluster: Any, release: dict[str, Any]) -> None:
    """Creates the Secret of a revision in the cluster."""
    cluster.create(release["namespace"], release_secret(release))


def helm_programs() -> list[str]:
    """The helm programs of this checkout, or the one on PATH: helm 4 and, where it was fetched, helm 3."""
    found = [str(path) for name in ("helm", "helm3") if (path := ROOT / ".tools" / name).exists()]
    return found or ["helm"]


def chart_folder(folder: Path, name: str, files: dict[str, str], **about: Any) -> Path:
    """Writes a chart as a folder; `files` maps paths to texts."""
    whole = {"apiVersion": "v2", "name": name, "version": "0.1.0", "appVersion": "1.0", **about}
    for path, text in {"Chart.yaml": json.dumps(whole), **files}.items():
        (folder / name / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / name / path).write_text(text)
    return folder / name


needs_helm = pytest.mark.needs(HELM)
