"""`completion`: scripts that complete commands, options, and names of processes in three shells."""

from __future__ import annotations

import argparse
from collections.abc import Iterator

from supervisor.cli.ctl.options import parser

_NAMED = (
    "status",
    "start",
    "stop",
    "restart",
    "signal",
    "tail",
    "logs",
    "clear",
    "events",
    "wait",
    "pid",
    "schedule",
    "top",
)
"""The commands that take selectors."""

_BASH = """\
_pilothouse() {
    local current=${COMP_WORDS[COMP_CWORD]} command= word
    [[ ${COMP_WORDS[1]} == ctl ]] || return
    for word in "${COMP_WORDS[@]:2:COMP_CWORD-2}"; do
        case $word in
            (@COMMANDS_BAR@) command=$word; break;;
        esac
    done
    local IFS=$'\\n'
    if [[ -z $command ]]; then
        COMPREPLY=($(compgen -W $'@COMMANDS_LINES@' -- "$current"))
    elif [[ $current == -* ]]; then
        case $command in
@OPTIONS_BASH@
        esac
    elif [[ $command == completion ]]; then
        COMPREPLY=($(compgen -W $'bash\\nzsh\\nfish' -- "$current"))
    else
        case $command in
            (@NAMED_BAR@)
                local name
                while read -r name; do
                    [[ $name == "$current"* ]] && COMPREPLY+=("$(printf %q "$name")")
                done < <(printf 'all\\n'; "${COMP_WORDS[0]}" ctl names 2>/dev/null);;
        esac
    fi
}
complete -F _pilothouse pilothouse
"""

_ZSH = """\
#compdef pilothouse
_pilothouse() {
    local command word
    [[ ${words[2]} == ctl ]] || return
    for word in ${words[3,CURRENT-1]}; do
        case $word in
            (@COMMANDS_BAR@) command=$word; break;;
        esac
    done
    if [[ -z $command ]]; then
        compadd -- @COMMANDS@
    elif [[ $PREFIX == -* ]]; then
        case $command in
@OPTIONS_ZSH@
        esac
    elif [[ $command == completion ]]; then
        compadd -- bash zsh fish
    else
        case $command in
            (@NAMED_BAR@) compadd -- all ${(f)"$(${words[1]} ctl names 2>/dev/null)"};;
        esac
    fi
}
if [[ ${funcstack[1]} == _pilothouse ]]; then
    _pilothouse "$@"  # autoloaded from fpath by the first completion
else
    compdef _pilothouse pilothouse
fi
"""

_FISH = """\
function __pilothouse_ctl_command
    for word in (commandline -opc)[3..-1]
        if contains -- $word @COMMANDS@
            echo $word
            return
        end
    end
end
function __pilothouse_ctl_needs_command
    set -l words (commandline -opc)
    test "$words[2]" = ctl; and test -z (__pilothouse_ctl_command)
end
function __pilothouse_ctl_in
    contains -- (__pilothouse_ctl_command) $argv
end
function __pilothouse_ctl_names
    echo all
    eval (commandline -opc)[1] ctl names 2>/dev/null
end
complete -c pilothouse -f
complete -c pilothouse -n __pilothouse_ctl_needs_command -a '@COMMANDS@'
complete -c pilothouse -n '__pilothouse_ctl_in @NAMED@' -a '(__pilothouse_ctl_names)'
complete -c pilothouse -n '__pilothouse_ctl_in completion' -a 'bash zsh fish'
@OPTIONS_FISH@
"""


def script(shell: str) -> str:
    """The script of a shell, made from the parser."""
    options = dict(_options())
    lines = {
        "COMMANDS": " ".join(options),
        "COMMANDS_BAR": "|".join(options),
        "COMMANDS_LINES": "\\n".join(options),
        "NAMED": " ".join(_NAMED),
        "NAMED_BAR": "|".join(_NAMED),
        "OPTIONS_BASH": "\n".join(
            f"            ({name}) COMPREPLY=($(compgen -W $'{_joined(words)}' -- \"$current\"));;"
            for name, words in options.items()
        ),
        "OPTIONS_ZSH": "\n".join(
            f"            ({name}) compadd -- {' '.join(words)};;" for name, words in options.items()
        ),
        "OPTIONS_FISH": "\n".join(
            f"complete -c pilothouse -n '__pilothouse_ctl_in {name}' -l {word.removeprefix('--')}"
            for name, words in options.items()
            for word in words
        ),
    }
    text = {"bash": _BASH, "zsh": _ZSH, "fish": _FISH}[shell]
    for name, value in lines.items():
        text = text.replace(f"@{name}@", value)
    return text


def _joined(words: list[str]) -> str:
    return "\\n".join(words)


def _options() -> Iterator[tuple[str, list[str]]]:
    """Each command that is shown in the help, with its long options."""
    for action in parser()._actions:
        if isinstance(action, argparse._SubParsersAction):
            shown = {choice.dest for choice in action._choices_actions}
            for name, command in action.choices.items():
                if name in shown:
                    yield name, [word for one in command._actions for word in one.option_strings if word[:2] == "--"]
