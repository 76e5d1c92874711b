"""Step settings of optimizers, known ones and others, after a step."""
import pytest

torch = pytest.importorskip("torch")

from shardlens.live_optimizer import in_backward, settings_of, states_by_parameter, states_of, unwrapped  # noqa: E402


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
    assert states_of([optimizer]) is None
    settings, note = settings_of(optimizer)
    assert settings == {"optimizer": "NAdam"} and "simulated as AdamW" in note


def test_only_wrappers_are_taken_off():
    optimizer = torch.optim.SGD(torch.nn.Linear(2, 2).parameters(), lr=0.1)
    assert unwrapped(optimizer) is optimizer


class Both:
    """An object of a program's own, as for Muon, which takes matrices only, with another optimizer for the rest."""

    def __init__(self, parameters):
        parameters = list(parameters)
        self.matrices = torch.optim.SGD([p for p in parameters if p.ndim == 2], lr=0.1, momentum=0.9)
        self.rest = torch.optim.AdamW([p for p in parameters if p.ndim != 2])
        self.name = "both"

    def step(self):
        self.matrices.step()
        self.rest.step()


class Container(torch.optim.Optimizer):
    """As torchtitan's: one optimizer for each part of the model, and no state of its own."""

    def __init__(self, parameters):
        parameters = list(parameters)
        self.optimizers = [torch.optim.AdamW([p]) for p in parameters]
        torch.optim.Optimizer.__init__(self, parameters, {})

    def step(self):
        for optimizer in self.optimizers:
            optimizer.step()


class Foreign:
    """None of torch.optim."""

    def __init__(self, parameters):
        pass

    def step(self):
        pass


@pytest.mark.parametrize("make, expected, says", (
    # 36 elements in the matrix, 18 in vectors
    pytest.param(Both, {"optimizer": "sgd", "momentum": 0.9}, "Both, which has AdamW, SGD, keeps one value for most", id="two kinds"),
    pytest.param(Container, {"optimizer": "adamw"}, None, id="container"),
    pytest.param(Foreign, {"optimizer": "adamw"}, "Foreign, which is none of torch.optim, is simulated as AdamW", id="foreign"),
))
def test_objects_with_optimizers_inside(make, expected, says):
    settings, note = settings_of(stepped(make))
    assert settings == expected
    assert says in note if says else note is None


def test_optimizers_applied_in_backward_are_found_at_the_parameters():
    from torch.distributed.optim import _apply_optimizer_in_backward

    model = torch.nn.Linear(6, 6)
    assert in_backward(model, None) == (None, None)
    _apply_optimizer_in_backward(torch.optim.RMSprop, model.parameters(), {"lr": 0.1})
    model(torch.ones(2, 6)).sum().backward()
    optimizer, note = in_backward(model, None)
    assert "steps in backward" in note
    assert settings_of(optimizer)[0] == {"optimizer": "sgd", "momentum": 0.9}


def test_hooks_of_gradients_may_be_an_optimizer():
    model = torch.nn.Linear(6, 6)
    given = torch.optim.SGD(model.parameters())
    model.weight.register_post_accumulate_grad_hook(lambda p: None)
    optimizer, note = in_backward(model, given)
    assert optimizer is given
    assert "else AdamW's" in note


def test_muon_keeps_one_value():
    model = torch.nn.Linear(6, 6, bias=False)
    optimizer = torch.optim.Muon(model.parameters(), lr=0.1)
    model(torch.ones(2, 6)).sum().backward()
    optimizer.step()
    assert settings_of(optimizer)[0] == {"optimizer": "sgd", "momentum": 0.9}


def kept(make, model=None):
    """The bytes that the optimizer keeps for each parameter after a step; the parameters have 6 x 6, 6, 6 and 6 elements."""
    torch.manual_seed(0)
    model = model or torch.nn.Sequential(torch.nn.Linear(6, 6), torch.nn.LayerNorm(6))
    optimizer = make(model.parameters())

    def loss():
        optimizer.zero_grad()
        found = model(torch.ones(2, 6)).square().sum()
        found.backward()
        return found

    optimizer.step(loss)
    rows, note = states_by_parameter(model, optimizer)
    assert note is None
    assert [(row["parameters"], row["elements"]) for row in rows] == [(["0.weight"], 36), (["0.bias"], 6), (["1.weight"], 6), (["1.bias"], 6)]
    return [row["bytes"] for row in rows]


class Halves(torch.optim.Optimizer):
    """Keeps one value of 2 bytes for an element, in a list, and a table that all parameters share."""

    def __init__(self, parameters):
        super().__init__(parameters, {})
        self.table = torch.zeros(10)

    def step(self, closure):
        closure()
        for group in self.param_groups:
            for p in group["params"]:
                self.state[p].update(values=[torch.zeros_like(p, dtype=torch.bfloat16)], table=self.table)


def test_states_are_counted_in_bytes():
    assert kept(lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9)) == [4 * 36, 24, 24, 24]
    # Two values, and a step of 4 bytes.
    assert kept(lambda p: torch.optim.AdamW(p)) == [8 * 36 + 4, 52, 52, 52]
    # A value for each row and column of a matrix, one for each element of a vector; and the step.
    assert kept(lambda p: torch.optim.Adafactor(p)) == [4 * 12 + 4, 28, 28, 28]
    assert kept(Halves) == [2 * 36 + 4 * 10, 12, 12, 12]
    # All that LBFGS keeps is in the state of the first parameter: its direction and the last gradient.
    assert kept(lambda p: torch.optim.LBFGS(p, max_iter=1))[1:] == [0, 0, 0]
    assert kept(lambda p: torch.optim.LBFGS(p, max_iter=1))[0] >= 4 * 2 * 54


def test_states_for_copies_of_parameters_are_not_those_of_the_model():
    model = torch.nn.Linear(6, 6)
    copies = [p.detach().clone().requires_grad_() for p in model.parameters()]
    optimizer = torch.optim.SGD(copies, lr=0.1, momentum=0.9)
    for each in copies:
        each.grad = torch.ones_like(each)
    assert states_by_parameter(model, optimizer) == (None, None)
    optimizer.step()
    rows, note = states_by_parameter(model, optimizer)
    assert rows is None and "no parameters of the model" in note


def test_states_of_a_rank_under_zero_redundancy(tmp_path):
    """Each rank has the states of some parameters only."""
    torch.multiprocessing.spawn(zero_redundancy, (str(tmp_path),), 2)
    found = [torch.load(tmp_path / str(rank)) for rank in range(2)]
    assert [sum(pair) for pair in zip(*found)] == [8 * 36 + 4, 52, 52, 52]
    assert all(0 in pair for pair in zip(*found))


def zero_redundancy(rank, directory):
    import torch.distributed as dist
    from torch.distributed.optim import ZeroRedundancyOptimizer

    dist.init_process_group("gloo", init_method=f"file://{directory}/store", rank=rank, world_size=2)
    torch.save(kept(lambda p: ZeroRedundancyOptimizer(p, torch.optim.AdamW)), f"{directory}/{rank}")
    dist.destroy_process_group()
