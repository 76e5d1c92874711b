"""Forwards are counted without changing what torch.compile made."""
import pytest
import torch
from torch import nn

from shardlens.live_forward import ForwardWatch


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(2, 2)

    def forward(self, x):
        return self.linear(x) * 2


@pytest.mark.parametrize("compiled", [True, False])
def test_a_watched_model_is_not_compiled_again(compiled):
    graphs, seen = [], []

    def backend(graph, inputs):
        graphs.append(graph)
        return graph.forward

    model = Model()
    if compiled:
        model.compile(backend=backend, fullgraph=True)
    model(torch.ones(1, 2))

    def before(module, args, kwargs):
        seen.append((len(seen), module is model, args[0].shape[1], len(kwargs)))

    watch = ForwardWatch(model, before)
    for _ in range(3):
        model(torch.ones(1, 2))
    assert seen == [(number, True, 2, 0) for number in range(3)]
    watch.remove()
    model(torch.ones(1, 2))
    assert len(seen) == 3
    assert len(graphs) == (1 if compiled else 0)
