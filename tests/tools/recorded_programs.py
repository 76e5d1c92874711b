#!/usr/bin/env python3
"""Real training programs on Gloo ranks, each recorded with shardlens.record and then handed to every command that reads a run.

    recorded_programs.py OUT [NAME…] [--json FILE] [--table] [--list]      run it with build/test-python

The programs are those of training_programs.py and library_programs.py. Each trains twice in one process per rank: without the recorder, and with it.
The losses of both must be equal to the bit. OUT/NAME/run is the recording, and OUT/NAME/ranks.json has the losses and times of the ranks. Then
analyze, plan --from-trace, plan of the files that the recorder wrote, simulate --workload (the run's own plan), advise, check against itself, report
and the app, which draws its window into a picture, get the run.

The table has the exit code of each command and the error of the simulated step for the own plan, compared with the median of the recorded steps. Below it
are what refused, with its reason. Exit code 1 if a program or a command crashed, hung or ended with exit code 4, if a refusal has no reason or no
way out, if a recording gave up, or if losses differ. --table runs no program again. A program is skipped if its packages cannot be installed.

The packages of recorded_programs.txt are installed once, into a folder of the user's cache.
"""
import argparse
import contextlib
import hashlib
import importlib.util
import json
import os
import re
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "python"))
PACKAGES = Path(__file__).with_name("recorded_programs.txt")
WARMUP, STEPS = 2, 7
TRAINING_SECONDS, COMMAND_SECONDS, INSTALLATION_SECONDS = 240, 120, 900
COMMANDS = ("analyze", "from-trace", "plan", "simulate", "advise", "check", "report", "app")
# What a message says where it tells what to do: a flag, or one of these words.
WAY_OUT = re.compile(r"--[a-z]|\b(expected|use|give|record|run|add|choose|remove|leave|try|see|set|apply|take|takes|needs?|without|instead|give|gives)\b", re.I)


# --- A program on a rank


class Run:
    """The arguments of a program: its rank, its data, and the recorder or none."""

    def __init__(self, rank, world, store, directory):
        import torch

        self.rank, self.world, self.store, self.directory = rank, world, store, directory
        self.steps = WARMUP + STEPS
        self.settings = {}  # of shardlens.record
        self.generator = torch.Generator().manual_seed(rank)
        self.losses, self.seconds = [], []

    def same_data(self, index=0):
        """The ranks with the same index train on the same samples."""
        self.generator.manual_seed(index)

    def cluster(self):
        """For Lightning: the ranks run already."""
        from lightning.pytorch.plugins.environments import LightningEnvironment

        rank, world = self.rank, self.world

        class Cluster(LightningEnvironment):
            creates_processes_externally = True

            def world_size(self):
                return world

            def global_rank(self):
                return rank

            def local_rank(self):
                return rank

        return Cluster()

    @contextlib.contextmanager
    def recording(self, model, optimizer):
        """Records, or only keeps losses, while the program calls step(loss) of what it gets."""
        import shardlens

        recorder = contextlib.nullcontext()
        if self.directory is not None:
            recorder = shardlens.record(self.directory, model=model, optimizer=optimizer, warmup=WARMUP, steps=STEPS, force=True, **self.settings)
        with recorder as recording:
            began = [time.perf_counter()]

            def step(loss):
                self.losses.append(loss.detach().clone())
                self.seconds.append(time.perf_counter() - began[0])
                if recording is not None:
                    recording.step(loss)
                began[0] = time.perf_counter()

            yield argparse.Namespace(step=step)

    def train(self, model, optimizer, step):
        with self.recording(model, optimizer) as recording:
            for _ in range(self.steps):
                recording.step(step())


def all_programs():
    import library_programs  # noqa: F401  they are added to PROGRAMS
    import training_programs

    return training_programs.PROGRAMS


def work(name, rank, store, out):
    """One rank: the program without the recorder, then with it."""
    import torch
    import torch.distributed as dist

    program = all_programs()[name]
    world = program.ranks
    os.environ.update(RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE=str(world), LOCAL_WORLD_SIZE=str(world), MASTER_ADDR="127.0.0.1", MASTER_PORT="0")
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=world)
    found = {}
    for kind, directory in (("plain", None), ("recorded", out / "run")):
        torch.manual_seed(rank)
        torch._dynamo.reset()
        run = Run(rank, world, store, directory)
        program(run)
        dist.barrier()
        # As bits: NaN is equal to itself.
        found[kind] = {"losses": [float(loss).hex() for loss in run.losses], "seconds": run.seconds}
    ranks = [None] * world
    dist.all_gather_object(ranks, found)
    if rank == 0:
        (out / "ranks.json").write_text(json.dumps(ranks) + "\n")
    dist.barrier()
    dist.destroy_process_group()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)  # Gloo's threads may still run when Python is torn down, which aborts the process


# --- Processes


def ended(process, seconds):
    """The exit code; None: it did not end in time, and is killed with what it started."""
    try:
        return process.wait(timeout=max(seconds, 0.1))
    except subprocess.TimeoutExpired:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        return None


def last_lines(path, count=4):
    return [line for line in path.read_text(errors="replace").splitlines() if line.strip()][-count:]


def record(name, program, out, environment):
    """Trains and records. Returns why that failed, or "", and what the recorder warned of."""
    shutil.rmtree(out, ignore_errors=True)
    out.mkdir(parents=True)
    processes, begin = [], time.monotonic()
    with tempfile.TemporaryDirectory() as scratch:
        for rank in range(program.ranks):
            with (out / f"rank{rank}.log").open("w") as log:
                arguments = [sys.executable, "-B", __file__, str(out), name, "--rank", str(rank), "--store", str(Path(scratch) / "store")]
                processes.append(subprocess.Popen(arguments, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=environment, start_new_session=True))
        while any(process.poll() is None for process in processes) and time.monotonic() - begin < TRAINING_SECONDS:
            if any(process.poll() for process in processes):
                time.sleep(1)  # the others see it, or would wait forever
                break
            time.sleep(0.05)
        slow = all(process.poll() is None for process in processes)
        codes = [ended(process, 0) for process in processes]
    warnings = sorted({line for rank in range(program.ranks) for line in (out / f"rank{rank}.log").read_text(errors="replace").splitlines()
                       if "shardlens.record:" in line and "made the first step" not in line})
    for rank, code in enumerate(codes):
        if code is not None and code != 0:
            said = " / ".join(last_lines(out / f"rank{rank}.log", 2))
            return f"rank {rank} ended with {code}: {said}", warnings
    if None in codes:
        return f"did not end in {TRAINING_SECONDS} s" if slow else "a rank did not end", warnings
    return "", warnings


def losses_differ(out):
    """Whether the recorder changed a loss; which, as text."""
    for rank, found in enumerate(json.loads((out / "ranks.json").read_text())):
        plain, recorded = found["plain"]["losses"], found["recorded"]["losses"]
        if len(plain) != WARMUP + STEPS:
            return f"rank {rank} trained {len(plain)} steps, expected {WARMUP + STEPS}"
        for step, (a, b) in enumerate(zip(plain, recorded, strict=True)):
            if a != b:
                return f"rank {rank}, step {step}: {float.fromhex(a)!r} without the recorder, {float.fromhex(b)!r} with it"
    return ""


def command_lines(out, binaries):
    shardlens, run = str(binaries / "shardlens"), str(out / "run")
    ranks = len(list((out / "run").glob("rank*.pt.trace.json.gz")))
    return {
        "analyze": [shardlens, "analyze", run, "--json"],
        "from-trace": [shardlens, "plan", "--from-trace", run, "--json"],
        "plan": [shardlens, "plan", "--model", f"{run}/model.json", "--plan", f"{run}/plan.json", "--world-size", str(ranks), "--json"],
        "simulate": [shardlens, "simulate", "--workload", run, "--json"],
        "advise": [shardlens, "advise", run, "--json"],
        "check": [shardlens, "check", "--baseline", run, "--candidate", run, "--metric", "structure", "--json"],
        "report": [shardlens, "report", run, "--out", str(out / "report.html"), "--force"],
        "app": [str(binaries / "shardlens-gui"), run, "--config-dir", str(out / "settings"), "--export-png", str(out / "window.png")],
    }


def ask(arguments, environment):
    """(exit code or None, output, messages) of a command."""
    with tempfile.TemporaryFile("w+") as output, tempfile.TemporaryFile("w+") as messages:
        process = subprocess.Popen(arguments, stdin=subprocess.DEVNULL, stdout=output, stderr=messages, env=environment, start_new_session=True)
        code = ended(process, COMMAND_SECONDS)
        output.seek(0)
        messages.seek(0)
        return code, output.read(), messages.read().strip()


def judged(command, code, said):
    """Says what is wrong with how a command ended; "": nothing."""
    if code is None:
        return f"{command} did not end in {COMMAND_SECONDS} s"
    if code < 0:
        return f"{command} was ended by signal {-code}"
    if code == 0 or (code == 5 and command == "advise"):  # its error exceeds what any change gains: the output says it
        return ""
    if code == 4:
        return f"{command} ended with exit code 4: {said}"
    if not said:
        return f"{command} ended with exit code {code} and no reason"
    if not WAY_OUT.search(said):
        return f"{command} names no way out: {said}"
    return ""


# --- A program and its commands as a row


def row_of(name, program, out, options, environment):
    """{program, why: what failed, warnings, codes and reasons of commands, own-plan error, step}"""
    row = {"program": name, "ranks": program.ranks, "failed": [], "warnings": [], "codes": {}, "reasons": {}, "own_plan_error": None, "step_ms": None, "notes": []}
    if not (options.table and (out / "ranks.json").exists()):
        why, row["warnings"] = record(name, program, out, environment)
        if why:
            row["failed"].append(f"the program failed: {why}")
            return row
    row["failed"] += [f"recorder: {text}" for text in row["warnings"]]
    if differ := losses_differ(out):
        row["failed"].append(f"losses: {differ}")
    if (out / "run/run.json").exists():
        row["notes"] = json.loads((out / "run/run.json").read_text())["notes"]
    for command, arguments in command_lines(out, options.bin).items():
        if command == "plan" and not (out / "run/plan.json").exists():
            row["reasons"][command] = next((note for note in row["notes"] if note.startswith("no plan.json")), "")
            row["failed"] += [] if row["reasons"][command] else ["the recorder wrote no plan.json and does not say why"]
            continue
        if row["codes"].get("simulate") == 0 and command in ("report", "app"):
            arguments += ["--simulate"] + (["--advise"] if command == "report" else [])
        code, output, messages = ask(arguments, {**os.environ, "QT_QPA_PLATFORM": "offscreen"})
        (out / f"{command}.json").write_text(output)
        row["codes"][command] = code
        if code != 0:
            row["reasons"][command] = messages or (output.strip().splitlines() or [""])[-1][:300]
        if wrong := judged(command, code, messages):
            row["failed"].append(wrong)
        if command == "simulate" and code == 0:
            predicted = json.loads(output)
            found = predicted.get("baseline", {})
            row["step_ms"], row["own_plan_error"] = found.get("measured_step_ns", 0) / 1e6, found.get("error")
    if row["codes"]["app"] == 0 and not (out / "window.png").exists():
        row["failed"].append("app: there is no picture")
    return row


def shown(row):
    error = "" if row["own_plan_error"] is None else f"{100 * row['own_plan_error']:+.1f} %"
    step = "" if row["step_ms"] is None else f"{row['step_ms']:.0f} ms"
    codes = [{None: "hung"}.get(code, str(code)) for code in (row["codes"].get(command, "") for command in COMMANDS)]
    return [row["program"], str(row["ranks"]), step, *codes, error, row.get("skipped") and "skipped" or ("failed" if row["failed"] else "")]


def print_table(rows):
    lines = [["program", "ranks", "step", *COMMANDS, "own plan", ""]] + [shown(row) for row in rows]
    widths = [max(len(line[i]) for line in lines) for i in range(len(lines[0]))]
    for line in lines:
        print("  ".join([line[0].ljust(widths[0]), *(cell.rjust(width) for cell, width in zip(line[1:], widths[1:]))]).rstrip())
    print()
    refused = {}  # (command, reason): programs
    for row in rows:
        for command, reason in row["reasons"].items():
            refused.setdefault((command, re.sub(r"\S*/" + re.escape(row["program"]) + "/run", "RUN", reason)), []).append(row["program"])
    for (command, reason), programs in sorted(refused.items()):
        print(f"{command} of {', '.join(programs)}:\n    " + reason.replace("\n", "\n    "))
    for row in rows:
        if row.get("skipped"):
            print(f"{row['program']} skipped: {row['skipped']}")
        for text in row["failed"]:
            print(f"{row['program']}: FAILED: {text}")
    errors = [abs(row["own_plan_error"]) for row in rows if row["own_plan_error"] is not None]
    if errors:
        print(f"\nown plan: {len(errors)} programs, error {100 * statistics.median(errors):.1f} % in the median, "
              f"{sum(error <= 0.05 for error in errors)} within 5 %, largest {100 * max(errors):.1f} %")
    ran = [row for row in rows if not row.get("skipped")]
    print(f"{len(ran)} programs, {sum(not row['failed'] for row in ran)} without a fault, {len(rows) - len(ran)} skipped")


# --- The environment of the trainers' packages


def installed():
    """(folder of the packages or None, why not). Installs them into the user's cache, under a name that depends on their list."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "shardlens"
    folder = cache / f"recorded-programs-{hashlib.sha256(PACKAGES.read_bytes()).hexdigest()[:12]}"
    if folder.exists():
        return folder, ""
    cache.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=cache) as scratch:
        command = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-deps", "--no-compile", "--target", f"{scratch}/site",
                   "--requirement", str(PACKAGES)]
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=INSTALLATION_SECONDS, check=False, env={**os.environ, "TMPDIR": scratch})
        except subprocess.TimeoutExpired:
            return None, f"pip did not end in {INSTALLATION_SECONDS} s"
        if done.returncode != 0:
            return None, f"pip: {(done.stderr.strip().splitlines() or ['no message'])[-1]}"
        with contextlib.suppress(OSError):  # another run was first
            os.rename(f"{scratch}/site", folder)
    return folder, ""


def missing(program, folder):
    """The packages that the program needs and that are not there."""
    if folder is not None and str(folder) not in sys.path:
        sys.path.insert(0, str(folder))
    return [package for package in program.packages if importlib.util.find_spec(package) is None]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("names", nargs="*", metavar="NAME")
    parser.add_argument("--bin", type=Path, default=ROOT / "build/release/bin")
    parser.add_argument("--json", type=Path, help="also write the rows to this file")
    parser.add_argument("--table", action="store_true", help="only ask the commands where a program was recorded already")
    parser.add_argument("--list", action="store_true", help="print the programs and what they are")
    parser.add_argument("--rank", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--store", help=argparse.SUPPRESS)
    options = parser.parse_args()
    options.out, options.bin = options.out.resolve(), options.bin.resolve()
    if options.rank is not None:
        work(options.names[0], options.rank, options.store, options.out)
    programs = all_programs()
    if options.list:
        for name, program in programs.items():
            print(f"{name:24} {(program.__doc__ or '').splitlines()[0] if program.__doc__ else ''}".rstrip())
        return 0
    if unknown := set(options.names) - set(programs):
        parser.error(f"no program {', '.join(sorted(unknown))}; expected names among {', '.join(programs)}")
    folder, why = installed() if any(programs[name].packages for name in options.names or programs) else (None, "")
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo", "CUDA_VISIBLE_DEVICES": "", "HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false",
                   "PYTHONPATH": os.pathsep.join([*([str(folder)] if folder else []), os.environ.get("PYTHONPATH", "")])}
    rows = []
    for name in options.names or programs:
        begin = time.monotonic()
        if left := missing(programs[name], folder):
            rows.append({"program": name, "ranks": programs[name].ranks, "failed": [], "codes": {}, "reasons": {}, "own_plan_error": None, "step_ms": None,
                         "skipped": f"no {', '.join(left)}{': ' + why if why else ''}"})
        else:
            rows.append(row_of(name, programs[name], options.out / name, options, environment))
        print(f"{name}: {time.monotonic() - begin:.0f} s{''.join(f'; {text}' for text in rows[-1]['failed'])}", file=sys.stderr, flush=True)
    print_table(rows)
    if options.json:
        options.json.write_text(json.dumps(rows, indent=1) + "\n")
    return 1 if any(row["failed"] for row in rows) else 0


if __name__ == "__main__":
    sys.exit(main())
