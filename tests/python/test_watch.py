"""shardlens.watch: what it makes of marks, its outputs, and its failures. Watched steps of real programs are in test_clients.py."""
import re
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

import torch.distributed as dist  # noqa: E402

import shardlens  # noqa: E402
from shardlens import live_rank_times, live_step  # noqa: E402
from shardlens.live_collectives import _FUNCTIONS, Call, CollectiveLog, HostMarks, figures, length  # noqa: E402
from shardlens.live_watch import Watch, _opentelemetry, _tensorboard, line, straggler  # noqa: E402


class Numbers:
    """Marks that are numbers, as a device's events are once they can be read."""

    def between(self, first, second):
        return second - first


def call(kind, group, begin, end, waited):
    return Call(kind, group, begin, end, waited)


def test_exposed_is_what_the_step_waited_for():
    """Worked by hand. A: 0 to 10, waited for from 6: 4 exposed. B: 5 to 20 on another group, from 18: 2. C: 30 to 40, waited for after its end: none."""
    calls = [call("all_gather", "a", 100, 110, 106), call("all_gather", "b", 105, 120, 118), call("reduce_scatter", "a", 130, 140, 150)]
    found = figures(calls, Numbers(), 100)
    assert found == {
        "count": 3, "busy_ns": 30, "exposed_ns": 6, "groups": {
            "a": {"count": 2, "busy_ns": 20, "exposed_ns": 4}, "b": {"count": 1, "busy_ns": 15, "exposed_ns": 2}}}


def test_what_was_waited_for_together_counts_once():
    calls = [call("all_gather", "a", 0, 10, 2), call("all_gather", "a", 4, 12, 2)]
    assert figures(calls, Numbers(), 0)["exposed_ns"] == 10 and figures(calls, Numbers(), 0)["busy_ns"] == 12
    assert length([(0, 4), (2, 3), (4, 5), (9, 9)]) == 5


def test_a_missing_mark_makes_no_figure():
    assert figures([call("all_gather", "a", 0, None, None)], Numbers(), 0)["busy_ns"] is None
    found = figures([call("all_gather", "a", 0, 5, None)], Numbers(), 0)
    assert found["busy_ns"] == 5 and found["exposed_ns"] is None


def test_others_wait_for_the_rank_that_waits_least():
    assert straggler([(100, 40), (100, 5), (100, 44)]) == {"rank": 1, "ahead_ns": 35}
    assert straggler([(100, 40), (100, None)]) is None and straggler([(100, 40)]) is None


SEEN = {
    "step": 200, "step_ns": 12_500_000, "collectives": 9, "busy_ns": 4_000_000, "exposed_ns": 1_000_000, "hidden": 0.75,
    "groups": {"mesh_fsdp": {"count": 9, "busy_ns": 4_000_000, "exposed_ns": 1_000_000}}, "gathers": {"": 1, "layers.0": 2, "layers.1": 2},
    "memory_bytes": 3 * 2**29, "straggler": {"rank": 3, "ahead_ns": 700_000}, "unseen": None}


def test_the_line():
    assert line(SEEN) == (
        "shardlens: step 200: 12.500 ms; exposed communication 1.000 ms of 4.000 ms; group mesh_fsdp: 9 collectives, exposed 1.000 ms; "
        "gathers a unit: 1 × (root), 2 × layers.0 layers.1; peak memory 1.50 GiB; others waited for rank 3 (it waited 0.700 ms less)")


def test_scalars_reach_tensorboard(tmp_path):
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
    from torch.utils.tensorboard import SummaryWriter

    with SummaryWriter(tmp_path) as writer:
        _tensorboard(writer)(SEEN)
    read = EventAccumulator(str(tmp_path))
    read.Reload()
    found = {tag: [(event.step, event.value) for event in read.Scalars(tag)] for tag in read.Tags()["scalars"]}
    assert found["shardlens/step_ms"] == [(200, 12.5)] and found["shardlens/exposed_ms/mesh_fsdp"] == [(200, 1.0)]
    assert found["shardlens/hidden"] == [(200, 0.75)] and found["shardlens/gathers_of_a_unit_at_most"] == [(200, 2.0)]


def test_scalars_reach_opentelemetry():
    pytest.importorskip("opentelemetry.sdk.metrics")
    from opentelemetry.sdk.metrics import MeterProvider
    from opentelemetry.sdk.metrics.export import InMemoryMetricReader

    reader = InMemoryMetricReader()
    write = _opentelemetry(MeterProvider([reader]).get_meter("training"))
    write(SEEN)
    write({**SEEN, "step_ns": 13_000_000})
    metrics = reader.get_metrics_data().resource_metrics[0].scope_metrics[0].metrics
    found = {(metric.name, point.attributes.get("group")): point.value for metric in metrics for point in metric.data.data_points}
    assert found["shardlens.step_ms", None] == 13.0
    assert found["shardlens.exposed_ms", None] == 1.0 and found["shardlens.exposed_ms", "mesh_fsdp"] == 1.0


def test_assert_overlap():
    watch = Watch(torch.nn.Linear(1, 1), every=100)
    with pytest.raises(AssertionError, match="no step was watched: .* watches step 100 first, and 0 steps ended"):
        watch.assert_overlap(0.5)
    watch.last = SEEN
    watch.assert_overlap(0.75)
    with pytest.raises(AssertionError, match=r"75.0 % of the communication was hidden, expected at least 76.0 %: shardlens: step 200"):
        watch.assert_overlap(0.76)
    with pytest.raises(ValueError, match="min_hidden=90, expected a part from 0 to 1"):
        watch.assert_overlap(90)
    watch.last = {**SEEN, "hidden": None}
    with pytest.raises(AssertionError, match="no measured communication"):
        watch.assert_overlap(0.1)


class Board:
    """A store of torch.distributed, of two ranks."""

    def __init__(self):
        self.values, self.requests = {}, 0

    def set(self, key, value):
        self.values[key] = value.encode()
        self.requests += 1

    def check(self, keys):
        self.requests += 1
        return all(key in self.values for key in keys)

    def multi_get(self, keys):
        self.requests += 1
        return [self.values[key] for key in keys]


def rank_times(board, rank, monkeypatch):
    monkeypatch.setattr(live_rank_times, "rank_and_world", lambda: (rank, 2))
    monkeypatch.setattr(torch.distributed.distributed_c10d, "_get_default_store", lambda: board)
    return live_rank_times.RankTimes("name")


def test_rank_0_gets_the_times_of_all_ranks(monkeypatch):
    board = Board()
    ranks = [rank_times(board, rank, monkeypatch) for rank in (0, 1)]
    ranks[0].tell(1, 50, 8)
    assert ranks[0].told(1) is None and ranks[1].told(1) == []
    ranks[1].tell(1, 51, None)
    assert ranks[0].told(1) == [(50, 8), (51, None)]
    assert board.requests == 5, "the number does not grow with the number of ranks"
    for number in range(2, 30):
        for each in ranks:
            each.tell(number, number, 0)
    assert len(board.values) == 2 * live_rank_times.SLOTS, "the store does not grow"
    assert ranks[0].told(1) == [], "the other rank is ahead, and its times were replaced"
    assert ranks[0].told(29) == [(29, 0)] * 2


def pending(step):
    log = live_step.StepLog(live_step.Units(torch.nn.Linear(1, 1)), HostMarks())
    log.calls.append(call("all_gather", "a", 0, 10, 8))
    return {"step": step, "step_ns": 50, "log": log, "origin": 0, "end": 50, "marks": HostMarks(), "memory_bytes": 0, "unseen": None}


def test_assert_overlap_does_not_wait_for_other_ranks(monkeypatch):
    """The step has ended on this rank, and the others have not told."""
    watch = Watch(torch.nn.Linear(1, 1), every=100)
    watch._ranks = rank_times(Board(), 0, monkeypatch)
    watch._pending.append(pending(100))
    watch.assert_overlap(0.8)
    with pytest.raises(AssertionError, match="80.0 % of the communication was hidden, expected at least 90.0 %"):
        watch.assert_overlap(0.9)
    assert watch.last is None


def test_a_rank_that_stopped_does_not_stop_the_line(monkeypatch):
    lines = []
    watch = Watch(torch.nn.Linear(1, 1), every=1, log=lines.append)
    watch._ranks = rank_times(Board(), 0, monkeypatch)
    for step in range(1, 10):
        watch._pending.append(pending(step))
        watch._report()
    assert [text.split(";")[0] for text in lines] == [f"shardlens: step {step}: 0.000 ms" for step in range(1, 10 - live_rank_times.SLOTS + 1)]
    assert watch.last["straggler"] is None


@pytest.mark.parametrize(("arguments", "error", "message"), [
    ({"every": 0}, ValueError, "every=0, expected a number of steps, at least 1"),
    ({"every": "10"}, ValueError, "every='10', expected a number of steps, at least 1"),
    ({"tensorboard": "runs/1"}, TypeError, "tensorboard is of type str, expected a SummaryWriter"),
    ({"opentelemetry": 1}, TypeError, "opentelemetry is of type int, expected a Meter"),
    ({"log": "train.log"}, TypeError, "log is of type str, expected a function of a line of text, such as logger.info"),
    ({"model": None}, TypeError, "model is of type NoneType, expected the sharded torch.nn.Module"),
])
def test_wrong_arguments_are_refused(arguments, error, message):
    with pytest.raises(error, match=message):
        shardlens.watch(**{"model": torch.nn.Linear(1, 1), **arguments})


def test_one_process_watches_every_second_step_and_a_fault_ends_only_the_watch(monkeypatch):
    model, lines = torch.nn.Linear(3, 2), []
    watch = shardlens.watch(model, every=2, log=lines.append)
    original = dist.all_reduce
    for step in range(6):
        assert (dist.all_reduce is original) == (step == 0 or step % 2 != 0)
        model(torch.ones(4, 3)).sum().backward()
        watch.step()
    assert [text.split(":")[1] for text in lines] == [" step 2", " step 4"]
    monkeypatch.setattr(HostMarks, "memory", lambda marks: 1 // 0)
    with pytest.warns(RuntimeWarning, match="shardlens.watch: the watch stopped, training goes on: ZeroDivisionError"):
        watch.step()
    assert dist.all_reduce is original and len(lines) == 2
    watch.step()
    watch.close()


def test_calls_are_seen_only_inside_of_fsdp():
    """Two logs, one within the other, and PyTorch's own functions after both."""
    original = dist.all_reduce
    first, second = CollectiveLog(HostMarks()), CollectiveLog(HostMarks())
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        first.install()
        second.install()
        tensor = torch.ones(2)
        dist.all_reduce(tensor)
        first.inside = second.inside = 1
        dist.all_reduce(tensor)
        work = dist.all_reduce(tensor, async_op=True)
        second.remove()
        dist.all_reduce(tensor)
        work.wait()
        first.remove()
        assert dist.all_reduce is original
        for log in (first, second):
            log.take()
    finally:
        dist.destroy_process_group()
    assert [len(log.calls) for log in (first, second)] == [3, 2]
    assert {each.group for each in second.calls} == {"default_pg"} and second.calls[0].waited == second.calls[0].begin
    assert second.calls[1].waited is None, "nothing has waited for the asynchronous one"


def test_all_collectives_of_fsdp_are_seen():
    """As the installed PyTorch calls them: other versions have other names, which are aliases."""
    fsdp = Path(pytest.importorskip("torch.distributed.fsdp").__file__).parent
    sources = [fsdp / "_fully_shard" / "_fsdp_collectives.py", fsdp / "_runtime_utils.py", fsdp / "_flat_param.py"]
    called = {name for source in sources for name in re.findall(r"\bdist\.(_?(?:all_gather|reduce_scatter|all_reduce)\w*)\(", source.read_text())}
    assert len(called) > 2 and called <= set(_FUNCTIONS)


def test_the_names_of_torch_2_15_are_seen(monkeypatch):
    """Older versions do not have them; here they are the functions of which they are aliases."""
    aliases = {"all_gather_single": dist.all_gather_into_tensor, "reduce_scatter_single": dist.reduce_scatter_tensor}
    for name, function in aliases.items():
        monkeypatch.setattr(dist, name, getattr(dist, name, function), raising=False)
    log = CollectiveLog(HostMarks())
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        log.install()
        log.inside = 1
        dist.all_gather_single(torch.ones(2), torch.ones(2), group=dist.group.WORLD)
        dist.reduce_scatter_single(torch.ones(2), torch.ones(2), dist.ReduceOp.SUM, dist.group.WORLD)
    finally:
        log.take()
        log.remove()
        dist.destroy_process_group()
    assert [(call.kind, call.group) for call in log.calls] == [("all_gather", "default_pg"), ("reduce_scatter", "default_pg")]
