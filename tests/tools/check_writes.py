#!/usr/bin/env python3
"""Checks what every command that writes does to what is on the disk, in each state of its output.

    check_writes.py --bin DIR --calls LIBRARY              what CTest runs
    check_writes.py --bin DIR --calls LIBRARY --all        every cell; minutes
    check_writes.py --bin DIR --calls LIBRARY --only TEXT  cells whose name has this

A cell is a command (tests/tools/writers.py) and a state of its output: absent, a link to something foreign or to nothing, a FIFO, a directory, an
input, another name of one, among foreign files, read-only, on a full disk, killed or failing at each call that writes, two commands at once. In
every cell what was there before is there afterwards, byte for byte. The named output is the old or the complete new one. A command that succeeds
or reports a failure leaves nothing else, and one that was killed leaves nothing after the next. --calls is the library of
tests/tools/file_calls.c; call_log.py also checks with it that every creation is exclusive and every removal is of something own. Exit 1 if an expectation fails.
"""
import argparse
import collections
import contextlib
import os
import pathlib
import re
import shutil
import signal
import stat
import subprocess
import sys
import tempfile
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import call_log
from write_lab import LONG, MARK, PYTHON, REFUSED, ROOT, Lab, Missing, Unmet, expect, make_inputs
from writers import ALSO_WRITTEN, WRITERS

# What is known not to be as expected: the cell, what it finds, and why.
KNOWN = [
    (r": killed at", r"the next one ended with 0: and left behind: \S+\.tmp[0-9a-f]{32}",
     "only the process that was killed knew the random name of the file, and another one may be writing such a file now"),
    (r"^checkpoint .*: killed at", r"left behind: work/out\.lock", "the next command is refused before it looks at the lock that the killed one left"),
    (r"^checkpoint .*: killed at", r"left behind: work/out/unfinished\.[0-9a-f]{32}$", "the output is complete; the marker of the command that made it is still in it"),
]
STATES = []


def state(words, quick=False, where=lambda writer: True):
    def add(function):
        STATES.append((words, function, quick, where))
        return function
    return add


def is_directory(writer):
    return not writer.is_file


def files_of(lab):
    """The files, without marks and the like, which only Shardlens writes."""
    return [name for name, value in lab.reference().items() if value[0] == "file" and not name.startswith(".")]


@state("absent", quick=True)
def _(lab):
    before = lab.look()
    code, message = lab.run()
    expect(code == 0, f"exit {code}: {message[-300:]}")
    lab.judge(before, code)


@state("exists already", quick=True, where=lambda w: w.kind != "new")
def _(lab):
    lab.old()
    before = lab.look()
    code, message = lab.run()
    if lab.writer.name.startswith("capture --save"):
        lab.refused_or_written(before, code, message)
    else:
        expect(code == 0, f"exit {code}: {message[-300:]}")
        lab.judge(before, code)


@state("a link to something foreign")
def _(lab):
    if lab.writer.is_file:
        (lab.work / "target").write_text("foreign\n", encoding="ascii")
    else:
        (lab.work / "target").mkdir()
        (lab.work / "target/notes.txt").write_text("foreign\n", encoding="ascii")
    (lab.folder / lab.out).symlink_to("target")
    before = lab.look()
    lab.refused_or_written(before, *lab.run(), changes="work/target")


@state("a link to nothing")
def _(lab):
    (lab.folder / lab.out).symlink_to("target")
    before = lab.look()
    lab.refused_or_written(before, *lab.run(), changes="work/target")


@state("a link in the directory leads to something foreign", where=is_directory)
def _(lab):
    name = files_of(lab)[0]
    (lab.work / "target").write_text("foreign\n", encoding="ascii")
    (lab.folder / lab.out / name).parent.mkdir(parents=True)
    (lab.folder / lab.out / name).symlink_to(os.path.relpath(lab.work / "target", (lab.folder / lab.out / name).parent))
    before = lab.look()
    code, message = lab.run()
    expect(code in (0, *REFUSED), f"exit {code}: {message[-300:]}")
    expect((lab.work / "target").read_bytes() == b"foreign\n" or lab.writer.kind in ("adds", "shared"), "what the link leads to has changed")
    if code:
        lab.judge(before, code)


class FifoReader(threading.Thread):
    """Reads all that is written to a FIFO; told to stop if no one opens it."""

    def __init__(self, path):
        super().__init__(daemon=True)
        self.path, self.bytes = path, b""
        os.mkfifo(path)
        self.start()

    def run(self):
        with open(self.path, "rb") as fifo:
            self.bytes = fifo.read()

    def end(self):
        with contextlib.suppress(OSError):
            os.close(os.open(self.path, os.O_WRONLY | os.O_NONBLOCK))
        self.join(10)
        return self.bytes


@state("a FIFO with a reader", quick=True)
def _(lab):
    within = lab.folder / lab.out
    if is_directory(lab.writer) and lab.writer.kind != "new":
        name = files_of(lab)[0]
        within = within / name
        within.parent.mkdir(parents=True)
    reader = FifoReader(within)
    before = lab.look()
    try:
        code, message = lab.run(within=10 if lab.writer.needs == "shardlens" else LONG)  # others take seconds to start
    finally:
        got = reader.end()
    expect(code in (0, *REFUSED), f"exit {code}: {message[-300:]}")
    if code == 0 and stat.S_ISFIFO(within.lstat().st_mode) and lab.writer.exact:
        wanted = [value[-1] for value in lab.reference().values() if value[0] == "file"]
        expect(any(lab.writer.is_same(got, each) for each in wanted), f"exit 0, but the reader got {len(got)} other bytes")
    if code:
        lab.judge(before, code)


@state("a FIFO that no one reads", where=lambda w: w.is_file and w.needs == "shardlens")
def _(lab):
    os.mkfifo(lab.folder / lab.out)
    before = lab.look()
    code, message = lab.run()
    expect(code in REFUSED, f"exit {code}: {message[-300:]}")
    lab.judge(before, code)


@state("a directory", where=lambda w: w.is_file)
def _(lab):
    (lab.folder / lab.out).mkdir()
    (lab.folder / lab.out / "notes.txt").write_text("foreign\n", encoding="ascii")
    before = lab.look()
    code, message = lab.run()
    expect(code in REFUSED, f"exit {code}: {message[-300:]}")
    lab.judge(before, code)


@state("a file", where=is_directory)
def _(lab):
    (lab.folder / lab.out).write_text("foreign\n", encoding="ascii")
    before = lab.look()
    code, message = lab.run()
    expect(code in REFUSED, f"exit {code}: {message[-300:]}")
    lab.judge(before, code)


@state("a directory among its files", where=is_directory)
def _(lab):
    inner = lab.folder / lab.out / files_of(lab)[0]
    inner.mkdir(parents=True)
    (inner / "notes.txt").write_text("foreign\n", encoding="ascii")
    before = lab.look()
    code, message = lab.run()
    expect(code in REFUSED, f"exit {code}: {message[-300:]}")
    lab.judge(before, code)


def places(lab):
    """Outputs that are in place of an input, by every name that this can have."""
    for path in lab.writer.inputs:
        at = lab.folder / path
        if lab.writer.is_file and at.is_dir():
            files = sorted(each for each in at.iterdir() if each.is_file())
            yield from (str(each.relative_to(lab.folder)) for each in files)
            if (at / "run.json").exists():
                yield f"{path}/new.json"
        elif lab.writer.is_file == at.is_file():
            yield path
            yield f"in/../{path}"
            yield str(at.resolve())
        elif at.is_file() and (at.parent / "run.json").exists():
            yield str(at.parent.relative_to(lab.folder))
    if lab.writer.kind == "emptied" and lab.writer.inputs:
        yield "in"


def refuse(lab, before, out):
    code, message = lab.run(out=out)
    after = lab.look()
    changed = [path for path in {*before, *after} if before.get(path) != after.get(path)]
    expect(not changed, f"{out}: exit {code}, and changed: {', '.join(sorted(changed)[:5])}")
    expect(code == 2, f"{out}: exit {code}, expected 2: {message[-200:]}")
    expect(out in message, f"does not name {out}: {message[-200:]}")


@state("an input", quick=True, where=lambda w: w.inputs and w.kind != "shared")
def _(lab):
    ending = lab.out[len("work/out"):]
    before = lab.look()
    for out in places(lab):
        if out.endswith(ending):
            refuse(lab, before, out)
    links = lab.folder / "links"
    links.mkdir()
    for index, path in enumerate(lab.writer.inputs):
        at = lab.folder / path
        if at.is_file() != lab.writer.is_file:
            at = next((each for each in sorted(at.iterdir()) if each.is_file() and each.name.endswith(ending)), None) if at.is_dir() else None
        if at is not None and lab.writer.is_file == at.is_file():
            (links / f"link{index}{ending}").symlink_to(at)
    before = lab.look()
    for link in sorted(links.iterdir()):
        refuse(lab, before, f"links/{link.name}")
    for index, path in enumerate(lab.writer.inputs):
        if (lab.folder / path).is_dir() and lab.writer.is_file:
            (links / f"folder{index}").symlink_to(lab.folder / path)
            name = next((each.name for each in sorted((lab.folder / path).iterdir()) if each.name.endswith(ending)), None)
            if name:
                refuse(lab, lab.look(), f"links/folder{index}/{name}")


@state("another name of an input", quick=True, where=lambda w: w.inputs and w.is_file)
def _(lab):
    for index, path in enumerate(lab.writer.inputs):
        at = lab.folder / path
        if at.is_dir():
            at = next(each for each in sorted(at.iterdir()) if each.is_file())
        out = f"work/name{index}{lab.out[len('work/out'):]}"
        os.link(at, lab.folder / out)
        refuse(lab, lab.look(), out)


@state("an input, with --force", where=lambda w: w.force and w.inputs and w.needs != "shardlens-worker")
def _(lab):
    ending = lab.out[len("work/out"):]
    path = lab.writer.inputs[0]
    if lab.writer.is_file and (lab.folder / path).is_dir():
        path = next((str(each.relative_to(lab.folder)) for each in sorted((lab.folder / path).iterdir()) if each.is_file() and each.name.endswith(ending)), None)
        if path is None:
            raise Missing(f"an input whose name ends in {ending}")
    elif is_directory(lab.writer) and (lab.folder / path).is_file():
        path = str(pathlib.PurePath(path).parent)
    before = lab.look()
    code, message = lab.run(out=path, force=True)
    expect(code == 0, f"{path}: exit {code}: {message[-300:]}")
    if is_directory(lab.writer):
        names = {f"{path}/{name}" for name in lab.reference()}
        changed = {each for each, value in lab.look().items() if before.get(each) != value}
        expect(changed <= names, f"changed: {', '.join(sorted(changed - names))}")
    else:
        lab.judge(before, code, out=path)


FOREIGN = ("{out}.tmp", "{out}.tmp$$.0", "{out}.tmp$$.1", "{out}.partial", "{out}.old", "{out}.lock", "{folder}/.tmp$$", "{folder}/tmp")


def beside_foreign(lab, make, inside=False):
    """Runs the command where foreign files have names as temporary ones may have; `$$` is its process."""
    names = []
    for name in FOREIGN:
        names.append(name.format(out=lab.out, folder="work"))
    if inside:
        (lab.folder / lab.out).mkdir(exist_ok=True)
        names += [f"{lab.out}/{name}{ending}" for name in files_of(lab) for ending in (".tmp", ".tmp$$.0", ".tmp$$.1", ".tmp1234.0")]
        names += [f"{lab.out}/notes.txt"]
    listed = " ".join(f'"{name}"' for name in names)
    # The names are known after the command has ended, from the process that it was.
    process = lab.start(before=["sh", "-c", f"for f in {listed}; do {make}; done; exec \"$@\"", "sh"])
    code, message = lab.end(process)
    wanted = [name.replace("$$", str(process.pid)) for name in names]
    return code, message, wanted


@state("next to foreign files with names of temporary ones", quick=True)
def _(lab):
    code, message, foreign = beside_foreign(lab, 'mkdir -p "$(dirname "$f")"; echo foreign > "$f"', inside=lab.writer.kind in ("adds", "shared", "emptied"))
    expect(code in (0, *REFUSED), f"exit {code}: {message[-300:]}")
    for name in foreign:
        at = lab.folder / name
        expect(at.is_file() and at.read_bytes() == b"foreign\n", f"exit {code}, and {name} {'has changed' if at.exists() else 'is gone'}")


@state("next to foreign directories with names of temporary ones", quick=True)
def _(lab):
    code, message, foreign = beside_foreign(lab, 'mkdir -p "$f"; echo foreign > "$f/notes.txt"')
    expect(code in (0, *REFUSED), f"exit {code}: {message[-300:]}")
    for name in foreign:
        at = lab.folder / name / "notes.txt"
        expect(at.is_file() and at.read_bytes() == b"foreign\n", f"exit {code}, and {name} {'has changed' if at.exists() else 'is gone'}")


@state("among foreign files", quick=True, where=is_directory)
def _(lab):
    place = lab.folder / lab.out
    (place / "own").mkdir(parents=True)
    for name in ("notes.txt", "own/notes.txt", "config.json", "run.json", "model.safetensors", "capture.lock", "rank7.spool"):
        (place / name).write_text("foreign\n", encoding="ascii")
    before = lab.look()
    code, message = lab.run()
    expect(code in (0, *REFUSED), f"exit {code}: {message[-300:]}")
    after = lab.look()
    for path, value in before.items():
        if path.startswith(lab.out + "/"):
            expect(after.get(path) == value, f"exit {code}, and {path} {'has changed' if path in after else 'is gone'}")


def foreign_files(lab):
    """An output with a foreign file in place of each of the command's."""
    place = lab.folder / lab.out
    for name in files_of(lab):
        (place / name).parent.mkdir(parents=True, exist_ok=True)
        (place / name).write_text("foreign\n", encoding="ascii")


@state("foreign files in place of its own", quick=True, where=lambda w: w.kind in ("adds", "emptied"))
def _(lab):
    foreign_files(lab)
    before = lab.look()
    code, message = lab.run()
    expect(code in REFUSED, f"exit {code}: {message[-300:]}")
    expect("force" in message or "another directory" in message, f"does not say what to do: {message[-300:]}")
    lab.judge(before, code)


@state("foreign files in place of its own, with --force", where=lambda w: w.kind == "adds" and w.force)
def _(lab):
    foreign_files(lab)
    before = lab.look()
    code, message = lab.run(force=True)
    expect(code == 0, f"exit {code}: {message[-300:]}")
    lab.judge(before, code)


@state("a foreign run", where=lambda w: w.kind == "emptied")
def _(lab):
    """Names such as ours, but nothing says that we made them."""
    place = lab.folder / lab.out
    place.mkdir()
    for name in ("run.json", "config.json", "plan.json", "rank0.pt.trace.json.gz"):
        (place / name).write_text("{}\n", encoding="ascii")
    before = lab.look()
    code, message = lab.run()
    expect(code in REFUSED, f"exit {code}: {message[-300:]}")
    lab.judge(before, code)


@state("a read-only file", where=lambda w: w.is_file)
def _(lab):
    lab.old()
    (lab.folder / lab.out).chmod(0o444)
    before = lab.look()
    lab.refused_or_written(before, *lab.run())


@state("a file that nothing may change", where=lambda w: w.is_file)
def _(lab):
    lab.old()
    if os.geteuid() != 0 or subprocess.run(["chattr", "+i", lab.folder / lab.out], capture_output=True, check=False).returncode != 0:
        raise Missing("root and a file system with immutable files")
    try:
        before = lab.look()
        code, message = lab.run()
        expect(code in REFUSED, f"exit {code}: {message[-300:]}")
        lab.judge(before, code)
    finally:
        subprocess.run(["chattr", "-i", lab.folder / lab.out], capture_output=True, check=True)


@state("in a read-only directory")
def _(lab):
    if lab.writer.kind != "new":
        lab.old()
    before = lab.look()
    code, message = lab.namespace("mount --bind work work && mount -o remount,bind,ro work", "true")
    expect(code in REFUSED, f"exit {code}: {message[-300:]}")
    lab.judge(before, code)


def on_full_disk(lab, free):
    """The command with work/ on a file system that has so many free pages; what is left there is copied back."""
    if lab.writer.kind != "new":
        lab.old()
    before = lab.look()
    saved = lab.folder / "saved"
    shutil.copytree(lab.work, saved, symlinks=True)
    pages = sum((each.stat().st_size + 4095) // 4096 for each in saved.rglob("*") if each.is_file()) + free
    code, message = lab.namespace(f"mount -t tmpfs -o size={pages * 4096} tmpfs work && cp -a saved/. work", "mkdir kept && cp -a work/. kept")
    expect(code != 77, "the small file system cannot be made")
    shutil.rmtree(lab.work)
    (lab.folder / "kept").rename(lab.work)
    shutil.copystat(saved, lab.work)
    shutil.rmtree(saved)
    lab.refused_or_written(before, code, message)
    return code


@state("on a full disk", quick=True)
def _(lab):
    code = on_full_disk(lab, 0)
    expect(code in REFUSED or lab.writer.kind in ("emptied", "growing") or lab.writer.name.startswith("capture"), f"exit {code} on a full disk")


@state("on a disk that has space for a part")
def _(lab):
    need = sum((len(value[-1]) + 4095) // 4096 for value in lab.reference().values() if value[0] == "file")
    on_full_disk(lab, max(need // 2, 1))


def calls_of(lab):
    count = lab.folder / "count"
    code, message = lab.run(env={"LD_PRELOAD": str(lab.options.calls), "FILE_CALLS_COUNT": str(count)})
    expect(code == 0, f"exit {code}: {message[-300:]}")
    number = max(int(line) for line in count.read_text(encoding="ascii").split())
    count.unlink()
    return number


def reset(lab, start):
    """Makes work/ as it was."""
    shutil.rmtree(lab.work)
    shutil.copytree(start, lab.work, symlinks=True)


def at_each_call(lab, fault, limit):
    """Injects the fault at each call that writes. `limit`: only so many of them."""
    outside = pathlib.Path(tempfile.mkdtemp(prefix="shardlens-writes-", dir=lab.options.folder))
    if lab.writer.kind != "new":
        lab.old()
    shutil.copytree(lab.work, outside / "start", symlinks=True)
    number = calls_of(lab)
    done = range(number) if number <= limit else sorted({round(i * (number - 1) / (limit - 1)) for i in range(limit)})
    for each in done:
        reset(lab, outside / "start")
        before = lab.look()
        code, message = lab.run(env={"LD_PRELOAD": str(lab.options.calls), "FILE_CALLS_FAULT": f"{each}:{fault}"})
        try:
            if fault == "kill":
                expect(code in (-signal.SIGKILL, 4), f"exit {code}: {message[-300:]}")
                lab.judge(before, 1, leftovers=True)
            elif fault == "short":
                expect(code == 0, f"exit {code}: {message[-300:]}")
                lab.judge(before, 0)
            else:
                lab.refused_or_written(before, code, message)
            code, message = lab.run()
            # A new directory may have been complete already.
            expect(code == 0 or (code == 2 and lab.writer.kind == "new"), f"the next one: exit {code}: {message[-300:]}")
            try:
                lab.judge(before, 0)
            except Unmet as unmet:
                raise Unmet(f"the next one ended with {code}: {str(unmet).replace('exit 0, ', '')}") from None
        except Unmet as unmet:
            raise Unmet(f"at call {each} of {number}: {unmet}") from None
    shutil.rmtree(outside)


for name, words in (("kill", "killed at each call"), ("nospace", "no space at each call"), ("error", "an error at each call"), ("short", "a short write at each call")):
    state(words, where=lambda w: w.needs == "shardlens")(lambda lab, name=name: at_each_call(lab, name, 1000 if lab.options.all else 12))


@state("killed at some calls", quick=True, where=lambda w: w.needs == "shardlens" and w.quick)
def _(lab):
    if lab.options.all:
        raise Missing("nothing: all calls are in another cell")
    at_each_call(lab, "kill", 5)


@state("two at once", quick=True)
def _(lab):
    before = lab.look()
    both = [lab.start(), lab.start()]
    ends = [lab.end(each) for each in both]
    expect(all(code in (0, *REFUSED) for code, _ in ends) and any(code == 0 for code, _ in ends), f"exits {ends}")
    lab.judge(before, 0)


@state("calls are exclusive, removals are of something own", quick=True, where=lambda w: w.needs in ("shardlens", "shardlens-worker"))
def _(lab):
    problems = []
    for words in ("absent", "old"):
        if words == "old" and lab.writer.kind == "new":
            continue
        log = lab.folder / "log"
        log.unlink(missing_ok=True)
        if words == "old" and not (lab.folder / lab.out).exists():
            lab.old()
        marked = any((lab.folder / each / MARK).exists() for each in (lab.out, *ALSO_WRITTEN))
        code, message = lab.run(env={"LD_PRELOAD": str(lab.options.calls), "FILE_CALLS_LOG": str(log)})
        expect(code == 0 or words == "old", f"exit {code}: {message[-300:]}")
        lines = log.read_text(encoding="utf-8", errors="replace").splitlines() if log.exists() else []
        expect(lines or words == "old", "no call was logged")
        problems += call_log.violations(lines, lab.folder, (lab.out, *ALSO_WRITTEN), grows=lab.writer.kind == "growing", marked=marked)
    problems = list(dict.fromkeys(problems))
    expect(not problems, f"{len(problems)} calls: " + "; ".join(problems[:4]))


def missing_for(options, writer):
    if writer.needs == "minutes":
        return None if options.minutes else "minutes (--minutes)"
    if writer.needs == "torch":
        if not options.all:
            return "half a minute (--all)"
        found = subprocess.run([PYTHON, "-c", "import torch"], capture_output=True, check=False).returncode == 0
        return None if found else "a Python with PyTorch (SHARDLENS_TEST_PYTHON)"
    return None if (options.bin / writer.needs).exists() else writer.needs


def make_reference(options, template, writer):
    with tempfile.TemporaryDirectory(prefix="shardlens-writes-", dir=options.folder) as folder:
        lab = Lab(options, template, writer, pathlib.Path(folder).resolve())
        before = lab.look()
        code, message = lab.run()
        expect(code == 0, f"exit {code}: {message[-300:]}")
        after = lab.look()
        new = {name: value for name, value in after.items() if before.get(name) != value and (name + "/").startswith(lab.out + "/")}
        expect(any(value[0] == "file" for value in new.values()), f"no file was written: {message[-300:]}")
        if writer.kind == "shared":
            new.pop(lab.out, None)
        options.references[writer.name] = {os.path.relpath(name, lab.out) if name != lab.out else "": value for name, value in new.items()}


def check(options, template, writer, function):
    """Why the cell fails, None, or 'skipped, …'."""
    with tempfile.TemporaryDirectory(prefix="shardlens-writes-", dir=options.folder) as folder:
        try:
            function(Lab(options, template, writer, pathlib.Path(folder).resolve()))
        except Missing as missing:
            return f"skipped, needs {missing}"
        except Unmet as unmet:
            return str(unmet).replace(folder + "/", "")
    return None


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bin", required=True, type=pathlib.Path, help="folder with shardlens, and shardlens-worker and shardlens-gui if they are built")
    parser.add_argument("--calls", required=True, type=pathlib.Path, help="the library of file_calls.c")
    parser.add_argument("--all", action="store_true", help="every cell")
    parser.add_argument("--minutes", action="store_true", help="also commands that take minutes")
    parser.add_argument("--only", default="", help="cells whose name has this")
    options = parser.parse_args()
    options.bin, options.calls = options.bin.resolve(), options.calls.resolve()
    options.references, began = {}, time.monotonic()
    options.python = {"PYTHONPATH": os.pathsep.join([str(ROOT / "python"), str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])}
    results, skipped, counts = [], collections.Counter(), collections.Counter()
    with tempfile.TemporaryDirectory(prefix="shardlens-writes-", dir="/dev/shm" if os.access("/dev/shm", os.W_OK) else None) as folder:
        options.folder = folder
        options.python["TORCHINDUCTOR_CACHE_DIR"] = f"{folder}/inductor"
        template = pathlib.Path(folder) / "template"
        template.mkdir()
        make_inputs(options.bin / "shardlens", template)
        for writer in WRITERS:
            cells = [(words, function) for words, function, quick, where in STATES
                     if where(writer) and (options.all or options.only or (quick and writer.quick) or words in ("absent", "an input"))
                     and options.only in f"{writer.name}: {words}"]
            if not cells:
                continue
            if (missing := missing_for(options, writer)) is not None:
                skipped[f"{writer.name}: needs {missing}"] += len(cells)
                continue
            try:
                make_reference(options, template, writer)
            except Unmet as unmet:
                results.append((writer.name, "as a reference", str(unmet)))
                continue
            with ThreadPoolExecutor(os.cpu_count()) as at_once:
                problems = list(at_once.map(lambda cell: check(options, template, writer, cell[1]), cells))
            for (words, _), problem in zip(cells, problems):
                if problem and problem.startswith("skipped"):
                    skipped[f"{words}: {problem[len('skipped, '):]}"] += 1
                    continue
                counts["cells"] += 1
                known = [reason for cell, found, reason in KNOWN if problem and re.search(cell, f"{writer.name}: {words}") and re.search(found, problem)]
                if known:
                    skipped[f"{words}: known: {known[0]}"] += 1
                    problem = None
                if problem:
                    results.append((writer.name, words, problem))
                if options.only or (options.all and problem):
                    print(f"{'FAILED' if problem else 'ok':8}{writer.name}: {words}", flush=True)
    for reason, number in sorted(skipped.items()):
        print(f"{'known' if ': known: ' in reason else 'skipped'} {number}: {reason.replace('known: ', '')}")
    for name, words, problem in results:
        print(f"FAILED  {name}: {words}\n        {problem}")
    print(f"{counts['cells']} cells, {len(results)} not as expected, {sum(number for reason, number in skipped.items() if ': known: ' not in reason)} skipped, {time.monotonic() - began:.0f} s")
    return 1 if results else 0


if __name__ == "__main__":
    sys.exit(main())
