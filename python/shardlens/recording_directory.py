"""The directory of a recording: the mark by which the next recording knows that it may replace what is there.

The mark is a file with an identifier, which run.json has too. Names such as run.json or plan.json do not say who made a file.
"""
from __future__ import annotations

import json
import os
import re
import secrets
from pathlib import Path

from . import files

MARK = ".shardlens-recording"
_TEXT = "recording of shardlens "
_OURS = re.compile(r"rank\d+\.(pt\.trace\.json\.gz|actions\.jsonl)|(run|plan|model|config)\.json|metrics\.jsonl")
_MOST = 1 << 20  # bytes of a mark or a run.json


def _content(path: Path) -> str:
    """The text of a small file, "" if there is none."""
    try:
        if not path.is_file() or path.stat().st_size > _MOST:
            return ""
        return path.read_text(encoding="utf-8")
    except (OSError, ValueError):
        return ""


def identifier(directory: str | os.PathLike[str]) -> str:
    """The identifier in the mark of a directory, for run.json; "" without a mark."""
    text = _content(Path(directory) / MARK)
    return text[len(_TEXT):].strip() if text.startswith(_TEXT) else ""


def _is_ours(directory: Path) -> bool:
    """Whether the directory was made for a recording, finished or not."""
    marked = identifier(directory)
    if not marked or not (directory / "run.json").exists():  # not there if the recording ended before it wrote the file
        return bool(marked)
    try:
        run = json.loads(_content(directory / "run.json"))
    except ValueError:
        return False
    return isinstance(run, dict) and run.get("recording") == marked


def claim(directory: str | os.PathLike[str], force: bool = False) -> None:
    """Makes the directory, and marks it if no rank has.

    No rank writes before it has seen a mark, so files that are there without one are from before: FileExistsError unless `force`."""
    directory = Path(directory)
    files.make_folder(directory)
    if _is_ours(directory):
        return
    there = sorted(path.name for path in directory.iterdir() if _OURS.fullmatch(path.name))
    if _is_ours(directory):
        return
    if there and not force:
        names = ", ".join(there[:4]) + (f" and {len(there) - 4} more" if len(there) > 4 else "")
        raise FileExistsError(f"{directory} has {names}, without the mark of shardlens.record; choose another directory, or force=True to replace them")
    files.write(directory / MARK, _TEXT + secrets.token_hex(16) + "\n")
