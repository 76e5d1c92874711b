#!/usr/bin/env python3
"""Starts pairs of processes that write one place at the same time, and checks that what has a final name is whole and of one of them.

    check_save_pairs.py --bin DIR [--pairs 3] [--seed 1]

A pair is, of each kind: two runs of two ranks with different seeds and the same --save; the same, but the first is killed at a random time; two
`checkpoint convert`, and two `checkpoint merge`, with the same --out. The second run starts up to 50 ms after the first, sometimes a second; a
second conversion up to 20 ms after the first.

Expected: a process succeeds, or is refused with exit code 2 and a message that names the other one or what it has written. Each directory with a
final name passes `checkpoint verify`, its tensors have the checksums of an undisturbed process of the pair (but for the generators of random
numbers, which begin anywhere), and all checkpoints of a directory are of the same run. Of processes that were not killed, nothing else is left.
Exit 1 if an expectation fails.
"""
import argparse
import collections
import json
import os
import pathlib
import random
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
MODEL, TOKENS = ROOT / "tests/data/llama-tiny", ROOT / "tests/data/tokens.u16.bin"
STEPS = 3
REFUSED = r"process \d+ of \S+ is (saving a run|writing) there|which this run does not continue|exists already"


class Unmet(Exception):
    """An expectation that does not hold."""


def expect(holds, what):
    if not holds:
        raise Unmet(what)


class Program:
    """A process in a session of its own."""

    def __init__(self, folder, command):
        self.messages = folder / f"stderr.{time.monotonic_ns()}"
        with open(self.messages, "wb") as file:
            self.process = subprocess.Popen([str(word) for word in command], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=file,
                                            start_new_session=True)

    def end(self):
        self.process.wait(timeout=300)
        return self.process.returncode

    def kill(self):
        os.killpg(self.process.pid, signal.SIGKILL)

    def text(self):
        return self.messages.read_text(encoding="utf-8", errors="replace")


def content(folder):
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def tensors(checkpoint):
    index = json.loads((checkpoint / "checkpoint.json").read_text(encoding="utf-8"))
    return {each["name"]: each["pieces"] for each in index["tensors"] if ".rng." not in each["name"]}


class Pairs:
    def __init__(self, binaries, folder, rng):
        self.shardlens, self.folder, self.rng = binaries / "shardlens", folder, rng
        self.runs, self.converted, self.merged = {}, {}, {}
        self.model = folder / "config.json"  # without weights, so that they depend on the seed
        shutil.copy(MODEL / "config.json", self.model)
        for seed in (1, 2):
            saved = folder / f"alone{seed}"
            self.done(self.capture(seed, folder / f"out{seed}", saved))
            self.runs[seed] = {step.name: tensors(step) for step in saved.iterdir()}
            expect(sorted(self.runs[seed]) == [f"step-{step:08}" for step in range(1, STEPS + 1)], f"saved: {sorted(self.runs[seed])}")
            for action, flags, known in (("convert", ["--world-size", "3"], self.converted), ("merge", [], self.merged)):
                out = folder / f"{action}{seed}"
                self.done(self.checkpoint(action, seed, out, flags))
                known[seed] = content(out)
        expect(self.runs[1] != self.runs[2], "the seeds make no difference")

    def done(self, program):
        expect(program.end() == 0, program.text()[-900:])

    def capture(self, seed, out, saved):
        return Program(self.folder, [self.shardlens, "capture", "--model", self.model, "--tokens", TOKENS, "--out", out, "--nproc", "2", "--batch", "1",
                                     "--seq", "8", "--steps", str(STEPS), "--seed", str(seed), "--save", saved, "--save-every", "1"])

    def checkpoint(self, action, seed, out, flags):
        return Program(self.folder, [self.shardlens, "checkpoint", action, self.folder / f"alone{seed}", "--out", out, *flags])

    def verified(self, path):
        done = subprocess.run([self.shardlens, "checkpoint", "verify", path], capture_output=True, text=True, check=False)
        expect(done.returncode == 0, f"verify {path.name}: {done.stdout}{done.stderr}")

    def ended(self, programs):
        """The seeds that succeeded; the others were refused."""
        won = []
        for seed, program in programs.items():
            code = program.end()
            expect(code == 0 or (code == 2 and re.search(REFUSED, program.text())), f"seed {seed}: exit {code}: {program.text()[-900:]}")
            won += [seed] if code == 0 else []
        return won

    def two_runs(self, here, kill):
        saved = here / "saved"
        programs = {1: self.capture(1, here / "out1", saved)}
        time.sleep(self.rng.random() * (0.05 if self.rng.random() < 0.7 else 1))
        programs[2] = self.capture(2, here / "out2", saved)
        if kill:
            time.sleep(self.rng.random() * 1.5)
            killed = programs.pop(1)
            killed.kill()
            killed.end()
        won = self.ended(programs)
        names = sorted(path.name for path in saved.iterdir()) if saved.exists() else []
        steps = [name for name in names if re.fullmatch(r"step-\d{8}", name)]
        owners = {step: [seed for seed in (1, 2) if tensors(saved / step) == self.runs[seed][step]] for step in steps}
        for step in steps:
            self.verified(saved / step)
        expect(len({tuple(owner) for owner in owners.values()}) <= 1 and [] not in owners.values(), f"steps are of the runs with seeds {owners}")
        if not kill:
            expect(len(won) == 1, f"of two runs {len(won)} succeeded")
            expect(names == steps, f"left behind: {names}")
        for seed in won:
            expect(owners == {step: [seed] for step in self.runs[seed]}, f"the run with seed {seed} succeeded; steps are of {owners}")
        return f"{'killed' if kill else 'both'}: {'one saved' if won else 'refused'}"

    def two_outputs(self, here, action, flags, known):
        out = here / "c"
        programs = {}
        for seed in self.rng.sample((1, 2), 2):
            programs[seed] = self.checkpoint(action, seed, out, flags)
            time.sleep(self.rng.random() * 0.02)
        won = self.ended(programs)
        expect(len(won) == 1, f"of two {action} {len(won)} succeeded")
        expect(content(out) == known[won[0]], f"{action}: not what seed {won[0]} gives")
        if action == "convert":
            self.verified(out)
        names = [path.name for path in here.iterdir()]
        expect(names == ["c"], f"left behind: {names}")
        return f"{action}: one written"

    def pair(self, number):
        seen = []
        kinds = [lambda here: self.two_runs(here, kill=False), lambda here: self.two_runs(here, kill=True),
                 lambda here: self.two_outputs(here, "convert", ["--world-size", "3"], self.converted),
                 lambda here: self.two_outputs(here, "merge", [], self.merged)]
        for kind, check in enumerate(kinds):
            here = self.folder / f"pair{number}.{kind}"
            here.mkdir()
            seen.append(check(here))
            shutil.rmtree(here)
        return seen


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bin", type=pathlib.Path, required=True, help="folder with shardlens and shardlens-worker")
    parser.add_argument("--pairs", type=int, default=3, help="of each kind")
    parser.add_argument("--seed", type=int, default=1, help="of the delays")
    options = parser.parse_args()
    memory = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
    failed, seen = 0, collections.Counter()
    with tempfile.TemporaryDirectory(dir=memory) as folder:
        pairs = Pairs(options.bin.resolve(), pathlib.Path(folder), random.Random(options.seed))
        for number in range(options.pairs):
            try:
                seen.update(pairs.pair(number))
            except Unmet as error:
                failed += 1
                print(f"pair {number}: {error}")
    print(f"{options.pairs} pairs of each kind, {failed} failed: " + ", ".join(f"{what} {count}" for what, count in sorted(seen.items())))
    return failed > 0


if __name__ == "__main__":
    sys.exit(main())
