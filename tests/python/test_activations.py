"""What ActivationLog counts: by hand for a small model, with and without activation checkpoints."""
import pytest

torch = pytest.importorskip("torch")

from torch.utils.checkpoint import checkpoint  # noqa: E402

from shardlens.live_activations import ActivationLog  # noqa: E402

ROWS, WIDTH = 4, 8
INPUT = ROWS * WIDTH * 4  # bytes of a block's input and output, in fp32


class Block(torch.nn.Module):
    """Keeps: `up` its input, relu its output (twice as wide), which `down` takes too; the sum nothing."""

    def __init__(self):
        super().__init__()
        self.up, self.down = torch.nn.Linear(WIDTH, 2 * WIDTH), torch.nn.Linear(2 * WIDTH, WIDTH)

    def forward(self, x):
        return x + self.down(torch.relu(self.up(x)))


class Model(torch.nn.Module):
    def __init__(self, call):
        super().__init__()
        torch.manual_seed(0)
        self.register_buffer("scale", torch.full((WIDTH,), 2.0))
        self.layers, self.call = torch.nn.ModuleList(Block() for _ in range(2)), call

    def forward(self, x):
        for layer in self.layers:
            x = self.call(layer, x)
        return x * self.scale  # keeps the buffer, which is there anyway


CALLS = {
    "plain": lambda layer, x: layer(x),
    "checkpoint": lambda layer, x: checkpoint(layer, x, use_reentrant=False),
    "reentrant": lambda layer, x: checkpoint(layer, x, use_reentrant=True),
}


def step(model, microbatches=1):
    for i in range(microbatches):
        model(torch.ones(ROWS, WIDTH, requires_grad=True) * (i + 1)).sum().backward()
    return [p.grad.clone() for p in model.parameters()]


def counted(call, microbatches=1, work=step):
    model = Model(CALLS[call])
    log = ActivationLog(model)
    log.install()
    try:
        gradients = work(model, microbatches)
    finally:
        log.remove()
    assert log.failure is None
    return log, gradients


def by_module(log, key):
    out = {}
    for row in log.json():
        if row[key]:
            out[row["module"]] = out.get(row["module"], 0) + row[key]
    return out


def test_every_module_has_what_it_saves_first():
    log, _ = counted("plain")
    of_block = {"up": INPUT, "": 2 * INPUT}
    expected = {f"layers.{i}.{name}".rstrip("."): size for i in range(2) for name, size in of_block.items()}
    assert by_module(log, "saved") == expected
    assert by_module(log, "recomputed") == {}
    assert [row["module"] for row in log.json()] == ["layers.0.up", "layers.0", "layers.1.up", "layers.1"]


@pytest.mark.parametrize("call", ("checkpoint", "reentrant"))
def test_a_checkpoint_keeps_its_input_and_saves_the_rest_again(call):
    log, _ = counted(call)
    assert by_module(log, "saved") == {"": 2 * INPUT}  # the model calls checkpoint()
    # The input of `up` is the checkpoint's own. A reentrant checkpoint makes a new leaf of it, with the same storage.
    assert by_module(log, "recomputed") == {"layers.0": 2 * INPUT, "layers.1": 2 * INPUT}


@pytest.mark.parametrize("call", CALLS)
def test_the_first_microbatch_counts(call):
    once, _ = counted(call)
    often, _ = counted(call, 3)
    assert often.json() == once.json()


@pytest.mark.parametrize("call", CALLS)
def test_gradients_are_the_same_to_the_bit(call):
    _, gradients = counted(call, 2)
    for one, other in zip(gradients, step(Model(CALLS[call]), 2)):
        assert torch.equal(one, other)


def test_a_program_may_use_torch_func():
    """torch.func raises if hooks of saved tensors are there."""

    def work(model, _):
        assert torch.equal(torch.func.vmap(lambda row: row * 2)(torch.ones(2, 3)), torch.full((2, 3), 2.0))
        return step(model)

    log, _ = counted("plain", work=work)
    assert by_module(log, "saved")["layers.0"] == 2 * INPUT


def test_hooks_are_gone_afterwards():
    counted("plain")
    assert torch._C._autograd._top_saved_tensors_default_hooks(True) is None
    assert torch.utils.checkpoint._checkpoint_hook.__name__ == "_checkpoint_hook"


def test_a_fault_is_kept_and_training_goes_on():
    model = Model(CALLS["plain"])
    log = ActivationLog(model)
    log.install()
    log._is_owned = None
    step(model)
    log.remove()
    assert "not callable" in log.failure
    assert log.json() is None
