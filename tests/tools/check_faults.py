#!/usr/bin/env python3
"""Injects faults into real runs of `shardlens capture` and its workers (Gloo, two ranks), and checks how each ends.

    check_faults.py --bin DIR                     every fault; minutes
    check_faults.py --bin DIR --quick             those that CTest runs
    check_faults.py --bin DIR --only killed       those whose name matches
    check_faults.py --bin DIR --results R.json    also adds the results to a file, so that several calls can make one table
    check_faults.py --bin DIR --results R.json --write FILE    and replaces the table of faults in bench/RELIABILITY.md with it

For each fault: the exit code, the message, how soon the run ended or the fault was named, and what is left on disk. After each one there must be no
process of the run, no file in its temporary directory, no file of its processes in /dev/shm and no temporary file in --out; traces and spools
that are left must be readable, with every step that had ended before the fault. Faults that need root's mount namespaces or a compiler are
skipped where these are missing. Exit 1 if an expectation fails.
"""
import argparse
import contextlib
import ctypes
import json
import os
import pathlib
import random
import re
import resource
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time

import reliability_table

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
MODEL, TOKENS = ROOT / "tests/data/llama-tiny", ROOT / "tests/data/tokens.u16.bin"
LONG = 180  # seconds: no run of these may take longer, whatever the machine does meanwhile
FOREVER = "100000000"  # steps

# Delays every write to a spool by 10 ms, as a slow disk does, makes CLOCK_REALTIME step back by an hour after three seconds, or stops in the call that
# gives a file the name in HOLD_RENAME.
SHIM = r"""
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>
static void slow(int fd) {
  char link[64], path[512];
  if (!getenv("SLOW_DISK")) return;
  snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
  ssize_t n = readlink(link, path, sizeof path - 1);
  if (n > 0) { path[n] = 0; if (strstr(path, ".spool")) usleep(10000); }
}
ssize_t write(int fd, const void* p, size_t n) {
  static ssize_t (*real)(int, const void*, size_t);
  if (!real) real = dlsym(RTLD_NEXT, "write");
  slow(fd);
  return real(fd, p, n);
}
ssize_t writev(int fd, const struct iovec* v, int n) {
  static ssize_t (*real)(int, const struct iovec*, int);
  if (!real) real = dlsym(RTLD_NEXT, "writev");
  slow(fd);
  return real(fd, v, n);
}
int renameat(int from_folder, const char* from, int to_folder, const char* to) {
  static int (*real)(int, const char*, int, const char*);
  if (!real) real = dlsym(RTLD_NEXT, "renameat");
  const char* held = getenv("HOLD_RENAME");
  while (held && strcmp(to, held) == 0) pause();
  return real(from_folder, from, to_folder, to);
}
int clock_gettime(clockid_t clock, struct timespec* out) {
  static int (*real)(clockid_t, struct timespec*);
  static time_t began;
  if (!real) real = dlsym(RTLD_NEXT, "clock_gettime");
  int result = real(clock, out);
  const char* rank = getenv("RANK");
  if (clock == CLOCK_REALTIME && getenv("STEP_CLOCK") && rank && *rank == '1') {
    if (!began) began = out->tv_sec;
    if (out->tv_sec - began >= 3) out->tv_sec -= 3600;
  }
  return result;
}
"""

FAULTS = []


class Unmet(Exception):
    """An expectation that does not hold."""


class Missing(Exception):
    """This machine lacks something that the fault needs."""


def expect(holds, what):
    if not holds:
        raise Unmet(what)


def fault(group, words, quick=False):
    def add(function):
        FAULTS.append((group, words, function, quick))
        return function
    return add


def prepared(limit):
    """Called first in the child: a caller that ignores signals, as a shell's background jobs and nohup do, does not hand this on."""
    def act():
        for each in (signal.SIGINT, signal.SIGHUP, signal.SIGTERM, signal.SIGUSR1):
            signal.signal(each, signal.SIG_DFL)
        if limit:
            limit()
    return act


class Running:
    """A program in a session of its own, with the time since the fault."""

    def __init__(self, lab, command, env=None, limit=None, stderr=None):
        self.lab, self.marked = lab, time.monotonic()
        self.messages = lab.folder / f"stderr.{len(lab.running)}"
        with open(self.messages, "wb") as file:
            self.process = subprocess.Popen([str(word) for word in command], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
                                            stderr=stderr or file, start_new_session=True, preexec_fn=prepared(limit),
                                            env={**os.environ, "TMPDIR": str(lab.temporary), **(env or {})})
        lab.running.append(self)

    @property
    def pid(self):
        return self.process.pid

    def text(self):
        return self.messages.read_text(encoding="utf-8", errors="replace")

    def mark(self):
        self.marked = time.monotonic()

    def workers(self):
        """Process ids by rank."""
        found = {}
        with contextlib.suppress(OSError):
            for child in pathlib.Path(f"/proc/{self.pid}/task/{self.pid}/children").read_text(encoding="ascii").split():
                rank = re.search(rb"(?:^|\0)RANK=(\d+)\0", pathlib.Path(f"/proc/{child}/environ").read_bytes())
                if rank:
                    found[int(rank.group(1))] = int(child)
        return found

    def until(self, holds, what):
        end = time.monotonic() + LONG
        while not holds():
            if self.process.poll() is not None:
                if holds():
                    return
                raise Unmet(f"ended with {self.process.returncode} before {what}: {self.text()[-500:]}")
            expect(time.monotonic() < end, f"no {what} within {LONG} s: {self.text()[-500:]}")
            time.sleep(0.005)

    def trained(self, steps=5):
        self.until(lambda: self.lab.steps_done() >= steps, f"step {steps}")
        self.before = self.lab.steps_done()
        self.mark()

    def said(self, pattern):
        """Seconds from the fault to this message."""
        self.until(lambda: re.search(pattern, self.text()), f"message '{pattern}'")
        return time.monotonic() - self.marked

    def end(self, code, pattern="", within=30):
        """Waits for the end; returns the seconds since the fault, and the last line."""
        try:
            self.process.wait(LONG)
        except subprocess.TimeoutExpired:
            raise Unmet(f"still running after {LONG} s: {self.text()[-500:]}") from None
        took = time.monotonic() - self.marked
        codes = code if isinstance(code, tuple) else (code,)
        expect(self.process.returncode in codes, f"exit {self.process.returncode}, expected {code}: {self.text()[-900:]}")
        expect(re.search(pattern, self.text(), re.S), f"no '{pattern}' in: {self.text()[-900:]}")
        expect(took <= within, f"ended after {took:.1f} s, expected {within}: {self.text()[-500:]}")
        own = "\n".join(line for line in self.text().splitlines() if line.startswith(("[rank ", "shardlens")))  # libraries print too
        for raw in ("internal error", "json.exception", "bad_alloc", "filesystem error", "Exception raised from"):
            expect(raw not in own, f"'{raw}' in: {own[-900:]}")
        expect("terminate called" not in self.text() or -int(signal.SIGABRT) in codes, self.text()[-900:])
        found = [line for line in self.text().splitlines() if re.search(pattern, line)] if pattern else self.text().splitlines()
        return took, found[-1] if found else ""


class Lab:
    """The things that one fault needs: an empty folder, a temporary directory, and the programs that were started."""

    def __init__(self, binaries, folder):
        self.binaries, self.folder, self.running = binaries, folder, []
        self.out, self.temporary = folder / "out", folder / "tmp"
        self.temporary.mkdir()
        self.shared_before = set(os.listdir("/dev/shm"))

    def flags(self, *more, out=None):
        return ["--model", MODEL, "--tokens", TOKENS, "--out", out or self.out, "--seq", "16", *more]

    def capture(self, *more, steps=FOREVER, binaries=None, out=None, **options):
        return Running(self, [(binaries or self.binaries) / "shardlens", "capture", *self.flags("--steps", steps, *more, out=out)], **options)

    def rank(self, rank, size=2, *more, steps=FOREVER, env=None, port=None, worker=None, **options):
        """A worker as torchrun starts it; without a port, as `capture` does. `worker`: another program."""
        self.out.mkdir(exist_ok=True)
        where = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)} if port else {"SHARDLENS_RENDEZVOUS": str(self.folder / "store")}
        flags = self.flags("--steps", steps)
        for name, value in zip(more[::2], more[1::2]):
            if name in flags:
                flags[flags.index(name) + 1] = value
            else:
                flags += [name, value]
        return Running(self, [worker or self.binaries / "shardlens-worker", *flags],
                       env={"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(size), **where, **(env or {})}, **options)

    def tool(self, *words, **options):
        return Running(self, [self.binaries / "shardlens", *words], **options)

    def in_small_disk(self, size, *command, after="true"):
        """The program with a tmpfs of this size at --out, in a mount namespace of its own; what is left is copied out before it ends."""
        tried = subprocess.run(["unshare", "-m", "true"], capture_output=True, check=False, text=True)
        if tried.returncode != 0:
            raise Missing(f"the right to mount a tmpfs ({tried.stderr.strip()})")
        self.out.mkdir()
        words = " ".join(f"'{word}'" for word in command)
        script = (f"mount -t tmpfs -o {size} tmpfs '{self.out}' || exit 77; {words}; code=$?; {after}; "
                  f"mkdir '{self.folder}/kept'; cp -a '{self.out}/.' '{self.folder}/kept/'; exit $code")
        run = Running(self, ["unshare", "-m", "sh", "-c", script])
        return run

    def steps_done(self, out=None):
        try:
            return (out or self.out).joinpath("metrics.jsonl").read_bytes().count(b"\n")
        except OSError:
            return 0

    def analysis(self, out=None):
        result = subprocess.run([self.binaries / "shardlens", "analyze", out or self.out, "--json"], capture_output=True, check=False)
        expect(result.returncode == 0, f"analyze of what is left: exit {result.returncode}: {result.stderr.decode()[-400:]}")
        return json.loads(result.stdout)

    def left(self, least=0, ranks=(0, 1), out=None):
        """Describes what is left on disk; all of it must be readable and have at least so many steps."""
        names = {entry.name for entry in (out or self.out).iterdir()}
        bad = [n for n in names if re.search(r"\.tmp|\.partial|\.now$|capture\.lock|\.[A-Za-z0-9]{6}$", n)]
        expect(not bad, f"left behind: {', '.join(bad)}")
        found = {rank["rank"]: len(rank["steps"]) for rank in self.analysis(out)["ranks"]}
        expect(sorted(found) == sorted(ranks), f"ranks {sorted(found)} are left, expected {ranks}")
        fewest = min(found.values())
        # Rank 0 writes the metrics of a step that another rank is still ending.
        expect(fewest >= least - 1, f"{fewest} steps are left, but {least} had ended")
        kind = {(n.endswith(".spool") and "spools") or (n.endswith(".json.gz") and "traces") for n in names if n.startswith("rank")}
        return f"{' and '.join(sorted(k for k in kind if k))}, {fewest} steps (of {least} ended before)" if least else " and ".join(sorted(k for k in kind if k))

    def shim(self):
        source, library = self.folder / "shim.c", self.folder / "shim.so"
        source.write_text(SHIM, encoding="ascii")
        compiler = shutil.which("cc") or shutil.which("gcc")
        if not compiler or subprocess.run([compiler, "-shared", "-fPIC", "-O1", "-o", library, source, "-ldl"], check=False).returncode:
            raise Missing("a C compiler")
        return str(library)

    def programs(self, worker, executable=True):
        """A copy of `shardlens` beside another worker program."""
        other = self.folder / "bin"
        other.mkdir()
        shutil.copy(self.binaries / "shardlens", other)
        if worker is not None:
            (other / "shardlens-worker").write_text(worker, encoding="ascii")
            (other / "shardlens-worker").chmod(0o755 if executable else 0o644)
        return other

    def processes(self):
        """Living processes of the sessions that were started."""
        sessions, found = {run.pid for run in self.running}, []
        for entry in pathlib.Path("/proc").glob("[0-9]*/stat"):
            with contextlib.suppress(OSError, ValueError):
                fields = entry.read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()
                if int(fields[3]) in sessions and fields[0] != "Z":
                    found.append((int(entry.parent.name), entry.parent.joinpath("cmdline").read_bytes().replace(b"\0", b" ").decode()[:80]))
        return found

    def check_leftovers(self):
        end = time.monotonic() + 10
        while self.processes() and time.monotonic() < end:
            time.sleep(0.05)
        orphans = self.processes()
        pids = {str(run.pid) for run in self.running}
        self.stop()
        expect(not orphans, f"processes left: {orphans}")
        files = list(self.temporary.rglob("*"))
        expect(not files, f"temporary files left: {', '.join(f.name for f in files)}")
        shared = [name for name in set(os.listdir("/dev/shm")) - self.shared_before if any(pid in name for pid in pids)]
        expect(not shared, f"shared memory left: {shared}")

    def stop(self):
        for pid, _ in self.processes():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        for run in self.running:
            run.process.wait()


def limited(which, soft, hard=None):
    return lambda: resource.setrlimit(which, (soft, hard or soft))


# A rank dies.

def dies_by(lab, number, name):
    run = lab.capture()
    run.trained()
    os.kill(run.workers()[1], number)
    took, message = run.end(4, rf"rank 1 was killed by signal {int(number)} \({name}\); it was (at|after) .*rank1.spool")
    return took, message, lab.left(run.before)


for each, called in ((signal.SIGKILL, "Killed"), (signal.SIGSEGV, "Segmentation fault"), (signal.SIGABRT, "Aborted"), (signal.SIGBUS, "Bus error")):
    fault("a rank dies", f"killed by {each.name} in a step")(lambda lab, each=each, called=called: dies_by(lab, each, called))


@fault("a rank dies", "killed before it joined")
def _(lab):
    run = lab.capture()
    run.until(lambda: 1 in run.workers(), "worker")
    run.mark()
    os.kill(run.workers()[1], signal.SIGKILL)
    took, message = run.end(4, r"rank 1 was killed by signal 9")
    expect(not list(lab.out.glob("*.spool")), "a spool of a run that never trained")
    return took, message, "no spool: nothing was recorded"


@fault("a rank dies", "killed while it writes its trace")
def _(lab):
    run = lab.capture(steps="500")
    run.until(lambda: [f for f in os.listdir(lab.out) if f.startswith("rank1.pt") and f != "rank1.pt.trace.json.gz"] if lab.out.exists() else [], "file")
    run.mark()
    os.kill(run.workers()[1], signal.SIGKILL)
    took, message = run.end(4, r"rank 1 was killed by signal 9")
    return took, message, lab.left(500)


@fault("a rank dies", "ends at once with exit code 0", quick=True)
def _(lab):
    run = lab.capture(binaries=lab.programs("#!/bin/sh\nexit 0\n"))
    took, message = run.end(4, r"\[rank 0\] ended without an error, but did not write")
    return took, message, "inputs only"


@fault("a rank dies", "ends at once with exit code 1 and no message", quick=True)
def _(lab):
    run = lab.capture(binaries=lab.programs("#!/bin/sh\nexit 1\n"))
    took, message = run.end(1, r"rank [01] failed with exit code 1")
    return took, message, "inputs only"


@fault("a rank dies", "the worker cannot be executed", quick=True)
def _(lab):
    run = lab.capture(binaries=lab.programs("#!/nonexistent/interpreter\n"))
    took, message = run.end(4, r"cannot start .*shardlens-worker: No such file")
    return took, message, "inputs only"


@fault("a rank dies", "the worker is missing", quick=True)
def _(lab):
    took, message = lab.capture(binaries=lab.programs(None)).end(4, r"capture")
    return took, message, "nothing"


@fault("a rank dies", "capture itself is killed")
def _(lab):
    run = lab.capture()
    run.trained()
    workers = run.workers()
    os.kill(run.pid, signal.SIGKILL)
    run.process.wait()
    run.until = None
    end = time.monotonic() + 30
    while lab.processes() and time.monotonic() < end:
        time.sleep(0.01)
    took = time.monotonic() - run.marked
    expect(not lab.processes(), f"workers {workers} still run")
    kept = {rank["rank"]: len(rank["steps"]) for rank in lab.analysis()["ranks"]}
    expect(min(kept.values()) >= run.before - 1, f"{kept} steps are left, but {run.before} had ended")
    again = lab.capture(steps="2")
    again.end(0, within=LONG)
    return took, "(none)", f"spools, {min(kept.values())} steps (of {run.before} ended before); the next capture removes the temporary directory"


@fault("a rank dies", "a loss that is not a number")
def _(lab):
    took, message = lab.capture("--lr", "1e30", steps="50").end(4, r"step \d+: the loss of rank \d is ", within=LONG)
    return None, message, lab.left()


# A rank does not move.

@fault("a rank hangs", "stopped by SIGSTOP, then continued")
def _(lab):
    run = lab.capture(steps="300")
    run.trained()
    worker = run.workers()[1]
    os.kill(worker, signal.SIGSTOP)
    took = run.said(r"\[rank 1\] was stopped by a signal; all ranks wait until it continues")
    expect(took < 5, f"named after {took:.1f} s")
    os.kill(worker, signal.SIGCONT)
    run.end(0, r"\[rank 1\] continues", within=LONG)
    return took, "[rank 1] was stopped by a signal; all ranks wait until it continues", lab.left(300)


@fault("a rank hangs", "stopped by SIGSTOP for longer than --timeout 5")
def _(lab):
    run = lab.capture("--timeout", "5")
    run.trained()
    os.kill(run.workers()[1], signal.SIGSTOP)
    took, message = run.end(4, r"\[rank 0\] .*(did not finish within|failed)", within=40)
    return took, message, lab.left(run.before)


@fault("a rank hangs", "stopped by SIGSTOP, then Ctrl-C")
def _(lab):
    run = lab.capture()
    run.trained()
    os.kill(run.workers()[1], signal.SIGSTOP)
    os.kill(run.pid, signal.SIGINT)
    took, message = run.end(130, r"interrupted by signal 2", within=40)
    return took, message, lab.left(run.before)


@fault("a rank hangs", "stopped by SIGSTOP, then Ctrl-C twice")
def _(lab):
    run = lab.capture()
    run.trained()
    os.kill(run.workers()[1], signal.SIGSTOP)
    os.kill(run.pid, signal.SIGINT)
    run.said(r"interrupted|ending after this step")
    os.kill(run.pid, signal.SIGINT)
    took, message = run.end(130, r"interrupted by signal 2", within=20)
    return took, message, lab.left(run.before)


@fault("a rank hangs", "slow: it runs a fifth of the time")
def _(lab):
    run = lab.capture(steps="60")
    run.trained(2)
    worker = run.workers()[1]
    with contextlib.suppress(ProcessLookupError):
        while run.process.poll() is None and time.monotonic() - run.marked < 60:
            os.kill(worker, signal.SIGSTOP)
            time.sleep(0.04)
            os.kill(worker, signal.SIGCONT)
            time.sleep(0.01)
    run.end(0, within=LONG)
    slow = [s["rank"] for s in lab.analysis()["stragglers"]]
    return None, f"analyze names rank {slow[0]} as straggler" if slow == [1] else "(none)", lab.left(60)


@fault("a rank hangs", "slow disk: each write to a spool takes 10 ms")
def _(lab):
    run = lab.capture(steps="300", env={"LD_PRELOAD": lab.shim(), "SLOW_DISK": "1"})
    run.end(0, within=LONG)
    return None, "(none)", lab.left(300)


# Joining.

def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


@fault("joining", "a rank never comes (--timeout 3)")
def _(lab):
    took, message = lab.rank(0, 2, "--timeout", "3").end(4, r"\[rank 0\] ", within=60)
    return took, message, "no spool"


@fault("joining", "a rank never comes, over TCP (--timeout 3)")
def _(lab):
    took, message = lab.rank(0, 2, "--timeout", "3", port=free_port()).end(4, r"\[rank 0\] ", within=60)
    return took, message, "no spool"


@fault("joining", "the port is in use by another program")
def _(lab):
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        took, message = lab.rank(0, 2, "--timeout", "3", port=other.getsockname()[1]).end(4, r"cannot serve the rendezvous at 127.0.0.1:\d+", within=60)
    return took, message, "no spool"


@fault("joining", "the port is served by a program that says nothing (--timeout 3)")
def _(lab):
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        took, message = lab.rank(1, 2, "--timeout", "3", port=other.getsockname()[1]).end(4, r"\[rank 1\] .*127.0.0.1:\d+", within=90)
    return took, message, "no spool"


@fault("joining", "64 KiB of noise come to the port")
def _(lab):
    port = free_port()
    ranks = [lab.rank(0, 2, "--timeout", "60", port=port, steps="3")]
    end = time.monotonic() + LONG
    while time.monotonic() < end:
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1) as noise:
            noise.sendall(random.Random(1).randbytes(65536))
            break
        time.sleep(0.05)
    ranks.append(lab.rank(1, 2, "--timeout", "60", port=port, steps="3"))
    for each in ranks:
        each.end(0, within=LONG)
    return None, "(none: the connection is dropped, the run goes on)", lab.left(3)


@fault("joining", "MASTER_ADDR has no address (--timeout 3)")
def _(lab):
    took, message = lab.rank(1, 2, "--timeout", "3", port=free_port(), env={"MASTER_ADDR": "nowhere.invalid"}).end(4, r"nowhere.invalid", within=90)
    return took, message, "no spool"


@fault("joining", "MASTER_PORT is 99999")
def _(lab):
    took, message = lab.rank(1, port=99999).end(2, r"MASTER_PORT", within=60)
    return took, message, "no spool"


@fault("joining", "RANK is not below WORLD_SIZE")
def _(lab):
    took, message = lab.rank(2, 2).end(2, r"RANK is 2, expected less than WORLD_SIZE = 2", within=60)
    return took, message, "no spool"


@fault("joining", "the store is removed between two ranks (--timeout 5)")
def _(lab):
    first, store = lab.rank(0, 2, "--timeout", "5"), lab.folder / "store"
    first.until(lambda: store.exists() and store.stat().st_size > 0, "store")
    time.sleep(1)  # until the first rank has written its address and waits for the second's
    store.unlink()
    first.mark()
    second = lab.rank(1, 2, "--timeout", "5")
    took, message = first.end(4, r"\[rank 0\] ", within=90)
    second.end(4, r"\[rank 1\] ", within=90)
    return took, message, "no spool"


@fault("joining", "the rank that serves the store is killed in a step")
def _(lab):
    port = free_port()
    ranks = [lab.rank(rank, port=port) for rank in (0, 1)]
    ranks[0].trained()
    ranks[1].mark()
    ranks[1].before = ranks[0].before
    os.kill(ranks[0].pid, signal.SIGKILL)
    took, message = ranks[1].end(4, r"\[rank 1\] .*failed", within=60)
    lock = lab.out / "capture.lock"
    lock.unlink(missing_ok=True)  # of the killed rank; the kernel has freed it
    return took, message, lab.left_of_workers(ranks[1].before)


def left_of_workers(lab, least):
    for now in lab.out.glob("*.now"):
        now.unlink()  # removed by `capture` after its workers have ended
    return lab.left(least)


Lab.left_of_workers = left_of_workers


# Ranks that do not fit together.

def mismatched(lab, *more, **options):
    ranks = [lab.rank(0, 2, "--timeout", "5"), lab.rank(1, 2, "--timeout", "5", *more, **options)]
    both = r"\[rank [01]\] (?=.*rank 0: shardlens [0-9.]+ \(torch .* trains from step \d+ with ).*rank 1: shardlens [0-9.]+ \(torch .* trains from step \d+ with "
    took, message = [each.end(4, both, within=90) for each in ranks][1]
    return took, message, "no spool"


@fault("ranks differ", "another strategy on rank 1")
def _(lab):
    return mismatched(lab, "--strategy", "shard_grad_op")


@fault("ranks differ", "another model on rank 1")
def _(lab):
    return mismatched(lab, "--model", ROOT / "tests/data/qwen2-tiny")


@fault("ranks differ", "another version of Shardlens on rank 1")
def _(lab):
    program = (lab.binaries / "shardlens-worker").read_bytes()
    version = re.search(rb"shardlens ([0-9.]+) \(torch ", program)
    other = lab.folder / "shardlens-worker"
    other.write_bytes(program.replace(version[0], version[0].replace(version[1], version[1].translate(bytes.maketrans(b"0123456789", b"1234567890")))))
    other.chmod(0o755)
    took, message, left = mismatched(lab, worker=other)
    other.unlink()
    return took, message, left


@fault("ranks differ", "rank 1 clips gradients, rank 0 does not")
def _(lab):
    return mismatched(lab, "--clip", "1")


@fault("ranks differ", "rank 1 makes three steps, rank 0 more")
def _(lab):
    return mismatched(lab, "--steps", "3")


@fault("ranks differ", "WORLD_SIZE is 2 for rank 0 and 3 for rank 1 (--timeout 5)")
def _(lab):
    ranks = [lab.rank(0, 2, "--timeout", "5"), lab.rank(1, 3, "--timeout", "5")]
    took, message = ranks[0].end(4, r"\[rank 0\] ", within=90)
    ranks[1].end(4, r"\[rank 1\] ", within=90)
    return took, message, "no spool"


@fault("ranks differ", "two processes are rank 0")
def _(lab):
    first = lab.rank(0, 2, "--timeout", "60", steps="3")
    first.until(lambda: (lab.out / "rank0.spool").exists(), "spool")
    took, message = lab.rank(0, 2, "--timeout", "60", steps="3").end(4, r"\[rank 0\] .*rank0.spool: another process is recording to it", within=90)
    second = lab.rank(1, 2, "--timeout", "60", steps="3")
    for each in (first, second):
        each.end(0, within=LONG)
    return took, message, lab.left(3)


# Memory.

@fault("memory", "the workers may map 300 MiB from the start (RLIMIT_AS)")
def _(lab):
    took, message = lab.capture(limit=limited(resource.RLIMIT_AS, 300 << 20)).end((4, 127, 1), r"rank [01]", within=60)
    return took, message, "inputs only"


@fault("memory", "rank 1 may map nothing more from step 5 on (RLIMIT_AS)")
def _(lab):
    run = lab.capture("--accumulate", "4")
    run.trained()
    resource.prlimit(run.workers()[1], resource.RLIMIT_AS, (1 << 20, 1 << 20))
    # Either rank may be the first to say so.
    said = re.compile(r"rank 1 .*(failed|killed|memory|ended|left)")
    run.until(lambda: said.search(run.text()) or lab.steps_done() >= run.before + 500, "message, nor 500 steps more")
    if not said.search(run.text()) and run.process.poll() is None:  # the allocator has what it needs
        run.mark()
        os.kill(run.pid, signal.SIGTERM)
        took, message = run.end(143, within=60)
        return took, "(none: the allocator's memory was enough)", lab.left(run.before)
    took, message = run.end(4, r"rank 1 (failed|was killed)", within=LONG)
    return took, message, lab.left(run.before)


@fault("memory", "analyze may map 14 MiB (RLIMIT_AS)", quick=True)
def _(lab):
    took, message = lab.tool("analyze", ROOT / "traces/llama-emulated8", limit=limited(resource.RLIMIT_AS, 14 << 20)).end((3, 4, 127), r"memory|segment")
    return took, message, "nothing"


# Disks.

@fault("disk", "files may have 64 KiB (RLIMIT_FSIZE)")
def _(lab):
    run = lab.capture(steps="40", limit=limited(resource.RLIMIT_FSIZE, 64 << 10))
    took, message = run.end((0, 4), r"(full|large|lost|limit)", within=LONG)
    return took, message, lab.left()


@fault("disk", "full after 400 KiB (tmpfs)")
def _(lab):
    run = lab.in_small_disk("size=400k", lab.binaries / "shardlens", "capture", *lab.flags("--steps", "400"))
    said = run.said(r"No space left|full")
    trained = run.text()
    run.end((0, 4), r"No space left|full", within=LONG)
    message = [line for line in trained.splitlines() if re.search(r"No space left|full", line)][0]
    return said, message, lab.left(out=lab.folder / "kept")


@fault("disk", "full from the start (tmpfs)")
def _(lab):
    run = lab.in_small_disk("size=4k", lab.binaries / "shardlens", "capture", *lab.flags("--steps", "400"))
    took, message = run.end(4, r"No space left", within=LONG)
    return took, message, "nothing"


@fault("disk", "--out is on a file system that is mounted read-only")
def _(lab):
    run = lab.in_small_disk("size=4k,ro", lab.binaries / "shardlens", "capture", *lab.flags("--steps", "4"))
    took, message = run.end(4, r"Read-only", within=LONG)
    return took, message, "nothing"


@fault("disk", "--out is below a file", quick=True)
def _(lab):
    (lab.folder / "file").write_text("x", encoding="ascii")
    took, message = lab.capture(out=lab.folder / "file/out").end(4, r"Not a directory|cannot be created")
    return took, message, "nothing"


@fault("disk", "--out is removed in a step")
def _(lab):
    run = lab.capture()
    run.trained()
    shutil.rmtree(lab.out, ignore_errors=True)
    took, message = run.end(4, r"was removed while the run wrote to it")
    return took, message, "nothing"


@fault("disk", "standard output is full (/dev/full)", quick=True)
def _(lab):
    run = Running(lab, ["sh", "-c", f"exec '{lab.binaries}/shardlens' plan --model '{MODEL}' --json >/dev/full"])
    took, message = run.end(4, r"cannot write to standard output: No space left")
    return took, message, "nothing"


@fault("disk", "report --out /dev/full", quick=True)
def _(lab):
    took, message = lab.tool("report", ROOT / "traces/llama-emulated8", "--out", "/dev/full").end(4, r"/dev/full: .*No space left")
    return took, message, "nothing"


@fault("disk", "convert to a disk that is full (tmpfs)", quick=True)
def _(lab):
    run = lab.in_small_disk("size=16k", lab.binaries / "shardlens", "convert", ROOT / "traces/llama-emulated8/rank0.pt.trace.json.gz",
                            "--out", lab.out / "one.json.gz")
    took, message = run.end(4, r"No space left")
    names = os.listdir(lab.folder / "kept")
    expect(not names, f"left behind: {names}")
    return took, message, "nothing"


@fault("disk", "checkpoint: no space for it (RLIMIT_FSIZE)")
def _(lab):
    run = lab.capture("--save", lab.folder / "saved", "--save-format", "full", steps="2", limit=limited(resource.RLIMIT_FSIZE, 200 << 10))
    took, message = run.end(4, r"saved.*(File too large|No space)", within=LONG)
    names = os.listdir(lab.folder / "saved") if (lab.folder / "saved").exists() else []
    expect("model.safetensors" not in names, f"a checkpoint that is not whole: {names}")
    return took, message, "no checkpoint"


@fault("disk", "checkpoint: killed while it replaces an earlier one")
def _(lab):
    saved = lab.folder / "saved"
    lab.capture("--save", saved, "--save-format", "full", steps="2").end(0, within=LONG)
    before = (saved / "model.safetensors").read_bytes()
    run = lab.capture("--save", saved, "--save-format", "full", steps="3", env={"LD_PRELOAD": lab.shim(), "HOLD_RENAME": "model.safetensors"})
    run.until(lambda: any(name.startswith("model.safetensors.tmp") for name in os.listdir(saved)), "checkpoint")
    run.mark()
    for worker in run.workers().values():
        with contextlib.suppress(ProcessLookupError):
            os.kill(worker, signal.SIGKILL)
    took, message = run.end(4, within=60)
    after = (saved / "model.safetensors").read_bytes()
    size = int.from_bytes(after[:8], "little")
    header = json.loads(after[8:8 + size])
    expect(max(t["data_offsets"][1] for n, t in header.items() if n != "__metadata__") == len(after) - 8 - size, "the checkpoint is not whole")
    expect(after == before, "the checkpoint is another one")
    return took, message, "the earlier checkpoint, whole"


@fault("disk", "saved run: no space for a checkpoint (RLIMIT_FSIZE)")
def _(lab):
    saved = lab.folder / "saved"
    lab.capture("--save", saved, steps="2").end(0, within=LONG)
    run = lab.capture("--save", saved, "--resume", saved, steps="4", limit=limited(resource.RLIMIT_FSIZE, 200 << 10))
    took, message = run.end(4, r"step-00000004.tmp[0-9a-f]{32}/rank\d+.safetensors: (File too large|No space).*step-00000002", within=LONG)
    lab.tool("checkpoint", "verify", saved).end(0, r"step-00000004.tmp[0-9a-f]{32} is not complete")
    return took, message, "the checkpoint before it"


@fault("disk", "saved run: killed while it saves, and continued")
def _(lab):
    saved = lab.folder / "saved"
    run = lab.capture("--save", saved, "--save-every", "1")
    run.until(lambda: (saved / "step-00000002").exists() and any(".tmp" in name for name in os.listdir(saved)), "a later save")
    run.mark()
    for worker in run.workers().values():
        with contextlib.suppress(ProcessLookupError):
            os.kill(worker, signal.SIGKILL)
    took, message = run.end(4, within=60)
    lab.tool("checkpoint", "verify", saved).end(0)
    latest = max(int(name[5:]) for name in os.listdir(saved) if re.fullmatch(r"step-\d+", name))
    lab.capture("--save", saved, "--resume", saved, steps=str(latest + 1), out=lab.folder / "again").end(0, within=LONG)
    expect(sorted(os.listdir(saved))[-1] == f"step-{latest + 1:08}", f"the run did not continue, or left something: {sorted(os.listdir(saved))[-3:]}")
    return took, message, "the checkpoint before it; the run continues"


@fault("disk", "saved run: a link to other files has the name of an interrupted save", quick=True)
def _(lab):
    saved, home = lab.folder / "saved", lab.folder / "home"
    home.mkdir()
    (home / "diary.txt").write_text("kept", encoding="ascii")
    lab.capture("--save", saved, steps="1").end(0, within=LONG)
    (saved / "step-00000002.tmp").symlink_to(home)
    run = lab.capture("--save", saved, "--resume", saved, "--keep", "1", steps="2", out=lab.folder / "again")
    took, message = run.end(0, r"step-00000002.tmp is left as it is", within=LONG)
    expect(sorted(os.listdir(home)) == ["diary.txt"], f"the files behind the link are {os.listdir(home)}")
    expect(sorted(os.listdir(saved)) == ["step-00000002", "step-00000002.tmp"], f"saved: {os.listdir(saved)}")
    return took, message, "the link and the files, a checkpoint"


@fault("disk", "saved run: another run saves to the same directory", quick=True)
def _(lab):
    saved = lab.folder / "saved"
    first = lab.capture("--save", saved)
    first.until(lambda: (saved / "save.lock").exists() and lab.steps_done() > 0, "the first run")
    again = lab.folder / "again"
    again.mkdir()
    (again / "run.json").write_text("{}", encoding="ascii")
    run = lab.capture("--save", saved, "--force", out=again)
    took, message = run.end(2, rf"process ({'|'.join(map(str, first.workers().values()))}) of {re.escape(os.uname().nodename)} is saving a run there",
                            within=LONG)
    expect(os.listdir(again) == ["run.json"], "--out of the second run was touched")
    first.process.send_signal(signal.SIGTERM)
    first.end(143, r"stopped by a signal|terminated", within=60)
    lab.tool("checkpoint", "verify", saved).end(0)
    expect(len(os.listdir(saved)) == 1, f"left behind: {os.listdir(saved)}")
    return took, message, "the first run goes on"


@fault("disk", "saved run: no space for one checkpoint, before training (tmpfs)", quick=True)
def _(lab):
    run = lab.in_small_disk("size=2m", lab.binaries / "shardlens", "capture", *lab.flags("--steps", FOREVER, "--save", lab.out / "saved",
                                                                                        out=lab.folder / "again"))
    took, message = run.end(4, r"saved: no space for a checkpoint: it needs .* \(\d+ bytes\), .* \(\d+ bytes\) are free")
    expect(not (lab.folder / "again").exists(), "--out was made")
    return took, message, "nothing: the run does not start"


@fault("disk", "saved run: --save is a link to nothing")
def _(lab):
    (lab.folder / "saved").symlink_to("nowhere")
    took, message = lab.capture("--save", lab.folder / "saved").end(2, r"is a link to nowhere, which does not exist")
    return took, message, "nothing: the run does not start"


@fault("signals", "SIGTERM to a run that saves")
def _(lab):
    saved = lab.folder / "saved"
    run = lab.capture("--save", saved)
    metrics = lab.out / "metrics.jsonl"
    run.until(lambda: metrics.exists() and metrics.read_text(encoding="utf-8").count("\n") > 2, "steps")
    run.mark()
    run.process.send_signal(signal.SIGTERM)
    took, message = run.end(143, r"stopped by a signal|terminated", within=60)
    lab.tool("checkpoint", "verify", saved).end(0)
    return took, message, "a checkpoint of the last step"


# Signals.

@fault("signals", "SIGINT to capture")
def _(lab):
    run = lab.capture()
    run.trained()
    os.kill(run.pid, signal.SIGINT)
    took, message = run.end(130, r"interrupted by signal 2")
    return took, message, lab.left(run.before)


@fault("signals", "SIGHUP to capture (the terminal is closed)")
def _(lab):
    run = lab.capture()
    run.trained()
    os.kill(run.pid, signal.SIGHUP)
    took, message = run.end(129, r"interrupted by signal 1")
    return took, message, lab.left(run.before)


@fault("signals", "SIGTERM to one worker")
def _(lab):
    run = lab.capture()
    run.trained()
    os.kill(run.workers()[1], signal.SIGTERM)
    took, message = run.end(4, r"stopped by a signal after")
    return took, message, lab.left(run.before)


@fault("signals", "200 times SIGINT to capture")
def _(lab):
    run = lab.capture()
    run.trained()
    for _ in range(200):
        with contextlib.suppress(ProcessLookupError):
            os.kill(run.pid, signal.SIGINT)
    took, message = run.end(130, r"interrupted by signal 2")
    return took, message, lab.left(run.before)


@fault("signals", "5000 times SIGUSR1, SIGCHLD, SIGWINCH, SIGCONT to capture and workers")
def _(lab):
    run = lab.capture("--on-signal", "1", steps="400")
    run.trained()
    everyone = [run.pid, *run.workers().values()]
    for i in range(5000):
        with contextlib.suppress(ProcessLookupError):
            os.kill(everyone[i % 3], (signal.SIGUSR1, signal.SIGCHLD, signal.SIGWINCH, signal.SIGCONT)[i % 4])
    run.end(0, within=LONG)
    return None, "(none: the run goes on)", lab.left()


@fault("signals", "SIGHUP under nohup")
def _(lab):
    run = Running(lab, ["nohup", lab.binaries / "shardlens", "capture", *lab.flags("--steps", "200")])
    run.trained()
    os.kill(run.pid, signal.SIGHUP)
    run.end(0, within=LONG)
    return None, "(none: the run goes on)", lab.left(200)


@fault("signals", "the reader of the messages ends")
def _(lab):
    reader, writer = os.pipe()
    run = lab.capture(steps="60", stderr=writer)
    os.close(writer)
    os.read(reader, 1)
    os.close(reader)
    run.end(0, within=LONG)
    return None, "(none: the run goes on)", lab.left(60)


@fault("signals", "standard input, output and error are closed")
def _(lab):
    words = " ".join(f"'{word}'" for word in [lab.binaries / "shardlens", "capture", *lab.flags("--steps", "5")])
    run = Running(lab, ["sh", "-c", f"exec {words} <&- >&- 2>&-"])
    run.end(0, within=LONG)
    return None, "(none: the run goes on)", lab.left(5)


# Other resources.

def few_descriptors(lab, count):
    run = lab.capture(steps="3", limit=limited(resource.RLIMIT_NOFILE, count))
    return run.end(4, r"Too many open files|open files", within=LONG)


@fault("resources", "8 descriptors (RLIMIT_NOFILE)", quick=True)
def _(lab):
    took, message = few_descriptors(lab, 8)
    return took, message, "inputs only"


@fault("resources", "5 descriptors in a worker that torchrun started (RLIMIT_NOFILE)")
def _(lab):
    took, message = lab.rank(0, 1, steps="1", limit=limited(resource.RLIMIT_NOFILE, 5)).end((3, 4), r"Too many open files", within=LONG)
    return took, message, "the spool"


@fault("resources", "the clock of rank 1 steps back by an hour")
def _(lab):
    run = lab.capture(steps="400", env={"LD_PRELOAD": lab.shim(), "STEP_CLOCK": "1"})
    run.end(0, within=LONG)
    for rank in lab.analysis()["ranks"]:
        expect(all(0 < step["span_ns"] < 600e9 for step in rank["steps"]), "a step of an hour, or of negative length")
    return None, "(none: durations come from a clock that does not step)", lab.left(400)


@fault("resources", "TMPDIR does not exist", quick=True)
def _(lab):
    took, message = lab.capture(env={"TMPDIR": str(lab.folder / "none")}).end((2, 3, 4), r"none|TMPDIR|temporary")
    return took, message, "inputs only"


@fault("resources", "the token file is cut off in a step")
def _(lab):
    tokens = lab.folder / "tokens.u16.bin"
    shutil.copy(TOKENS, tokens)
    run = Running(lab, [lab.binaries / "shardlens", "capture", "--model", MODEL, "--tokens", tokens, "--out", lab.out, "--seq", "16", "--steps", FOREVER])
    run.trained()
    os.truncate(tokens, 100)
    took, message = run.end((3, 4), r"tokens.u16.bin has become shorter|tokens.u16.bin: has become shorter", within=LONG)
    return took, message, lab.left(run.before)


def shown(message, lab):
    message = message.replace(str(lab.folder) + "/", "").replace(str(ROOT) + "/", "").replace(str(lab.binaries) + "/", "")
    return re.sub(r"^shardlens: ", "", message)


def inject(binaries, words, function):
    """(row of the table, problem or None)"""
    with tempfile.TemporaryDirectory(prefix="shardlens-faults-") as folder:
        lab = Lab(binaries, pathlib.Path(folder).resolve())
        try:
            took, message, left = function(lab)
            lab.check_leftovers()
            return (words, "-" if took is None else f"{took:.1f} s", shown(message, lab), left), None
        except Missing as missing:
            return None, f"skipped, needs {missing}"
        except Unmet as unmet:
            return None, shown(str(unmet), lab)
        finally:
            lab.stop()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bin", required=True, type=pathlib.Path, help="folder with shardlens and shardlens-worker")
    parser.add_argument("--only", default="", help="regular expression on the fault's name")
    parser.add_argument("--quick", action="store_true", help="only faults that take a second")
    parser.add_argument("--results", type=pathlib.Path, help="a file to keep results in")
    parser.add_argument("--write", type=pathlib.Path, help="the document whose table is replaced")
    options = parser.parse_args()
    with contextlib.suppress(AttributeError, OSError):  # processes whose parent ended become ours, so that none is missed
        ctypes.CDLL(None).prctl(36, 1, 0, 0, 0)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # the programs that run now are ended too
    rows, failed, skipped, began = {}, 0, 0, time.monotonic()
    if options.results and options.results.exists():
        rows = json.loads(options.results.read_text(encoding="utf-8"))
    tried = 0
    for group, words, function, quick in FAULTS:
        if (options.quick and not quick) or not re.search(options.only, f"{group}: {words}"):
            continue
        start = time.monotonic()
        row, problem = inject(options.bin.resolve(), words, function)
        if row:
            rows[words] = [group, *row]
            tried += 1
            if options.results:
                options.results.write_text(json.dumps(rows, indent=1), encoding="utf-8")
            print(f"ok       {time.monotonic() - start:5.1f} s  {group}: {words}: {row[1]}; {row[2][:300]}; {row[3]}", flush=True)
        elif problem.startswith("skipped"):
            skipped += 1
            print(f"{problem}: {group}: {words}", flush=True)
        else:
            failed += 1
            print(f"FAILED   {time.monotonic() - start:5.1f} s  {group}: {words}\n    {problem}", flush=True)
    print(f"{tried} faults as expected, {failed} not, {skipped} skipped, {time.monotonic() - began:.0f} s")
    if options.write and not failed:
        kept = [rows[words] for _, words, _, _ in FAULTS if words in rows]
        reliability_table.replace(options.write, "faults", ("where", "fault", "after", "message", "left"), kept)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
