#!/usr/bin/env python3
"""Fits the constants of sim/hardware/stacks.json, once, to some of the published training runs.

    scripts/fit_published_runs.py build/release/bin/shardlens [--runs tests/data/training_runs.csv]

Of each stack's runs in scope at most one in five is used: those that differ most from each other in
size of model, sequence, batch, number of GPUs and checkpointing. The choice does not depend on the
measurements. The fit is a coordinate descent on the mean |log(predicted / measured)|. A run counts
for at most 0.3, since some published runs are several times slower than similar ones. Distance from
the start values adds a small penalty, so that constants which the runs do not determine stay
plausible. A stack without runs of its own uses the constants of another stack. Rewrites only
"software", "rows" and "fitted" in the file, and nothing of stacks for the operators of PyTorch's
programs, whose runs are no rows of that table (bench/published_one_node.py).
"""
import argparse
import csv
import json
import math
import pathlib
import subprocess
import sys
import tempfile

SHARE = 0.2  # largest share of a stack's runs in scope that is used
MOST = 0.3  # largest error of one run that counts
LEAVING = 0.004  # penalty for a factor of e between a constant and its start value
START = {
    "matrix_rate": 0.8,
    "attention_rate": 0.6,
    "head64_rate": 1.0,
    "elementwise_passes": 1.0,
    "loss_passes": 2.0,
    "collective_rate": 0.6,
    "step_us": 20000.0,
}
# Not fitted: torch.optim's loops over tensors read and write about 25 numbers per parameter, a fused
# AdamW 7.
OPTIMIZER = {"value": 3.5, "source": "torch.optim's unfused AdamW reads and writes about 25 numbers "
             "per parameter, a fused one 7"}
# The constants that are fitted for each stack, and the stacks that use constants of another one.
FITTED = {
    "llm-foundry A100-SXM-40GB": list(START),
    "llm-foundry A100-SXM-80GB": list(START),
    "llm-foundry H100-SXM-80GB": list(START),
    # One run each: only the constants in which they differ most from llm-foundry's.
    "torchtitan H100-96GB": ["matrix_rate"],
    "H100": ["collective_rate", "matrix_rate"],
}
TAKES_OVER = {
    "torchtitan H100-96GB": "llm-foundry H100-SXM-80GB",
    "H100": "llm-foundry H100-SXM-80GB",
    "H200": "H100",
    "A100": "llm-foundry A100-SXM-80GB",
}
STACKS = pathlib.Path(__file__).resolve().parent.parent / "sim/hardware/stacks.json"


class Simulator:
    def __init__(self, binary, header):
        self.binary, self.header = binary, header
        self.folder = tempfile.TemporaryDirectory()

    def rows(self, stacks, runs):
        """The result of `validate` for these runs with these constants."""
        folder = pathlib.Path(self.folder.name)
        with open(folder / "runs.csv", "w", newline="") as out:
            writer = csv.DictWriter(out, self.header)
            writer.writeheader()
            writer.writerows(runs)
        (folder / "stacks.json").write_text(json.dumps(stacks))
        done = subprocess.run(
            [self.binary, "validate", "--runs", folder / "runs.csv", "--stacks", folder / "stacks.json", "--json"],
            capture_output=True, text=True, check=False)
        if done.returncode != 0:
            sys.exit(done.stderr)
        return json.loads(done.stdout)["rows"]


def identity(run):
    """PublishedRun::identity (sim/validate/published_runs.cpp)."""
    return (f"{run['source']}; {run['model']}; seq {run['seq_len']}; {run['microbatch']} x {run['grad_accum']}; "
            f"{run['gpus']} {run['gpu_type']}; {run['strategy']} {run['dtype']} {run['act_ckpt']}; "
            f"{run['tokens_s_gpu']} tokens/s")


def place(run):
    size, seq = float(run["params"]), float(run["seq_len"])
    return [math.log2(size), math.log2(seq), math.log2(seq * float(run["microbatch"])),
            math.log2(float(run["gpus"])), 2.0 * (run["act_ckpt"] == "full")]


def choose(runs, count):
    """`count` runs that are far from each other, beginning with the one nearest to the middle."""
    places = [place(run) for run in runs]
    middle = [sum(axis) / len(places) for axis in zip(*places)]
    chosen = [min(range(len(runs)), key=lambda i: math.dist(places[i], middle))]
    while len(chosen) < count:
        chosen.append(max((i for i in range(len(runs)) if i not in chosen),
                          key=lambda i: min(math.dist(places[i], places[k]) for k in chosen)))
    return [runs[i] for i in chosen]


def fit(simulator, stacks, stack, runs, free):
    values = {key: stack["software"].get(key, {}).get("value", START[key]) for key in START}

    def cost(trial):
        stack["software"] = {key: {"value": value, "source": "trial"} for key, value in trial.items()}
        stack["software"]["optimizer_passes"] = OPTIMIZER
        errors = [abs(math.log1p(row["error"])) for row in simulator.rows(stacks, runs) if row["in_scope"]]
        left = sum(abs(math.log(trial[key] / START[key])) for key in free)
        return sum(min(error, MOST) for error in errors) / len(errors) + LEAVING * left

    best, step = cost(values), {key: 0.2 for key in free}
    while max(step.values()) > 0.004:
        for key in free:
            for factor in (math.exp(step[key]), math.exp(-step[key])):
                trial = {**values, key: values[key] * factor}
                found = cost(trial)
                if found < best - 1e-6:
                    best, values = found, trial
                    step[key] *= 1.3
                    break
            else:
                step[key] *= 0.5
    mean = best - LEAVING * sum(abs(math.log(values[key] / START[key])) for key in free)
    source = f"scripts/fit_published_runs.py on {len(runs)} of the runs under \"fitted\": mean error {mean:.1%}"
    stack["software"] = {
        key: {"value": float(f"{value:.3g}"),
              "source": source if key in free else "of " + TAKES_OVER[stack["name"]]}
        for key, value in values.items()}
    stack["software"]["optimizer_passes"] = OPTIMIZER
    print(f"{stack['name']}: {len(runs)} runs, mean error {mean:.1%}")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("shardlens")
    parser.add_argument("--runs", default=STACKS.parent.parent.parent / "tests/data/training_runs.csv")
    options = parser.parse_args()
    with open(options.runs, newline="") as file:
        reader = csv.DictReader(file)
        runs, header = list(reader), reader.fieldnames
    stacks = json.loads(STACKS.read_text())
    by_name = {stack["name"]: stack for stack in stacks["stacks"]}
    stacks["fitted"] = []
    for stack in stacks["stacks"]:
        if stack.get("program") != "pytorch":
            stack["software"] = {}
    simulator = Simulator(options.shardlens, header)
    of_stack = {}
    for run, row in zip(runs, simulator.rows(stacks, runs), strict=True):
        if row["in_scope"]:
            of_stack.setdefault(row["stack"], []).append(run)
    allowed = int(SHARE * sum(map(len, of_stack.values())))
    fitted = []
    for name, free in FITTED.items():
        stack, own = by_name[name], of_stack[name]
        if name in TAKES_OVER:
            stack["software"] = dict(by_name[TAKES_OVER[name]]["software"])
        chosen = choose(own, max(1, int(SHARE * len(own))))
        fit(simulator, stacks, stack, chosen, free)
        stack["rows"] = len(chosen)
        fitted += [identity(run) for run in chosen]
    for name, other in TAKES_OVER.items():
        if name not in FITTED:
            by_name[name]["software"] = {key: {"value": each["value"], "source": "of " + other}
                                         for key, each in by_name[other]["software"].items()}
    if len(fitted) > allowed:
        sys.exit(f"{len(fitted)} runs used, but at most {allowed} are allowed")
    stacks["fitted"] = fitted
    STACKS.write_text(json.dumps(stacks, indent=1, ensure_ascii=False) + "\n")
    print(f"{len(fitted)} of {sum(map(len, of_stack.values()))} runs in scope used; wrote {STACKS}")


if __name__ == "__main__":
    main()
