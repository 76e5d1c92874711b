#!/usr/bin/env python3
"""Tests the judgement of what_if_programs.py with times and advice written here: measured changes and their errors, plans that are the same, signs."""
import argparse
import contextlib
import io
import math
import sys
import unittest
from pathlib import Path

import torch
from torch.testing._internal.distributed.fake_pg import FakeStore

sys.path[:0] = [str(Path(__file__).resolve().parent), str(Path(__file__).resolve().parents[2] / "bench")]
import two_ranks  # noqa: E402
import what_if_fsdp2  # noqa: E402
import what_if_programs as programs  # noqa: E402

KEEP, PREFETCH, PAIRS, REPLICATE, ONE, CHECKPOINTS, TWICE = programs.CHANGES
RECORDED = {"version": 1, "mesh": {"replicate": 1, "shard": 2}, "units": [
    {"modules": "", "reshard_after_forward": False}, *({"modules": f"layers.{i}", "reshard_after_forward": True} for i in range(5))]}
# Plans as `advise` writes them.
ADVISED = {
    KEEP: {**RECORDED, "reshard_after_forward": False, "units": [{"modules": unit["modules"]} for unit in RECORDED["units"]]},
    PREFETCH: {**RECORDED, "forward_prefetch": 1},
    PAIRS: {**RECORDED, "reshard_after_forward": None, "forward_prefetch": 0, "units": [
        {"modules": ["layers.0", "layers.1"]}, {"modules": ["layers.2", "layers.3"]}, {"modules": "layers.4"}, {"modules": ""}]},
    REPLICATE: {**RECORDED, "mesh": {"replicate": 2, "shard": 1}},
    ONE: {**RECORDED, "reshard_after_forward": None, "units": [{"modules": ""}]},
    CHECKPOINTS: {**RECORDED, "activation_checkpointing": [f"layers.{i}" for i in range(5)]},
}
OTHERS = (
    RECORDED, {**RECORDED, "forward_prefetch": 2}, {**RECORDED, "activation_checkpointing": ["layers.0"]}, {**RECORDED, "separate_reduce_scatter_group": True},
    {**ADVISED[KEEP], "forward_prefetch": 1}, {**RECORDED, "units": [{"modules": "", "api": "replicate"}]})


def line_of(measured, predicted, recommended=(), noise=0.0, exit_code=0):
    """A program with steps of 1 s, and these changes; rounds are slower and faster as a whole by a tenth, and changes by `noise` in opposite directions."""
    times = {programs.BASE: [[0.9], [1.1], [0.9], [1.1]]}
    for at, (variant, change) in enumerate(measured.items()):
        of = noise * (-1) ** at
        times[variant] = [[0.9 + change - of], [1.1 + change + of], [0.9 + change + of], [1.1 + change - of]]
    found = {variant: {"title": variant, "recommended": variant in recommended, "predicted": change, "interval": [change - 0.02, change + 0.02]}
             for variant, change in predicted.items()}
    baseline = {"measured_step_ns": 1e9, "simulated_step_ns": 1e9, "error": 0.0}
    return {"program": "made", "seconds_of_steps": times, "baseline": baseline, "predicted": dict(predicted),
            "intervals": {variant: [change - 0.02, change + 0.02] for variant, change in predicted.items()},
            "advice": {"exit_code": exit_code, "baseline": baseline, "changes": found, "unknown": []}}


def judged(*lines):
    """Whether advise passes, and what is printed."""
    with contextlib.redirect_stdout(io.StringIO()) as shown:
        passed = programs.advice_table(list(lines))
    return passed, shown.getvalue()


# The last two are not measured to differ.
MEASURED = {KEEP: -0.1, PREFETCH: 0.01, PAIRS: -0.05, REPLICATE: -0.2, ONE: -0.02, CHECKPOINTS: 0.0, TWICE: 0.0}
PREDICTED = {KEEP: -0.08, PREFETCH: 0.0, PAIRS: -0.06, REPLICATE: -0.15, ONE: -0.03, CHECKPOINTS: 0.0, TWICE: 0.0}


class Measured(unittest.TestCase):
    def test_what_slows_a_whole_round_is_no_error_of_a_difference(self):
        change, error = what_if_fsdp2.difference([[0.9], [1.1], [0.7]], [[1.0], [1.2], [0.8]])
        self.assertAlmostEqual(change, 0.1 / 0.9)
        self.assertAlmostEqual(error, 0)

    def test_error_is_that_of_the_mean_over_rounds(self):
        change, error = what_if_fsdp2.difference([[1.0]] * 4, [[1.1], [1.3], [1.1], [1.3]])
        self.assertAlmostEqual(change, 0.2)
        self.assertAlmostEqual(error, 0.1 * math.sqrt(4 / 3) / 2)

    def test_first_of_several_steps_does_not_count(self):
        self.assertEqual(what_if_fsdp2.by_round([[9, 1, 2, 3], [7]]), [2, 7])


class Options(unittest.TestCase):
    """The scripts that measure what recording costs train the same program."""

    def test_those_of_a_measured_program_are_all_that_it_reads(self):
        torch.distributed.init_process_group("fake", rank=0, world_size=2, store=FakeStore())
        options = argparse.Namespace(**{**two_ranks.MODEL, "hidden": 24, "blocks": 1, "vocab": 64, "batch": 1, "seq": 8})
        model, optimizer = what_if_fsdp2.sharded(what_if_fsdp2.VARIANTS[0], options)
        what_if_fsdp2.step(model, optimizer, options)
        torch.distributed.destroy_process_group()


class SamePlan(unittest.TestCase):
    def test_each_variant_is_the_plan_that_advise_writes(self):
        for variant, plan in ADVISED.items():
            wanted = programs.contents(what_if_fsdp2.plan_of(variant, RECORDED))
            self.assertEqual(programs.contents(plan), wanted, variant)
            for other in (*OTHERS, *(each for name, each in ADVISED.items() if name != variant)):
                self.assertNotEqual(programs.contents(other), wanted, variant)


class Intervals(unittest.TestCase):
    def test_the_error_of_the_measured_change_makes_an_interval_wider(self):
        change = programs.Change(line_of(MEASURED, PREDICTED, noise=0.01), KEEP)
        self.assertAlmostEqual(change.measured, -0.1)
        near = change.measured + 0.02 + 1.5 * change.error  # the middle of an interval that ends 1.5 errors away
        self.assertEqual([change.is_in([near - 0.02, near + 0.02], noise) for noise in (False, True)], [False, False])
        self.assertEqual([change.is_in([near - 0.02 - 1.4 * change.error, near], noise) for noise in (False, True)], [False, True])


class Judgement(unittest.TestCase):
    def test_right_signs_pass(self):
        passed, shown = judged(line_of(MEASURED, PREDICTED, recommended=(KEEP, REPLICATE)))
        self.assertTrue(passed)
        self.assertIn("sign right: 5 of 5 changes beyond noise\n", shown)
        self.assertIn("harmful recommendations: 0 of 2\n", shown)

    def test_wrong_sign_beyond_noise(self):
        passed, shown = judged(line_of(MEASURED, {**PREDICTED, PAIRS: 0.03}))
        self.assertFalse(passed)
        self.assertIn("sign right: 4 of 5 changes beyond noise; made: pairs of blocks", shown)

    def test_sign_within_noise_does_not_count(self):
        passed, shown = judged(line_of(MEASURED, {**PREDICTED, PAIRS: 0.03}, noise=0.06))
        self.assertTrue(passed)
        self.assertIn("sign right: 2 of 2 changes beyond noise\n", shown)

    def test_prediction_without_effect_is_wrong_if_the_effect_is_large(self):
        passed, shown = judged(line_of({**MEASURED, PREFETCH: -0.04}, PREDICTED))
        self.assertFalse(passed)
        self.assertIn("made: forward prefetch", shown)

    def test_recommended_loss_is_harmful(self):
        passed, shown = judged(line_of({**MEASURED, PAIRS: 0.05}, PREDICTED, recommended=(PAIRS,)))
        self.assertFalse(passed)
        self.assertIn("harmful recommendations: 1 of 1; made: pairs of blocks", shown)

    def test_one_of_five_may_end_with_5(self):
        sure, unsure = line_of(MEASURED, PREDICTED), line_of(MEASURED, PREDICTED, exit_code=5)
        self.assertTrue(judged(sure, sure, sure, sure, unsure)[0])
        self.assertFalse(judged(sure, unsure)[0])

    def test_change_that_is_not_listed_is_judged_by_simulate(self):
        line = line_of(MEASURED, PREDICTED)
        del line["advice"]["changes"][REPLICATE]
        passed, shown = judged(line)
        self.assertTrue(passed)
        self.assertIn("not listed (-20.0% ± 0.0%)", shown)
        line["predicted"][REPLICATE] = 0.1
        self.assertFalse(judged(line)[0])

    def test_best_change_is_one_that_noise_does_not_tell_from_the_best(self):
        self.assertTrue(programs.names_the_best(line_of(MEASURED, PREDICTED)))
        self.assertFalse(programs.names_the_best(line_of(MEASURED, {**PREDICTED, KEEP: -0.3})))
        self.assertTrue(programs.names_the_best(line_of({**MEASURED, KEEP: -0.19}, {**PREDICTED, KEEP: -0.3}, noise=0.01)))


if __name__ == "__main__":
    unittest.main()
