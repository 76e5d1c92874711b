#!/usr/bin/env python3
"""Measures what each client of shardlens.clients costs its trainer: CPU time inside Shardlens's hooks and wrappers, by the thread's clock.

    client_cost.py [CASE…] [--steps 24] [--hidden 384] [--every 4] [--recorded 9]

Run it with a Python that has the packages of tests/tools/recorded_programs.txt. Each case of tests/python/client_training.py trains on two Gloo ranks with
its client, which records some steps and watches one in `every`. Printed are medians of both ranks, by kind of step: steps that are recorded, watched, both, or
neither, the last recorded one, with which the recording is written, and the CPU time of a step that is neither. Figures of a watched step are made and
sent when the next two steps end, which are of that kind. torch.profiler's own time is not in them. Exit code 1 if a recorded step's, or a watched one's, is more than 0.5 % of that.

While torch.profiler records shapes, a step takes new memory (also without Shardlens): its small blocks lie between the tensors in the heap, where glibc then
finds no aligned place for the next ones. For large models record fewer steps; to let glibc map large blocks (mallopt) doubles the CPU time of a step.
"""
import argparse
import functools
import importlib
import os
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT / "python"), str(ROOT / "tests" / "tools"), str(ROOT / "tests" / "python"), str(ROOT / "examples" / "python")]
os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")

import client_training  # noqa: E402
import own_time  # noqa: E402
from shardlens.clients import Session  # noqa: E402

LIMIT = 0.005


def resized(case, options):
    """Gives the example a model and a number of steps of the options."""
    for name in ("record_trl", "record_trainer") if case == "trl" else (f"record_{case}",):  # TRL trains the other's model
        module = importlib.import_module(name)
        module.HIDDEN, module.STEPS = options.hidden, options.steps


def sessions(options):
    """Sessions of all clients record and watch as the options say."""
    original = Session.__init__

    @functools.wraps(original)
    def make(session, directory=None, **settings):
        original(session, directory, **{**settings, "steps": options.recorded, "watch": options.every, "log": lambda line: None})

    Session.__init__ = make


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("cases", nargs="*", metavar="CASE", default=client_training.EXAMPLES, help=", ".join(client_training.EXAMPLES))
    parser.add_argument("--steps", type=int, default=24)
    parser.add_argument("--hidden", type=int, default=384)
    parser.add_argument("--every", type=int, default=4)
    parser.add_argument("--recorded", type=int, default=9)
    options = parser.parse_args()
    sessions(options)
    above = False
    for case in options.cases:
        resized(case, options)
        with tempfile.TemporaryDirectory() as directory:
            out = Path(directory)
            if client_training.main(out, [case]) != 0:
                sys.exit(f"{case}: a rank failed")
            steps = [own_time.Step(**row) for rank in (0, 1) for row in client_training.read(out, case, rank)["steps"]]
        costs = own_time.costs(steps)
        step = costs["other"].seconds
        print(f"{case}: a step takes {1e3 * step:.1f} ms of CPU")
        for kind, cost in costs.items():
            print(f"  {kind:9}{cost.count:4} steps, {cost.calls:4.0f} calls: {1e6 * cost.own:6.0f} us, {cost.own / step:.3%}, at least {cost.least / step:.3%}", flush=True)
        above = above or any(costs[kind].own > LIMIT * step for kind in ("recorded", "watched") if kind in costs)
    sys.exit(1 if above else 0)


if __name__ == "__main__":
    main()
