#!/usr/bin/env python3
"""Checks docs/parity.md: every test that it names exists, every row has a test or a reason, and every feature has its row.

    check_parity.py [ROOT]       prints every violation as file:line, exit 1 if there is one
    check_parity.py --self-test  finds the violations in tables with one of each kind

A row is `| behaviour | status | test or reason |`. Rows with status `works`, `refused` or `differs` name at least one test as
`Suite.Name`; rows with status `out of scope` give a reason instead. Each line of .ci/parity_rows.txt is the first cell of one row.
"""
import pathlib
import re
import sys
import tempfile

import checking

DOCUMENT = "docs/parity.md"
FEATURES = ".ci/parity_rows.txt"
TESTED = ("works", "refused", "differs")
UNTESTED = ("out of scope",)
HEADER = ["behaviour", "works/refused/out of scope", "test"]
MACRO = re.compile(r"^\s*TEST(?:_F|_P)?\(\s*(\w+)\s*,\s*(\w+)\s*\)", re.M)
NAMED = re.compile(r"`([A-Z]\w*\.[A-Z]\w*)`")
CELL = re.compile(r"(?<!\\)\|")


def existing(root):
    return {".".join(found) for file in (root / "tests").glob("**/*_test.cpp")
            for found in MACRO.findall(file.read_text(encoding="utf-8"))}


def violations(root):
    tests = existing(root)
    rows = 0
    missing = (root / FEATURES).read_text(encoding="utf-8").splitlines()
    features = set(missing)
    for number, line in enumerate((root / DOCUMENT).read_text(encoding="utf-8").splitlines(), 1):
        if not line.startswith("|"):
            continue
        where = f"{DOCUMENT}:{number}"
        cells = [cell.strip() for cell in CELL.split(line)[1:-1]]
        if cells == HEADER or all(set(cell) <= set("-: ") for cell in cells):
            continue
        if len(cells) != len(HEADER):
            yield f"{where}: {len(cells)} cells, expected {len(HEADER)}: {' | '.join(HEADER)}"
            continue
        rows += 1
        if cells[0] in missing:
            missing.remove(cells[0])
        elif cells[0] in features:
            yield f"{where}: a second row for '{cells[0]}'"
        named = NAMED.findall(cells[2])
        if cells[1] not in TESTED + UNTESTED:
            yield f"{where}: status '{cells[1]}', expected one of {', '.join(TESTED + UNTESTED)}"
        elif cells[1] in TESTED and not named:
            yield f"{where}: '{cells[1]}' names no test"
        elif cells[1] in UNTESTED and not cells[2]:
            yield f"{where}: '{cells[1]}' gives no reason"
        for test in named:
            if test not in tests:
                yield f"{where}: there is no test {test}"
    if rows == 0:
        yield f"{DOCUMENT}:1: no rows"
    for feature in missing:
        yield f"{DOCUMENT}:1: no row for '{feature}'; expected one, since {FEATURES} lists it"


def self_test():
    row = "| a | {} | {} |\n"
    feature = "| 1.1 feature | works | `ATest.Works` |\n"
    good = "| behaviour | works/refused/out of scope | test |\n|---|---|---|\n" + row.format("works", "`ATest.Works`") + row.format("out of scope", "why") + feature
    bad = {"status": ("done", "`ATest.Works`"), "nothing named": ("works", "everywhere"), "no reason": ("out of scope", ""),
           "gone": ("works", "`ATest.Works`, `ATest.Gone`"), "cells": ("works", "`ATest.Works` | more")}
    with tempfile.TemporaryDirectory() as folder:
        root = pathlib.Path(folder)
        (root / "docs").mkdir()
        (root / "tests").mkdir()
        (root / "tests/a_test.cpp").write_text("TEST(ATest, Works) {}\nTEST_F(\n    BTest, AlsoThere) {}\n", encoding="utf-8")
        (root / ".ci").mkdir()
        (root / FEATURES).write_text("1.1 feature\n", encoding="utf-8")
        document = root / DOCUMENT
        document.write_text(good + row.format("refused", "`BTest.AlsoThere`"), encoding="utf-8")
        failures = [f"clean table: {line}" for line in violations(root)]
        for name, cells in bad.items():
            document.write_text(good + row.format(*cells), encoding="utf-8")
            found = list(violations(root))
            if len(found) != 1:
                failures.append(f"{name}: expected one violation, found {found}")
        for name, text, expected in (("twice", good + feature, 1), ("missing", good.replace(feature, ""), 1), ("empty", "no table", 2)):
            document.write_text(text, encoding="utf-8")
            if len(list(violations(root))) != expected:
                failures.append(f"{name}: expected {expected} violations")
    print("\n".join(failures) if failures else f"check_parity self-test: {len(bad) + 3} damaged documents detected, the clean table passed")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(checking.run("check_parity", violations, self_test, "every feature has its row, every row names tests that exist, or a reason"))
