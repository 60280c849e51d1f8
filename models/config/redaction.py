"""Hides values of a configuration that look like secrets, by their names."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

HIDDEN = "(hidden)"

_NAME = re.compile(r"pass(word|wd|phrase)?|secret|token|api[-_]?key|private[-_]?key|credential|auth|cookie|dsn", re.I)
_OPTION = re.compile(r"(--?[\w.-]+)(=(.*))?", re.S)
_USER_INFO = re.compile(r"(?<=://)[^/@\s]+(?=@)")


def is_secret(name: str) -> bool:
    """Whether a value of this name is likely to be a secret."""
    return bool(_NAME.search(name))


def shown_words(words: Sequence[str]) -> list[str]:
    """A command in which the values of secret options, and credentials within URLs, are hidden."""
    shown: list[str] = []
    hide_next = False
    for word in words:
        option = _OPTION.fullmatch(word)
        if hide_next and not option:
            shown.append(HIDDEN)
        elif option and option[2] and is_secret(option[1]):
            shown.append(f"{option[1]}={HIDDEN}")
        elif "=" in word and not option and is_secret(word.partition("=")[0]):
            shown.append(f"{word.partition('=')[0]}={HIDDEN}")
        else:
            shown.append(_USER_INFO.sub(HIDDEN, word))
        hide_next = bool(option and not option[2] and is_secret(option[1]))
    return shown


def shown_address(url: str) -> str:
    """A URL without its credentials and its query."""
    return _USER_INFO.sub(HIDDEN, url.partition("?")[0])


def shown_environment(environment: Mapping[str, str]) -> dict[str, str]:
    """Variables with secret values, and credentials within URLs, hidden."""
    return {name: HIDDEN if is_secret(name) else _USER_INFO.sub(HIDDEN, text) for name, text in environment.items()}
