#!/usr/bin/env python3
"""Runs each failed test of a CTest run again by itself, to tell an unsteady test from a broken one.

    rerun_failed.py --report JUNIT --list FILE [--most 5] -- ctest ARGUMENT…

JUNIT is the report of the run. A test that passes now is unsteady: the outputs of both runs are printed, and a line with the date and the test
is added to FILE. A test that is in FILE twice already, or that fails again, has failed. If more than --most tests failed, something larger is
broken, and none is run again. After a line "== Verdicts" there is a line "unsteady NAME" or "failed NAME" for each test. Exit code 1: a test has
failed.
"""
import argparse
import datetime
import re
import subprocess
import sys
import xml.etree.ElementTree as tree
from pathlib import Path

TIMES = 2  # a test that was unsteady so often already has failed
LINES = 40  # of an output that are printed


def failed_in(report):
    """{name: output} of the tests that failed."""
    return {case.get("name"): case.findtext("system-out") or "" for case in tree.parse(report).iter("testcase") if case.get("status") == "fail"}


def listed(file):
    """How often the list has each test."""
    count = {}
    for line in file.read_text(encoding="utf-8").splitlines() if file.exists() else ():
        if line.strip() and not line.startswith("#"):
            name = line.split(maxsplit=1)[1]
            count[name] = count.get(name, 0) + 1
    return count


def passes_now(ctest, name):
    """Whether the test passes by itself, and what it printed."""
    done = subprocess.run([*ctest, "-R", f"^{re.escape(name)}$", "--output-on-failure", "--no-tests=error"], stdin=subprocess.DEVNULL,
                          stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace", check=False)
    return done.returncode == 0, done.stdout


def show(title, output):
    print(f"== {title}", *output.rstrip().splitlines()[-LINES:], sep="\n")


def judge(failures, before, ctest, most):
    """[(test, whether it is only unsteady)]"""
    if len(failures) > most:
        print(f"== {len(failures)} tests failed, more than {most}: none is run again")
    verdicts = []
    for name, output in failures.items():
        show(f"the last lines of {name}", output)
        steady = len(failures) > most
        if not steady:
            passed, again = passes_now(ctest, name)
            show(f"{name}, run again by itself, {'passed' if passed else 'failed'}", again)
            steady = not passed
        if not steady and before.get(name, 0) >= TIMES:
            print(f"{name} has been unsteady {before[name]} times before: it counts as failed")
            steady = True
        verdicts.append((name, not steady))
    return verdicts


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--report", type=Path, required=True)
    parser.add_argument("--list", type=Path, required=True)
    parser.add_argument("--most", type=int, default=5)
    parser.add_argument("ctest", nargs="+")
    arguments = parser.parse_args()
    verdicts = judge(failed_in(arguments.report), listed(arguments.list), arguments.ctest, arguments.most)
    unsteady = [name for name, only in verdicts if only]
    with arguments.list.open("a", encoding="utf-8") as file:
        file.writelines(f"{datetime.date.today()} {name}\n" for name in unsteady)
    print("== Verdicts")
    for name, only in verdicts:
        print("unsteady" if only else "failed", name)
    return 0 if len(unsteady) == len(verdicts) else 1


if __name__ == "__main__":
    sys.exit(main())
