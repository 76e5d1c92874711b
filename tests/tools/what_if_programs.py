#!/usr/bin/env python3
"""Compares, for ten FSDP2 programs on two Gloo ranks, what is simulated and advised from their recordings with what the changed programs take.

    what_if_programs.py OUT [NAME…] [--measure | --table] [--seconds S] [--rounds 14] [--steps 1] [--again]

Each is a Llama, measured and compared as tests/tools/what_if_fsdp2.py does: its own plan, and five changes (resharding, prefetch, pairs of
blocks, replicas, one unit). Only this needs a quiet machine, so --measure does no more. Programs that were measured are not run again, and after
S seconds no further one is started, so that the ten can be measured in several quiet minutes. Then `simulate` and `advise` get each recording;
what they say, with the seconds of every step, is a line of OUT/results.jsonl. --table measures nothing. Behind ± is the standard error of a
measured change; "beyond noise" is more than two of them.

The first table has the error for the own plan (asked: 5 % in the median, 12 % at worst), and for each change whether the prediction is within
the larger of 3 % of the step and two standard errors, and whether the best change is named. The column "recording" is how much longer the
recorded steps took than the same steps among the variants: where it is above 25 %, something else ran while recording, and --again measures these
programs again.

Below it is how often the 90 % interval of the change that `simulate` prints has the measured change in it. A measured change has an error of its
own: an interval is also counted with its half-width w and 1.64 standard errors e together, as the root of w² + e².

The second table has what `advise` said: its exit code (5: its error for the own plan exceeds the largest gain; asked: at most 2 of 10), and for
each change whether it was recommended, the predicted change with its 90 % interval, and in brackets the measured one. Changes are found by the
contents of their plans. Asked: the sign is right in all changes beyond noise, and no recommended one is beyond noise a loss. A prediction of less
than 0.5 % of the step has no sign: it is right if it is within the bounds of the first table.

Exit code 1 if something is not as asked, 5 if programs are left.
"""
import argparse
import json
import math
import statistics
import sys
import time
from pathlib import Path

import what_if_fsdp2
from shardlens import program

# name: hidden, blocks, vocab, batch, seq. The CHECKPOINTED have their blocks in checkpoints.
PROGRAMS = {
    "six-blocks": (384, 6, 4096, 4, 128),
    "deep": (192, 14, 2048, 6, 128),
    "wide": (768, 2, 2048, 2, 128),
    "vocabulary": (288, 3, 16384, 2, 128),
    "one-sample": (384, 8, 4096, 1, 192),
    "long": (288, 4, 4096, 1, 512),
    "many-samples": (192, 6, 4096, 12, 96),
    "three-blocks": (576, 3, 4096, 2, 128),
    "middle": (480, 4, 2048, 3, 128),
    "small-units": (288, 10, 1024, 4, 96),
}
CHECKPOINTED = ("many-samples", "three-blocks")
BASE, *CHANGES = what_if_fsdp2.VARIANTS
TWICE = CHANGES[-1]  # the samples: no change of the plan
QUANTILE_90 = 1.645  # of a normal distribution, both sides
NO_EFFECT = 0.005  # a smaller predicted change has no sign


def settings_of(name, options):
    hidden, blocks, vocab, batch, seq = PROGRAMS[name]
    return argparse.Namespace(out=options.out / name, hidden=hidden, blocks=blocks, vocab=vocab, batch=batch, seq=seq, rounds=options.rounds,
                              steps=options.steps, recorded=8, checkpointed=name in CHECKPOINTED)


def contents(plan):
    """The meaning of a plan file, however it is written: the keys in which the variants and the changes that `advise` tries differ."""
    of, names = {}, []
    for unit in plan["units"]:
        modules = unit["modules"] if isinstance(unit["modules"], list) else [unit["modules"]]
        names.append(modules[0])
        reshard = unit.get("reshard_after_forward", plan.get("reshard_after_forward"))
        of[tuple(modules)] = (unit.get("api", "fully_shard"), modules == [""] or reshard is None or bool(reshard))  # the root is gathered in backward at once
    lists = plan.get("forward_prefetch") or {}
    if isinstance(lists, int):
        blocks = [name for name in names if name]
        lists = {name: blocks[at:at + lists] for at, name in enumerate(["", *blocks]) if blocks[at:at + lists]}
    mesh = plan.get("mesh", {})
    return {
        "units": of, "forward_prefetch": lists, "mesh": (mesh.get("replicate", 1), mesh.get("shard", 2)),
        **{key: plan.get(key) or default for key, default in (
            ("backward_prefetch", "pre"), ("activation_checkpointing", []), ("separate_reduce_scatter_group", False))}}


def advised(settings):
    """The answer of `advise` about the recording: exit code, own plan, recommendations, and each variant's change, if it has it."""
    run = settings.out / "run"
    done = program.run(["advise", run, "--json", "--top", 50], exit_codes=(0, 5))
    advice = json.loads(done.stdout)
    step = advice["baseline"]["simulated_step_ns"]
    recorded = json.loads((run / "plan.json").read_text())
    settings_now = json.loads((run / "run.json").read_text())["step_settings"]
    wanted = {variant: contents(what_if_fsdp2.plan_of(variant, recorded)) for variant in CHANGES if variant != TWICE}
    found = {}
    for recommended, changes in ((True, advice["changes"]), (False, advice["others"])):
        for change in changes:
            shown = {"title": change["title"], "recommended": recommended, "predicted": change["change_ns"] / step,
                     "interval": [end / step for end in change["interval_ns"]]}
            same = [variant for variant in wanted if change["run"].items() <= settings_now.items() and contents(change["plan"]) == wanted[variant]]
            found[same[0] if same else change["title"]] = shown
    return {"exit_code": done.returncode, "baseline": advice["baseline"], "changes": found, "unknown": advice["unknown"]}


def line_of(name, settings):
    """A program's result without the predictions' details."""
    result = what_if_fsdp2.compared(settings)
    return {"program": name, "seconds_of_steps": result["seconds"], "page_faults": result["page_faults"], "baseline": result["baseline"],
            "predicted": {row["variant"]: row["predicted_change"] for row in result["rows"][1:]},
            "intervals": {row["variant"]: [end / row["base_ns"] for end in row["predicted"]["change_interval_ns"]] for row in result["rows"][1:]},
            "advice": advised(settings)}


class Change:
    """A variant of a program: measured, simulated, and advised (None where `advise` has no such change)."""

    def __init__(self, line, variant):
        self.program, self.variant = line["program"], variant
        self.measured, self.error = what_if_fsdp2.difference(line["seconds_of_steps"][BASE], line["seconds_of_steps"][variant])
        self.predicted, self.interval = line["predicted"][variant], line["intervals"][variant]
        self.advised = line["advice"]["changes"].get(variant)

    def is_beyond_noise(self):
        return abs(self.measured) > 2 * self.error

    def is_within(self, predicted):
        return abs(predicted - self.measured) <= max(0.03, 2 * self.error)

    def is_sign_right(self):
        """Whether the sign is right that `advise` predicts or, where it has no such change, `simulate`."""
        predicted = self.advised["predicted"] if self.advised else self.predicted
        return self.is_within(predicted) if abs(predicted) < NO_EFFECT else predicted * self.measured > 0

    def is_in(self, interval, with_noise):
        """Whether the measured change is in an interval, which is made wider by the error of the measured change."""
        middle, half = (interval[0] + interval[1]) / 2, (interval[1] - interval[0]) / 2
        return abs(self.measured - middle) <= math.hypot(half, QUANTILE_90 * self.error if with_noise else 0)

    def is_harmful(self):
        return bool(self.advised) and self.advised["recommended"] and self.measured > 2 * self.error


def changes_of(line):
    return [Change(line, variant) for variant in CHANGES]


def step_ms(line):
    return statistics.median(what_if_fsdp2.by_round(line["seconds_of_steps"][BASE])) * 1e3


def recording(line):
    """By how much longer the recorded steps took than the same program's steps among the variants, as a share."""
    return line["baseline"]["measured_step_ns"] / 1e6 / step_ms(line) - 1


def is_disturbed(line):
    return abs(recording(line)) > 0.25


def names_the_best(line):
    """Whether the change that is predicted best is the best one measured, or one that noise does not tell from it. No change may be the best."""
    changes = changes_of(line)
    predicted, measured = (min([*changes, None], key=lambda change: getattr(change, key) if change else 0.0) for key in ("predicted", "measured"))
    if predicted is measured:
        return True
    a, b = (line["seconds_of_steps"][change.variant if change else BASE] for change in (predicted, measured))
    longer, error = what_if_fsdp2.difference(b, a)
    return longer <= 2 * error


def coverage(changes, intervals):
    """How often intervals hold the measured changes, as text."""
    pairs = list(zip(changes, intervals))
    held, with_noise = (sum(change.is_in(interval, noise) for change, interval in pairs) for noise in (False, True))
    half = statistics.median((interval[1] - interval[0]) / 2 for interval in intervals)
    return f"{held} of {len(pairs)}, {with_noise} with the error of the measured change; median half-width {half:.1%}"


def table(lines):
    """Prints what `simulate` says. Whether all is as asked."""
    print("| program | step | rounds | noise | recording | own plan | " + " | ".join(CHANGES) + " | best named |")
    print("|---|---:|---:|---:|---:|---:|" + "---|" * (len(CHANGES) + 1))
    for line in lines:
        cells = [f"{change.predicted:+.1%} ({change.measured:+.1%} ± {change.error:.1%}){'' if change.is_within(change.predicted) else ' **no**'}"
                 for change in changes_of(line)]
        rounds = what_if_fsdp2.by_round(line["seconds_of_steps"][BASE])
        print(f"| {line['program']} | {step_ms(line):.0f} ms | {len(rounds)} | {statistics.stdev(rounds) / statistics.mean(rounds):.1%} | {recording(line):+.0%} | "
              f"{line['baseline']['error']:+.1%} | {' | '.join(cells)} | {'yes' if names_the_best(line) else 'no'} |")
    errors = [abs(line["baseline"]["error"]) for line in lines]
    within = [change.is_within(change.predicted) for line in lines for change in changes_of(line)]
    best = [names_the_best(line) for line in lines]
    print(f"\nown plan: {statistics.median(errors):.1%} in the median, {max(errors):.1%} at worst; changes within bounds: {sum(within)} of {len(within)}; "
          f"best named: {sum(best)} of {len(best)}")
    for variant in (None, *CHANGES):
        changes = [change for line in lines for change in changes_of(line) if variant in (None, change.variant)]
        print(f"{'within the 90 % interval' if variant is None else '  ' + variant}: {coverage(changes, [change.interval for change in changes])}")
    print()
    return statistics.median(errors) <= 0.05 and max(errors) <= 0.12 and all(within) and all(best)


def advised_cell(change):
    told = change.advised
    if told is None:
        return f"not listed ({change.measured:+.1%} ± {change.error:.1%})"
    low, high = told["interval"]
    sign = "" if not change.is_beyond_noise() else ", right" if change.is_sign_right() else ", **wrong**"
    harmful = ", **harmful**" if change.is_harmful() else ""
    return (f"{'recommended: ' if told['recommended'] else ''}{told['predicted']:+.1%} [{low:+.1%}, {high:+.1%}] "
            f"({change.measured:+.1%} ± {change.error:.1%}{sign}{harmful})")


def advice_table(lines):
    """Prints what `advise` says. Whether all is as asked."""
    print("| program | exit code | own plan | " + " | ".join(CHANGES) + " | first recommendation |")
    print("|---|---:|---:|" + "---|" * (len(CHANGES) + 1))
    for line in lines:
        advice = line["advice"]
        first = next((f"{name} {each['predicted']:+.1%}" for name, each in advice["changes"].items() if each["recommended"]), "none")
        print(f"| {line['program']} | {advice['exit_code']} | {advice['baseline']['error']:+.1%} | {' | '.join(map(advised_cell, changes_of(line)))} | {first} |")
    changes = [change for line in lines for change in changes_of(line)]
    beyond = [change for change in changes if change.is_beyond_noise()]
    wrong = [change for change in beyond if not change.is_sign_right()]
    harmful = [change for change in changes if change.is_harmful()]
    uncertain = [line["program"] for line in lines if line["advice"]["exit_code"] == 5]
    listed = [change for change in changes if change.advised]

    def named(found):
        return "".join(f"; {change.program}: {change.variant}" for change in found)

    print(f"\nsign right: {len(beyond) - len(wrong)} of {len(beyond)} changes beyond noise{named(wrong)}")
    for variant in CHANGES:
        of = [change for change in beyond if change.variant == variant]
        print(f"  {variant}: {sum(change.is_sign_right() for change in of)} of {len(of)} (of {len(lines)} measured, {sum(c.variant == variant for c in listed)} listed)")
    print(f"exit code 5: {len(uncertain)} of {len(lines)}{''.join('; ' + name for name in uncertain)}")
    print(f"harmful recommendations: {len(harmful)} of {sum(change.advised['recommended'] for change in listed)}{named(harmful)}")
    print(f"within the 90 % interval: {coverage(listed, [change.advised['interval'] for change in listed])}")
    return not wrong and not harmful and 5 * len(uncertain) <= len(lines)


def faults_table(lines):
    """Prints page faults: what a variant has more of them than the base is time that is not simulated."""
    print("\n| page faults a step | " + " | ".join(what_if_fsdp2.VARIANTS) + " |")
    print("|---|" + "---:|" * len(what_if_fsdp2.VARIANTS))
    for line in lines:
        print(f"| {line['program']} | " + " | ".join(f"{statistics.mean(what_if_fsdp2.by_round(line['page_faults'][each])):.0f}" for each in what_if_fsdp2.VARIANTS) + " |")


def read_lines(file):
    """The results by program; the last line of each counts."""
    found = [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []
    return {line["program"]: line for line in found}


def measure(options, lines):
    """Measures the programs that have no times yet, and those of `lines` that are to be measured again."""
    begin = time.monotonic()
    for name in options.names or PROGRAMS:
        settings, start = settings_of(name, options), time.monotonic()
        times = settings.out / "times.json"
        again = options.again and name in lines and is_disturbed(lines[name])
        if start - begin > options.seconds or ((name in lines or times.exists()) and not again):
            continue
        times.unlink(missing_ok=True)
        what_if_fsdp2.measure(settings)
        print(f"{name}: {time.monotonic() - start:.0f} s", file=sys.stderr, flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("out", type=Path)
    parser.add_argument("names", nargs="*", metavar="NAME")
    parser.add_argument("--seconds", type=float, default=float("inf"), help="start no further program after so many")
    parser.add_argument("--rounds", type=int, default=14)
    parser.add_argument("--steps", type=int, default=1)
    parser.add_argument("--again", action="store_true", help="also measure programs again whose recording something else disturbed")
    only = parser.add_mutually_exclusive_group()
    only.add_argument("--measure", action="store_true", help="only measure: the part that needs a quiet machine")
    only.add_argument("--table", action="store_true", help="measure nothing")
    options = parser.parse_args()
    if set(options.names) - set(PROGRAMS):
        parser.error(f"expected names among {', '.join(PROGRAMS)}")
    if options.rounds < 2:
        parser.error("--rounds: expected 2 or more")
    options.out.mkdir(parents=True, exist_ok=True)
    file = options.out / "results.jsonl"
    lines = read_lines(file)
    if not options.table:
        measure(options, lines)
    if options.measure:
        sys.exit(0)
    for name in PROGRAMS:
        settings = settings_of(name, options)
        times = settings.out / "times.json"
        if times.exists() and (name not in lines or lines[name]["seconds_of_steps"] != json.loads(times.read_text())["seconds"]):
            lines[name] = line_of(name, settings)
            with file.open("a") as out:
                out.write(json.dumps(lines[name]) + "\n")
    rows = list(lines.values())
    passed = bool(rows) and all([table(rows), advice_table(rows)])
    if rows:
        faults_table(rows)
    disturbed = sorted(name for name, line in lines.items() if is_disturbed(line))
    if disturbed:
        print(f"something else ran while these were recorded: {', '.join(disturbed)} (measure them again with --again)")
    left = set(PROGRAMS) - set(lines)
    if left:
        print(f"not measured: {', '.join(sorted(left))}")
    sys.exit(5 if left else int(not passed))


if __name__ == "__main__":
    main()
