#!/usr/bin/env python3
"""Records, opens and checks FSDP2 programs with several versions of PyTorch, exports models with them, and lists what differs.

    torch_versions.py OUT NAME=PYTHON… [--rows ROW…] [--families NAME…] [--compare-only]

NAME is a folder of OUT. PYTHON is an interpreter with that torch, numpy, transformers and python/ of this repository on its path: that of a virtual
environment, or a script that sets PYTHONPATH.
$SHARDLENS_PROGRAM names the program. For each version:
  rows      parity_recorded.py records rows of the parity table (without --rows: all of FSDP2), opens them, and compares them with c10d's calls
  check     `check` of each of these runs with itself finds nothing
  families  python -m shardlens.export of families of tests/tools/compare_export.py; the program plans and simulates the result
Then what differs from the first version: a row's collectives (kind, bytes) or actions, a family's operators. Exit code 1 if something failed;
differences between versions are no failure.
"""
import argparse
import collections
import json
import os
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parents[1] / "python"))

import shardlens  # noqa: E402
from shardlens.program import ShardlensError, ask  # noqa: E402

FAMILIES = ("llama", "qwen3", "gemma3_text", "phi3", "gpt2", "mixtral", "vit")


def run(python, *arguments):
    environment = dict(os.environ, PYTHONWARNINGS="ignore", PYTHONDONTWRITEBYTECODE="1", TRANSFORMERS_VERBOSITY="error")
    return subprocess.run([python, *map(str, arguments)], env=environment, capture_output=True, text=True, check=False)


def record(python, out, rows):
    """Prints a line for each row that does not agree. Returns whether all do."""
    done = run(python, HERE / "parity_recorded.py", *rows, "--out", out)
    lines = [line for line in done.stdout.splitlines() if ": " in line or " agree" in line]
    print("\n".join(line for line in lines if not line.endswith(": agrees")) or done.stderr[-2000:], flush=True)
    return done.returncode == 0


def runs_of(out):
    return sorted(path for path in out.iterdir() if path.is_dir() and list(path.glob("rank*.pt.trace.json.gz")))


def check(out):
    """`check` of each run with itself."""
    failed = 0
    for path in runs_of(out):
        verdict = shardlens.open(path).check(against=path)
        if verdict.verdict == "regression" or verdict.details["structural"]:
            failed += 1
            print(f"{path.name}: check with itself: {verdict.words()}")
    print(f"{len(runs_of(out)) - failed} of {len(runs_of(out))} runs agree with themselves", flush=True)
    return failed == 0


def export(python, out, families):
    from compare_export import config_of

    failed = 0
    out.mkdir(parents=True, exist_ok=True)
    for family in families:
        folder = out / family
        folder.mkdir(exist_ok=True)
        (folder / "config.json").write_text(json.dumps(config_of(family)))
        done = run(python, "-m", "shardlens.export", "--hf", folder, *([] if family == "vit" else ["--seq", 64]), "--out", folder / "model.json")
        try:
            if done.returncode != 0:
                raise ShardlensError(done.stderr.strip().splitlines()[-1], done.returncode)
            step = ask(["simulate", "--model", folder / "model.json", "--hardware", "8xH100", "--precision", "bf16", "--batch", 2])
            units = ask(["plan", "--model", folder / "model.json", "--world-size", 8])["units"]
            print(f"{family}: {len(units)} units, {step['step_ns'] / 1e6:.3f} ms a step", flush=True)
        except ShardlensError as error:
            failed += 1
            print(f"{family}: {error}", flush=True)
    return failed == 0


def collectives(path, out):
    """The calls of torch.distributed, rank by rank."""
    return [json.loads(file.read_text()) for file in sorted(out.glob(f"{path.name}.c10d.*.json"))]


def actions(path):
    rows = [json.loads(line) for line in (path / "rank0.actions.jsonl").read_text().splitlines()]
    return [(row.get("hook") or row["op"], row["unit"], row.get("cause")) for row in rows]


def first_difference(a, b):
    at = next((i for i, (x, y) in enumerate(zip(a, b)) if x != y), min(len(a), len(b)))
    return f"{a[at] if at < len(a) else 'nothing'} and {b[at] if at < len(b) else 'nothing'} at {at} of {len(a)} and {len(b)}"


def compare_rows(first, second):
    for path in runs_of(first):
        other = second / path.name
        if not other.is_dir():
            continue
        for what, a, b in (("collectives", collectives(path, first), collectives(other, second)), ("actions", actions(path), actions(other))):
            if a != b:
                a, b = ([each for step in rank[0] for each in step] for rank in (a, b)) if what == "collectives" else (a, b)
                print(f"{path.name}: other {what}: {first_difference(list(a), list(b))}")


def operators(path):
    step = json.loads(path.read_text())["steps"][0]
    found = collections.Counter((row["phase"], row["name"]) for row in step["operators"])
    return found, sum(row["flops"] for row in step["operators"]), sum({t["storage"]: t["bytes"] for t in step["tensors"]}.values())


def compare_families(first, second):
    for path in sorted(first.glob("*/model.json")):
        other = second / path.parent.name / "model.json"
        if not other.exists():
            continue
        (a, flops, size), (b, other_flops, other_size) = operators(path), operators(other)
        if (a, flops) != (b, other_flops):
            changed = [f"{b[key] - a[key]:+d} {' '.join(key)}" for key in sorted(a | b) if a[key] != b[key]]
            print(f"{path.parent.name}: FLOPs {flops} and {other_flops}, bytes of tensors {size} and {other_size}: {', '.join(changed[:8])}")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("out", type=Path)
    parser.add_argument("versions", nargs="+", metavar="NAME=PYTHON")
    parser.add_argument("--rows", nargs="*", default=[], metavar="ROW")
    parser.add_argument("--families", nargs="*", default=FAMILIES, metavar="NAME")
    parser.add_argument("--compare-only", action="store_true", help="use the runs and exports that OUT has")
    options = parser.parse_args()
    versions = dict(version.split("=", 1) for version in options.versions)
    passed = True
    for name, python in versions.items():
        print(f"== {name}", flush=True)
        out = options.out / name
        out.mkdir(parents=True, exist_ok=True)
        if not options.compare_only:
            passed = record(python, out, options.rows) and passed
            passed = export(python, out / "families", options.families) and passed
        passed = check(out) and passed
    first, *others = versions
    for name in others:
        print(f"== {name} against {first}")
        compare_rows(options.out / first, options.out / name)
        compare_families(options.out / first / "families", options.out / name / "families")
    sys.exit(0 if passed else 1)


if __name__ == "__main__":
    main()
