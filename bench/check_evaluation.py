#!/usr/bin/env python3
"""Measures how often `shardlens check` is wrong: one table over generated pairs, real captures and invalid inputs.

    check_evaluation.py --bin build/release/bin [--pairs 400] [--captures 20] [--runs 3] [--keep DIR] [--skip-generated]

Generated pairs come from check_pairs (bench/check_pairs.cpp, built with -DSHARDLENS_BENCH=ON). Captures are real: two ranks over
Gloo, and rank 0 of an emulated world of 8; both sides of a pair are captured alternately. Nothing else should run on the machine: on a
loaded machine most pairs are inconclusive. 20 pairs of 3 runs are 240 captures, a few seconds each. Exit code 1 if a row misses its goal.
"""
import argparse
import json
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parent.parent
KINDS = {"two ranks, Gloo": ["--nproc", "2"], "emulated world of 8": ["--backend", "emulated", "--world-size", "8"]}
PLANS = {
    "frozen views": ({"version": 1, "views": "frozen"}, ["frozen views", "reduce-scatters of transformer.h."]),
    "backward prefetch off": ({"version": 1, "backward_prefetch": "none"}, ["prefetch of transformer.h.", "not prefetched"]),
    "another wrapping": ({"version": 1, "units": [{"modules": ["transformer.h.0", "transformer.h.1"]},
                                                  {"modules": ["transformer.h.2", "transformer.h.3"]}, {"modules": ""}]},
                         ["transformer.h.0, transformer.h.1", "transformer.h.2, transformer.h.3", "absent"]),
}


class Table:
    def __init__(self):
        self.good = True
        print("| pairs | n | pass | regression | inconclusive | wanted | holds |\n|---|---:|---:|---:|---:|---|---|", flush=True)

    def row(self, name, codes, wanted, holds):
        self.good = self.good and holds
        print(f"| {name} | {len(codes)} | {codes.count(0)} | {codes.count(1)} | {codes.count(5)} | {wanted} | {'yes' if holds else 'NO'} |",
              flush=True)


class Captures:
    def __init__(self, options, directory):
        self.shardlens, self.directory, self.runs = str(options.bin / "shardlens"), directory, options.runs
        self.done, self.planned = 0, len(KINDS) * options.runs * (2 * options.captures + len(PLANS))

    def capture(self, name, flags):
        out = self.directory / name
        command = [self.shardlens, "capture", "--model", str(ROOT / "tests/data/gpt2-tiny"), "--tokens",
                   str(ROOT / "tests/data/tokens.u16.bin"), "--out", str(out), "--steps", "23", "--warmup", "3", "--seq", "32", *flags]
        result = subprocess.run(command, capture_output=True, text=True, timeout=600, check=False)
        self.done += 1
        print(f"\rcapture {self.done} of at most {self.planned} ", end="", file=sys.stderr, flush=True)
        if result.returncode != 0:
            sys.exit(f"\n{' '.join(command)}\nfailed with exit code {result.returncode}:\n{result.stderr}")
        return out

    def check(self, baseline, candidate, *more):
        """Exit code and all output of `shardlens check`."""
        result = subprocess.run([self.shardlens, "check", "--baseline", *map(str, baseline), "--candidate", *map(str, candidate), *more],
                                capture_output=True, text=True, timeout=600, check=False)
        return result.returncode, result.stdout + result.stderr


def same_program(captures, kind, flags, pairs, table):
    """Pairs of the same program (A/A), captured in the order ABBA. Returns one side's runs of the last pair."""
    codes, last = [], []
    for pair in range(pairs):
        sides = {"a": [], "b": []}
        for run in range(captures.runs):
            for side in ("ab", "ba")[run % 2]:
                sides[side].append(captures.capture(f"{kind[:3]}-{pair}-{side}{run}", flags))
        codes.append(captures.check(sides["a"], sides["b"])[0])
        for old in last:
            shutil.rmtree(old)
        last = sides["a"]
        for old in sides["b"]:
            shutil.rmtree(old)
    print(file=sys.stderr)
    table.row(f"{kind}: same program (A/A)", codes, "at most 1 regression", codes.count(1) <= 1)
    return last


def other_plans(captures, kind, flags, baseline, table):
    for name, (plan, words) in PLANS.items():
        file = captures.directory / f"{name.replace(' ', '-')}.json"
        file.write_text(json.dumps(plan))
        candidate = [captures.capture(f"{kind[:3]}-{file.stem}-{run}", [*flags, "--plan", str(file)]) for run in range(captures.runs)]
        code, said = captures.check(baseline, candidate)
        missing = [word for word in words if word not in said]
        print("\n" + "\n".join(said.splitlines()[:4]), file=sys.stderr)
        table.row(f"{kind}: {name}", [code], f"regression, naming {' / '.join(words)}", code == 1 and not missing)


def no_runs(captures, run, table):
    """Adds a row for each invalid input, which must give an error and no verdict."""
    base = captures.directory / "inputs"
    trace = run / "rank0.pt.trace.json.gz"

    def copy(name):
        shutil.copytree(run, base / name)
        return base / name / trace.name

    cut = copy("cut")
    cut.write_bytes(trace.read_bytes()[:trace.stat().st_size // 2])
    copy("garbage").write_bytes(os.urandom(4096))
    copy("empty-file").write_bytes(b"")
    (base / "empty").mkdir()
    copy("no-events").write_text('{"traceEvents": []}')
    rank_missing = copy("rank-missing")
    rank_missing.unlink()
    for name, wanted in [("cut", 3), ("garbage", 3), ("empty-file", 3), ("empty", 3), ("no-events", 3), ("rank-missing", 3),
                         ("absent", 3)]:
        code, said = captures.check([run], [base / name], "--json")
        holds = code == wanted and '"verdict"' not in said and len(said.strip().splitlines()) == 1
        table.row(f"input: {name} ({said.strip().splitlines()[-1].replace(str(base), '…') if said.strip() else 'no message'})", [code],
                  f"exit {wanted}, one message", holds)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bin", type=pathlib.Path, required=True, help="directory with shardlens, shardlens-worker and check_pairs")
    parser.add_argument("--pairs", type=int, default=400)
    parser.add_argument("--captures", type=int, default=20, help="pairs of the same program (A/A) of each kind of real captures; 0: none")
    parser.add_argument("--runs", type=int, default=3, help="runs of each side of a pair")
    parser.add_argument("--keep", type=pathlib.Path, help="keep the captures of the last pairs in this directory")
    parser.add_argument("--skip-generated", action="store_true")
    options = parser.parse_args()
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    good = True
    if not options.skip_generated:
        good = subprocess.run([str(options.bin / "check_pairs"), "--pairs", str(options.pairs), "--runs", str(options.runs)],
                              check=False).returncode == 0
        print()
    if options.captures > 0:
        with tempfile.TemporaryDirectory() as folder:
            directory = options.keep or pathlib.Path(folder)
            directory.mkdir(parents=True, exist_ok=True)
            captures, table = Captures(options, directory), Table()
            for kind, flags in KINDS.items():
                baseline = same_program(captures, kind, flags, options.captures, table)
                other_plans(captures, kind, flags, baseline, table)
                if "Gloo" in kind:
                    no_runs(captures, baseline[0], table)
            good = good and table.good
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
