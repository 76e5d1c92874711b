"""Text for people. Every string that a file or the environment may have chosen is escaped here, and only here is anything printed.

The same rules as core/base/shown.h of the program: one line, without characters that steer a terminal, are invisible or begin a command of a CI runner.
"""
from __future__ import annotations

import sys  # unicodedata and warnings where they are used: the command `shardlens` needs neither of them to start the program

TYPE_CHECKING = False  # see program.py
if TYPE_CHECKING:
    from typing import NoReturn

_NAMED = {"\n": "\\n", "\r": "\\r", "\t": "\\t"}
# Default_Ignorable_Code_Point of other categories than Cf, without the variation selectors of emoji.
_INVISIBLE = ((0x34F, 0x34F), (0x115F, 0x1160), (0x17B4, 0x17B5), (0x180B, 0x180F), (0x2065, 0x2065), (0x3164, 0x3164), (0xFFA0, 0xFFA0),
              (0xFFF0, 0xFFFB), (0xFFFE, 0xFFFF), (0xE0000, 0xE0FFF))

# Characters that are never escaped, ":" at the beginning aside. Most text has no others, and lines of a training loop should cost little.
_PLAIN = frozenset(map(chr, range(0x20, 0x7F))) - {"#"} | {"×", "…"}


def _changes_display(char: str) -> bool:
    if char.isascii():
        return not char.isprintable()
    import unicodedata

    return unicodedata.category(char) in ("Cc", "Cf", "Cs", "Zl", "Zp") or any(first <= ord(char) <= last for first, last in _INVISIBLE)


def _begins_command(text: str, at: int) -> bool:
    """Whether "#vso[", "#[" or the like is there: the end of what begins a runner's command."""
    rest = text[at + 1:at + 40].lstrip("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ")
    return rest.startswith("[")


def _escape(char: str) -> str:
    number = ord(char)
    if 0xDC80 <= number <= 0xDCFF:  # a byte that is not UTF-8, as os.fsdecode has it
        return f"\\x{number - 0xDC00:02x}"
    return _NAMED.get(char) or (f"\\x{number:02x}" if number < 0x80 else f"\\u{{{number:x}}}")


def shown(text: object) -> str:
    """str(text) on one line, escaped. What is escaped already stays."""
    text = str(text)
    if _PLAIN.issuperset(text) and not text.lstrip().startswith(":"):
        return text
    out, in_front = [], True  # only spaces so far
    for at, char in enumerate(text):
        escape = _changes_display(char) or (char == ":" and in_front) or (char == "#" and _begins_command(text, at))
        out.append(_escape(char) if escape else char)
        in_front = in_front and char.isspace() and not escape
    return "".join(out)


def quoted(text: object) -> str:
    """A name in quotes, for a message."""
    return f"'{shown(text)}'"


def shown_lines(text: object) -> str:
    """Text of several lines, such as the program's messages, each of them escaped."""
    return "\n".join(map(shown, str(text).split("\n")))


def say(text: object) -> None:
    """Prints one line."""
    print(shown(text))


def complain(text: object) -> None:
    """Prints one line on stderr."""
    print(shown(text), file=sys.stderr)


def complain_lines(text: object) -> None:
    """Prints several lines on stderr, such as a traceback."""
    print(shown_lines(text).rstrip("\n"), file=sys.stderr)


def give_up(text: object) -> NoReturn:
    """Ends the program with a message and exit code 1."""
    complain(text)
    sys.exit(1)


def warn(text: object, stacklevel: int, category: type[Warning] = RuntimeWarning) -> None:
    """A warning of the caller's caller, and so on."""
    import warnings

    warnings.warn(shown(text), category, stacklevel=stacklevel + 1)
