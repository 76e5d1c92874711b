#!/usr/bin/env python3
"""Checks that the compiler refuses each line of a source with the comment "// refused", and no other line.

    check_refused.py COMPILER FILE
"""
import pathlib
import re
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent


def main():
    compiler, file = sys.argv[1:]
    source = pathlib.Path(file).read_text(encoding="utf-8").splitlines()
    expected = {number for number, line in enumerate(source, 1) if line.endswith("// refused")}
    ended = subprocess.run([compiler, "-std=c++20", "-fsyntax-only", "-fmax-errors=0", "-fdiagnostics-color=never", f"-I{ROOT}", file],
                           capture_output=True, text=True, check=False, env={"PATH": "/usr/bin:/bin", "LC_ALL": "C"})
    # An error inside of a template names the line that needs it in a note.
    named = re.compile(rf"^(?:{re.escape(file)}):(\d+):\d+:\s+(?:error: |.*required from here|in 'constexpr' expansion)", re.M)
    found = {int(number) for number in named.findall(ended.stderr)}
    wrong = [f"{file}:{number}: is compiled, expected to be refused" for number in sorted(expected - found)]
    wrong += [f"{file}:{number}: is refused, expected to be compiled" for number in sorted(found - expected)]
    print("\n".join(wrong) or f"{len(expected)} lines are refused")
    if wrong or not expected:
        print(ended.stderr[-3000:])
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
