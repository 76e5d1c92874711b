"""What the recorder reads of the allocator's settings."""
import pytest

from shardlens import live_allocator


@pytest.mark.parametrize(("variables", "expands"), [
    ({}, False),
    ({"PYTORCH_ALLOC_CONF": "expandable_segments:True"}, True),
    ({"PYTORCH_CUDA_ALLOC_CONF": "max_split_size_mb:128, expandable_segments:True"}, True),
    ({"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:False"}, False),
    ({"PYTORCH_ALLOC_CONF": "backend:native", "PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True"}, False),
])
def test_the_environment_says_whether_segments_are_expandable(monkeypatch, variables, expands):
    for name in ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_HIP_ALLOC_CONF"):
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert live_allocator.expands_segments() is expands
