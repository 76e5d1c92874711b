"""When a recording with warmup=None begins."""
import threading

import pytest

import shardlens
from shardlens import live_settled
from shardlens.live_settled import PATIENCE, Settling


@pytest.fixture
def effort(monkeypatch):
    """Sets how many frames were compiled, and memory segments allocated, after each further step."""

    def set_to(*values):
        rest = iter(values)
        monkeypatch.setattr(live_settled, "_effort", lambda: next(rest))

    return set_to


def test_the_first_step_never_counts_and_the_first_quiet_one_does(effort):
    effort((0, 0), (0, 0), (0, 0))
    settling = Settling(1)
    assert [settling.after_step() for _ in range(2)] == [False, True] and not settling.unsteady


def test_compiling_and_new_memory_put_it_off(effort):
    effort((0, 0), (2, 5), (3, 5), (3, 6), (3, 6))
    settling = Settling(1)
    assert [settling.after_step() for _ in range(4)] == [False, False, False, True]


def test_a_program_that_never_settles_is_recorded_all_the_same(effort):
    effort(*((step, 0) for step in range(PATIENCE + 1)))
    settling = Settling(1)
    answers = [settling.after_step() for _ in range(PATIENCE)]
    assert answers == [False] * (PATIENCE - 1) + [True] and settling.unsteady


def test_ranks_wait_for_the_one_that_compiles_longest(monkeypatch):
    """Two ranks on one store: the second compiles in its second step too."""
    import torch.distributed as dist

    store = dist.HashStore()
    monkeypatch.setattr(dist.distributed_c10d, "_get_default_store", lambda: store)
    compiled = {0: iter([(0, 0)] * 4), 1: iter([(0, 0), (1, 0), (2, 0), (2, 0)])}
    of_thread = threading.local()
    monkeypatch.setattr(live_settled, "_effort", lambda: next(compiled[of_thread.rank]))
    answers = {}

    def rank(number):
        of_thread.rank = number
        settling = Settling(2)
        settling._name = "both"
        answers[number] = [settling.after_step() for _ in range(3)]

    threads = [threading.Thread(target=rank, args=(number,)) for number in (0, 1)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert answers == {0: [False, False, True], 1: [False, False, True]}


def test_a_recording_begins_after_the_last_compilation(tmp_path, monkeypatch):
    """Steps 0 and 1 compile, 2 is quiet, 3 is the one that torch.profiler needs to start."""
    import torch

    compiled = []
    monkeypatch.setattr(live_settled, "_effort", lambda: (len(compiled), 0))
    model = torch.nn.Linear(3, 2)
    with shardlens.record(tmp_path, model=model, warmup=None, steps=2) as rec:
        for step in range(8):
            assert rec.recording is (step in (4, 5)) and rec.finished is (step > 5)
            model(torch.ones(4, 3)).sum().backward()
            if step in (0, 1):
                compiled.append(step)
            rec.step()
    assert {row["step"] for row in shardlens.open(tmp_path).steps()} == {4, 5}


def test_a_loop_that_ends_before_it_has_settled_says_so(tmp_path):
    import torch

    with pytest.warns(RuntimeWarning, match="the run ended after 1 steps, before the program had settled and 3 steps were recorded: there is no trace"):
        with shardlens.record(tmp_path, model=torch.nn.Linear(3, 2), warmup=None) as rec:
            rec.step()
