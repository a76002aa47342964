"""Shell completion: `course --completion SHELL` prints a script, which asks `course --complete WORDS` at each Tab."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

SCRIPTS = {
    "bash": """\
# in ~/.bashrc: eval "$(course --completion bash)"
_course() { mapfile -t COMPREPLY < <(course --complete "${COMP_WORDS[@]:1:COMP_CWORD}" 2>/dev/null); }
complete -o default -F _course course
""",
    "zsh": """\
# in ~/.zshrc, after compinit: eval "$(course --completion zsh)"
_course() { compadd -- $(course --complete "${(@)words[2,CURRENT]}" 2>/dev/null) || _files }
compdef _course course
""",
    "fish": """\
# in ~/.config/fish/config.fish: course --completion fish | source
complete -c course -a '(course --complete (commandline -opc)[2..] (commandline -ct) 2>/dev/null)'
""",
}


def candidates(
    words: Sequence[str], subcommands: Iterable[str], arguments: Callable[[str], Iterable[str]]
) -> list[str]:
    """The words that may replace the last one.

    Args:
        words: those after `course` and before the cursor; the last one may be incomplete or empty.
        subcommands: the first words.
        arguments: gives the options and exercises that a subcommand takes.
    """
    *before, last = words or [""]
    found = [*subcommands, "--help", "--version"]
    if before:
        found = arguments(before[0]) if before[0] in subcommands else []
    return [each for each in found if each.startswith(last)]
