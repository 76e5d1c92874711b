#!/usr/bin/env python3
"""Lets a capture of two ranks, or the app, run for long, and checks that it takes no more memory, descriptors or threads later than it did at first.

    check_long_runs.py --bin DIR --seconds 7200    the run of bench/RELIABILITY.md
    check_long_runs.py --bin DIR --seconds 25      what CTest runs
    check_long_runs.py --app build/dev-asan/tests/gui_monkey_test --seconds 3600
    check_long_runs.py … --write FILE [--table NAME]    also replaces the table of this long run in bench/RELIABILITY.md

Every few seconds SIGUSR1 asks for two recorded steps, so windows of a trace are begun and ended all the time, and the oldest are removed to keep the
spools within 2 MiB. Samples are taken of capture and both workers. Compared are the medians of the second and of the last quarter (the first is
warm-up): resident memory may grow by 1 % and 4 MiB, descriptors and threads not at all. Pages of files, such as those of the program, are not counted:
they become resident when they are first used, and the kernel takes them back when it needs them. At the end, after SIGTERM, metrics.jsonl has one
line for each step, the files of a spool never had more than 2 MiB, and the traces end with the window that was requested last.

The app is the program of CTest that uses the window at random: it has a capture open, and memory may grow by 3 % and 4 MiB, because what is open
differs. Every 1000 actions it opens the capture again and prints how much of its heap is in use, without the pictures of windows; the row "in use of
it" has these figures.
AddressSanitizer keeps freed blocks for a while, and the stack of every allocation forever. The script limits the former to 32 MiB and the latter to one
frame: through libraries without frame pointers each stack is another one, and they took 5 MiB a minute. Exit 1 if an expectation fails.
"""
import argparse
import contextlib
import json
import os
import pathlib
import re
import signal
import statistics
import subprocess
import sys
import tempfile
import time

import reliability_table

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
MIB = 1 << 20
LIMIT = 2  # MiB of a spool
NAMES = ("capture", "rank 0", "rank 1")


def sample(pid):
    """(resident bytes that are not of files, descriptors, threads)"""
    status = pathlib.Path(f"/proc/{pid}/status").read_text(encoding="utf-8", errors="replace")
    number = {key: int(value) for key, value in re.findall(r"^(RssAnon|RssShmem|Threads):\s+(\d+)", status, re.M)}
    return (number["RssAnon"] + number["RssShmem"]) * 1024, len(os.listdir(f"/proc/{pid}/fd")), number["Threads"]


def children(pid):
    return [int(child) for child in pathlib.Path(f"/proc/{pid}/task/{pid}/children").read_text(encoding="ascii").split()]


def medians(samples, quarter):
    begin, end = len(samples) * quarter // 4, len(samples) * (quarter + 1) // 4
    return [statistics.median(values) for values in zip(*samples[begin:end])]


def last_step(out):
    with open(out / "metrics.jsonl", "rb") as file:
        file.seek(max(0, file.seek(0, os.SEEK_END) - 4096))
        lines = [line for line in file.read().split(b"\n") if line.endswith(b"}") and line.startswith(b"{")]
    return json.loads(lines[-1])["step"] if lines else -1


def bytes_of_spool(out, rank):
    """Bytes of the file, and of its copy while older steps are removed."""
    total = 0
    for path in out.glob(f"rank{rank}.spool*"):
        with contextlib.suppress(FileNotFoundError):  # the copy has become the file
            total += path.stat().st_size
    return total


def watch(process, out, seconds, between):
    """Samples of each process, requested windows, the step before the last request and the most bytes that a spool had."""
    samples, windows, asked_after, most, told = {name: [] for name in NAMES}, 0, -1, 0, time.monotonic()
    end = time.monotonic() + seconds
    while time.monotonic() < end and process.poll() is None:
        try:
            for name, taken in zip(NAMES, [sample(pid) for pid in (process.pid, *children(process.pid))]):
                samples[name].append(taken)
        except (OSError, KeyError):
            break  # one has ended
        most = max(most, bytes_of_spool(out, 0), bytes_of_spool(out, 1))
        if time.monotonic() - told >= between * 5:
            told = time.monotonic()
            asked_after = last_step(out)
            process.send_signal(signal.SIGUSR1)
            windows += 1
        time.sleep(between)
    return samples, windows, asked_after, most


def compared(name, samples, growth):
    """(row of the table, problem or None) of a process that may take `growth` times its memory later."""
    early, late = medians(samples, 1), medians(samples, 3)
    row = (name, f"{early[0] / MIB:.1f} → {late[0] / MIB:.1f} MiB", f"{early[1]:.0f} → {late[1]:.0f}", f"{early[2]:.0f} → {late[2]:.0f}")
    print(*row, sep="  ", flush=True)
    if late[0] > early[0] * growth + 4 * MIB or late[1] > early[1] or late[2] > early[2]:
        return row, f"{name} grew: memory, descriptors, threads were {early}, are {late}"
    return row, None


def app(options):
    """Rows of the table, and problems."""
    samples = []
    between = min(5.0, options.seconds / 100)
    environment = {"ASAN_OPTIONS": "quarantine_size_mb=32:malloc_context_size=1",
                   "LSAN_OPTIONS": f"suppressions={ROOT}/tests/lsan.supp:print_suppressions=0", **os.environ,
                   "QT_QPA_PLATFORM": "offscreen", "SHARDLENS_MONKEY_SECONDS": f"{options.seconds:.0f}"}
    with tempfile.TemporaryFile() as output, \
            subprocess.Popen([options.app, "--gtest_filter=MonkeyTest.ACapture"], env=environment, stdout=output, stderr=output) as process:
        while process.poll() is None:
            time.sleep(between)
            with contextlib.suppress(OSError, KeyError):  # it has ended
                samples.append(sample(process.pid))
        output.seek(0)
        said = output.read().decode(errors="replace")
    heap = [(int(used), 0, 0) for used in re.findall(r"^heap in use ([0-9]+)$", said, re.M)]
    row, problem = compared("app", samples, 1.03)
    rows, problems = [row], [problem] if problem else []
    if len(heap) >= 8 and max(heap)[0] > 0:
        row, problem = compared("in use of it", heap, 1.03)
        rows.append((*row[:2], "", ""))
        problems += [problem] if problem else []
    if process.returncode != 0 or "[  PASSED  ] 1 test" not in said:
        problems.append(f"exit {process.returncode}: {said[-2000:]}")
    return [*rows, (f"{options.seconds:.0f} s of random use", "", "", "")], problems


def capture(options):
    """Rows of the table, and problems."""
    rows, problems = [], []
    with tempfile.TemporaryDirectory(prefix="shardlens-long-") as name:
        out = pathlib.Path(name) / "out"
        command = [options.bin / "shardlens", "capture", "--model", ROOT / "tests/data/llama-tiny", "--tokens", ROOT / "tests/data/tokens.u16.bin", "--out", out,
                   "--steps", "1000000000", "--timeout", "86400",  # also of use where the machine is suspended
                   "--on-signal", "2", "--record-limit", str(LIMIT), "--seq", "16"]
        with open(pathlib.Path(name) / "stderr", "wb") as stderr, subprocess.Popen(command, stdin=subprocess.DEVNULL, stderr=stderr) as process:
            while process.poll() is None and not (out / "metrics.jsonl").exists():
                time.sleep(0.05)
            samples, windows, asked_after, most = watch(process, out, options.seconds, min(1.0, options.seconds / 100))
            process.send_signal(signal.SIGTERM)
            code = process.wait(120)
        if code != 143:
            problems.append(f"exit {code}, expected 143 after SIGTERM: {(pathlib.Path(name) / 'stderr').read_text()[-500:]}")
        for who in NAMES:
            row, problem = compared(who, samples[who], 1.01)
            rows.append(row)
            problems += [problem] if problem else []
        steps = [json.loads(line)["step"] for line in (out / "metrics.jsonl").read_text(encoding="utf-8").splitlines()]
        if steps != list(range(steps[0], steps[0] + len(steps))):
            problems.append("metrics.jsonl does not have one line for each step")
        if most > LIMIT * MIB:
            problems.append(f"a spool had {most} bytes, its limit is {LIMIT} MiB")
        analyzed = subprocess.run([options.bin / "shardlens", "analyze", out, "--json"], capture_output=True, check=False)
        recorded = [[step["step"] for step in rank["steps"]] for rank in json.loads(analyzed.stdout)["ranks"]] if analyzed.returncode == 0 else [[-1]]
        if min(steps_of_rank[-1] for steps_of_rank in recorded) <= asked_after:
            problems.append(f"the last window was requested after step {asked_after}, the traces have {recorded}: {analyzed.stderr.decode()[-300:]}")
        summary = (f"{options.seconds:.0f} s: {len(steps)} steps, {windows} windows requested, the last {min(map(len, recorded))} steps of them in the traces, "
                   f"at most {most / MIB:.1f} MiB in a spool")
        print(summary)
    return [*rows, (summary, "", "", "")], problems


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("--bin", type=pathlib.Path, help="folder with shardlens and shardlens-worker")
    what.add_argument("--app", type=pathlib.Path, help="the test program gui_monkey_test")
    parser.add_argument("--seconds", required=True, type=float)
    parser.add_argument("--write", type=pathlib.Path, help="the document whose table is replaced")
    parser.add_argument("--table", help='the table\'s name; by default "long runs" or "the app"')
    options = parser.parse_args()
    for program in [options.app] if options.app else [options.bin / "shardlens", options.bin / "shardlens-worker"]:
        if not os.access(program, os.X_OK) or program.is_dir():
            parser.error(f"{program} is not a program: build it first")
    rows, problems = app(options) if options.app else capture(options)
    for problem in problems:
        print(f"FAILED  {problem}")
    if options.write and not problems:
        table = options.table or ("the app" if options.app else "long runs")
        reliability_table.replace(options.write, table, ("process", "memory", "descriptors", "threads"), rows)
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
