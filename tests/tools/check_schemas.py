#!/usr/bin/env python3
"""Checks that outputs and written files are as docs/schemas says: every --json, plan.json, run.json and model.json of the commands of output_cases.py.

    check_schemas.py --bin BIN [--filter REGEX] [--jobs N]

Needs the package jsonschema (the test Python has it). Exit code 1 if something is not in a schema, which is listed once with a command that shows it.
"""
import argparse
import collections
import os
import pathlib
import re
import sys
import tempfile

import compare_outputs
import output_cases
import schemas


def problems_of(programs, case):
    """(schema, problem) of each output of a case, and how many documents there were."""
    found, documents = [], 0
    for command, answer in zip(case, programs.run(case)):
        outputs = [(schemas.of_command(command), answer["stdout"])] if isinstance(answer["stdout"], dict) else []
        for name, content in answer["files"].items():
            outputs.append((schemas.OF_FILES.get(pathlib.PurePath(name).name), content))
        for schema, document in outputs:
            if schema in schemas.names():
                documents += 1
                found += [(schema, text) for text in schemas.problems(document, schema)]
    return found, documents


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bin", required=True)
    parser.add_argument("--filter", default="")
    parser.add_argument("--jobs", type=int, default=os.cpu_count())
    options = parser.parse_args()
    seen, checked = collections.defaultdict(list), collections.Counter()
    with tempfile.TemporaryDirectory() as work:
        programs = compare_outputs.Programs(options.bin, pathlib.Path(work))
        cases = [case for case in output_cases.all_cases() if programs.runs(case) and re.search(options.filter, output_cases.name_of(case))]
        for case, (found, documents) in compare_outputs.each(cases, lambda case: problems_of(programs, case), options.jobs):
            checked["documents"] += documents
            for schema, text in found:
                seen[schema, re.sub(r" is .*, but |\d+", "N", text)].append((text, output_cases.name_of(case)))
    for (_, _), places in sorted(seen.items()):
        text, name = places[0]
        print(f"{text}; {len(places)} times, first in: {name}")
    print(f"{len(cases)} cases, {checked['documents']} documents: {len(seen)} problems")
    return 1 if seen else 0


if __name__ == "__main__":
    sys.exit(main())
