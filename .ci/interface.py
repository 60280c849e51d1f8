"""The tables of docs/api.md, made of the interface document. Without arguments it writes them anew."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from handlers.app import served  # noqa: E402
from handlers.openapi.document import Document  # noqa: E402
from handlers.openapi.pages import shared_endpoints  # noqa: E402 (found by the line above)
from models.config.settings import Config  # noqa: E402

FILE = ROOT / "docs" / "api.md"

_HEAD = "| Call | Name | Needs | Takes | Answers | |\n|---|---|---|---|---|---|\n"
_TABLE = re.compile(r"(<!-- operations: ([a-z]+) -->\n)(.*?)(?=\n\n|\Z)", re.DOTALL)
_ANY_REQUEST = {"400", "401", "403", "408", "413", "421", "500", "503"}
Json = Mapping[str, Any]


def written(text: str) -> str:
    """The text of docs/api.md, with its tables as the interface document has them."""
    services = served(Config())
    document = Document(Config(), [*services, shared_endpoints(services[0])]).write()
    return _TABLE.sub(lambda found: found[1] + _HEAD + "\n".join(_rows(document, found[2])), text)


def _rows(document: Json, tag: str) -> Iterator[str]:
    for path, methods in document["paths"].items():
        for method, operation in methods.items():
            if operation["tags"][0] == tag:
                cells = (_needs(operation), _takes(document, operation), _answers(operation), operation["summary"])
                yield f"| `{method.upper()} {path}` | `{operation['operationId']}` | {' | '.join(cells)} |"


def _needs(operation: Json) -> str:
    """What nobody can do without, in open mode on loopback."""
    schemes = {scheme for one in operation["security"] for scheme in one} if {} not in operation["security"] else set()
    return "the key" if "chartKey" in schemes else "an account" if schemes else ""


def _takes(document: Json, operation: Json) -> str:
    """Its parameters but those of the path, and the fields or parts of its body; what it must have is bold."""
    names = {one["name"]: one["required"] for one in operation.get("parameters", []) if one["in"] != "path"}
    for content in operation.get("requestBody", {}).get("content", {}).values():
        schema = content["schema"]
        schema = document["components"]["schemas"][schema["$ref"].rpartition("/")[2]] if "$ref" in schema else schema
        names |= {name: name in schema.get("required", []) for name in schema.get("properties", {})}
    return ", ".join(f"**`{name}`**" if required else f"`{name}`" for name, required in names.items())


def _answers(operation: Json) -> str:
    """Each of its own: what is operation of a success, and the statuses of failures that not any request may meet."""
    good = [(status, one) for status, one in operation["responses"].items() if status < "4"]
    bad = [status for status in operation["responses"] if status >= "4" and status not in _ANY_REQUEST]
    return ", ".join([*(f"{status} {' or '.join(_kinds(one))}".strip() for status, one in good), *bad])


def _kinds(response: Json) -> Iterator[str]:
    for kind, content in response.get("content", {}).items():
        schema = content.get("schema", {})
        of_list = schema.get("items", {}).get("$ref", "")
        ref = schema.get("$ref") or of_list
        yield f"`{ref.rpartition('/')[2]}{'[]' if of_list else ''}`" if ref else f"`{kind}`"


if __name__ == "__main__":
    FILE.write_text(written(FILE.read_text()))
