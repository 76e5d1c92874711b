#!/usr/bin/env python3
"""Measures how often `shardlens advise` is right, in the emulated world.

    advice_evaluation.py changes --bin build/release/bin --out changes.jsonl [--seeds 0:24] [--device cuda] [--rounds 4]
    advice_evaluation.py waste --bin build/release/bin --out waste.jsonl [--seeds 0:50]
    advice_evaluation.py summary changes.jsonl|waste.jsonl

`changes` draws a model of 4 to 12 blocks, delays of collectives from small to dominant, and a plan that is not the best one; captures it, asks for
advice, and captures the plan and at most eight of the predicted changes of one thing, alternately, in `--rounds` rounds. `waste` plants one thing that costs
time, of those in PLANTED, with delays that matter, and compares the advice with it; if the advice does not name it, the plan without it is measured,
because what is planted may cost nothing: recomputing, where backward waits for communication anyway. Each seed adds a line to the file, and seeds that it has are
skipped, so a run can be continued. `summary` prints the table. Nothing else should run on the machine.
With `--device cuda` the models are so large that the GPU limits a step, not the host.

A change is measured as the mean over rounds of its median step minus that of the unchanged plan, which is captured two or three times in a round; its
standard error is that of this mean. The noise is the deviation of all medians of the unchanged plan, in parts of a step. "Beyond noise" is more
than two standard errors. The regret of a recommendation is how much longer its step is than that of the best change that was measured.
"""
import argparse
import json
import math
import pathlib
import random
import shutil
import statistics
import subprocess
import tempfile

TOKENS = pathlib.Path(__file__).resolve().parent.parent / "data" / "tokens.u16.bin"
WARMUP, STEPS, MOST_CHANGES = 2, 8, 8
# What `waste` plants: a name, the plan's keys, the run's flags, and words of the change that undoes it.
PLANTED = (
    ("no backward prefetch", {"backward_prefetch": "none"}, {}, ("before compute in backward",)),
    ("every block checkpointed", {"activation_checkpointing": ["model.layers.*"]}, {}, ("activation checkpoints", "checkpoint every second")),
    ("microbatches of one sample", {}, {"batch": 1, "accumulate": 4}, ("microbatches of",)),
    ("gradients reduced in every microbatch", {"reshard_after_forward": False}, {"accumulate": 4}, ("only in the last microbatch", "microbatches of")),
    ("units of attention and MLP", {"units": [{"modules": "model.layers.*.self_attn"}, {"modules": "model.layers.*.mlp"}, {"modules": "model.layers.*"},
                                              {"modules": ""}]}, {}, ("a unit", "as one unit", "replicate")),
)


class World:
    """One model with its captures in a temporary folder."""

    def __init__(self, binaries, seed, least_us, device, rounds):
        self.shardlens = str(binaries / "shardlens")
        self.folder = pathlib.Path(tempfile.mkdtemp(prefix="advice-"))
        draw = random.Random(seed)
        self.blocks = draw.randint(4, 12)
        hidden = draw.choice((64, 128, 192, 256))
        self.ranks = draw.choice((4, 8))
        self.hardware = f"ab:{int(math.exp(draw.uniform(math.log(least_us), math.log(12000))))}:{draw.choice((2, 8, 'inf'))}"
        self.flags = {"batch": draw.choice((2, 4)), "accumulate": 1, "seq": draw.choice((64, 128))}
        self.draw = draw
        self.rounds = rounds
        middle, heads, vocabulary = hidden * 8 // 3, 4, 512
        if device == "cuda":
            hidden, middle, heads, vocabulary = 2048, 5632, 16, 8000
            self.hardware = f"ab:{int(math.exp(draw.uniform(math.log(least_us), math.log(4000))))}:inf"
            self.flags = {"batch": draw.choice((4, 8)), "accumulate": 1, "seq": 1024, "precision": "bf16", "device": "cuda"}
        (self.folder / "config.json").write_text(json.dumps(
            {"model_type": "llama", "hidden_size": hidden, "intermediate_size": middle, "num_hidden_layers": self.blocks,
             "num_attention_heads": heads, "num_key_value_heads": heads, "vocab_size": vocabulary, "max_position_embeddings": 1024}))

    def ask(self, *arguments):
        done = subprocess.run([self.shardlens, *map(str, arguments)], capture_output=True, text=True, timeout=900, check=False)
        if done.returncode not in (0, 5):
            raise RuntimeError(done.stderr.strip())
        return done.stdout

    def capture(self, name, plan, run):
        """Captures a plan; the median of its recorded steps in milliseconds."""
        out = self.folder / name
        shutil.rmtree(out, ignore_errors=True)
        (self.folder / "plan.json").write_text(json.dumps(plan))
        flags = {**self.flags, **run}
        no_sync = [] if flags.pop("sync_every_microbatch", True) else ["--no-sync"]
        self.ask("capture", "--model", self.folder, "--tokens", TOKENS, "--backend", "emulated", "--world-size", self.ranks, "--hardware",
                 self.hardware, "--steps", STEPS + WARMUP, "--warmup", WARMUP, "--plan", self.folder / "plan.json", "--out", out, *no_sync,
                 *[word for key, value in flags.items() for word in (f"--{key}", value)])
        lines = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
        return statistics.median(line["step_ms"] for line in lines[-STEPS:])

    def advice(self, plan, run):
        self.capture("own", plan, run)
        return json.loads(self.ask("advise", self.folder / "own", "--json", "--top", 50))

    def measure(self, plan, run, changes):
        """Captures the plan and the changes alternately; all medians of the plan, and of each change the differences by round.

        The plan is captured between the changes, and first and last, because its noise is in the differences of all changes.
        """
        middle = (len(changes) + 1) // 2
        order = [None, *range(middle), None, *([*range(middle, len(changes)), None] if len(changes) > 1 else [])]
        own, differences = [], [[] for _ in changes]
        for _ in range(self.rounds):
            steps = [(i, self.capture("side", plan, run) if i is None else self.capture("side", changes[i]["plan"], changes[i]["run"])) for i in order]
            unchanged = [step for i, step in steps if i is None]
            own += unchanged
            for i, step in steps:
                if i is not None:
                    differences[i].append(step - statistics.mean(unchanged))
            order.reverse()
        return own, differences

    def close(self):
        shutil.rmtree(self.folder, ignore_errors=True)


def error_of(differences):
    return statistics.stdev(differences) / math.sqrt(len(differences))


def measured(change, differences):
    return {"title": change["title"], "predicted_ms": change["change_ns"] / 1e6, "interval_ms": [x / 1e6 for x in change["interval_ns"]],
            "measured_ms": statistics.mean(differences), "error_ms": error_of(differences)}


def random_plan(draw, blocks):
    """A plan that leaves out some of what usually helps."""
    plan = {"version": 1}
    size = draw.choice((1, 1, 2))
    plan["units"] = [{"modules": [f"model.layers.{i}" for i in range(first, min(first + size, blocks))]} for first in range(0, blocks, size)]
    plan["units"].append({"modules": ""})
    if draw.random() < 0.3:
        plan["backward_prefetch"] = "none"
    if draw.random() < 0.3:
        plan["activation_checkpointing"] = [f"model.layers.{i}" for i in range(0, blocks, draw.choice((1, 2)))]
    if draw.random() < 0.3:
        plan["reshard_after_forward"] = False
    return plan


def run_changes(world):
    plan = random_plan(world.draw, world.blocks)
    advice = world.advice(plan, {})
    single = [each for each in advice["changes"] + advice["others"] if "; " not in each["title"]]
    recommended = [each["title"] for each in advice["changes"] if "; " not in each["title"]]
    # The first recommendation is always measured, the rest is drawn.
    rest = [each for each in single if each["title"] not in recommended[:1]]
    world.draw.shuffle(rest)
    chosen = ([each for each in single if each["title"] in recommended[:1]] + rest)[:MOST_CHANGES]
    own, differences = world.measure(plan, {}, chosen)
    return {"own_ms": own, "baseline_error": advice["baseline"]["error"], "recommended": recommended,
            "changes": [measured(each, found) for each, found in zip(chosen, differences)]}


def run_waste(world, seed):
    name, keys, run, words = PLANTED[seed % len(PLANTED)]
    without = {"version": 1, "units": [{"modules": "model.layers.*"}, {"modules": ""}]}
    plan = {**without, **keys}
    advice = world.advice(plan, run)
    first = next((each for each in advice["changes"] if "; " not in each["title"]), None)
    named = [each for each in advice["changes"] if any(word in each["title"] for word in words)]
    out = {"planted": name, "first": first["title"] if first else None, "named": bool(named)}
    if named:
        own, differences = world.measure(plan, run, named[:1])
        out.update(own_ms=own, change=measured(named[0], differences[0]))
    else:
        own, differences = world.measure(plan, run, [{"plan": without, "run": {}}])
        out.update(own_ms=own, without={"measured_ms": statistics.mean(differences[0]), "error_ms": error_of(differences[0])})
    return out


def certain_sign(change):
    """-1 or 1 if the measured change is beyond noise, otherwise 0."""
    if abs(change["measured_ms"]) <= 2 * change["error_ms"]:
        return 0
    return math.copysign(1, change["measured_ms"])


def regret_of(row):
    """The regret of the first recommendation, as a share of a step; 0 within noise; None if nothing was recommended."""
    best = min(row["changes"], key=lambda each: each["measured_ms"])
    first = next((each for each in row["changes"] if each["title"] in row["recommended"][:1]), None)
    if first is None:
        return None
    regret = first["measured_ms"] - best["measured_ms"]
    return regret / statistics.mean(row["own_ms"]) if regret > 2 * math.hypot(first["error_ms"], best["error_ms"]) else 0.0


def summary_of_changes(rows):
    changes = [each for row in rows for each in row["changes"]]
    recommended = [each for row in rows for each in row["changes"] if each["title"] in row["recommended"]]

    def held(errors):
        return sum(each["interval_ms"][0] - errors * each["error_ms"] <= each["measured_ms"] <= each["interval_ms"][1] + errors * each["error_ms"]
                   for each in changes)

    print(f"{len(rows)} models, {len(changes)} changes: {held(0)} ({held(0) / len(changes):.1%}) within their 90 % interval, "
          f"{held(2)} ({held(2) / len(changes):.1%}) with two standard errors of the measurement added to it")
    signs = [certain_sign(each) for each in recommended]
    print(f"{len(recommended)} recommended changes were measured: beyond noise {signs.count(-1)} are better and {signs.count(1)} worse")
    certain = [each for each in changes if certain_sign(each)]
    print(f"sign right: {sum(certain_sign(each) * each['predicted_ms'] > 0 for each in certain)} of {len(certain)} beyond noise")
    noises = [statistics.stdev(row["own_ms"]) / statistics.mean(row["own_ms"]) for row in rows]
    print(f"noise between captures: median {statistics.median(noises):.1%}, largest {max(noises):.1%} of a step")
    if regrets := [regret for row in rows if (regret := regret_of(row)) is not None]:
        print(f"regret of the first recommendation: median {statistics.median(regrets):.1%}, largest {max(regrets):.1%} of a step")


def summary_of_waste(rows):
    right = sum(row["named"] for row in rows)
    free = [row for row in rows if "without" in row and row["without"]["measured_ms"] > -2 * row["without"]["error_ms"]]
    costly = len(rows) - len(free)
    certain = [row["change"] for row in rows if row["named"] and abs(row["change"]["measured_ms"]) > 2 * row["change"]["error_ms"]]
    better = sum(each["measured_ms"] < 0 for each in certain)
    print(f"{len(rows)} captures: the cause is named in {right} ({right / len(rows):.1%}), and in {right} of {costly} ({right / costly:.1%}) in which it costs "
          f"more than noise; of {len(certain)} edits beyond noise {better} improve the step")
    for name in sorted({row["planted"] for row in rows}):
        of = [row for row in rows if row["planted"] == name]
        print(f"  {name}: named in {sum(row['named'] for row in of)} of {len(of)}")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    for name, seeds in (("changes", "0:24"), ("waste", "0:50")):
        each = commands.add_parser(name)
        each.add_argument("--bin", type=pathlib.Path, required=True)
        each.add_argument("--out", type=pathlib.Path, required=True)
        each.add_argument("--seeds", default=seeds)
        each.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
        each.add_argument("--rounds", type=int, choices=range(2, 100), metavar="N", default=4)
    commands.add_parser("summary").add_argument("file", type=pathlib.Path)
    options = parser.parse_args()
    if options.command == "summary":
        rows = [json.loads(line) for line in options.file.read_text().splitlines()]
        (summary_of_waste if "planted" in rows[0] else summary_of_changes)(rows)
        return
    known = {json.loads(line)["seed"] for line in options.out.read_text().splitlines()} if options.out.exists() else set()
    first, last = map(int, options.seeds.split(":"))
    for seed in range(first, last):
        if seed in known:
            continue
        world = World(options.bin.resolve(), seed, 300 if options.command == "changes" else 3000, options.device, options.rounds)
        try:
            row = run_changes(world) if options.command == "changes" else run_waste(world, seed)
        finally:
            world.close()
        with options.out.open("a") as file:
            file.write(json.dumps({"seed": seed, "blocks": world.blocks, "ranks": world.ranks, "hardware": world.hardware, **row}) + "\n")
        print(f"seed {seed}: {json.dumps(row)[:300]}", flush=True)


if __name__ == "__main__":
    main()
