"""Step settings of optimizers, known ones and others, after a step."""
import pytest

torch = pytest.importorskip("torch")

from shardlens.live_optimizer import settings_of, states_of, unwrapped  # noqa: E402


def stepped(make):
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(6, 6), torch.nn.LayerNorm(6))
    optimizer = make(model.parameters())
    model(torch.ones(2, 6)).sum().backward()
    optimizer.step()
    return optimizer


class Wrapper(torch.optim.Optimizer):
    """As accelerate's AcceleratedOptimizer."""

    def __init__(self, optimizer):
        self.optimizer = optimizer

    def step(self):
        return self.optimizer.step()


class Signs(torch.optim.Optimizer):
    """Keeps nothing."""

    def __init__(self, parameters):
        super().__init__(parameters, {})

    def step(self):
        for group in self.param_groups:
            for p in group["params"]:
                self.state[p]["step"] = torch.zeros(())
                p.data.sub_(1e-3 * p.grad.sign())


@pytest.mark.parametrize("make, expected, says", (
    pytest.param(lambda p: torch.optim.AdamW(p), {"optimizer": "adamw"}, None, id="AdamW"),
    pytest.param(lambda p: torch.optim.Adam(p), {"optimizer": "adamw"}, None, id="Adam"),
    pytest.param(lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.5), {"optimizer": "sgd", "momentum": 0.5}, None, id="SGD"),
    pytest.param(lambda p: torch.optim.NAdam(p), {"optimizer": "adamw"}, "NAdam keeps two values", id="NAdam"),
    pytest.param(lambda p: torch.optim.RMSprop(p), {"optimizer": "sgd", "momentum": 0.9}, "RMSprop keeps one value", id="RMSprop"),
    pytest.param(lambda p: Signs(p), {"optimizer": "sgd", "momentum": 0.0}, "Signs keeps no value", id="Signs"),
    pytest.param(lambda p: torch.optim.AdamW(p, amsgrad=True), {"optimizer": "adamw"}, None, id="amsgrad"),
    pytest.param(lambda p: Wrapper(torch.optim.SGD(p, lr=0.1)), {"optimizer": "sgd", "momentum": 0}, None, id="wrapped SGD"),
    pytest.param(lambda p: Wrapper(Wrapper(torch.optim.Adagrad(p))), {"optimizer": "sgd", "momentum": 0.9}, "Adagrad keeps one value", id="wrapped twice"),
))
def test_settings_are_those_of_as_many_values(make, expected, says):
    settings, note = settings_of(stepped(make))
    assert settings == expected
    assert says in note if says else note is None


def test_an_optimizer_that_never_stepped_counts_as_adamw():
    optimizer = torch.optim.NAdam(torch.nn.Linear(2, 2).parameters())
    assert states_of(optimizer) is None
    settings, note = settings_of(optimizer)
    assert settings == {"optimizer": "NAdam"} and "simulated as AdamW" in note


def test_only_wrappers_are_taken_off():
    optimizer = torch.optim.SGD(torch.nn.Linear(2, 2).parameters(), lr=0.1)
    assert unwrapped(optimizer) is optimizer
