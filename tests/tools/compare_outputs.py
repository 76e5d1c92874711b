#!/usr/bin/env python3
"""Compares what two builds of the program say: JSON, tables and written files of plan, analyze, simulate, search, check, advise, report and
gui --figures, on every trace, plan and model of tests/data and traces/ (output_cases.py), with exit codes and messages.

    compare_outputs.py --before BIN --after BIN            BIN: a directory with shardlens and, for gui --figures, shardlens-gui
    compare_outputs.py --record FILE --bin BIN             keeps the outputs (FILE.json, .json.gz or .json.zst)
    compare_outputs.py --against FILE --bin BIN            compares with kept ones; --before and --after may be such files, too
    compare_outputs.py --bin BIN --self-test               a few cases twice, and whether planted differences are found

    --filter REGEX     only cases whose commands match        --jobs N    cases at once [the machine's cores]
    --table FILE       [tests/data/expected_differences.json]  --all       also list the differences that the table allows

Listed is every path at which an output differs, once for all places that differ in the indices of lists only: with the number of places and cases,
one example and cases that show it. A path that begins with stdout is in what the command printed, with files in a file that it wrote. Text that is
no JSON is a list of lines; order of keys and white space of JSON are not compared. Exit code 1 if a difference is not allowed, or if a case did not end.

The table is {"rows": [...]}. A row allows the differences that it matches:

    commands   list of commands                          path     of the difference; * is any text, an index of a list is written *
    change     added, removed or changed (any)           cases    regular expression that the case must contain (any)
    from, to   regular expressions of the whole values, as JSON (any)       reason     why the difference is right

Rows that match nothing are named: they are to be removed. Values that differ from one run of a command to the next are made equal in `settled`.
"""
import argparse
import collections
import concurrent.futures
import difflib
import fnmatch
import gzip
import hashlib
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import time

import output_cases
from output_cases import ROOT

TABLE = ROOT / "tests/data/expected_differences.json"
SECONDS = 120  # for a command
IDENTITIES = ("fqn", "unit", "name", "rank", "step", "title")  # by which elements of lists are the same element
IDENTIFIER = re.compile(r"\b[0-9a-f]{32}\b")
ALIGNED = 4_000_000  # lists of more pairs than this are compared element by element from their first difference on
SELF_TEST = re.compile(r"(?!.*--find-best)(.*(step_kinds/head|pytorch_traces/fsdp2-(tensor|hybrid)|--model tests/data/(recorded_run|gpt2-tiny) ).*)")


def settled(text, folders):
    """The text without what differs each time: names of temporary folders and of the checkout, a capture's random identifier."""
    text = text.replace("\u200b", "")  # the window's places where a line may break, which paths have too
    for name, folder in {**folders, "checkout": ROOT}.items():
        text = text.replace(str(folder), f"{{{name}}}")
    return IDENTIFIER.sub("{id}", text)


def document(text):
    """The contents of JSON, or a list of lines. Lines that are each JSON are a list of them."""
    try:
        return json.loads(text)
    except ValueError:
        lines = text.splitlines()
    try:
        return [json.loads(line) for line in lines]
    except ValueError:
        return lines


def written(folder, folders):
    """The files below a folder, by name."""
    found = {}
    for path in sorted(path for path in folder.rglob("*") if path.is_file() and not path.name.startswith(".")):
        content = path.read_bytes()
        text = settled((gzip.decompress(content) if path.suffix == ".gz" else content).decode(errors="replace"), folders)
        if path.suffix == ".html":
            data = re.search(r'<script type="application/json" id="data">(.*?)</script>', text, re.S)
            text = data[1] if data else "no data"
        found[path.relative_to(folder).as_posix()] = document(text)
    return found


class Programs:
    """Runs cases with the programs of a directory."""

    def __init__(self, directory, work):
        self.directory = pathlib.Path(directory).resolve()
        self.work, self.inputs = work, work / "inputs"
        if not self.inputs.exists():
            output_cases.write_inputs(self.inputs)
        self.has_window = (self.directory / "shardlens-gui").exists()
        self.environment = {"PATH": os.environ["PATH"], "HOME": str(work), "LC_ALL": "C.UTF-8", "TZ": "UTC", "QT_QPA_PLATFORM": "offscreen"}

    def runs(self, case):
        return self.has_window or all(command[0] != "gui" for command in case)

    def run(self, case):
        """Runs each command of the case and returns its answer."""
        with tempfile.TemporaryDirectory(dir=self.work) as out:
            out = pathlib.Path(out)
            folders = {"out": out, "inputs": self.inputs, "bin": self.directory}
            answers, seen = [], {}
            for command in case:
                arguments = [argument.replace("{out}", str(out)).replace("{inputs}", str(self.inputs)) for argument in command]
                try:
                    done = subprocess.run([self.directory / "shardlens", *arguments], cwd=ROOT, env=self.environment, stdin=subprocess.DEVNULL,
                                          capture_output=True, timeout=SECONDS)
                except subprocess.TimeoutExpired:
                    return [*answers, {"exit": f"did not end in {SECONDS} s", "stderr": [], "stdout": [], "files": {}}]
                files = written(out, folders)
                answers.append({"exit": done.returncode, "stderr": settled(done.stderr.decode(errors="replace"), folders).splitlines(),
                                "stdout": document(settled(done.stdout.decode(errors="replace"), folders)),
                                "files": {name: content for name, content in files.items() if seen.get(name) != content}})
                seen = files
            return answers


def digests():
    """The digest of every input file, to tell a changed input from a changed program."""
    paths = [path for folder in output_cases.FOLDERS for path in (ROOT / folder).rglob("*") if path.is_file()]
    return {output_cases.relative(path): hashlib.sha256(path.read_bytes()).hexdigest()[:16] for path in sorted(paths)}


def pack(path, lines):
    """Writes the lines, packed as the name says."""
    if path.suffix == ".zst":
        packer = subprocess.Popen(["zstd", "-q", "-f", "-", "-o", path], stdin=subprocess.PIPE)
        for line in lines:
            packer.stdin.write(line.encode())
        packer.stdin.close()
        if packer.wait() != 0:
            raise SystemExit(f"{path}: zstd failed")
        return
    with (gzip.open if path.suffix == ".gz" else open)(path, "wt", encoding="utf-8") as file:
        file.writelines(lines)


def unpacked(path):
    if path.suffix == ".zst":
        return subprocess.run(["zstd", "-q", "-d", "-c", path], check=True, stdout=subprocess.PIPE).stdout.decode()
    with (gzip.open if path.suffix == ".gz" else open)(path, "rt", encoding="utf-8") as file:
        return file.read()


class Recording:
    """Kept outputs: a line of JSON that describes them, and one for each case."""

    def __init__(self, path):
        head, *lines = unpacked(path).splitlines()
        self.inputs = json.loads(head)["inputs"]
        self.answers = {}
        for line in lines:
            row = json.loads(line)
            self.answers[tuple(map(tuple, row["case"]))] = json.dumps(row["answers"])  # text takes less memory

    def runs(self, case):
        return case in self.answers

    def run(self, case):
        return json.loads(self.answers[case])


def source(path, work):
    path = pathlib.Path(path)
    if path.is_dir():
        return Programs(path, work)
    if not path.is_file():
        raise SystemExit(f"{path}: no such directory or file")
    return Recording(path)


def each(cases, function, jobs):
    """(case, result) in the order of the cases, several at once, with a line that shows how many are done."""
    start, shown = time.monotonic(), -1
    with concurrent.futures.ThreadPoolExecutor(jobs) as pool:
        for done, result in enumerate(zip(cases, pool.map(function, cases)), 1):
            yield result
            tenth = 10 * done // len(cases)
            if sys.stderr.isatty() or tenth != shown:
                end = "\r" if sys.stderr.isatty() and done < len(cases) else "\n"
                print(f"{done} of {len(cases)} cases, {time.monotonic() - start:.0f} s", end=end, file=sys.stderr, flush=True)
            shown = tenth


ABSENT = object()


def paired(old, new):
    """Pairs of elements of two lists; ABSENT on one side for an element that the other list does not have."""
    if len(old) == len(new):
        return zip(old, new)
    for key in IDENTITIES:
        if all(isinstance(element, dict) and isinstance(element.get(key), (str, int)) for element in old + new):
            first, second = ({element[key]: element for element in elements} for elements in (old, new))
            if len(first) == len(old) and len(second) == len(new):
                return [(first.get(name, ABSENT), second.get(name, ABSENT)) for name in {**first, **second}]
    texts = [[json.dumps(element, sort_keys=True) for element in elements] for elements in (old, new)]
    if len(old) * len(new) <= ALIGNED:
        blocks = difflib.SequenceMatcher(None, *texts, autojunk=False).get_opcodes()
    else:
        same = next((at for at, (one, other) in enumerate(zip(*texts)) if one != other), min(len(old), len(new)))
        blocks = [("replace", same, len(old), same, len(new))]
    pairs = []
    for kind, a, b, c, d in blocks:
        if kind != "equal":
            count = max(b - a, d - c)
            pairs += zip(old[a:b] + [ABSENT] * (count - b + a), new[c:d] + [ABSENT] * (count - d + c))
    return pairs


def differences(old, new, path=""):
    """(path, old, new) of each place where two documents differ."""
    if isinstance(old, dict) and isinstance(new, dict):
        for key in {**old, **new}:
            # A key with a module's name or a number is an entry of a table: the same path for all.
            name = re.sub(r"\d+", "N", key)
            yield from differences(old.get(key, ABSENT), new.get(key, ABSENT), f"{path}.{name}" if path else name)
    elif isinstance(old, list) and isinstance(new, list):
        for one, other in paired(old, new):
            yield from differences(one, other, f"{path}.*")
    elif old is ABSENT or new is ABSENT or type(old) is not type(new) or old != new:
        yield path, old, new


def shown(value):
    return "nothing" if value is ABSENT else json.dumps(value, ensure_ascii=False)


class Table:
    """The differences that are expected."""

    KEYS = {"commands", "path", "change", "cases", "from", "to", "reason"}

    def __init__(self, rows):
        for number, row in enumerate(rows, 1):
            wrong = [f"unknown key {key}" for key in row.keys() - self.KEYS] + [f"no {key}" for key in ("commands", "path", "reason") if not row.get(key)]
            if wrong:
                raise SystemExit(f"row {number} of the table: {', '.join(wrong)}")
        self.rows, self.uses = rows, [0] * len(rows)
        self.candidates = {}  # (command, path, change): numbers of rows

    def row_of(self, command, path, change, case, old, new):
        """The number of the first row that allows the difference, None if there is none."""
        def matches(row):
            return command in row["commands"] and fnmatch.fnmatchcase(path, row["path"]) and row.get("change", change) == change
        key = (command, path, change)
        if key not in self.candidates:
            self.candidates[key] = [number for number, row in enumerate(self.rows) if matches(row)]
        for number in self.candidates[key]:
            row = self.rows[number]
            values = all(re.fullmatch(row[end], shown(value), re.S) for end, value in (("from", old), ("to", new)) if end in row)
            if values and re.search(row.get("cases", ""), case):
                self.uses[number] += 1
                return number
        return None


class Group:
    """Differences at one path that one row allows, or none does."""

    def __init__(self, old, new):
        self.old, self.new, self.places, self.cases = old, new, 0, collections.Counter()


class Comparison:
    def __init__(self, table):
        self.table, self.groups = table, {}

    def add(self, case, before, after):
        name = output_cases.name_of(case)
        if len(before) != len(after):
            before, after = ([answers[0] if answers else {}] for answers in (before, after))
        for command, old, new in zip(case, before, after):
            for path, one, other in differences(old, new):
                change = "added" if one is ABSENT else "removed" if other is ABSENT else "changed"
                row = self.table.row_of(command[0], path, change, name, one, other)
                group = self.groups.setdefault((row is not None, command[0], path, change, row), Group(one, other))
                group.places += 1
                group.cases[name] += 1

    def unexpected(self):
        return [group for (allowed, *_), group in self.groups.items() if not allowed]

    def lines(self, listed):
        """A few lines for each group; those that the table allows only if they are to be listed."""
        for (allowed, command, path, change, row), group in sorted(self.groups.items(), key=lambda item: item[0][:4]):
            if allowed and not listed:
                continue
            old, new = (text if len(text) <= 160 else text[:157] + "..." for text in map(shown, (group.old, group.new)))
            examples = [f"      {name}" for name in list(group.cases)[:3]]
            reason = f", allowed: {self.table.rows[row]['reason']}" if allowed else ""
            yield "\n".join([f"{command}  {path}  {change} in {group.places} places of {len(group.cases)} cases{reason}", f"    {old} -> {new}", *examples])


def read_table(path):
    return Table(json.loads(path.read_text(encoding="utf-8"))["rows"])


def compare(before, after, cases, options):
    """The comparison of all cases, printed. Returns the exit code."""
    both = [case for case in cases if before.runs(case) and after.runs(case)]
    if not both:
        print("no case matches" if options.filter else "no case")
        return 1
    comparison, unfinished = Comparison(read_table(options.table)), []
    for case, (old, new) in each(both, lambda case: (before.run(case), after.run(case)), options.jobs):
        comparison.add(case, old, new)
        unfinished += [output_cases.name_of(case) for answers in (old, new) if any(isinstance(answer["exit"], str) for answer in answers)]
    for text in comparison.lines(options.all):
        print(text)
    for name in dict.fromkeys(unfinished):
        print(f"did not end: {name}")
    if isinstance(before, Recording) and isinstance(after, Programs):
        now = digests()
        changed = [name for name, digest in before.inputs.items() if now.get(name) != digest]
        if changed:
            print(f"{len(changed)} inputs changed since the recording: {', '.join(changed[:10])}")
    table = comparison.table
    if not options.filter:
        for row in (row for row, uses in zip(table.rows, table.uses) if not uses):
            print(f"the table's row matches nothing: {json.dumps(row, ensure_ascii=False)}")
    unexpected = comparison.unexpected()
    places = sum(group.places for group in unexpected)
    print(f"{len(both)} of {len(cases)} cases compared: {places} differences at {len(unexpected)} paths that the table does not allow, "
          f"{sum(table.uses)} allowed by {sum(map(bool, table.uses))} of its {len(table.rows)} rows")
    return 1 if unexpected or unfinished else 0


def record(programs, cases, options):
    def lines():
        yield json.dumps({"programs": str(programs.directory), "inputs": digests()}) + "\n"
        for case, answers in each(cases, programs.run, options.jobs):
            yield json.dumps({"case": case, "answers": answers}, ensure_ascii=False) + "\n"
    cases = [case for case in cases if programs.runs(case)]
    pack(options.record, lines())
    print(f"{len(cases)} cases in {options.record}")


def self_test(programs, options):
    """The first cases that match SELF_TEST of each command twice, and planted differences."""
    chosen = collections.defaultdict(list)
    for case in output_cases.all_cases():
        if programs.runs(case) and SELF_TEST.match(output_cases.name_of(case)):
            chosen[case[0][0]].append(case)
    cases = [case for of_command in chosen.values() for case in of_command[::max(1, len(of_command) // 5)]]
    twice = Comparison(Table([]))
    for case, (old, new) in each(cases, lambda case: (programs.run(case), programs.run(case)), options.jobs):
        twice.add(case, old, new)
    problems = [f"the same program twice: {text}" for text in twice.lines(True)]
    if not {"plan", "analyze", "simulate", "search", "check", "advise", "report"} <= chosen.keys():
        problems.append(f"cases of {sorted(chosen)} only")
    problems += planted(programs, (("analyze", "tests/data/pytorch_traces/fsdp2-hybrid", "--json"),))
    for text in problems:
        print(text)
    print(f"{len(cases)} cases twice, {len(problems)} problems")
    return 1 if problems else 0


def planted(programs, case):
    """Says what is wrong with the differences found after a change of one of `analyze`'s answers."""
    before, after = (programs.run(case) for _ in range(2))
    answer = after[0]["stdout"]
    answer["new"] = [1]
    del answer["schema"]
    units = answer["ranks"][0]["units"]
    for unit in units:
        unit["compute_ns"] += 1
    units.insert(1, {**units[0], "fqn": "one more"})
    after[0]["exit"] = 3
    rows = [{"commands": ["analyze"], "path": "stdout.ranks.*.units.*.compute_ns", "change": "changed", "from": r"\d+", "reason": "allowed"},
            {"commands": ["analyze"], "path": "stdout.ranks.*.units.*.compute_ns", "change": "changed", "to": "true", "reason": "its value is another"},
            {"commands": ["plan"], "path": "*", "reason": "another command"}]
    comparison = Comparison(Table(rows))
    comparison.add(case, before, after)
    found = {(allowed, path, change, group.places) for (allowed, _, path, change, _), group in comparison.groups.items()}
    expected = {(False, "exit", "changed", 1), (False, "stdout.new", "added", 1), (False, "stdout.schema", "removed", 1),
                (False, "stdout.ranks.*.units.*", "added", 1), (True, "stdout.ranks.*.units.*.compute_ns", "changed", len(units) - 1)}
    if found != expected:
        yield f"planted differences: expected {expected}, found {found}"
    if comparison.table.uses != [len(units) - 1, 0, 0]:
        yield f"rows of a table: used {comparison.table.uses} times, expected {[len(units) - 1, 0, 0]}"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for flag in ("--before", "--after", "--against", "--bin", "--filter"):
        parser.add_argument(flag)
    parser.add_argument("--record", metavar="FILE", type=pathlib.Path)
    parser.add_argument("--table", type=pathlib.Path, default=TABLE)
    parser.add_argument("--jobs", type=int, default=os.cpu_count())
    parser.add_argument("--all", action="store_true")
    parser.add_argument("--self-test", action="store_true")
    options = parser.parse_args()
    before, after = options.before or options.against, options.after or options.bin
    if not after or not (before or options.record or options.self_test):
        parser.error("give --before and --after, --record and --bin, --against and --bin, or --bin and --self-test")
    if any(str(path).endswith(".zst") for path in (before, after, options.record) if path) and not shutil.which("zstd"):
        parser.error("no zstd here: name the recording .json.gz")
    with tempfile.TemporaryDirectory() as work:
        work = pathlib.Path(work)
        if options.self_test:
            return self_test(Programs(after, work), options)
        cases = [case for case in output_cases.all_cases() if re.search(options.filter or "", output_cases.name_of(case))]
        if options.record:
            return record(Programs(after, work), cases, options)
        before = source(before, work)
        if isinstance(before, Recording):  # and nothing that came later
            cases = [case for case in before.answers if re.search(options.filter or "", output_cases.name_of(case))]
        return compare(before, source(after, work), cases, options)


if __name__ == "__main__":
    sys.exit(main())
