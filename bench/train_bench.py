#!/usr/bin/env python3
"""Compares training steps of Shardlens with those of PyTorch FSDP2, FSDP1 and DDP on the same machine, and with the bound of the machine.

    bench/train_bench.py [--rounds 5] [--steps 40] [--models llama-tiny,six-layers,eight-blocks,hsdp-2x2] [--bin build/release/bin]

PyTorch has Gloo on 127.0.0.1; ranks of Shardlens read each other's memory. AdamW, fp32, one thread for each rank. full_shard has one unit per layer, flat and per parameter; replicate is compared with DDP.
The bound of a step is that of bench/bound.py: compute of the unsharded step and communication, in CPU time divided by cores, and waits.
hsdp-2x2 has four ranks, two replicas of two shards; with fewer than four cores it is oversubscribed, and its table row says so.

The programs run alternately, so that other work of the machine affects all of them; a step is the median over rounds of each round's median step,
and a ratio the median over rounds of the ratio within a round. PyTorch's steps run in tests/tools/fsdp_reference.py, which measures the same
part of a step: batch, forward, backward, gradient norm, optimizer. Shardlens runs twice: without recording, like PyTorch, and with recording.

Needs Python with torch and transformers (requirements of the tests); the models are created by the script.
"""
import argparse
import dataclasses
import json
import os
import pathlib
import platform
import socket
import statistics
import subprocess
import sys
import tempfile

import bound
import ratios

ROOT = pathlib.Path(__file__).resolve().parent.parent
REFERENCE = ROOT / "tests/tools/fsdp_reference.py"
WARMUP = 5
PER_PARAMETER = {"version": 1, "layout": "per_parameter"}


@dataclasses.dataclass
class Work:
    settings: list  # --set of fsdp_reference.py make
    batch: int
    seq: int
    steps: float = 1  # share of --steps
    ranks: int = 2
    replicas: int = 1
    limits: dict = dataclasses.field(default_factory=dict)  # of the ratio to a contender; above it the exit code is 1
    wanted: dict = dataclasses.field(default_factory=dict)  # what is aimed at
    only: tuple = ()  # contenders; empty: all


SIX_LAYERS = ["num_hidden_layers=6", "hidden_size=256", "intermediate_size=688", "num_attention_heads=8", "num_key_value_heads=4", "vocab_size=1024"]
EIGHT_BLOCKS = ["num_hidden_layers=8", "hidden_size=512", "intermediate_size=1376", "num_attention_heads=8", "num_key_value_heads=4", "vocab_size=1024"]
SHARDED, PER, REPLICATED = "Shardlens", "Shardlens, per parameter", "Shardlens, replicate"
FSDP2, FSDP1, DDP, RECORDING = "PyTorch FSDP2", "PyTorch FSDP1", "PyTorch DDP", "Shardlens, recording"
BOUND, BOUND_DDP = "bound", "bound, replicate"
LARGE = {BOUND: 1.15, BOUND_DDP: 1.15, FSDP2: 0.58, FSDP1: 0.7, DDP: 0.82, PER: 1.05}
MODELS = {
    "llama-tiny": Work([], 2, 64, limits={FSDP2: 0.35, FSDP1: 0.6, DDP: 0.9}, wanted={BOUND: 2, BOUND_DDP: 2, FSDP2: 0.26, FSDP1: 0.38, DDP: 0.5, PER: 1.05}),
    "six-layers": Work(SIX_LAYERS, 4, 128, limits={FSDP2: 0.9, FSDP1: 0.9}, wanted=LARGE),
    "eight-blocks": Work(EIGHT_BLOCKS, 2, 128, steps=0.5, wanted=LARGE, only=(SHARDED, PER, BOUND, FSDP2, FSDP1, REPLICATED, BOUND_DDP, DDP)),
    "hsdp-2x2": Work(SIX_LAYERS, 2, 128, steps=0.5, ranks=4, replicas=2, wanted={BOUND: 1.15, FSDP2: 0.58, FSDP1: 0.7, PER: 1.05},
                     only=(SHARDED, PER, FSDP2, FSDP1, BOUND)),
}
# The ratio of a row is that of Shardlens with the same strategy to it; for the rows of Shardlens itself, to its flat layout without recording.
NAMES = {FSDP2: "FSDP2", FSDP1: "FSDP1", DDP: "DDP", RECORDING: "recording", PER: "per-parameter-over-flat", BOUND: "bound", BOUND_DDP: "bound-replicate"}


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


class Runs:
    """The programs that are compared, for one work."""

    def __init__(self, args, directory, name, work):
        self.bin, self.work, self.steps = args.bin, work, max(WARMUP + 2, round(args.steps * work.steps))
        self.model, self.tokens = f"{directory}/{name}", f"{directory}/{name}.bin"
        vocabulary = next((s.split("=")[1] for s in work.settings if s.startswith("vocab_size")), "256")
        for command in (["make", "--arch", "llama", "--out", self.model, "--set", *work.settings], ["tokens", "--out", self.tokens, "--vocab", vocabulary]):
            subprocess.run([sys.executable, REFERENCE, *command], check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)

    def flags(self, steps):
        return ["--model", self.model, "--tokens", self.tokens, "--steps", str(steps), "--batch", str(self.work.batch), "--seq", str(self.work.seq)]

    def mesh(self):
        return ["--mesh", f"{self.work.replicas}x{self.work.ranks // self.work.replicas}"] if self.work.replicas > 1 else []

    def shardlens(self, recording=False, strategy="full_shard", plan=None):
        with tempfile.TemporaryDirectory() as directory:
            out = pathlib.Path(directory, "out")  # a capture's own folder
            out.mkdir()
            flags = [*self.flags(self.steps), "--out", str(out), *self.mesh()]
            if plan is None:
                flags += ["--strategy", strategy]
            else:
                pathlib.Path(directory, "row.json").write_text(json.dumps(plan))
                flags += ["--plan", directory + "/row.json"]
            if not recording:
                flags += ["--trigger-file", directory + "/never"]
            bound.start_ranks(self.bin / "shardlens-worker", flags, self.work.ranks, directory)
            return statistics.median([json.loads(line)["step_ms"] for line in open(out / "metrics.jsonl")][WARMUP:])

    def reference(self, api):
        with tempfile.NamedTemporaryFile(suffix=".json") as out:
            done = subprocess.run([sys.executable, REFERENCE, "train", *self.flags(self.steps), "--out", out.name, "--api", api, "--nproc", str(self.work.ranks),
                                   "--replicas", str(self.work.replicas), "--port", str(free_port())],
                                  check=False, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, env=dict(os.environ, OMP_NUM_THREADS="1"))
            if done.returncode:
                sys.exit(f"{REFERENCE.name} --api {api} ended with {done.returncode}:\n{done.stderr[-2000:]}")
            return statistics.median(json.load(open(out.name))["step_ms"][WARMUP:])

    def bound(self, strategy):
        return bound.measure(self.bin, [*self.flags(max(3, self.steps // 2)), *self.mesh(), "--strategy", strategy], self.work.ranks).bound

    def contenders(self):
        runs = {
            SHARDED: self.shardlens,
            RECORDING: lambda: self.shardlens(recording=True),
            PER: lambda: self.shardlens(plan=PER_PARAMETER),
            BOUND: lambda: self.bound("full_shard"),
            FSDP2: lambda: self.reference("fsdp2"),
            FSDP1: lambda: self.reference("fsdp1"),
            REPLICATED: lambda: self.shardlens(strategy="replicate"),
            BOUND_DDP: lambda: self.bound("replicate"),
            DDP: lambda: self.reference("ddp"),
        }
        return {name: run for name, run in runs.items() if not self.work.only or name in self.work.only}


def bench(args, directory, name):
    """Prints the rows of a work; whether it is within its limits."""
    work = MODELS[name]
    contenders = Runs(args, directory, name, work).contenders()
    steps = {contender: [] for contender in contenders}
    for round_ in range(args.rounds):
        for contender, run in contenders.items():
            steps[contender].append(run())
            print(f"  {name} round {round_ + 1}: {contender} {steps[contender][-1]:.1f} ms", file=sys.stderr, flush=True)
    title = f"{name}: {work.batch} x {work.seq}, {work.ranks} ranks" + (", oversubscribed" if work.ranks > bound.cores() else "")
    rows, reports, passed = [], [], True
    for contender, values in steps.items():
        ours = REPLICATED if contender in (DDP, BOUND_DDP) else SHARDED
        # What Shardlens itself does another way is in parts of its flat layout; all others are what Shardlens is compared with.
        itself = contender in (PER, RECORDING)
        compared = [] if contender in (SHARDED, REPLICATED) else ratios.by_round(values, steps[ours]) if itself else ratios.by_round(steps[ours], values)
        ratio = f"{statistics.median(compared):.2f} ({min(compared):.2f} to {max(compared):.2f})" if compared else ""
        passed &= not compared or contender not in work.limits or statistics.median(compared) <= work.limits[contender]
        rows.append(f"| {title if contender == SHARDED else ''} | {contender} | {statistics.median(values):.2f} | {min(values):.2f} to {max(values):.2f} | {ratio} | "
                    f"{work.wanted.get(contender, '')} |")
        if compared:
            reports.append((f"train/{name}/{NAMES[contender]}", compared))
    reports.append((f"train/{name}/FSDP2-per-parameter", ratios.by_round(steps[PER], steps[FSDP2])))
    print("\n".join(rows), flush=True)
    return passed, reports


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--models", default=",".join(MODELS))
    parser.add_argument("--bin", type=pathlib.Path, default=ROOT / "build/release/bin")
    args = parser.parse_args()
    if args.steps <= WARMUP or args.rounds < 1:
        parser.error(f"--steps must exceed the {WARMUP} steps of warmup, and --rounds be at least 1")
    for program in ("shardlens-worker", "step_bound"):
        if not (args.bin / program).exists():
            parser.error(f"{args.bin}/{program} does not exist: build it, or give --bin")
    if unknown := [name for name in args.models.split(",") if name not in MODELS]:
        parser.error(f"--models: '{unknown[0]}'; expected {', '.join(MODELS)}")
    print(f"{platform.machine()}, {bound.cores()} cores, load {os.getloadavg()[0]:.1f} at the start; {args.rounds} rounds of {args.steps} steps, one thread for each rank\n")
    print("| batch x sequence | step of | median (ms) | rounds, min to max (ms) | Shardlens / this; own variants: this / flat | wanted |\n|---|---|---:|---|---|---:|")
    passed, reports = True, []
    with tempfile.TemporaryDirectory() as directory:
        for name in args.models.split(","):
            within, found = bench(args, directory, name)
            passed &= within
            reports += found
    print()
    for name, values in reports:
        ratios.report(name, values)
    print("\nwithin the limits" if passed else "\nABOVE A LIMIT")
    sys.exit(0 if passed else 1)


if __name__ == "__main__":
    main()
