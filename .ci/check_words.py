#!/usr/bin/env python3
"""Refuses words that docs/develop/style.md asks not to use, in comments, messages, help and documents.

    check_words.py [ROOT]       prints every violation as file:line, exit 1 if there is one
    check_words.py --self-test  a tree with one violation of each kind must be found out

The words are the left column of the table under "Plain English" in docs/develop/style.md; commas separate several in a cell.
"""
import pathlib
import re
import sys
import tempfile

import checking

STYLE = "docs/develop/style.md"
SUFFIXES = (".h", ".cpp", ".py", ".md", ".txt", ".cmake", ".html")
SKIPPED = {"build", "out", ".git", "data", "__pycache__"}


def words(root):
    inside, found = False, []
    for line in (root / STYLE).read_text(encoding="utf-8").splitlines():
        inside = (inside or line.startswith("**Plain English**")) and not line.startswith("**Header")
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if inside and line.startswith("|") and len(cells) == 2 and cells[0] not in ("not", "---"):
            found += [word.strip() for word in cells[0].split(",")]
    return found


def violations(root):
    refused = re.compile(r"(?<![\w-])(" + "|".join(re.escape(word) for word in words(root)) + r")(?![\w-])", re.I)
    for file in sorted(root.glob("**/*")):
        relative = file.relative_to(root).as_posix()
        if relative in (STYLE, ".ci/check_words.py") or not file.is_file() or SKIPPED & set(file.relative_to(root).parts):
            continue
        if file.suffix not in SUFFIXES and not relative.startswith(("scripts/", ".ci/")):
            continue
        for number, line in enumerate(file.read_text(encoding="utf-8").splitlines(), 1):
            if found := refused.search(line):
                yield f"{relative}:{number}: '{found.group()}': {STYLE} says what to write instead"


def self_test():
    table = "**Plain English**\n| not | but |\n|---|---|\n| stands for, nobody's | is |\n**Header comments**\n"
    cases = {"core/a.h": "// x stands for y", "docs/a.md": "Nobody's unit"}
    good = {STYLE: table, "core/b.h": "// x is y; it understands formats"}
    with tempfile.TemporaryDirectory() as folder:
        root = pathlib.Path(folder)
        for path, text in {**good, **cases}.items():
            (root / path).parent.mkdir(parents=True, exist_ok=True)
            (root / path).write_text(text, encoding="utf-8")
        compiled = root / ".ci/__pycache__/checking.pyc"
        compiled.parent.mkdir(parents=True)
        compiled.write_bytes(b"\xa7\r\r\n")
        found = list(violations(root))
    if sorted(line.split(":")[0] for line in found) != sorted(cases):
        print("self-test: found\n  " + "\n  ".join(found) + "\nexpected one violation in each of\n  " + "\n  ".join(sorted(cases)))
        return 1
    print(f"check_words self-test: {len(cases)} violations found, {len(good)} clean files passed")
    return 0


if __name__ == "__main__":
    sys.exit(checking.run("check_words", violations, self_test, "no word that docs/develop/style.md replaces"))
