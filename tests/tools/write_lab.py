"""Where check_writes.py runs a command: a folder with its inputs and with files that are not ours, and a snapshot of it before and after."""
import atexit
import contextlib
import gzip
import json
import os
import pathlib
import re
import shutil
import signal
import stat
import subprocess
import tempfile
import sys

from writers import ALSO_WRITTEN

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
MODEL, TOKENS = ROOT / "tests/data/llama-tiny", ROOT / "tests/data/tokens.u16.bin"
PYTHON = os.environ.get("SHARDLENS_TEST_PYTHON") or sys.executable
RUNTIME = tempfile.mkdtemp(prefix="shardlens-runtime-")  # otherwise Qt makes a folder in TMPDIR
atexit.register(shutil.rmtree, RUNTIME, ignore_errors=True)
# Runs `-c CODE …` or `-m MODULE …` with a folder and its parent in front of the others: SHARDLENS_TEST_PYTHON sets PYTHONPATH itself.
RUN_PYTHON = """
import os, runpy, sys
folder, kind, what = sys.argv[1:4]
sys.path[:0] = [folder, os.path.dirname(folder)]
sys.argv[:4] = ["-c"]
if kind == "-m":
    runpy.run_module(what, run_name="__main__", alter_sys=True)
else:
    exec(compile(what, "<code>", "exec"), {"__name__": "__main__"})
"""
LONG = 60  # seconds; no command of these takes longer, whatever the machine does meanwhile
MARK = ".shardlens-capture"  # a directory with this file was written by us; run.json has its identifier
UNFINISHED = re.compile(r"\.tmp[0-9a-f]{32}(/|$)")  # what is not finished yet, or will not be
REFUSED = (2, 3, 4)  # exit codes of a command that says why it does not write


class Unmet(Exception):
    """An expectation that does not hold."""


class Missing(Exception):
    """This machine lacks something that the cell needs."""


def expect(holds, what):
    if not holds:
        raise Unmet(what)


def make_inputs(shardlens, folder):
    """in/ with an input of each kind, small."""
    inputs = folder / "in"
    inputs.mkdir()
    shutil.copytree(ROOT / "traces/llama-emulated8", inputs / "run")
    small = subprocess.run([shardlens, "convert", inputs / "run", "--steps", "3:5", "--out", folder / "small"], capture_output=True, text=True, check=False)
    expect(small.returncode == 0, f"the inputs cannot be made: {small.stderr}")
    shutil.copy(folder / "small/rank0.pt.trace.json.gz", inputs / "run")
    shutil.rmtree(folder / "small")
    shutil.copytree(inputs / "run", inputs / "other")
    shutil.copy(inputs / "run/rank0.pt.trace.json.gz", inputs / "trace.json.gz")
    shutil.copytree(ROOT / "tests/data/pytorch_traces/fsdp1-forward", inputs / "advised")
    shutil.copytree(MODEL, inputs / "model")
    shutil.copy(TOKENS, inputs / "tokens.bin")
    shutil.copy(inputs / "run/plan.json", inputs / "plan.json")
    shutil.copy(ROOT / "sim/hardware/specs/4xPCIe.json", inputs / "spec.json")
    made = subprocess.run([shardlens, "checkpoint", "convert", "in/model", "--world-size", "2", "--out", "in/checkpoint"], cwd=folder, capture_output=True,
                          text=True, check=False)
    expect(made.returncode == 0, f"the inputs cannot be made: {made.stderr}")


def snapshot(folder):
    """The entries of a folder, by path: type, permissions, content."""
    found = {}
    for path in sorted(folder.rglob("*")):
        info, name = path.lstat(), str(path.relative_to(folder))
        if stat.S_ISLNK(info.st_mode):
            found[name] = ("link", os.readlink(path))
        elif stat.S_ISDIR(info.st_mode):
            found[name] = ("directory", stat.S_IMODE(info.st_mode))
        elif stat.S_ISREG(info.st_mode):
            found[name] = ("file", stat.S_IMODE(info.st_mode), path.read_bytes())
        else:
            found[name] = ("special", stat.S_IFMT(info.st_mode))
    return found


def is_whole(name, content):
    """Whether a file of a command whose runs differ is complete, as its ending says."""
    with contextlib.suppress(ValueError, OSError, EOFError):
        if name.endswith(".gz"):
            return bool(json.loads(gzip.decompress(content))) if "json" in name else bool(gzip.decompress(content))
        if name.endswith(".jsonl"):
            return all(json.loads(line) for line in content.splitlines())
        if name.endswith(".json"):
            return bool(json.loads(content))
        if name.endswith(".png"):
            return content.startswith(b"\x89PNG") and content.endswith(b"IEND\xaeB`\x82")
        if name.endswith(".safetensors"):
            size = int.from_bytes(content[:8], "little")
            header = json.loads(content[8:8 + size])
            return len(content) == 8 + size + max(t["data_offsets"][1] for n, t in header.items() if n != "__metadata__")
        return True
    return False


def without_mark(path, content):
    """Each capture has an identifier of its own."""
    if path.endswith("/" + MARK):
        return bool(content.strip())
    if path.endswith("/run.json"):
        with contextlib.suppress(ValueError):
            return {key: value for key, value in json.loads(content).items() if key != "capture"}
    return content


class Lab:
    """A folder for one cell: in/ with the writer's inputs, work/ with its output and something foreign."""

    def __init__(self, options, template, writer, folder):
        self.options, self.writer, self.folder = options, writer, folder
        self.binary = options.bin / "shardlens"
        (folder / "in").mkdir()
        for name in {"/".join(path.split("/")[:2]) for path in writer.inputs}:
            source = template / name
            (shutil.copytree if source.is_dir() else shutil.copy)(source, folder / name)
        self.work = folder / "work"
        self.work.mkdir()
        (self.work / "notes.txt").write_text("foreign\n", encoding="ascii")
        self.out = self.named("work/out")

    def named(self, out):
        """The path that the command is given for {out}, which may get an ending."""
        return next((w.replace("{out}", out) for w in self.writer.words if "{out}" in w), out)

    def words(self, out="work/out", force=False):
        """`out` is the whole path, also where the table adds an ending."""
        program = [PYTHON, "-B", "-c", RUN_PYTHON, str(ROOT / "python")] if self.writer.needs == "torch" else [str(self.binary)]
        return program + [out if "{out}" in w else w for w in self.writer.words] + (["--force"] if force else [])

    def start(self, out=None, force=False, env=None, before=(), **options):
        return subprocess.Popen([*before, *self.words(out or self.out, force)], cwd=self.folder, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
                                stderr=subprocess.PIPE, env={**os.environ, "TMPDIR": str(self.folder), **self.options.python, "QT_QPA_PLATFORM": "offscreen", "XDG_RUNTIME_DIR": RUNTIME, **(env or {})},
                                start_new_session=True, **options)

    @staticmethod
    def end(process, within=LONG):
        try:
            message = process.communicate(timeout=within)[1].decode(errors="replace")
        except subprocess.TimeoutExpired:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.communicate()
            raise Unmet(f"still running after {within} s") from None
        return process.returncode, message

    def run(self, within=LONG, **options):
        code, message = self.end(self.start(**options), within)
        for raw in ("internal error", "json.exception", "bad_alloc", "filesystem error", "terminate called"):
            expect(raw not in message, f"'{raw}' in: {message[-300:]}")
        return code, message

    def look(self):
        return snapshot(self.folder)

    def reference(self):
        """The files that the command writes to an output that does not exist: content by path below the output ("": the file itself)."""
        return self.options.references[self.writer.name]

    def old(self):
        """An earlier output: a file, or for directories that of the command itself."""
        if self.writer.kind == "file":
            (self.folder / self.out).write_text("old\n", encoding="ascii")
        else:
            code, message = self.run()
            expect(code == 0, f"exit {code}: {message}")

    def judge(self, before, code, leftovers=False, out=None, changes=None):
        """Compares what is there with what was there before the command. `changes`: the output where links lead to it."""
        after, out = self.look(), changes or out or self.out
        reference = self.reference()
        result = {os.path.normpath(f"{out}/{name}") if name else out: content for name, content in reference.items()}

        def is_new(path):
            now, new = after.get(path), result.get(path)
            if new is None or now is None or now[0] != new[0]:
                return False
            if now[0] != "file":
                return True
            if not self.writer.exact:
                return is_whole(path, now[-1])
            return self.writer.is_same(without_mark(path, now[-1]), without_mark(path, new[-1])) or (code != 0 and self.writer.is_part(now[-1], new[-1]))

        for path, value in before.items():
            if path.startswith(ALSO_WRITTEN) or after.get(path) == value or is_new(path):
                continue
            if path == out and value[0] == "directory" and after.get(path, ("",))[0] == "directory":
                continue
            replaced = self.writer.kind == "emptied" and path.startswith(out + "/") and path in result and path not in after
            what = "is gone" if path not in after else "has changed"
            expect(replaced and code != 0, f"exit {code}, and {path} {what}")
        for path in after:
            if path in before or path.startswith(ALSO_WRITTEN) or leftovers or is_new(path) or (code != 0 and (self.writer.kept.match(path) or UNFINISHED.search(path))) or (out + "/").startswith(path + "/"):
                continue
            raise Unmet(f"exit {code}, and left behind: {path}")
        if code == 0:
            for path in result:
                expect(is_new(path), f"exit 0, but {path} is not complete")
        return after

    def refused_or_written(self, before, code, message, **more):
        expect(code in (0, *REFUSED), f"exit {code}: {message[-300:]}")
        return self.judge(before, code, **more)

    def namespace(self, script, after):
        """The command with mounts of its own; `after` runs in them when it has ended."""
        tried = subprocess.run(["unshare", "-m", "true"], capture_output=True, check=False, text=True)
        if tried.returncode != 0:
            raise Missing(f"the right to mount ({tried.stderr.strip()})")
        return self.run(before=["unshare", "-m", "sh", "-c", f'{script} || exit 77; "$@"; code=$?; {after}; exit $code', "sh"])
