#!/usr/bin/env python3
"""Compares the results of the engine's tests with several versions of torch; scripts/engine_torch calls it.

    engine_versions.py VERSION=FOLDER…      FOLDER: what each test program wrote with GTEST_OUTPUT=json:FOLDER/, and parity_table (parity_table.py --json)

Prints the counts of each version, and each test and row of the parity table that is not as with the first version. Exit code 1 if one failed.
"""
import json
import sys
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
            if before != after or after == "failed":
                print(f"{name}: {before} with {first}, {after} with {version}{': ' + why.splitlines()[0] if why else ''}")
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main(sys.argv[1:])
