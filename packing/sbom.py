"""The list of components (CycloneDX 1.5): what the executable holds beside the program itself."""

from __future__ import annotations

import json
import platform
import re
import sqlite3
import ssl
import uuid
from collections.abc import Iterable
from importlib import metadata
from pathlib import Path
from typing import Any

from packaging.requirements import Requirement

from models import VERSION

EXTRAS = ("mcp", "postgres")


def distributions(requirements: Iterable[str], extras: Iterable[str]) -> dict[str, metadata.Distribution]:
    """The distributions that are installed for these requirements, and for theirs, by normalized name."""
    found: dict[str, metadata.Distribution] = {}
    waiting = [(text, tuple(extras)) for text in requirements]
    while waiting:
        text, wanted = waiting.pop()
        needed = Requirement(text)
        name = re.sub(r"[-_.]+", "-", needed.name).lower()
        applies = needed.marker is None or any(needed.marker.evaluate({"extra": one}) for one in (*wanted, ""))
        if name in found or not applies:
            continue
        found[name] = metadata.distribution(needed.name)
        waiting += [(inner, tuple(needed.extras)) for inner in found[name].requires or ()]
    return found


def component(name: str, version: str, licence: str = "", purl: str = "") -> dict[str, Any]:
    """One component."""
    result: dict[str, Any] = {"type": "library", "name": name, "version": version}
    if licence:
        result["licenses"] = [{"license": {"name": licence}}]
    if purl:
        result |= {"purl": purl, "bom-ref": purl}
    return result


def document() -> dict[str, Any]:
    """The whole document. Its serial number depends on its content only."""
    own = metadata.distribution("pilothouse")
    components = [
        component("python", platform.python_version(), "PSF-2.0"),
        component("openssl", ssl.OPENSSL_VERSION.split()[1], "Apache-2.0"),
        component("sqlite", sqlite3.sqlite_version, "blessing"),
    ]
    for name, found in sorted(distributions(own.requires or (), EXTRAS).items()):
        about = found.metadata.json
        licence = str(about.get("license_expression") or about.get("license") or "").partition("\n")[0]
        components.append(component(name, found.version, licence, f"pkg:pypi/{name}@{found.version}"))
    serial = uuid.uuid5(uuid.NAMESPACE_URL, json.dumps([VERSION, components]))
    return {
        "bomFormat": "CycloneDX",
        "specVersion": "1.5",
        "serialNumber": f"urn:uuid:{serial}",
        "version": 1,
        "metadata": {"component": {"type": "application", "name": "pilothouse", "version": VERSION}},
        "components": components,
    }


def build(out: Path) -> Path:
    """Writes the document; returns its path."""
    file = out / f"pilothouse-{VERSION}.cdx.json"
    file.write_text(json.dumps(document(), indent=2) + "\n")
    return file
