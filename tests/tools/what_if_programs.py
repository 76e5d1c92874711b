#!/usr/bin/env python3
"""Ten FSDP2 programs on two Gloo ranks: what is simulated from their recordings, and what their changed programs take.

    what_if_programs.py OUT [NAME…] [--seconds S] [--rounds 4] [--steps 4] [--again]

Each is a Llama, measured and compared as tests/tools/what_if_fsdp2.py does: its own plan, and four changes (resharding, prefetch, pairs of blocks,
replicas). A program's result is a line of OUT/results.jsonl; programs that have one are not run again, and after S seconds no further one is
started, so that the ten can be measured in several quiet minutes. Then the table of all results: the error for the own plan (asked: 5 % in the
median, 12 % at worst), and for each change whether the prediction is within the larger of 3 % of the step and twice the noise of the
measurement, and whether the best change is named. The column "recording" is how much longer the recorded steps took than the same steps among
the variants: where it is above 25 %, something else ran while recording, and --again measures these programs again. Exit code 1 if something
is out of its bounds, 5 if programs are left.
"""
import argparse
import json
import statistics
import sys
import time
from pathlib import Path

import what_if_fsdp2

# name: hidden, blocks, vocab, batch, seq
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


def settings_of(name, options):
    hidden, blocks, vocab, batch, seq = PROGRAMS[name]
    return argparse.Namespace(out=options.out / name, hidden=hidden, blocks=blocks, vocab=vocab, batch=batch, seq=seq, rounds=options.rounds,
                              steps=options.steps, recorded=6)


def line_of(name, result):
    """A program's result without the predictions' details."""
    base = result["baseline"]
    changes = []
    for row in result["rows"][1:]:
        first = result["rows"][0]
        noise = (row["noise_ms"] + first["noise_ms"]) / first["measured_ms"]
        changes.append({"variant": row["variant"], "measured": row["measured_change"], "predicted": row["predicted_change"], "noise": noise})
    return {"program": name, "step_ms": result["rows"][0]["measured_ms"], "noise": result["noise"], "own_error": base["error"],
            "own_error_beside": base["simulated_step_ns"] / 1e6 / result["rows"][0]["measured_ms"] - 1, "changes": changes}


def within(change):
    return abs(change["predicted"] - change["measured"]) <= max(0.03, 2 * change["noise"])


def recording(line):
    """How much longer the recorded steps took than the same program's steps among the variants, as a share."""
    return (1 + line["own_error_beside"]) / (1 + line["own_error"]) - 1


def is_disturbed(line):
    return abs(recording(line)) > 0.25


def best(changes, key):
    """The variant with the largest gain, or None if all changes make the step longer."""
    found = min(changes, key=lambda change: change[key])
    return found["variant"] if found[key] < 0 else None


def names_the_best(changes):
    """Whether the change that is predicted best is the best one measured, or one that noise does not tell from it."""
    predicted, measured = best(changes, "predicted"), best(changes, "measured")
    if predicted == measured:
        return True
    of = {change["variant"]: change for change in changes}
    a = of[predicted]["measured"] if predicted else 0.0
    b = of[measured]["measured"] if measured else 0.0
    return abs(a - b) <= 2 * max(of[name]["noise"] for name in (predicted, measured) if name)


def table(lines):
    print("| program | step | noise | recording | own plan | " + " | ".join(what_if_fsdp2.VARIANTS[1:]) + " | best named |")
    print("|---|---:|---:|---:|---:|" + "---|" * len(what_if_fsdp2.VARIANTS))
    for line in lines:
        cells = [f"{change['predicted']:+.1%} ({change['measured']:+.1%} ± {change['noise']:.1%}){'' if within(change) else ' **no**'}" for change in line["changes"]]
        print(f"| {line['program']} | {line['step_ms']:.0f} ms | {line['noise']:.1%} | {recording(line):+.0%} | {line['own_error']:+.1%} | {' | '.join(cells)} | "
              f"{'yes' if names_the_best(line['changes']) else 'no'} |")
    errors = [abs(line["own_error"]) for line in lines]
    changes = [change for line in lines for change in line["changes"]]
    print(f"\nown plan: {statistics.median(errors):.1%} in the median, {max(errors):.1%} at worst; changes within bounds: {sum(map(within, changes))} of {len(changes)}; "
          f"best named: {sum(names_the_best(line['changes']) for line in lines)} of {len(lines)}")
    return statistics.median(errors) <= 0.05 and max(errors) <= 0.12 and all(map(within, changes)) and all(names_the_best(line["changes"]) for line in lines)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("out", type=Path)
    parser.add_argument("names", nargs="*", metavar="NAME")
    parser.add_argument("--seconds", type=float, default=float("inf"), help="start no further program after so many")
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--steps", type=int, default=4)
    parser.add_argument("--again", action="store_true", help="also measure programs again whose recording something else disturbed")
    parser.add_argument("--table", action="store_true", help="only print the results")
    options = parser.parse_args()
    if set(options.names) - set(PROGRAMS):
        parser.error(f"expected names among {', '.join(PROGRAMS)}")
    options.out.mkdir(parents=True, exist_ok=True)
    file, begin = options.out / "results.jsonl", time.monotonic()
    found = [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []
    lines = {line["program"]: line for line in found}  # the last of each program
    for name in [] if options.table else options.names or PROGRAMS:
        known = name in lines and not (options.again and is_disturbed(lines[name]))
        if known or time.monotonic() - begin > options.seconds:
            continue
        settings = settings_of(name, options)
        what_if_fsdp2.measure(settings)
        lines[name] = line_of(name, what_if_fsdp2.compared(settings))
        with file.open("a") as out:
            out.write(json.dumps(lines[name]) + "\n")
    passed = table(list(lines.values())) if lines else False
    disturbed = sorted(name for name, line in lines.items() if is_disturbed(line))
    if disturbed:
        print(f"something else ran while these were recorded: {', '.join(disturbed)} (measure them again with --again)")
    left = set(PROGRAMS) - set(lines)
    if left:
        print(f"not measured: {', '.join(sorted(left))}")
    sys.exit(5 if left else int(not passed))


if __name__ == "__main__":
    main()
