"""A gate for CI on the run of record_llama.py: fails when a change makes the program gather more, or start collectives in another order.

    pytest -p shardlens.pytest_plugin --shardlens-run out/llama [--shardlens-baseline baseline.json] examples/python/test_overlap.py
"""
import pytest

from shardlens import Run


@pytest.mark.parametrize("layer", ["model.layers.0", "model.layers.1", "model.layers.2"])
def test_layers_are_gathered_for_forward_and_for_backward(shardlens_run: Run, layer: str) -> None:
    assert shardlens_run.gathers(layer) == 2


def test_the_head_is_gathered_once(shardlens_run: Run) -> None:
    """It keeps its parameters after forward, because backward begins with it."""
    assert shardlens_run.gathers("lm_head") == 1


def test_collectives_are_issued_as_planned(shardlens_run: Run) -> None:
    for rank in shardlens_run.analysis["ranks"]:
        assert rank["order"]["planned_vs_issued"]["first_difference"] is None


def test_nothing_is_wasted(shardlens_run: Run) -> None:
    assert [waste for rank in shardlens_run.analysis["ranks"] for waste in rank["waste"]] == []


def test_the_structure_is_that_of_the_baseline(shardlens_run: Run) -> None:
    if shardlens_run.baseline is None:
        pytest.skip("no --shardlens-baseline")
    assert shardlens_run.check(metric="structure")
