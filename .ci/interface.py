"""Generates the tables of docs/api.md from the OpenAPI document, and writes them into the file."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from handlers.app import served  # noqa: E402
from handlers.openapi.document import InterfaceDocument  # noqa: E402
from handlers.openapi.pages import shared_endpoints  # noqa: E402 (imported after the path is set)
from models.config.settings import Config  # noqa: E402

FILE = ROOT / "docs" / "api.md"

_HEAD = "| Request | Name | Needs | Parameters and fields | Responses | Description |\n|---|---|---|---|---|---|\n"
_TABLE = re.compile(r"(<!-- operations: ([a-z]+) -->\n)(.*?)(?=\n\n|\Z)", re.DOTALL)
_ANY_REQUEST = {"400", "401", "403", "408", "413", "421", "500", "503"}
Json = Mapping[str, Any]


def generate(text: str) -> str:
    """Returns the text of docs/api.md with its tables generated from the OpenAPI document."""
    services = served(Config())
    document = InterfaceDocument(Config(), [*services, shared_endpoints(services[0])]).write()
    return _TABLE.sub(lambda match: match[1] + _HEAD + "\n".join(_rows(document, match[2])), text)


def _rows(document: Json, tag: str) -> Iterator[str]:
    for path, methods in document["paths"].items():
        for method, operation in methods.items():
            if operation["tags"][0] == tag:
                cells = (_needs(operation), _inputs(document, operation), _responses(operation), operation["summary"])
                yield f"| `{method.upper()} {path}` | `{operation['operationId']}` | {' | '.join(cells)} |"


def _needs(operation: Json) -> str:
    """Returns the credential that is required in open mode on loopback, or an empty text."""
    requirements = operation["security"]
    schemes = set() if {} in requirements else {scheme for requirement in requirements for scheme in requirement}
    return "the key" if "chartKey" in schemes else "an account" if schemes else ""


def _inputs(document: Json, operation: Json) -> str:
    """Returns the parameters except those of the path, and the fields or parts of the body; required ones are bold.

    The parts of an operation that takes JSON too follow after `multipart:`.
    """
    parameters = [parameter for parameter in operation.get("parameters", []) if parameter["in"] != "path"]
    names = {parameter["name"]: parameter["required"] for parameter in parameters}
    bodies = [_fields(document, content) for content in operation.get("requestBody", {}).get("content", {}).values()]
    first = _names(names | bodies[0] if bodies else names)
    return "; multipart: ".join([first, *map(_names, bodies[1:])])


def _fields(document: Json, content: Json) -> dict[str, bool]:
    """Returns the fields of a body by name, with whether they are required."""
    schema = content["schema"]
    schema = document["components"]["schemas"][schema["$ref"].rpartition("/")[2]] if "$ref" in schema else schema
    return {name: name in schema.get("required", []) for name in schema.get("properties", {})}


def _names(names: Mapping[str, bool]) -> str:
    return ", ".join(f"**`{name}`**" if required else f"`{name}`" for name, required in names.items())


def _responses(operation: Json) -> str:
    """Returns the success responses, and the error statuses that are specific to the operation."""
    successes = [(status, response) for status, response in operation["responses"].items() if status < "4"]
    errors = [status for status in operation["responses"] if status >= "4" and status not in _ANY_REQUEST]
    return ", ".join(
        [*(f"{status} {' or '.join(_types(response))}".strip() for status, response in successes), *errors]
    )


def _types(response: Json) -> Iterator[str]:
    for media_type, content in response.get("content", {}).items():
        schema = content.get("schema", {})
        item = schema.get("items", {}).get("$ref", "")
        ref = schema.get("$ref") or item
        yield f"`{ref.rpartition('/')[2]}{'[]' if item else ''}`" if ref else f"`{media_type}`"


if __name__ == "__main__":
    FILE.write_text(generate(FILE.read_text()))
