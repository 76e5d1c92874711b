#!/usr/bin/env python3
"""Puts hostile strings into every untrusted input, and looks for them in all that is shown to people.

    check_shown_text.py --bin DIR               all of them (minutes)
    check_shown_text.py --bin DIR --quick       some of each kind, as CTest does
    check_shown_text.py --bin DIR --only plan   those whose name matches
    check_shown_text.py --self-test             whether the search finds what is raw

Every string of each file that is read, every key, file names, flags and variables of the environment are replaced; the outputs are stdout, stderr,
CSV, Markdown, JUnit, and the answers and words of the Python package. None may have a character that steers a terminal or is invisible, a line that
an injected string began, or a command of a CI runner; in Markdown no link, mention or reference. Exit 1 if one has, or if no string of a kind was
shown at all.
"""
import argparse
import collections
import concurrent.futures
import csv
import gzip
import io
import itertools
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import xml.etree.ElementTree

import raw_text

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
DATA = ROOT / "tests/data"
MODEL, TOKENS, RUN, RECORDED = DATA / "llama-tiny", DATA / "tokens.u16.bin", ROOT / "traces/llama-emulated8", DATA / "recorded_run"
SPEC, STACKS, PUBLISHED = ROOT / "sim/hardware/specs/8xH100.json", ROOT / "sim/hardware/stacks.json", DATA / "training_runs.csv"
WHOLE = DATA / "fuzz/checkpoint/one.json"

MARK, BEGUN = "Zqx", "Begun"  # show that a string was shown, and that it began a line
# Each is a string that somebody would obey; most are put into one text, and those that must be in front are texts of their own.
PARTS = ["\x1b[31m", "\x1b]52;c;aGk=\x07", "\r", "\n" + BEGUN, "\n::error::" + MARK, "\n##vso[task.setvariable variable=a]b", "\u202e", "\u200b", "\u2028",
         "\x85", "\U000e0041", "\xad", "\udcff", "](http://x)", "@someone", "#1", "<img>", "##[error]"]
TOGETHER = MARK + "".join(PARTS)
FRONT = ["::error::" + MARK, " \u3000::warning::" + MARK, "##vso[task.complete]" + MARK, "\t::stop-commands::" + MARK]
TEXTS = {TOGETHER: len(PARTS), **{text: 1 for text in FRONT}}


class Job(collections.namedtuple("Job", "kind where text command environment files")):
    """One call: what it is of, the injected text, the arguments, and the files that it writes for people {path: "markdown" or "junit"}."""


def job(kind, where, text, command, environment=None, files=None):
    return Job(kind, where, text, [os.fspath(part) for part in command], environment or {}, files or {})


def as_json(document):
    """Its control characters as JSON's escapes, since its readers refuse them otherwise."""
    return json.dumps(document).encode()


def strings(document, at=()):
    """(place, value, is it a key) of every string and number of a JSON document; of an array its first two elements, and later ones of other keys."""
    if isinstance(document, dict):
        for key, value in document.items():
            yield (*at, key), key, True
            yield from strings(value, (*at, key))
    elif isinstance(document, list):
        for index, value in enumerate(document[:2]):
            yield from strings(value, (*at, index))
    elif document is not None:
        yield at, document, False


def changed(document, place, text, is_key):
    """The document with the string at a place replaced, or its key renamed."""
    document = json.loads(json.dumps(document))
    at = document
    for key in place[:-1]:
        at = at[key]
    if is_key:
        at[text] = at.pop(place[-1])
    else:
        at[place[-1]] = text
    return document


def clean(text):
    """JSON is UTF-8: lone bytes cannot be in it."""
    return text.replace("\udcff", "")


class Folder:
    """Numbered folders for inputs."""

    def __init__(self, path):
        self.path, self.numbers = path, itertools.count()

    def new(self):
        folder = self.path / f"i{next(self.numbers)}"
        folder.mkdir()
        return folder

    def file(self, name, content):
        path = self.new() / name
        path.write_bytes(content if isinstance(content, bytes) else content.encode("utf-8", "surrogateescape"))
        return path

    def run_with(self, name, content, source=RUN):
        """A copy of a run in which one file has another content."""
        folder = self.new() / "run"
        shutil.copytree(source, folder, copy_function=os.symlink)
        (folder / name).unlink(missing_ok=True)
        (folder / name).write_bytes(content if isinstance(content, bytes) else content.encode())
        return folder


# Documents: each string of each file, with the commands that read it.

def documents(folder, program):
    """(kind, document, commands of a folder or file with it)."""
    made = folder.new()
    subprocess.run([program, "calibrate", "--capture", RUN, "--out", made / "c.json"], capture_output=True, check=True)
    subprocess.run([program, "check", "--baseline", RUN, "--candidate", RUN, "--save-baseline", made / "b.json"], capture_output=True, check=False)

    (made / "r.csv").write_text("".join(PUBLISHED.read_text(encoding="utf-8").splitlines(True)[:4]), encoding="utf-8")

    def alone(name, *commands):
        def of(document):
            path = folder.file(name, as_json(document))
            return [[path if part == "@" else path.parent if part == "@/" else part for part in command] for command in commands]
        return of

    def inside(name, *commands, source=RUN, lines=False):
        def of(document):
            content = b"".join(as_json(each) + b"\n" for each in document) if lines else as_json(document)
            path = folder.run_with(name, content, source)
            return [[path if part == "@" else part for part in command] for command in commands]
        return of

    def read(path):
        return json.loads(path.read_text(encoding="utf-8"))

    def read_lines(path):
        return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]

    simulate = ["simulate", "--model", MODEL]
    units = {"version": 1, "units": ["model.layers.*"], "ignored_modules": ["lm_head"], **read(RUN / "plan.json")}
    return [
        ("plan", units, alone("p.json", ["plan", "--model", MODEL, "--plan", "@"], [*simulate, "--hardware", "8xH100", "--plan", "@"])),
        ("config.json", read(MODEL / "config.json"), alone("config.json", ["plan", "--model", "@/"], [*simulate[:1], "--hardware", "8xH100", "--model", "@/"])),
        ("model.json", read(RECORDED / "model.json"), inside("model.json", ["analyze", "@"], ["advise", "@"], source=RECORDED)),
        ("run.json", read(RUN / "run.json"), inside("run.json", ["analyze", "@"], ["simulate", "--workload", "@"], ["advise", "@"], ["compare", RUN, "@"])),
        ("workload.json", {**read(RUN / "workload.json")}, inside("workload.json", ["analyze", "@"])),
        ("metrics.jsonl", read_lines(RUN / "metrics.jsonl"), inside("metrics.jsonl", ["analyze", "@"], lines=True)),
        ("actions.jsonl", read_lines(RECORDED / "rank0.actions.jsonl")[:40], inside("rank0.actions.jsonl", ["analyze", "@"], source=RECORDED, lines=True)),
        ("hardware", read(SPEC), alone("h.json", [*simulate, "--hardware", "@"])),
        ("calibration", read(made / "c.json"), alone("c.json", [*simulate, "--calibration", "@"])),
        ("baseline", read(made / "b.json"), alone("b.json", ["check", "--baseline", "@", "--candidate", RUN, "--markdown", "@.md", "--junit", "@.xml"])),
        ("stacks", read(STACKS), alone("s.json", ["validate", "--runs", made / "r.csv", "--stacks", "@"])),
        ("checkpoint", read(WHOLE), alone("checkpoint.json", ["checkpoint", "show", "@/"], ["checkpoint", "verify", "@/"])),
    ]


LIKELY = re.compile(r"machine/(backend|gpu|batch|cpu)$|versions/|hardware/|forward$|\bunit$|source$|name$|fqn$|model_type|dialect|units/|dtype$")
UNSEEN = ("metrics.jsonl",)  # has numbers only, and words that nothing shows


def of_documents(folder, program, quick):
    for kind, document, commands in documents(folder, program):
        places = list(strings(document))
        if quick:  # what is most likely to be shown, and a few others
            likely = {each[0][-1]: each for each in places if LIKELY.search("/".join(map(str, each[0]))) and not each[2]}
            places = list(likely.values())[:6] + places[::max(1, len(places) // 2)]
        for number, (place, _, is_key) in enumerate(places):
            for text in [TOGETHER] if quick else [TOGETHER, FRONT[number % len(FRONT)]]:
                injected = changed(document, place, clean(text), is_key)
                for command in commands(injected):
                    yield job(kind, "/".join(map(str, place)) + (" (key)" if is_key else ""), text, *outputs_of(folder, command))


def outputs_of(folder, command):
    """The command with files in the place of "@.md" and "@.xml", the environment, and what these files are."""
    files = {}
    out = []
    for part in command:
        if part in ("@.md", "@.xml"):
            path = folder.new() / f"out{part[1:]}"
            files[path] = "markdown" if part == "@.md" else "junit"
            part = path
        out.append(part)
    return out, {}, files


# Traces: each string of a rank's trace, by what it is, in all of its events.

ANALYSES = [["analyze", "@"], ["analyze", "--by", "collective", "@"], ["analyze", "--by", "span", "--top", "20", "@"], ["analyze", "--by", "stream", "@"],
            ["analyze", "--by", "order", "@"], ["analyze", "--critical-path", "@"], ["analyze", "--by", "span", "--csv", "@"], ["analyze", "--csv", "@"],
            ["analyze", "--by", "rank", "@"], ["analyze", "--by", "order", "--csv", "@"], ["analyze", "--explain", "model.layers.0", "@"], ["compare", RUN, "@"],
            ["check", "--baseline", RUN, "--candidate", "@", "--markdown", "@.md", "--junit", "@.xml"], ["plan", "--from-trace", "@"], ["advise", "@"],
            ["simulate", "--workload", "@"], ["calibrate", "--capture", "@", "--out", "@out"], ["convert", "@", "--out", "@out"],
            ["analyze", "--summarize", "--out", "@out", "@"], ["report", "@", "--out", "@out"]]


def trace_strings(trace):
    """The strings of a trace: (name, function that gives each of them to `edit`)."""
    def at_events(match, key, inner=None):
        def give(document, edit):
            for event in document["traceEvents"]:
                if match(event):
                    at = event.get("args", {}) if inner else event
                    name = inner or key
                    if isinstance(at.get(name), str):
                        at[name] = edit(at[name])
        return give
    out = {}
    for event in trace["traceEvents"]:
        cat = event.get("cat", event.get("ph"))
        same = lambda e, cat=cat: e.get("cat", e.get("ph")) == cat  # noqa: E731
        out.setdefault(f"{cat} name", at_events(same, "name"))
        out.setdefault(f"{cat} cat", at_events(same, "cat"))
        for key, value in event.get("args", {}).items():
            if isinstance(value, str):
                out.setdefault(f"{cat} {key}", at_events(same, None, key))

    def at_group(key):
        def give(document, edit):
            for group in document["distributedInfo"].get("pg_config", []):
                if isinstance(group.get(key), str):
                    group[key] = edit(group[key])
        return give
    for key in ("pg_name", "pg_desc", "backend_config"):
        out[f"group {key}"] = at_group(key)
    out["backend"] = lambda document, edit: document["distributedInfo"].update(backend=edit(document["distributedInfo"].get("backend", "")))
    out["unit"] = lambda document, edit: document.get("shardlens", {}).update(units=[edit(each) for each in document.get("shardlens", {}).get("units", [])])
    return out


def inside(value, text):
    """The text in a name: before its last parenthesis, because what is in parentheses is a unit, or behind it."""
    head, bracket, tail = value.rpartition(")")
    return f"{head}{text}){tail}" if bracket else value + text


def traces():
    yield "llama-emulated8", RUN, json.loads(gzip.decompress((RUN / "rank0.pt.trace.json.gz").read_bytes()))
    for name in ("fsdp2-default", "ddp-buckets", "fsdp2-memory"):
        for path in sorted((DATA / "pytorch_traces" / name).glob("rank0*.json*")):
            if path.suffix in (".gz", ".json"):
                content = path.read_bytes()
                yield name, path.parent, json.loads(gzip.decompress(content) if path.suffix == ".gz" else content)


def of_traces(folder, program, quick):
    for name, source, trace in itertools.islice(traces(), 1 if quick else None):
        cut = {**trace, "traceEvents": trace["traceEvents"]}
        for where, give in trace_strings(cut).items():
            edits = {"in": lambda value, text: inside(value, text), "all": lambda value, text: text}
            for how, edit in edits.items():
                if name != "llama-emulated8" and how == "all" or quick and (how == "all" or not re.search(r"user_annotation name|kernel name|unit|pg_desc|M name", where)):
                    continue
                for text in [TOGETHER] if quick or how == "in" else [TOGETHER, FRONT[0], FRONT[2]]:
                    document = json.loads(json.dumps(cut))
                    give(document, lambda value, text=text, edit=edit: edit(value, clean(text)))
                    path = folder.run_with("rank0.pt.trace.json", as_json(document), source if source == RUN else folder.new())
                    (path / "rank0.pt.trace.json.gz").unlink(missing_ok=True)
                    for command in ANALYSES if how == "in" or not quick else ANALYSES[:1]:
                        ready = [path if part == "@" else folder.new() / "out.json" if part == "@out" else part for part in command]
                        yield job(f"trace {name}", f"{where}, {how}", text, *outputs_of(folder, ready))


# Tables.

def of_tables(folder, program, quick):
    rows = list(csv.reader(PUBLISHED.read_text(encoding="utf-8").splitlines()))
    for number, column in enumerate(rows[0]):
        if quick and number % 6:
            continue
        for row in (0, 1):
            for text in [TOGETHER] if quick else TEXTS:
                table = [list(each) for each in rows[:4]]
                table[row][number] = text
                out = io.StringIO()
                csv.writer(out).writerows(table)
                yield job("CSV", f"{column}, row {row}", text, ["validate", "--runs", folder.file("r.csv", out.getvalue())])


# Names of files, flags, the environment.

def of_names(folder, program, quick):
    for text in [TOGETHER, FRONT[0]] if quick else TEXTS:
        name = text.replace("/", "|")
        place = folder.new() / name
        place.mkdir()
        shutil.copytree(RUN, place / "run", copy_function=os.symlink)
        shutil.copy(MODEL / "config.json", place / "config.json")
        for path in (place / "nowhere", place / "run", place)[:2 if quick else 3]:
            for command in [["analyze", path], ["report", path, "--out", place / "r.html"], ["convert", path, "--out", place / "c"], ["advise", path],
                            ["plan", "--from-trace", path, "--out", place / "p"], ["simulate", "--workload", path], ["compare", path, path], ["merge", path],
                            ["check", "--baseline", path, "--candidate", path, "--save-baseline", place / "b.json", "--markdown", place / "c.md"],
                            ["calibrate", "--capture", path, "--out", place / "c.json"], ["checkpoint", "show", path], ["validate", "--runs", path],
                            ["plan", "--model", path], ["plan", "--model", MODEL, "--plan", path], ["simulate", "--model", MODEL, "--hardware", path],
                            ["analyze", "--summarize", "--out", place / "s", path], ["validate", "--collectives", path],
                            ["simulate", "--model", MODEL, "--calibration", path], ["validate", "--runs", PUBLISHED, "--stacks", path],
                            ["simulate", "--model", MODEL, "--hardware", "8xH100", "--out", path / "sim"],
                            ["search", "--model", MODEL, "--hardware", "8xH100", "--memory-limit", "1GiB", "--state", path],
                            ["capture", "--model", path, "--tokens", path, "--out", path]]:
                files = {place / "c.md": "markdown"} if "--markdown" in command else {}
                yield job("file name", " ".join(map(str, command[:2]))[:30], text, command, {}, files)
        work = {"TMPDIR": str(place / "gone")}
        yield job("environment", "TMPDIR", text, ["capture", "--model", MODEL, "--tokens", TOKENS, "--out", folder.new() / "o", "--steps", "1"], work)
        yield job("environment", "TMPDIR", text, ["calibrate", "--probe", "--out", folder.new() / "o"], work)
        for name in ("TMPDIR", "PATH", "DISPLAY", "XDG_CACHE_HOME", "QT_QPA_PLATFORM", "HOME"):
            yield job("environment", name, text, ["doctor"], {name: text})


def flags_of(program, command):
    text = subprocess.run([program, command, "--help"], capture_output=True, text=True, check=False).stdout
    return sorted(set(re.findall(r"^  (--[a-z-]+)", text, re.M)) - {"--help", "--probe", "--run", "--against", "--engine"})


def of_flags(folder, program, quick):
    base = {"analyze": [RUN], "simulate": ["--model", MODEL, "--hardware", "8xH100"], "plan": ["--model", MODEL], "check": ["--baseline", RUN, "--candidate", RUN],
            "search": ["--model", MODEL, "--hardware", "8xH100", "--memory-limit", "1GiB"], "advise": [RUN], "convert": [RUN, "--out", folder.new() / "x.json"],
            "capture": ["--model", MODEL, "--tokens", TOKENS, "--out", folder.new() / "o"], "calibrate": ["--capture", RUN, "--out", folder.new() / "c.json"],
            "merge": [RUN], "report": [RUN, "--out", folder.new() / "r.html"], "compare": [RUN, RUN], "validate": ["--runs", PUBLISHED], "doctor": [],
            "checkpoint": ["show", RUN], "completion": ["bash"]}
    writes = {"--out", "--state", "--keep", "--junit", "--markdown", "--save-baseline", "--save"}  # a file of this name in the working folder
    for command, given in base.items():
        names = flags_of(program, command)
        for number, flag in enumerate(names):
            if quick and (number + len(command)) % 5:
                continue
            for text in [TOGETHER] if quick else TEXTS:
                value = text.replace("/", "|") if flag in writes else text
                arguments = [command, *given]
                if flag in arguments:
                    arguments[arguments.index(flag) + 1] = value
                else:
                    arguments.append(f"{flag}={value}")
                if command == "capture" and flag in writes | {"--host-name"}:
                    continue  # a run would begin
                yield job("flag", f"{command} {flag}", text, arguments)
        yield job("flag", f"{command} unknown", TOGETHER, [command, *given, "--" + TOGETHER])
    for text in TEXTS:
        yield job("flag", "subcommand", text, [text])


# The worker as torchrun starts it.

def of_worker(folder, program, quick):
    worker = program.parent / "shardlens-worker"
    if not worker.exists():
        return
    base = ["--model", MODEL, "--tokens", TOKENS, "--out", folder.new() / "o", "--steps", "1", "--nproc", "1", "--seq", "16"]
    launched = {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "0"}
    for name in launched if not quick else ["RANK"]:
        for text in [TOGETHER] if quick else TEXTS:
            yield job("worker", name, text, [worker, *base, "--timeout", "1"], {**launched, name: text})
    for flag in ["--model", "--backend"] if quick else ["--model", "--tokens", "--plan", "--strategy", "--backend", "--mesh"]:
        for text in [TOGETHER] if quick else TEXTS:
            yield job("worker", flag, text, [worker, *[text if base[i - 1] == flag else part for i, part in enumerate(base)],
                                            *([] if flag in base else [f"{flag}={text}"])], launched)


# The Python package: what assistants are told, and what pytest prints.

ANSWERS = """
import sys
sys.path.insert(0, {package!r})
from shardlens import answers, run
path, other = sys.argv[1:]
def ask(question, *arguments):
    try:
        print(question(*arguments))
    except (RuntimeError, ValueError) as error:
        print(error)
ask(answers.analyze, path)
try:
    units = [row["unit"] for row in run.open(path).units()]
except RuntimeError as error:
    units = [path]
ask(answers.explain, path, units[0])
ask(answers.explain, path, path)
ask(answers.compare, other, path)
ask(answers.simulate, path)
ask(answers.advise, path)
try:
    opened = run.open(path)
    print(repr(opened))
    print(repr(opened.hidden_fraction()))
    print(repr(opened.check(other)))
    print(opened.check(other).words())
    print(opened.worst())
except (RuntimeError, ValueError) as error:
    print(error)
"""
PYTEST = """
def test_run(shardlens_run):
    assert shardlens_run.hidden_fraction() > 2
def test_verdict(shardlens_run):
    assert shardlens_run.check()
"""


def of_python(folder, program, quick):
    script = folder.file("ask.py", ANSWERS.format(package=str(ROOT / "python")))
    test = folder.file("test_run.py", PYTEST)
    has_pytest = subprocess.run([sys.executable, "-c", "import pytest"], capture_output=True, check=False).returncode == 0
    environment = {"SHARDLENS_PROGRAM": str(program), "PYTHONIOENCODING": "utf-8:backslashreplace", "PYTHONDONTWRITEBYTECODE": "1"}
    _, source, trace = next(traces())
    rows = [row for row in trace_strings(trace).items() if re.search(r"user_annotation name|kernel name|unit", row[0])]
    for text in [TOGETHER] if quick else TEXTS:
        for where, give in rows if not quick else rows[:1]:
            document = json.loads(json.dumps(trace))
            give(document, lambda value, text=text: inside(value, clean(text)))
            path = folder.run_with("rank0.pt.trace.json", as_json(document), source)
            (path / "rank0.pt.trace.json.gz").unlink()
            yield job("Python", where, text, [sys.executable, script, path, RUN], environment)
            if has_pytest and not quick:
                yield job("pytest", where, text, [sys.executable, ROOT / "tests/python/with_package.py", "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "shardlens.pytest_plugin", "--shardlens-run", path,
                                                  "--shardlens-baseline", RUN, test], environment)
        yield job("Python", "path", text, [sys.executable, script, folder.new() / text.replace("/", "|"), RUN], environment)


KINDS = [of_documents, of_traces, of_tables, of_names, of_flags, of_worker, of_python]


# Every character that Unicode calls a control or format character, a tag or a separator, and some letters: the program and the package agree.

def of_characters(program):
    """Chunks of characters that the two show differently."""
    sys.path.insert(0, str(ROOT / "python"))
    from shardlens.shown import shown

    every = [chr(number) for number in range(1, 0x110000) if not 0xD800 <= number < 0xE000]
    chosen = [char for char in every if raw_text.raw_characters(char) or 0xFE00 <= ord(char) <= 0xFFFF or ord(char) < 0x250]
    for start in range(0, len(chosen), 300):
        text = "x" + "".join(chosen[start:start + 300])
        answer = subprocess.run([program, text], capture_output=True, check=False).stderr.decode("utf-8", "replace")
        if not answer.startswith(f"shardlens: unknown subcommand '{shown(text)}'"):
            yield f"{text[1]!r} to {text[-1]!r}: {answer[:100]!r}, expected {shown(text)[:100]!r}"


def found_in(outputs):
    """{output: what is raw in it} of {(name, "text", "markdown" or "junit"): bytes}."""
    raw = {}
    for (name, what), content in outputs.items():
        found = raw_text.raw_in(content.replace(b"\r\n", b"\n") if what == "csv" else content, markdown=what == "markdown")
        for line in content.split(b"\n"):
            if line.startswith(BEGUN.encode()):
                found.add("a line that an injected string began")
        if what == "junit":
            try:
                xml.etree.ElementTree.fromstring(content)
            except xml.etree.ElementTree.ParseError as error:
                found.add(f"no XML: {error}")
        if found:
            raw[name] = found
    return raw


def do(program, one):
    command = one.command if pathlib.Path(one.command[0]).is_absolute() else [program, *one.command]
    environment = {**os.environ, **one.environment}
    environment = {os.fsencode(key): os.fsencode(value) for key, value in environment.items()}
    with tempfile.TemporaryDirectory(prefix="shardlens-shown-") as work:
        ended = subprocess.run([os.fsencode(part) for part in command], capture_output=True, check=False, env=environment, cwd=work, timeout=300)
    what = "json" if "--json" in one.command else "csv" if "--csv" in one.command else "text"
    outputs = {("stdout", what): ended.stdout, ("stderr", "text"): ended.stderr}
    outputs.update({(kind, kind): path.read_bytes() for path, kind in one.files.items() if path.exists()})
    shown = [name for (name, _), content in outputs.items() if MARK.encode() in content]
    return one, shown, found_in({key: content for key, content in outputs.items() if key[1] != "json"}), ended.returncode


def self_test():
    bad = [b"a\x1b[31m", "a\u202e".encode(), "a\u200b".encode(), b"a\xff", b"  ::error::x", b"x ##vso[a]b", "\U000e0041".encode(), "a\x85".encode(), b"a\rb"]
    good = ["a: b::c\n".encode(), "größe 名前 🙂 ⚠️\n".encode(), rb"a\x1b[31m \u{202e} \x3a:error" + b"\n"]
    wrong = [f"not found in {text!r}" for text in bad if not raw_text.raw_in(text)] + [f"found in {text!r}" for text in good if raw_text.raw_in(text)]
    for text in (b"[a](http:x)", b"http://x", b"www.x.y", b"@someone", b"#1", b"<img>", b"GH-1"):
        wrong += [f"not found in Markdown: {text!r}"] if not raw_text.raw_in(text, markdown=True) else []
    wrong += ["found in Markdown"] if raw_text.raw_in("a\\]\\(b &lt;img&gt; @&#8203;a #&#8203;1".encode(), markdown=True) else []
    print("\n".join(wrong) or f"{len(bad)} raw texts are found")
    return 1 if wrong else 0


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bin", type=pathlib.Path, help="folder with shardlens")
    parser.add_argument("--quick", action="store_true", help="some of each kind")
    parser.add_argument("--only", default="", help="regular expression on the kind's name")
    parser.add_argument("--jobs", type=int, default=os.cpu_count())
    parser.add_argument("--show", type=int, default=20, help="failures to print")
    parser.add_argument("--self-test", action="store_true")
    options = parser.parse_args()
    wrong = self_test()
    if wrong or options.self_test:
        return wrong
    program = options.bin.resolve() / "shardlens"
    injected, shown, raw, failures = (collections.Counter() for _ in range(4))
    for difference in of_characters(program):
        failures[f"characters: {difference}"] += 1
    with tempfile.TemporaryDirectory(prefix="shardlens-shown-") as place, concurrent.futures.ThreadPoolExecutor(options.jobs) as pool:
        folder = Folder(pathlib.Path(place).resolve())
        jobs = [one for kind in KINDS for one in kind(folder, program, options.quick) if re.search(options.only, one.kind)]
        for one, where, found, code in pool.map(lambda one: do(program, one), jobs):
            number = TEXTS.get(one.text, 1)
            injected[one.kind] += number
            for name in where:
                shown[one.kind, name] += number
            for name, what in found.items():
                raw[one.kind, name] += 1
                failures[f"{one.kind}, {one.where}, {' '.join(part for part in one.command[:3] if not part.startswith('/'))!r}, {name}: {', '.join(sorted(what))}"] += 1
            if code < 0 or code not in (0, 1, 2, 3, 4, 5):
                failures[f"{one.kind}, {one.where}: exit code {code}"] += 1
    for text, _ in failures.most_common(options.show):
        print(f"FAILED  {text}")
    for kind, number in injected.items():
        outputs = {name: count for (of, name), count in shown.items() if of == kind}
        print(f"{kind}: {number} strings; shown: {', '.join(f'{name} {count}' for name, count in outputs.items()) or 'none'}")
        if not outputs and kind not in UNSEEN:
            failures[f"{kind}: no string was shown"] += 1
            print(f"FAILED  {kind}: no string was shown")
    print(f"{sum(injected.values())} hostile strings in {len(jobs)} calls, {sum(shown.values())} shown, {sum(raw.values())} outputs with a raw one")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
