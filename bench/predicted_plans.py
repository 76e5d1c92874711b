#!/usr/bin/env python3
"""Measures how well other plans are predicted on this machine from runs of only full_shard.

    predicted_plans.py --bin build/release/bin [--worlds emulated,gloo] [--rounds 5] [--steps 8] [--keep DIR]

Captures the other plans one after the other, with full_shard before and after each, `--rounds` times; calibrates on the captures of full_shard,
simulates the other plans with that calibration, and prints measured and predicted step time and exposed communication. The speed of a machine
drifts by more than the goals below, so a plan's step is measured relative to the captures before and after it: its median step over the mean of
the median steps of these two full_shard captures, in the median over rounds, times the mean step of full_shard. A/A noise is the same ratio of
full_shard itself to its neighbours: the largest distance from 1. The batch is increased until a step takes at least 300 ms.

Goals  emulated world of 8: error of step time 3 % in the median and 6 % at worst, of exposed communication 10 %, or 1 % of the step;
       two ranks over Gloo: error of step time 5 %, or twice the A/A noise.
Exit code 0: the goals are reached; 1: they are not. Nothing else should run on the machine.
"""
import argparse
import json
import math
import os
import pathlib
import shutil
import statistics
import subprocess
import sys
import tempfile

TOKENS = pathlib.Path(__file__).resolve().parent.parent / "tests" / "data" / "tokens.u16.bin"
LAYERS, SEQ, LEAST_MS, WARMUP = 8, 64, 300, 3
MODEL = {"model_type": "llama", "hidden_size": 512, "intermediate_size": 1376, "num_hidden_layers": LAYERS, "num_attention_heads": 8,
         "num_key_value_heads": 8, "vocab_size": 256, "max_position_embeddings": 256, "rms_norm_eps": 1e-6, "tie_word_embeddings": False,
         "hidden_act": "silu"}
WORLDS = {"emulated": ("emulated world of 8", ["--backend", "emulated", "--world-size", "8", "--hardware", "ab:5000:4"], ["--world-size", "8"]),
          "gloo": ("two ranks, Gloo", ["--nproc", "2"], ["--world-size", "2"])}


def blocks(size):
    return [[f"model.layers.{i}" for i in range(first, min(first + size, LAYERS))] for first in range(0, LAYERS, size)]


BASELINE = "full_shard"
PLANS = {
    BASELINE: ["--strategy", "full_shard"],
    "shard_grad_op": ["--strategy", "shard_grad_op"],
    "two blocks a unit": {"version": 1, "units": [{"modules": pair} for pair in blocks(2)] + [{"modules": ""}]},
    "four blocks a unit": {"version": 1, "units": [{"modules": four} for four in blocks(4)] + [{"modules": ""}]},
    "no backward prefetch": {"version": 1, "backward_prefetch": "none"},
    "forward prefetch 1": {"version": 1, "forward_prefetch": 1},
    "replicate": ["--strategy", "replicate"],
    "cpu offload": {"version": 1, "cpu_offload": True},
    "optimizer in backward": {"version": 1, "optimizer_in_backward": True},
}


def ratio_at(rounds, place, distance):
    """The median over rounds of the step at `place` divided by the mean of the steps `distance` places before and after it."""
    return statistics.median(each[place][1] / statistics.mean((each[place - distance][1], each[place + distance][1])) for each in rounds)


class Failed(Exception):
    pass


class World:
    def __init__(self, name, options, directory):
        self.title, self.run_flags, self.simulate_flags = WORLDS[name]
        self.shardlens, self.directory, self.options = str(options.bin / "shardlens"), directory, options
        self.batch = 1
        directory.mkdir(parents=True)
        (directory / "config.json").write_text(json.dumps(MODEL))

    def command(self, *arguments):
        done = subprocess.run([self.shardlens, *map(str, arguments)], capture_output=True, text=True, timeout=1800,
                              env={**os.environ, "OMP_NUM_THREADS": "1"})
        if done.returncode != 0:
            raise Failed(f"{' '.join(map(str, arguments))}\nexited with {done.returncode}: {done.stderr.strip()[-2000:]}")
        return done.stdout

    def plan_flags(self, plan):
        if isinstance(PLANS[plan], list):
            return PLANS[plan]
        path = self.directory / f"{plan}.json"
        path.write_text(json.dumps(PLANS[plan]))
        return ["--plan", path]

    def model_flags(self, plan):
        return ["--model", self.directory, *self.plan_flags(plan), "--batch", self.batch, "--seq", SEQ]

    def capture(self, plan, name, steps):
        """Captures a plan. Returns its directory, and step time and exposed communication in ms of every rank and step."""
        out = self.directory / name
        self.command("capture", *self.model_flags(plan), *self.run_flags, "--tokens", TOKENS, "--out", out, "--steps", steps + WARMUP,
                     "--warmup", WARMUP, "--threads", 1)
        analysis = json.loads(self.command("analyze", out, "--json"))
        steps = [step for rank in analysis["ranks"] for step in rank["steps"]]
        return out, [(step["span_ns"] / 1e6, step["exposed_comm_ns"] / 1e6) for step in steps]

    def choose_batch(self):
        for _ in range(4):
            out, steps = self.capture(BASELINE, "trial", 3)
            shutil.rmtree(out)
            step = statistics.median(span for span, _ in steps)
            if step >= LEAST_MS * 1.05:
                return
            self.batch = max(self.batch + 1, math.ceil(self.batch * LEAST_MS * 1.2 / step))

    def measure(self):
        """Captures the baseline and the plans alternately. Returns, for each round, the plans with median step and exposed communication; and the
        baseline's captures."""
        order = [BASELINE] + [each for plan in PLANS if plan != BASELINE for each in (plan, BASELINE)]
        rounds, captures = [], []
        for turn in range(self.options.rounds):
            rounds.append([])
            for place, plan in enumerate(order):
                print(f"\r{self.title}: round {turn + 1} of {self.options.rounds}, {plan}".ljust(70), end="", file=sys.stderr, flush=True)
                out, found = self.capture(plan, f"{turn} {place} {plan}", self.options.steps)
                rounds[-1].append((plan, *(statistics.median(each[i] for each in found) for i in range(2))))
                if plan == BASELINE:
                    captures.append(out)
                else:
                    shutil.rmtree(out)
        print(file=sys.stderr)
        return rounds, captures

    def predict(self, plan, calibration):
        result = json.loads(self.command("simulate", *self.model_flags(plan), *self.simulate_flags, "--calibration", calibration, "--json"))
        return result["step_ns"] / 1e6, result["exposed_comm_ns"] / 1e6

    def run(self):
        self.choose_batch()
        rounds, captures = self.measure()
        calibration = self.directory / "calibration.json"
        self.command("calibrate", *(flag for capture in captures for flag in ("--capture", capture)), "--out", calibration)
        places = range(len(rounds[0]))
        baseline = statistics.mean(step for each in rounds for plan, step, _ in each if plan == BASELINE)
        noise = max(abs(ratio_at(rounds, place, 2) - 1) for place in places if rounds[0][place][0] == BASELINE and 2 <= place < len(places) - 2)
        print(f"\n{self.title}: batch {self.batch}, {self.options.rounds} rounds of {self.options.steps} steps, A/A noise {noise:.1%}\n")
        print("| plan | step, ms | predicted | error | exposed, ms | predicted | error | of the step |\n|---|---:|---:|---:|---:|---:|---:|---:|")
        errors, exposed_good = {}, True
        for plan in PLANS:
            place = [each for each, _, _ in rounds[0]].index(plan)
            step = baseline if plan == BASELINE else baseline * ratio_at(rounds, place, 1)
            exposed = statistics.median(found for each in rounds for found_plan, _, found in each if found_plan == plan)
            predicted, predicted_exposed = self.predict(plan, calibration)
            error, off = predicted / step - 1, predicted_exposed - exposed
            print(f"| {plan}{' (calibrated on)' if plan == BASELINE else ''} | {step:.1f} | {predicted:.1f} | {error:+.1%} | {exposed:.1f} | "
                  f"{predicted_exposed:.1f} | {off / max(exposed, 1e-9):+.1%} | {off / step:+.1%} |", flush=True)
            if plan != BASELINE:
                errors[plan] = abs(error)
                exposed_good = exposed_good and (abs(off) <= 0.1 * exposed or abs(off) <= 0.01 * step)
        return self.verdict(errors, exposed_good, noise, baseline)

    def verdict(self, errors, exposed_good, noise, baseline):
        median, worst = statistics.median(errors.values()), max(errors.values())
        if self.title == WORLDS["emulated"][0]:
            goals = [("steps of at least 300 ms", baseline >= LEAST_MS), ("median error at most 3 %", median <= 0.03),
                     ("worst at most 6 %", worst <= 0.06), ("exposed communication within 10 % or 1 % of the step", exposed_good)]
        else:
            limit = max(0.05, 2 * noise)
            goals = [("steps of at least 300 ms", baseline >= LEAST_MS), (f"worst error at most {limit:.1%}", worst <= limit)]
        print(f"\nmedian error {median:.1%}, worst {worst:.1%}: " + "; ".join(f"{goal}: {'yes' if holds else 'NO'}" for goal, holds in goals))
        return all(holds for _, holds in goals)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bin", type=pathlib.Path, required=True)
    parser.add_argument("--worlds", default="emulated,gloo")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=8)
    parser.add_argument("--keep", type=pathlib.Path, help="keep the captures of full_shard and the calibrations in this new directory")
    options = parser.parse_args()
    if not (options.bin / "shardlens").is_file():
        parser.error(f"--bin {options.bin}: does not contain shardlens")
    names = options.worlds.split(",")
    if unknown := [name for name in names if name not in WORLDS]:
        parser.error(f"--worlds {unknown[0]}: expected {' or '.join(WORLDS)}")
    if options.rounds < 1 or options.steps < 1:
        parser.error("--rounds and --steps: expected at least 1")
    with tempfile.TemporaryDirectory() as folder:
        root = options.keep or pathlib.Path(folder)
        try:
            good = [World(name, options, root / name).run() for name in names]
        except Failed as failure:
            sys.exit(f"\n{failure}")
    sys.exit(0 if all(good) else 1)


if __name__ == "__main__":
    main()
