#!/usr/bin/env python3
"""Checks docs/reference/parity.md and the pages of docs/reference/parity: every test that a row names exists, every row names a test or a reason,
every feature has its row, and the totals of docs/reference/parity.md are those of the pages.

    check_parity.py [ROOT]       prints every violation as file:line, exit 1 if there is one
    check_parity.py --self-test  tables with one violation of each kind must be reported

docs/reference/parity.md lists the pages: `| [title](parity/page.md) | works | refused | differs | out of scope |`, and their sums as `all`.
A row of a page is `| behaviour | status | test or reason |`. Rows that are `works`, `refused` or `differs` name at least one
test as `Suite.Name`; rows that are `out of scope` give a reason instead. Each line of .ci/parity_rows.txt is the first cell of
one row.
"""
import collections
import pathlib
import re
import sys
import tempfile

import checking

INDEX = "docs/reference/parity.md"
PAGES = "docs/reference/parity"
FEATURES = ".ci/parity_rows.txt"
TESTED = ("works", "refused", "differs")
UNTESTED = ("out of scope",)
STATUSES = TESTED + UNTESTED
HEADER = ["behaviour", "works/refused/out of scope", "test"]
MACRO = re.compile(r"^\s*TEST(?:_F|_P)?\(\s*(\w+)\s*,\s*(\w+)\s*\)", re.M)
NAMED = re.compile(r"`([A-Z]\w*\.[A-Z]\w*)`")
CELL = re.compile(r"(?<!\\)\|")
LINK = re.compile(r"\[[^\]]*\]\(parity/([^)]+)\)")


def existing(root):
    return {".".join(found) for file in (root / "tests").glob("**/*_test.cpp")
            for found in MACRO.findall(file.read_text(encoding="utf-8"))}


def cells_of(line):
    return [cell.strip() for cell in CELL.split(line)[1:-1]]


def check_row(where, cells, tests):
    named = NAMED.findall(cells[2])
    if cells[1] not in STATUSES:
        yield f"{where}: status '{cells[1]}', expected one of {', '.join(STATUSES)}"
    elif cells[1] in TESTED and not named:
        yield f"{where}: '{cells[1]}' names no test"
    elif cells[1] in UNTESTED and not cells[2]:
        yield f"{where}: '{cells[1]}' gives no reason"
    for test in named:
        if test not in tests:
            yield f"{where}: there is no test {test}"


def check_index(root, totals):
    """`totals`: page name to its number of rows by status."""
    listed = []
    for number, line in enumerate((root / INDEX).read_text(encoding="utf-8").splitlines(), 1):
        cells = cells_of(line) if line.startswith("|") else []
        page = LINK.search(cells[0]) if cells else None
        if not page and (not cells or cells[0] != "all"):
            continue
        if page and page.group(1) not in totals:
            yield f"{INDEX}:{number}: there is no page {PAGES}/{page.group(1)}"
            continue
        counted = totals[page.group(1)] if page else sum(totals.values(), collections.Counter())
        listed.append(page.group(1) if page else "all")
        expected = [str(counted[status]) for status in STATUSES]
        if cells[1:] != expected:
            yield f"{INDEX}:{number}: totals {' | '.join(cells[1:])}, expected {' | '.join(expected)}"
    for name in sorted({*totals, "all"} - {*listed}):
        yield f"{INDEX}:1: no line of totals for '{name}'"


def violations(root):
    tests = existing(root)
    missing = (root / FEATURES).read_text(encoding="utf-8").splitlines()
    features = set(missing)
    totals = {}
    for page in sorted((root / PAGES).glob("*.md")):
        document = page.relative_to(root).as_posix()
        counted = totals.setdefault(page.name, collections.Counter())
        for number, line in enumerate(page.read_text(encoding="utf-8").splitlines(), 1):
            if not line.startswith("|"):
                continue
            where = f"{document}:{number}"
            cells = cells_of(line)
            if cells == HEADER or all(set(cell) <= set("-: ") for cell in cells):
                continue
            if len(cells) != len(HEADER):
                yield f"{where}: {len(cells)} cells, expected {len(HEADER)}: {' | '.join(HEADER)}"
                continue
            if cells[0] in missing:
                missing.remove(cells[0])
            elif cells[0] in features:
                yield f"{where}: a second row for '{cells[0]}'"
            counted[cells[1]] += 1
            yield from check_row(where, cells, tests)
        if not counted:
            yield f"{document}:1: no rows"
    for feature in missing:
        yield f"{INDEX}:1: no row for '{feature}' in {PAGES}; expected one, because {FEATURES} lists it"
    yield from check_index(root, totals)


def self_test():
    row = "| a | {} | {} |\n"
    feature = "| 1.1 feature | works | `ATest.Works` |\n"
    good = ("| behaviour | works/refused/out of scope | test |\n|---|---|---|\n" + row.format("works", "`ATest.Works`") +
            row.format("out of scope", "why") + feature)
    index = "| page | works | refused | differs | out of scope |\n|---|---|---|---|---|\n"
    # Each case: the page, the index, the number of violations.
    whole = index + "| [A](parity/a.md) | 2 | {0} | 0 | 1 |\n| all | 2 | {0} | 0 | 1 |\n"
    plain = whole.format(0)
    cases = {
        "clean": (good + row.format("refused", "`BTest.AlsoThere`"), whole.format(1), 0),
        "status": (good + row.format("done", "`ATest.Works`"), plain, 1),
        "nothing named": (good + row.format("refused", "everywhere"), whole.format(1), 1),
        "no reason": (good.replace("| why |", "|  |"), plain, 1),
        "gone": (good + row.format("refused", "`ATest.Works`, `ATest.Gone`"), whole.format(1), 1),
        "cells": (good + row.format("refused", "`ATest.Works` | more"), plain, 1),
        "twice": (good + feature, plain.replace("| 2 |", "| 3 |"), 1),
        "missing": (good.replace(feature, ""), plain.replace("| 2 |", "| 1 |"), 1),
        "empty": ("no table", plain.replace("| 2 |", "| 0 |").replace("| 1 |", "| 0 |"), 2),
        "totals": (good, plain.replace("[A](parity/a.md) | 2", "[A](parity/a.md) | 4"), 1),
        "sum": (good, plain.replace("all | 2", "all | 4"), 1),
        "page not listed": (good, index + "| all | 2 | 0 | 0 | 1 |\n", 1),
        "page listed and gone": (good, plain + "| [B](parity/b.md) | 0 | 0 | 0 | 0 |\n", 1),
        "no sum": (good, plain[:plain.index("| all")], 1),
    }
    failures = []
    with tempfile.TemporaryDirectory() as folder:
        root = pathlib.Path(folder)
        for name in (PAGES, "tests", ".ci"):
            (root / name).mkdir(parents=True)
        (root / "tests/a_test.cpp").write_text("TEST(ATest, Works) {}\nTEST_F(\n    BTest, AlsoThere) {}\n", encoding="utf-8")
        (root / FEATURES).write_text("1.1 feature\n", encoding="utf-8")
        for name, (page, listing, expected) in cases.items():
            (root / PAGES / "a.md").write_text(page, encoding="utf-8")
            (root / INDEX).write_text(listing, encoding="utf-8")
            found = list(violations(root))
            if len(found) != expected:
                failures.append(f"{name}: expected {expected} violations, found {found}")
    print("\n".join(failures) if failures else
          f"check_parity self-test: {len(cases) - 1} damaged documents reported, the clean one passed")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(checking.run("check_parity", violations, self_test, "every feature has its row, every row names tests that exist or a reason, the totals are right"))
