#!/usr/bin/env python3
"""How often pytest's default assertions about a run fail: on pairs of the same program, and on pairs with a planted regression.

    check_plugin.py --pairs-program build/release/bin/check_pairs --program build/release/bin/shardlens [--pairs 1000] [--planted 50] [--seed 1]

The pairs are generated (bench/check_pairs.cpp, built with -DSHARDLENS_BENCH=ON): three runs a side, 20 steps, two ranks, no spread between
sessions. Each is a test of a pytest of its own with the plugin: gathers of a unit, hidden fraction, check against the baseline. Exit code 1
if more than 1 % of the same fail or 5 % are inconclusive, or if a planted regression passes or its message does not name the unit.
Needs a Python with pytest.
"""
import argparse
import os
import subprocess
import sys
import tempfile
import xml.etree.ElementTree as xml
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PLANTED = {  # kind of check_pairs: what a message must have
    "prefetch": "prefetch of layers.2",
    "reduce": "reduce_scatter of (root)",
    "gathers": "all_gather_forward of layers.0",
}
TEST = """
import pytest
from pathlib import Path

PAIRS = sorted(Path({directory!r}).iterdir())

@pytest.mark.parametrize("pair", [pytest.param(p, marks=pytest.mark.shardlens_run(p / "candidate", baseline=p / "baseline")) for p in PAIRS])
def test_run(shardlens_run, pair):
    assert shardlens_run.gathers("layers.1") == 2
    assert shardlens_run.hidden_fraction() >= 0.6
    assert shardlens_run.check()
"""
CHUNK = 50


def outcomes(options, kind, pairs, seed):
    """The failure's message of each pair, "" if it passed."""
    with tempfile.TemporaryDirectory() as directory:
        directory = Path(directory)
        subprocess.run([options.pairs_program, "--write", directory / "pairs", "--kind", kind, "--pairs", str(pairs), "--seed", str(seed)], check=True)
        (directory / "test_runs.py").write_text(TEST.format(directory=str(directory / "pairs")))
        env = {**os.environ, "SHARDLENS_PROGRAM": str(options.program.resolve())}
        done = subprocess.run(
            [sys.executable, ROOT / "tests" / "python" / "with_package.py", "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "shardlens.pytest_plugin",
             f"--junitxml={directory / 'report.xml'}", directory / "test_runs.py"], env=env, cwd=directory, capture_output=True, text=True, check=False)
        if done.returncode not in (0, 1):
            sys.exit(f"pytest failed\n{done.stdout}{done.stderr}")
        found = []
        for case in xml.parse(directory / "report.xml").iter("testcase"):
            if case.find("error") is not None:
                sys.exit(f"pytest: {case.find('error').text}")
            failure = case.find("failure")
            found.append("" if failure is None else f"{failure.get('message')}\n{failure.text}")
        assert len(found) == pairs, done.stdout
        return found


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--pairs-program", type=Path, required=True)
    parser.add_argument("--program", type=Path, required=True)
    parser.add_argument("--pairs", type=int, default=1000)
    parser.add_argument("--planted", type=int, default=50)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    options.pairs_program = options.pairs_program.resolve()
    seed, same = options.seed, []
    while len(same) < options.pairs:
        pairs = min(CHUNK, options.pairs - len(same))
        same += outcomes(options, "same", pairs, seed)
        seed += 6 * pairs
    inconclusive = sum("check: inconclusive" in message for message in same)
    failed = sum(message != "" for message in same) - inconclusive
    good = failed <= 0.01 * len(same) and inconclusive <= 0.05 * len(same)
    print(f"the same program: {len(same)} pairs, {failed} failed, {inconclusive} inconclusive")
    for kind, words in PLANTED.items():
        found = outcomes(options, kind, options.planted, seed)
        seed += 6 * options.planted
        named = sum("check: regression" in message and words in message and " ms" in message for message in found)
        good = good and named == len(found)
        print(f"{kind}: {len(found)} pairs, {named} failed and named '{words}' with milliseconds")
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
