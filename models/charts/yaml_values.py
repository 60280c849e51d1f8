"""Values as YAML, written so that every reader agrees (Go, YAML 1.1 and 1.2) and read as helm reads them."""

from __future__ import annotations

import json
import math
import re
import struct
from collections.abc import Iterator
from functools import cmp_to_key
from typing import Any, ClassVar

import yaml

from models.errors import Invalid
from models.json_format import check_text

_Dumper: Any = getattr(yaml, "CSafeDumper", yaml.SafeDumper)

_AMBIGUOUS_SCALAR = re.compile(
    r"""(?:[-+]?[0-9][0-9_]*(\.[0-9_]*)?([eE][-+]?[0-9]+)?   # 1e3: a number in YAML 1.2, text to PyYAML
    |[-+]?\.[0-9_]+([eE][-+]?[0-9]+)?
    |0[oO][0-7_]+|0[xX][0-9a-fA-F_]+|0[bB][01_]+
    |[yYnN]|[-+]?[0-9][0-9_]*(:[0-5]?[0-9])+(\.[0-9_]*)?
    |[-+]?\.(inf|Inf|INF)|\.(nan|NaN|NAN)
    |[0-9]{4}-[0-9]{1,2}-[0-9]{1,2}.*)\Z
    """,
    re.VERBOSE,
)
_MAX_DEPTH = 500
_TOO_DEEP_FOR_LIBYAML = "exceeded maximum nesting depth"
"""The reason of libyaml 0.2.6 and later at 1,000 levels, which it may read before it returns the event of the 500th."""
_MAX_NODES = 1_000_000
_MAX_ALIAS_FACTOR, _FREE_ALIAS_NODES = 10, 1000
"""Aliases may add `_MAX_ALIAS_FACTOR` times the written nodes, and `_FREE_ALIAS_NODES` more."""
_FAST_DUMP_COST = 4000
"""Characters dumped in a fraction of a millisecond; each value counts as ten."""
_END = "\n...\n"
"""The end of a document, which PyYAML writes if a text in it ends with empty lines."""
_TEXT_TAG = "tag:yaml.org,2002:str"
_PLAIN_TAGS = (_TEXT_TAG, "tag:yaml.org,2002:yaml")
"""Text, and the lone characters `!`, `&` and `*`, which are quoted as signs of YAML."""
_AMBIGUOUS_TAG = "tag:yaml.org,2002:some-number"


class _QuotingDumper(_Dumper):  # type: ignore[misc]
    """Quotes every string that some reader would take for another type; text of several lines is a block.

    Quotes, the order of keys and line breaks are those of helm.
    """

    def ignore_aliases(self, data: Any) -> bool:
        return True


def _compare(one: str, other: str) -> int:
    """Orders two keys as helm's YAML writer does: letters last, runs of digits by their value."""
    at = _common_length(one, other)
    if at in (len(one), len(other)):
        return len(one) - len(other)
    left, right = one[at], other[at]
    if left.isalpha() or right.isalpha():
        is_before = left < right if left.isalpha() and right.isalpha() else right.isalpha()
    else:
        before = one[len(one[:at].rstrip(_DIGITS)) : at].strip("0")
        begins = "1" if before and "0" in (left, right) else ""
        is_before = _number(one, at, begins) < _number(other, at, begins)
    return -1 if is_before else 1


def _common_length(one: str, other: str) -> int:
    """The length of the common beginning, by comparing slices: keys may be long."""
    low, high = 0, min(len(one), len(other))
    while low < high:
        middle = (low + high + 1) // 2
        if one[low:middle] == other[low:middle]:
            low = middle
        else:
            high = middle - 1
    return low


def _number(key: str, at: int, begins: str) -> tuple[int, int, str]:
    run = key[at : at + _MAX_DIGITS]
    digits = run[: len(run) - len(run.lstrip(_DIGITS))]
    return int(begins + digits or "0"), len(digits), key[at]


_DIGITS = "0123456789"
_MAX_DIGITS = 18
_in_order = cmp_to_key(_compare)


def _represent_object(dumper: Any, value: dict[str, Any]) -> Any:
    is_simple = all(map(str.isalpha, value))
    items = [(key, value[key]) for key in (sorted(value) if is_simple else sorted(value, key=_in_order))]
    return dumper.represent_mapping("tag:yaml.org,2002:map", items)


def _represent_text(dumper: Any, text: str) -> Any:
    lines = text.split("\n")
    is_block = len(lines) > 1 and text.strip() and not any(line != line.rstrip() for line in lines)
    is_ambiguous = len(lines) == 1 and dumper.resolve(yaml.ScalarNode, text, (True, False)) not in _PLAIN_TAGS
    return dumper.represent_scalar(_TEXT_TAG, text, style="|" if is_block else '"' if is_ambiguous else None)


_QuotingDumper.add_implicit_resolver(_AMBIGUOUS_TAG, _AMBIGUOUS_SCALAR, list("-+.0123456789yYnN"))
_QuotingDumper.add_representer(str, _represent_text)
_QuotingDumper.add_representer(dict, _represent_object)


def dump(value: Any) -> str:
    """Writes a JSON value as YAML with sorted keys, as helm prints it; `{}` for an empty object."""
    try:
        text = yaml.dump(value, Dumper=_QuotingDumper, default_flow_style=False, allow_unicode=True, sort_keys=False)
        return str(text[: -len(_END)] + "\n" if text.endswith(_END) else text)
    except (RecursionError, UnicodeError):  # JSON is YAML, may be nested deeper and may contain lone surrogates
        return json.dumps(value, sort_keys=True, ensure_ascii=False) + "\n"


def is_fast(tree: Any) -> bool:
    """Whether a value is so small that dumping it in a worker would cost more."""
    budget, waiting = _FAST_DUMP_COST, [tree]
    while waiting and budget > 0:
        value = waiting.pop()
        budget -= 10 + (len(value) if isinstance(value, str | dict | list) else 0)
        if budget > 0 and isinstance(value, dict | list):
            waiting += value if isinstance(value, list) else [*value, *value.values()]
    return budget > 0


class _Counter:
    """Counts the nodes of a text, and those that its aliases add, before anything is built of them."""

    def __init__(self, where: str) -> None:
        self._where = where
        self._written = self._added = 0
        self._open: list[tuple[str | None, int]] = []
        """Anchor and expanded size so far of each collection that has begun."""
        self._sizes: dict[str, int] = {}

    def count(self, event: yaml.Event) -> None:
        """Raises `Invalid` if the text is nested too deeply or has too many nodes."""
        if isinstance(event, yaml.CollectionStartEvent):
            self._open.append((event.anchor, 1))
            if len(self._open) > _MAX_DEPTH:
                raise Invalid(_too_deep(self._where))
        elif isinstance(event, yaml.CollectionEndEvent):
            self._add(*self._open.pop(), is_written=True)
        elif isinstance(event, yaml.ScalarEvent):
            self._add(event.anchor, 1, is_written=True)
        elif isinstance(event, yaml.AliasEvent):
            size = self._sizes.get(event.anchor or "", 0)
            if any(anchor == event.anchor for anchor, _ in self._open):
                raise Invalid(f"{self._where}: an alias inside its own anchor")
            self._added += size
            self._add(None, size, is_written=False)

    def _add(self, anchor: str | None, size: int, is_written: bool) -> None:
        self._written += is_written
        if anchor:
            self._sizes[anchor] = size
        if self._open:
            parent, so_far = self._open[-1]
            self._open[-1] = parent, so_far + size
        if self._written > _MAX_NODES:
            raise Invalid(f"{self._where}: more than {_MAX_NODES} nodes")

    def check_aliases(self) -> None:
        if self._added > _MAX_ALIAS_FACTOR * self._written + _FREE_ALIAS_NODES:
            raise Invalid(f"{self._where}: its aliases expand to too much")


def check_events(text: str | bytes, loader: Any, where: str, is_first_only: bool = False) -> Iterator[yaml.Event]:
    """Yields the events of a text that is about to be loaded. Raises `Invalid` naming `where`, and `yaml.YAMLError`.

    With `is_first_only` what follows the first document is not read.

    libyaml's loader crashes the process on a text that is nested too deeply, and its aliases can stand for far more
    than was written; its event parser only reads.
    """
    counter = _Counter(where)
    try:
        for event in yaml.parse(text, loader):
            counter.count(event)
            yield event
            if is_first_only and isinstance(event, yaml.DocumentEndEvent):
                break
    except yaml.MarkedYAMLError as error:
        if error.problem == _TOO_DEEP_FOR_LIBYAML:
            raise Invalid(_too_deep(where)) from None
        raise
    counter.check_aliases()


def _too_deep(where: str) -> str:
    return f"{where}: nested more than {_MAX_DEPTH} deep"


def check(text: str | bytes, loader: Any, where: str, is_first_only: bool = False) -> None:
    """Checks a text without building anything of it. Raises as `check_events`."""
    for _ in check_events(text, loader, where, is_first_only):
        pass


def load_first(text: str | bytes, loader: Any, where: str) -> Any:
    """Loads the first document of a text, as helm reads metadata. Raises as `check_events`."""
    check(text, loader, where, is_first_only=True)
    reader = loader(text)
    try:
        return reader.get_data()
    finally:
        reader.dispose()


_Loader: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_MAX_TEXT_CHARACTERS = 512 * 1024
_MAX_VALUE_DEPTH = 100

_IMPLICIT = {
    "int": (
        r"[-+]?(?:0[bB]_*[01][01_]*|0[xX]_*[0-9a-fA-F][0-9a-fA-F_]*|0[oO]?_*[0-7][0-7_]*|0_*|[1-9][0-9_]*)\Z",
        "-+0123456789",
    ),
    "float": (
        r"[-+]?(?:(?:[0-9][0-9_]*(?:\.[0-9_]*)?|\.[0-9][0-9_]*)(?:[eE][-+]?[0-9]+)?|\.(?:inf|Inf|INF))\Z"
        r"|\.(?:nan|NaN|NAN)\Z",
        "-+0123456789.",
    ),
    "bool": (r"[yYnN]\Z", "yYnN"),
}


class _ValueLoader(_Loader):  # type: ignore[misc]
    """Scalars as in helm's YAML: 1e3 is a number, y is true; 1:30, a date and = are text. Unknown tags are ignored."""

    bool_values: ClassVar = {**yaml.SafeLoader.bool_values, "y": True, "n": False}

    def whole_number(self, node: yaml.ScalarNode) -> float | str:
        """A number that is too large for an integer of Go is a float, or text."""
        text = str(self.construct_scalar(node))
        digits = text.replace("_", "")
        if len(digits) <= _MAX_GO_NUMBER_CHARACTERS:
            integer = _integer(digits)
            if _MIN_GO_INTEGER <= integer <= _MAX_GO_INTEGER:
                return integer
            if _GO_FLOAT.fullmatch(digits):
                return float(digits)
        return text

    def number(self, node: yaml.ScalarNode) -> float | str:
        """A number that is too large for a float is text."""
        text = str(self.construct_scalar(node))
        number = float(self.construct_yaml_float(node))
        return text if math.isinf(number) and not text.lower().endswith(".inf") else number

    def untagged(self, node: yaml.Node) -> Any:
        if isinstance(node, yaml.ScalarNode):
            return self.construct_scalar(node)
        return self.construct_yaml_map(node) if isinstance(node, yaml.MappingNode) else self.construct_yaml_seq(node)


_OTHERS = {"tag:yaml.org,2002:int", "tag:yaml.org,2002:float", "tag:yaml.org,2002:timestamp", "tag:yaml.org,2002:value"}
_ValueLoader.yaml_implicit_resolvers = {
    first: [(tag, pattern) for tag, pattern in found if tag not in _OTHERS]
    for first, found in _Loader.yaml_implicit_resolvers.items()
}
for _name, (_pattern, _first) in _IMPLICIT.items():
    _ValueLoader.add_implicit_resolver(f"tag:yaml.org,2002:{_name}", re.compile(_pattern), list(_first))
_ValueLoader.add_constructor("tag:yaml.org,2002:int", _ValueLoader.whole_number)
_ValueLoader.add_constructor("tag:yaml.org,2002:float", _ValueLoader.number)
for _unknown in (None, "tag:yaml.org,2002:merge", "tag:yaml.org,2002:set", "tag:yaml.org,2002:omap",
                 "tag:yaml.org,2002:pairs", "tag:yaml.org,2002:timestamp"):  # fmt: skip
    _ValueLoader.add_constructor(_unknown, _ValueLoader.untagged)


class MetadataLoader(getattr(yaml, "CBaseLoader", yaml.BaseLoader)):  # type: ignore[misc]
    """Reads every scalar as the text that helm has of it in a field of type string: 1.10 is 1.1, yes is true."""

    def construct_scalar(self, node: yaml.ScalarNode) -> str | None:
        text = str(super().construct_scalar(node))
        return text if node.style else _go_text(text)


_GO_NULLS = {"", "~", "null", "Null", "NULL"}
_GO_BOOLEANS = {
    word: value
    for value, words in (("true", "y yes true on"), ("false", "n no false off"))
    for lower in words.split()
    for word in (lower, lower.capitalize(), lower.upper())
}
_GO_INTEGER = re.compile(r"[-+]?(?:0[xX][0-9a-fA-F]+|0[oO]?[0-7]+|0[bB][01]+|0|[1-9][0-9]*)")
_GO_FLOAT = re.compile(r"[-+]?(?:\.[0-9]+|[0-9]+(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]+)?")
_GO_SPECIAL_FLOATS = {
    f"{sign}.{word}": f"{'-' if sign == '-' else '+'}Inf" for sign in ("", "+", "-") for word in ("inf", "Inf", "INF")
} | dict.fromkeys((".nan", ".NaN", ".NAN"), "NaN")


def _go_text(plain: str) -> str | None:
    """An unquoted scalar as Go's YAML reads it, written as Go writes its value; `None` for a null."""
    if plain in _GO_NULLS:
        return None
    if value := _GO_BOOLEANS.get(plain) or _GO_SPECIAL_FLOATS.get(plain):
        return value
    number = plain.replace("_", "") if plain[0] in "+-0123456789" else plain
    if len(number) > _MAX_GO_NUMBER_CHARACTERS:
        return plain
    if _GO_INTEGER.fullmatch(number):
        integer = _integer(number)
        if _MIN_GO_INTEGER <= integer <= _MAX_GO_INTEGER:
            return str(integer)
    return _go_float(float(number)) if _GO_FLOAT.fullmatch(number) else plain


_MAX_GO_NUMBER_CHARACTERS = 100
_MIN_GO_INTEGER, _MAX_SIGNED_GO_INTEGER, _MAX_GO_INTEGER = -(2**63), 2**63 - 1, 2**64 - 1


def _integer(text: str) -> int:
    """Converts a whole number in any notation of Go's YAML. Raises `ValueError`."""
    digits = text.lower().lstrip("+-")
    base = {"0x": 16, "0b": 2, "0o": 8}.get(digits[:2]) or (8 if digits.startswith("0") else 10)
    return int(digits, base) * (-1 if text.startswith("-") else 1)


def _go_float(number: float) -> str:
    """A number as Go's FormatFloat(number, 'g', -1, 32) writes it: the fewest digits that are this float32."""
    try:
        single = _FLOAT32.unpack(_FLOAT32.pack(number))[0]
    except OverflowError:
        single = math.copysign(math.inf, number)
    if math.isinf(single):
        return "+Inf" if single > 0 else "-Inf"
    digits = next(
        digits for digits in range(9) if _FLOAT32.unpack(_FLOAT32.pack(float(f"{single:.{digits}e}")))[0] == single
    )
    mantissa, _, exponent = f"{single:.{digits}e}".partition("e")
    if not -4 <= int(exponent) < 6:
        return f"{mantissa}e{int(exponent):+03d}"
    return f"{single:.{max(0, digits - int(exponent))}f}"


_FLOAT32 = struct.Struct("f")


def parse(text: str) -> dict[str, Any] | None:
    """Parses values typed by a user; `None` for a blank text. Raises `Invalid`."""
    if not text.strip():
        return None
    if len(text) > _MAX_TEXT_CHARACTERS:
        raise Invalid(f"values: more than {_MAX_TEXT_CHARACTERS} characters")
    plain = load(text, "values", takes_aliases=False)
    check_text(plain)
    return plain


_SEPARATOR = re.compile(r"^---(?:[ \t\r]*\n|(?=\s|\Z))", re.MULTILINE)


def split_documents(text: str) -> list[str]:
    """The texts between the document separators of YAML, not parsed."""
    return _SEPARATOR.split(text)


def load(text: str, where: str, takes_aliases: bool = True) -> dict[str, Any]:
    """Reads a mapping of YAML as helm reads values; an empty text is an empty mapping. Raises `Invalid`."""
    try:
        for event in check_events(text, _ValueLoader, where):
            if not takes_aliases and isinstance(event, yaml.AliasEvent):
                raise Invalid(f"{where}: aliases (*name) are not supported here")
        documents = list(yaml.load_all(text, _ValueLoader))
    except yaml.YAMLError as fault:
        mark = getattr(fault, "problem_mark", None)
        at = f" (line {mark.line + 1}, column {mark.column + 1})" if mark else ""
        raise Invalid(f"{where}: not YAML: {getattr(fault, 'problem', None) or 'it cannot be parsed'}{at}") from None
    except RecursionError:
        raise Invalid(f"{where}: nested too deeply") from None
    except (ValueError, LookupError):  # `!!int abc`, `!!bool abc`, `!!float ""`
        raise Invalid(f"{where}: a value does not fit its tag, or a number is too large") from None
    if any(document is not None for document in documents[1:]):
        raise Invalid(f"{where}: more than one document")
    value = documents[0] if documents else None
    if value is not None and not isinstance(value, dict):
        raise Invalid(f"{where}: a mapping is expected (name: value)")
    return dict(_plain(value or {}, where, 0))


def _plain(value: Any, where: str, depth: int) -> Any:
    """Converts a parsed value to what JSON can hold."""
    if depth > _MAX_VALUE_DEPTH:
        raise Invalid(f"{where}: nested too deeply")
    if isinstance(value, dict):
        return {_key(key, where): _plain(item, where, depth + 1) for key, item in value.items()}
    if isinstance(value, list):
        return [_plain(item, where, depth + 1) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        raise Invalid(f"{where}: a number is not finite")
    if value is None or isinstance(value, str | bool | int | float):
        return value
    if isinstance(value, bytes):  # !!binary
        return value.decode("utf-8", "replace")
    raise Invalid(f"{where}: {type(value).__name__} is not a type that helm accepts")


def _key(key: Any, where: str) -> str:
    """A name as helm has it: 1.0 is 1, y is true. Raises `Invalid`."""
    if isinstance(key, str):
        return key
    if isinstance(key, bool):
        return "true" if key else "false"
    if isinstance(key, int) and _MIN_GO_INTEGER <= key <= _MAX_SIGNED_GO_INTEGER:
        return str(key)
    if not isinstance(key, int | float) or _MAX_SIGNED_GO_INTEGER < key <= _MAX_GO_INTEGER:
        raise Invalid(f"{where}: a name must be text")
    if math.isnan(key):
        return ".nan"
    if math.isinf(key):
        return ".inf" if key > 0 else "-.inf"
    return {"+Inf": ".inf", "-Inf": "-.inf"}.get(text := _go_float(float(key)), text)
