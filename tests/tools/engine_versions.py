#!/usr/bin/env python3
"""Compares the results of the engine's tests with several versions of torch; scripts/engine_torch calls it.

    engine_versions.py VERSION=FOLDER…      FOLDER: what each test program wrote with GTEST_OUTPUT=json:FOLDER/, and parity_table (parity_table.py --json)
    engine_versions.py --self-test          a test that passed, failed, was skipped or did not run must be reported as that

Prints the counts of each version, and each test and row of the parity table that is not as with the first version. Exit code 1 if one failed, or ran
with one version only: a program that ends early writes nothing.
"""
import contextlib
import io
import json
import sys
import tempfile
from pathlib import Path


def outcomes(folder):
    """Test or row: (its outcome, why it failed)."""
    found = {}
    for path in sorted(folder.glob("*.json")):
        for suite in json.loads(path.read_text())["testsuites"]:
            for test in suite["testsuite"]:
                failures = [each["failure"].strip() for each in test.get("failures", ())]
                skipped = test.get("result") == "SKIPPED" or test.get("status") == "NOTRUN"
                found[f"{path.stem} {suite['name']}.{test['name']}"] = ("failed", failures[0]) if failures else ("skipped" if skipped else "passed", "")
    table = folder / "parity_table"
    for line in table.read_text().splitlines() if table.exists() else ():
        row = json.loads(line)
        name = f"parity table {row['row']} {row['layout']} {row['model']} on {row['world_size']} ranks"
        found[name] = ("passed", "") if row["equal"] else ("failed", str(row["failure"] or "numbers differ"))
    return found


def main(arguments):
    versions = {version: outcomes(Path(folder)) for version, folder in (each.split("=", 1) for each in arguments)}
    failed = False
    for version, found in versions.items():
        kinds = [outcome for outcome, _ in found.values()]
        counts = {kind: kinds.count(kind) for kind in ("passed", "failed", "skipped")}
        print(f"torch {version}: " + ", ".join(f"{count} {kind}" for kind, count in counts.items()))
        failed = failed or counts["failed"] > 0 or counts["passed"] == 0
    first, *others = versions
    for version in others:
        one, other = versions[first], versions[version]
        for name in sorted(one | other):
            (before, _), (after, why) = one.get(name, ("not run", "")), other.get(name, ("not run", ""))
            failed = failed or "not run" in (before, after)
            if before != after or after == "failed":
                print(f"{name}: {before} with {first}, {after} with {version}{': ' + why.splitlines()[0] if why else ''}")
    return 1 if failed else 0


def self_test():
    def program(**tests):
        return json.dumps({"testsuites": [{"name": "A", "testsuite": [{"name": name, **result} for name, result in tests.items()]}]})

    passed, skipped, wrong = {}, {"result": "SKIPPED"}, {"failures": [{"failure": "x.cpp:1\n1 is not 2"}]}
    row = json.dumps({"row": "r", "layout": "flat", "model": "m", "world_size": 2, "equal": True, "failure": None})
    # Each case: the files with the second version, whose first version passes everything, the exit code, and the line that names the difference.
    cases = {
        "all pass": ({"a.json": program(B=passed), "parity_table": row}, 0, None),
        "one fails": ({"a.json": program(B=wrong), "parity_table": row}, 1, "a A.B: passed with 1, failed with 2: x.cpp:1"),
        "one is skipped": ({"a.json": program(B=skipped), "parity_table": row}, 0, "a A.B: passed with 1, skipped with 2"),
        "a program ends early": ({"parity_table": row}, 1, "a A.B: passed with 1, not run with 2"),
        "a row differs": ({"a.json": program(B=passed), "parity_table": row.replace("true", "false")}, 1,
                          "parity table r flat m on 2 ranks: passed with 1, failed with 2: numbers differ"),
    }
    failures = []
    with tempfile.TemporaryDirectory() as scratch:
        for name, (files, expected, difference) in cases.items():
            folders = [Path(scratch) / name / version for version in ("1", "2")]
            for folder, contents in zip(folders, (cases["all pass"][0], files)):
                folder.mkdir(parents=True)
                for file, content in contents.items():
                    (folder / file).write_text(content)
            with contextlib.redirect_stdout(io.StringIO()) as printed:
                code = main([f"{folder.name}={folder}" for folder in folders])
            lines = printed.getvalue().splitlines()[2:]
            if code != expected or lines != ([difference] if difference else []):
                failures.append(f"{name}: exit code {code}, printed {lines}")
    print("\n".join(failures) if failures else f"engine_versions self-test: {len(cases)} cases as expected")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(self_test() if sys.argv[1:] == ["--self-test"] else main(sys.argv[1:]))
