"""Runs the program `shardlens` and reads its JSON."""
from __future__ import annotations

import os  # json, shutil and subprocess where they are used: the command `shardlens` needs none of them to start the program

from .shown import shown, shown_lines

TYPE_CHECKING = False  # as in typing, which takes longer to import than the rest
if TYPE_CHECKING:
    import subprocess
    from collections.abc import Collection, Sequence
    from typing import Any


class ShardlensError(RuntimeError):
    """The program refused its input or failed. `exit_code`: 2 usage, 3 input, 4 fault of the run; negative: the signal that ended the program."""

    def __init__(self, message: str, exit_code: int, lines: bool = False) -> None:
        """`lines`: the message has several, such as the program's."""
        super().__init__(shown_lines(message) if lines else shown(message))
        self.exit_code = exit_code

    def __reduce__(self) -> tuple[type[ShardlensError], tuple[str, int, bool]]:  # it may come from another process
        return ShardlensError, (str(self), self.exit_code, True)


def says_everything(excinfo: Any) -> bool:
    """Whether an error's message is enough, so that pytest hides this package's lines of its traceback. `excinfo`: pytest's ExceptionInfo."""
    return isinstance(excinfo.value, (ShardlensError, ValueError))


__tracebackhide__ = says_everything  # pytest then ends at the test's own line


def path() -> str:
    """The program: $SHARDLENS_PROGRAM, else the one in this package, else the one on PATH."""
    chosen = os.environ.get("SHARDLENS_PROGRAM")
    if chosen:
        return chosen
    packaged = os.path.join(os.path.dirname(os.path.abspath(__file__)), "bin", "shardlens")
    if os.path.exists(packaged):
        return packaged
    import shutil

    found = shutil.which("shardlens")
    if found is None:
        raise ShardlensError("the program shardlens was not found: set SHARDLENS_PROGRAM to its path, or put it on PATH", 4)
    return found


def _after_signal(arguments: Sequence[object], done: subprocess.CompletedProcess[str]) -> str:
    """What is known of a program that a signal ended: the signal, and the last line that the program printed."""
    import signal

    number = -done.returncode
    name = next((each.name for each in signal.Signals if each == number), "of unknown name")
    lines = (done.stderr.strip() or done.stdout.strip()).splitlines()
    said = f"it printed last: {lines[-1]}" if lines else "it printed nothing"
    return f"shardlens {arguments[0]} was ended by signal {number} ({name}); {said}"


def run(arguments: Sequence[object], exit_codes: Collection[int] = (0,)) -> subprocess.CompletedProcess[str]:
    """Runs the program and returns the completed process. Raises ShardlensError with the program's message for another exit code."""
    import subprocess

    done = subprocess.run([path(), *map(str, arguments)], stdin=subprocess.DEVNULL, capture_output=True, text=True, errors="replace", check=False)
    if done.returncode < 0:
        raise ShardlensError(_after_signal(arguments, done), done.returncode)
    if done.returncode not in exit_codes:
        message = done.stderr.strip() or f"shardlens ended with exit code {done.returncode}"
        raise ShardlensError(message.removeprefix("error: "), done.returncode, lines=True)
    return done


def ask(arguments: Sequence[object], exit_codes: Collection[int] = (0,)) -> Any:
    """The JSON that the program prints for `arguments` with --json."""
    import json

    return json.loads(run([*arguments, "--json"], exit_codes).stdout)
