"""Which modules CheckpointLog sees under torch.utils.checkpoint, in the ways that programs call it."""
import functools

import pytest

torch = pytest.importorskip("torch")

import torch.utils.checkpoint  # noqa: E402
from torch.utils.checkpoint import checkpoint  # noqa: E402  as programs import it, before the log is there

from shardlens.live_checkpoints import CheckpointLog  # noqa: E402
from shardlens.live_plan import _checkpointed  # noqa: E402


class Block(torch.nn.Module):
    def __init__(self, inside=None):
        super().__init__()
        self.norm, self.up, self.down, self.inside = torch.nn.LayerNorm(8), torch.nn.Linear(8, 16), torch.nn.Linear(16, 8), inside

    def run(self, x):
        return self.down(torch.relu(self.up(x)))

    def forward(self, x):
        return x + (self.inside(self, self.norm(x)) if self.inside else self.run(self.norm(x)))


class Model(torch.nn.Module):
    def __init__(self, outside, inside=None):
        super().__init__()
        torch.manual_seed(0)
        self.layers = torch.nn.ModuleList(Block(inside) for _ in range(2))
        self.outside = outside

    def forward(self, x):
        for layer in self.layers:
            x = self.outside(layer, x)
        return x


def plain(function, x):
    return function(x)


def gradients(model):
    model(torch.ones(3, 8, requires_grad=True)).sum().backward()
    return [p.grad.clone() for p in model.parameters() if p.grad is not None]


def policy():
    return torch.utils.checkpoint.create_selective_checkpoint_contexts([torch.ops.aten.mm.default])


BLOCKS = ["layers.0", "layers.1"]
HALVES = [f"layers.{i}.{part}" for i in range(2) for part in ("up", "down")]


@pytest.mark.parametrize("outside, inside, expected, selective", (
    pytest.param(lambda layer, x: checkpoint(layer, x, use_reentrant=False), None, BLOCKS, False, id="module"),
    pytest.param(lambda layer, x: checkpoint(layer, x, use_reentrant=True), None, BLOCKS, False, id="reentrant"),
    pytest.param(lambda layer, x: checkpoint(functools.partial(layer.forward), x, use_reentrant=False), None, BLOCKS, False, id="method"),
    pytest.param(lambda layer, x: checkpoint(lambda y: layer(y), x, use_reentrant=False), None, BLOCKS, False, id="closure"),
    pytest.param(lambda layer, x: checkpoint(layer, x, use_reentrant=False, context_fn=policy), None, BLOCKS, True, id="policy"),
    pytest.param(plain, lambda block, x: checkpoint(block.run, x, use_reentrant=False), BLOCKS, False, id="method inside"),
    pytest.param(plain, lambda block, x: checkpoint(lambda y: block.run(y), x, use_reentrant=False), HALVES, False, id="closure inside"),
    pytest.param(lambda layer, x: checkpoint(layer, x, use_reentrant=False), lambda block, x: checkpoint(block.up, x, use_reentrant=False)[..., :8],
                 [name for i in range(2) for name in (f"layers.{i}", f"layers.{i}.up")], False, id="nested"),
    pytest.param(plain, None, [], False, id="none"),
))
def test_modules_are_those_that_run_again(outside, inside, expected, selective):
    before = gradients(Model(outside, inside))
    model = Model(outside, inside)
    log = CheckpointLog()
    log.install()
    try:
        during = gradients(model)
    finally:
        log.remove()
    assert log.failure is None
    assert _checkpointed(model, log.modules) == expected
    assert log.selective == selective
    assert all(torch.equal(a, b) for a, b in zip(before, during))  # nothing that training computes changes
    seen = set(log.modules)
    gradients(Model(lambda layer, x: checkpoint(layer, x, use_reentrant=False)))
    assert set(log.modules) == seen  # torch has its own functions back


def test_a_compiled_model_is_not_hooked():
    log = CheckpointLog()
    log.install(compiled=True)
    hooks = torch.nn.modules.module._global_forward_pre_hooks
    assert not hooks
    model = Model(lambda layer, x: checkpoint(layer, x, use_reentrant=False))
    gradients(model)
    log.remove()
    assert _checkpointed(model, log.modules) == BLOCKS
