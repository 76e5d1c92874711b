"""A gate for CI on the run of record_trainer.py: fails when a change makes Trainer's steps gather more, or gather in another order.

    pytest -p shardlens.pytest_plugin --shardlens-run out/trainer [--shardlens-baseline baseline.json] examples/python/test_trainer.py
"""
import pytest

from shardlens import Run


@pytest.mark.parametrize("layer", ["model.layers.0", "model.layers.1", "model.layers.2"])
def test_layers_are_gathered_for_forward_and_backward_of_both_microbatches(shardlens_run: Run, layer: str) -> None:
    assert shardlens_run.gathers(layer) == 4


def test_norm_and_head_are_gathered_once_a_microbatch(shardlens_run: Run) -> None:
    """transformers shards them together and keeps them after forward, because backward begins with them."""
    assert shardlens_run.gathers("model.norm, lm_head") == 2


def test_collectives_are_issued_as_planned(shardlens_run: Run) -> None:
    for rank in shardlens_run.analysis["ranks"]:
        assert rank["order"]["planned_vs_issued"]["first_difference"] is None


def test_the_structure_is_that_of_the_baseline(shardlens_run: Run) -> None:
    if shardlens_run.baseline is None:
        pytest.skip("no --shardlens-baseline")
    assert shardlens_run.check(metric="structure")
