#!/usr/bin/env python3
"""Generates device traces of sharded training in which the cause of every exposed collective is known, because it was put there.

    generate_causes.py SEED DIR      writes DIR/rank<r>.json and DIR/truth.json

A small machine is simulated: a host that is about one layer ahead, streams, and communicators that run one collective at a time. Each
layer gets a scenario that leads to one cause, or the device runs all streams as one queue, and that is the cause of all (scenarios: forward: hidden, bandwidth, late host, slow without a reason, another rank late, host stalls;
backward: hidden, bandwidth, not prefetched, queued behind a reduction), and some traces waste that is also known: a unit gathered twice, an
all-gather that nothing waits for, a wait of the host. Settings vary: tensor parallel all-reduces, all-to-alls of experts, CUDA graphs,
compiled kernels, with or without cuda_sync rows and message sizes, and events lost at random.

truth.json: {"causes": [{"start_ns", "cause"}] of rank 0 by start of the collective, "waste": [[kind, where]], "settings": {...}}
"""
import json
import random
import sys
from pathlib import Path

US = 1000
LATENCY = 5 * US
MAIN, BACKWARD = 100, 101
COMPUTE, GATHER, REDUCE, TENSOR, EXPERT = 7, 20, 24, 28, 32
NAMES = {"all_gather": ("_allgather_base", "ncclDevKernel_AllGather_RING_LL"), "reduce_scatter": ("_reduce_scatter_base",
         "ncclDevKernel_ReduceScatter_Sum_bf16_RING_LL"), "all_reduce": ("allreduce", "ncclDevKernel_AllReduce_Sum_bf16_RING_LL"),
         "all_to_all": ("all_to_allv", "ncclDevKernel_SendRecv")}


class Machine:
    def __init__(self, rng, settings):
        self.rng, self.settings = rng, settings
        self.rows, self.correlation = [], 1000
        self.free = {}    # by stream: when it has finished all it was given
        self.busy = {}    # by communicator
        self.queue = 0    # of all streams, if they have one queue
        self.sequence = {}
        self.host = 2000 * US
        self.thread = MAIN
        self.pending = {}  # by stream: (end, stream it waits for, correlation of the record)

    def row(self, cat, name, pid, tid, start, end, **args):
        self.rows.append(dict(ph="X", cat=cat, name=name, pid=pid, tid=tid, start=start, end=end, args=args))
        return self.rows[-1]

    def range(self, name):
        return Range(self, name)

    def wait(self, stream, on):
        """`stream` waits for all that was given to stream `on`."""
        self.pending[stream] = max(self.pending.get(stream, 0), self.free.get(on, 0))
        if self.settings["syncs"]:
            self.correlation += 2
            record, call = self.correlation - 1, self.correlation
            self.row("cuda_runtime", "cudaEventRecord", 1, self.thread, self.host, self.host + US // 2, correlation=record)
            self.row("cuda_runtime", "cudaStreamWaitEvent", 1, self.thread, self.host + US, self.host + US + US // 2, correlation=call)
            self.row("cuda_sync", "Stream Wait Event", 0, stream, self.host + US, self.host + US + 1, correlation=call, stream=stream,
                     wait_on_stream=on, wait_on_cuda_event_record_corr_id=record, wait_on_cuda_event_id=record)
            self.host += 2 * US

    def launch(self, name, stream, length, graph=None, communicator=None, cat="kernel", **args):
        """One kernel; returns (start, end)."""
        if graph is None or graph.get("correlation") is None:
            self.correlation += 1
            called, correlation = self.host, self.correlation
            self.row("cuda_runtime", "cudaLaunchKernel" if graph is None else "cudaGraphLaunch", 1, self.thread, called, called + US,
                     correlation=correlation)
            self.host += 3 * US
            if graph is not None:
                graph.update(correlation=correlation, called=called)
        else:
            called, correlation = graph["called"], graph["correlation"]
            args["graph node id"] = self.rng.randint(1, 1 << 20)
        start = max(called + LATENCY, self.free.get(stream, 0) + US // 2, self.pending.pop(stream, 0) + US)
        if self.settings.get("one_queue"):
            start = max(start, self.queue + US // 2)
            self.queue = start + length
        if communicator is not None:
            start = max(start, self.busy.get(communicator, 0) + 2 * US)
            self.busy[communicator] = start + length
        self.free[stream] = start + length
        self.row(cat, name, 0, stream, start, start + length, correlation=correlation, stream=stream, **args)
        return start, start + length

    def collective(self, kind, stream, length, group, size, elements):
        c10d, kernel = NAMES[kind]
        n = self.sequence[group] = self.sequence.get(group, -1) + 1
        args = {"Collective name": c10d, "Process Group Name": group, "Process Group Ranks": str(list(range(size))), "Process Group Description": "mesh_" + group,
                "Group size": size, "Seq": n}
        if self.settings["sizes"] or not group.startswith("dp"):
            args.update({"dtype": "BFloat16", "In msg nelems": elements // size, "Out msg nelems": elements})
        return self.launch(kernel, stream, length, communicator=group, **args)


class Range:
    def __init__(self, machine, name):
        self.machine, self.name = machine, name

    def __enter__(self):
        self.start = self.machine.host
        self.machine.host += US

    def __exit__(self, *_):
        self.machine.row("user_annotation", self.name, 1, self.machine.thread, self.start, self.machine.host + US)
        self.machine.host += 2 * US


class Training:
    """Runs steps on a machine and notes what is true of them."""

    def __init__(self, seed):
        rng = self.rng = random.Random(seed)
        self.settings = dict(syncs=rng.random() < 0.4, sizes=rng.random() < 0.7, tensor=rng.random() < 0.4, experts=rng.random() < 0.3,
                             graphs=rng.random() < 0.3, compiled=rng.random() < 0.3, ranks=rng.choice([1, 1, 2]),
                             lossy=rng.choice([0, 0, 0, 0.003]))
        # Drawn apart, so that the other settings of a seed stay as they are.
        self.settings["one_queue"] = random.Random(f"one queue {seed}").random() < 0.1
        if self.settings["one_queue"]:
            self.settings.update(tensor=False, experts=False, graphs=False, ranks=1, lossy=0)
        self.m = Machine(rng, self.settings)
        self.layers = rng.randint(6, 9)
        self.unit = rng.randint(150, 400) * US  # compute of a layer's forward
        self.causes, self.waste, self.late = [], set(), []
        ahead = ["hidden", "hidden", "bandwidth", "late_host", "stall", "slow"] + (["peer"] * 2 if self.settings["ranks"] > 1 else [])
        # With one communicator for both, a long gather comes behind reductions, too: then it is not only long.
        self.reduce_group = rng.choice(["dp", "dp_reduce"])
        back = ["hidden", "hidden", "no_prefetch", "queued" if self.reduce_group == "dp" else "bandwidth"]
        # Layers 0 and 1 begin the step, the last two end it: plain.
        self.forward = [rng.choice(ahead) if 2 <= i < self.layers else "hidden" for i in range(self.layers)]
        self.backward = [rng.choice(back) if 1 < i < self.layers - 2 else "hidden" for i in range(self.layers)]
        for plan in (self.forward, self.backward):  # a scenario needs plain neighbours
            for i in range(1, self.layers):
                if plan[i] != "hidden" and plan[i - 1] != "hidden":
                    plan[i] = "hidden"
        for i in range(2, self.layers):  # "queued" is about the gather after the reduction of layer i + 1
            if self.backward[i] == "queued" and (i + 2 >= self.layers or self.backward[i - 1] != "hidden"):
                self.backward[i] = "hidden"
        if self.settings["one_queue"]:
            self.forward = self.backward = ["hidden"] * self.layers
        plain = [i for i in range(2, self.layers - 1) if self.forward[i] == self.forward[i + 1] == "hidden"]
        extra = rng.choice(["", "", "sync", "again", "unused"])
        self.extra, self.extra_at = (extra, rng.choice(plain)) if plain and extra and not self.settings["one_queue"] else ("", -1)
        self.steps = rng.randint(3, 4)

    def name(self, i):
        return f"layers.{i}"

    def kernel(self, what):
        return f"triton_poi_fused_{what}_0" if self.settings["compiled"] else f"ampere_bf16_s16816gemm_{what}"

    def transfer(self, scale):
        return int(scale * self.unit * self.rng.uniform(0.97, 1.03))

    def gather(self, i, scenario, step, by=None):
        """The all-gather of layer i; `by`: prefetched by this range."""
        m, slow = self.m, scenario == "slow" and step == 1
        # What takes longer is larger, except "slow", which is as large as the hidden ones.
        scale = {"bandwidth": 3.4}.get(scenario, 0.4)
        length = self.transfer(5 if slow else scale)
        peer = scenario == "peer" and step == 1
        if peer:
            length += (waited := self.transfer(6))
        outer = m.range(by) if by else None
        if outer:
            outer.__enter__()
        with m.range(f"FSDP::all_gather ({self.name(i)})"):
            m.launch("void at::native::copy_in", GATHER, 4 * US)
            start, end = m.collective("all_gather", GATHER, length, "dp", 2, 4_000_000 * (3 if scenario == "bandwidth" else 1) + 16 * i)
        if outer:
            outer.__exit__()
        if peer:
            self.late.append((start, start + waited))
        if self.settings["one_queue"]:
            self.causes.append((start, "one_queue"))
        return start, end

    def elements(self, i):
        return 4_000_000 + 16 * i

    def compute(self, i, what, scale=1.0):
        m = self.m
        graph = {} if self.settings["graphs"] else None
        parts = self.rng.randint(2, 4)
        for _ in range(parts):
            first = m.launch(self.kernel(what), COMPUTE, int(self.unit * scale / parts), graph)[0] if _ == 0 else \
                (m.launch(self.kernel(what), COMPUTE, int(self.unit * scale / parts), graph), first)[1]
        return first

    def within(self, i, backward=False):
        """Collectives of other parallelism: they need the compute before them, and the compute after them needs them."""
        m = self.m
        for on, kind, stream, group in (("tensor", "all_reduce", TENSOR, "tp"), ("experts", "all_to_all", EXPERT, "ep")):
            if self.settings[on] and not backward:
                m.wait(stream, COMPUTE)
                start, _ = m.collective(kind, stream, self.transfer(0.1), group, 4, 100_000)
                m.wait(COMPUTE, stream)
                self.causes.append((start, "dependency"))
                m.launch(self.kernel("after"), COMPUTE, self.unit // 6)

    def pace(self, start):
        """The host does not run ahead of a kernel that started at `start`."""
        self.m.host = max(self.m.host, start)

    def step(self, number):
        m, begin = self.m, self.m.host
        m.thread = MAIN
        gathered, started = {}, m.host
        truth = []
        with m.range("FSDP::root_pre_forward"):
            pass
        with m.range("FSDP::pre_forward"):
            with m.range("FSDP::all_gather"):
                m.launch("void at::native::copy_in", GATHER, 4 * US)
                truth.append((m.collective("all_gather", GATHER, self.transfer(0.3), "dp", 2, 2_000_000)[0], "first"))
            m.wait(COMPUTE, GATHER)
            with m.range("FSDP::all_gather_copy_out"):
                m.launch("split_with_sizes_copy", COMPUTE, 5 * US)
        embed = m.launch(self.kernel("embed"), COMPUTE, self.unit)[0]
        self.pace(embed)
        for i in range(self.layers):
            own = i not in gathered
            if own and i > 1:  # late host: it comes when the device has finished
                m.host = max(m.host, m.free[COMPUTE] + self.rng.randint(20, 60) * US)
            m.row("user_annotation", "mark", 1, m.thread, m.host, m.host)
            with m.range(f"FSDP::pre_forward ({self.name(i)})"):
                if own:
                    gathered[i] = self.gather(i, "hidden", number)
                    if i > 1:
                        truth.append((gathered[i][0], "late_host"))
                m.wait(COMPUTE, GATHER)
                with m.range(f"FSDP::all_gather_copy_out ({self.name(i)})"):
                    copied = m.launch("split_with_sizes_copy", COMPUTE, 5 * US)
                ahead = i + 1 < self.layers and self.forward[i + 1] != "late_host"
                if ahead:
                    gathered[i + 1] = self.gather(i + 1, self.forward[i + 1], number, f"FSDP::forward_prefetch for {self.name(i + 1)}")
                    scenario = self.forward[i + 1]
                    if scenario == "bandwidth" or (scenario in ("slow", "peer") and number == 1):
                        truth.append((gathered[i + 1][0], {"slow": "unknown"}.get(scenario, scenario)))
            if i + 1 < self.layers and self.forward[i + 1] == "stall":
                # The host has issued the gather of the next layer and now does something else.
                m.host = max(m.host, gathered[i + 1][1] + 50 * US, copied[1])
                truth.append((gathered[i + 1][0], "late_host"))
            start = self.compute(i, "mm")
            self.within(i)
            if self.extra == "sync" and self.extra_at == i:
                called = m.host
                m.host = max(m.host, m.free[COMPUTE], m.free[GATHER]) + 10 * US
                m.row("cpu_op", "aten::item", 1, m.thread, called - US, m.host + 30 * US)
                m.row("cuda_runtime", "cudaStreamSynchronize", 1, m.thread, called, m.host)
                m.host += 40 * US
                self.waste.add(("host_sync", "cudaStreamSynchronize in aten::item"))
            with m.range(f"FSDP::post_forward ({self.name(i)})"):
                pass
            if self.extra == "again" and self.extra_at == i:
                self.again(i, truth, number)
            self.pace(max(start, copied[1]))
        m.launch(self.kernel("head"), COMPUTE, self.unit)
        with m.range("FSDP::post_forward"):
            pass
        m.launch(self.kernel("loss"), COMPUTE, self.unit // 4)
        self.backwards(number, truth)
        self.causes += truth
        m.thread = MAIN
        with m.range("Optimizer.step#AdamW.step"):
            m.wait(COMPUTE, REDUCE)
            m.launch("multi_tensor_apply_kernel", COMPUTE, self.unit)
        self.pace(m.free[COMPUTE] - self.unit // 2)
        m.row("user_annotation", f"ProfilerStep#{number}", 1, MAIN, begin - US, m.host)
        m.host += 2 * US

    def again(self, i, truth, number):
        """The unit is called a second time in the same forward, so that it is gathered again."""
        m = self.m
        self.pace(m.free[COMPUTE] + 10 * US)
        with m.range(f"FSDP::pre_forward ({self.name(i)})"):
            truth.append((self.gather(i, "hidden", number)[0], "late_host"))
            m.wait(COMPUTE, GATHER)
            with m.range(f"FSDP::all_gather_copy_out ({self.name(i)})"):
                m.launch("split_with_sizes_copy", COMPUTE, 5 * US)
        self.compute(i, "mm")
        with m.range(f"FSDP::post_forward ({self.name(i)})"):
            pass
        self.waste.add(("gathered_again", self.name(i)))

    def backwards(self, number, truth):
        m = self.m
        m.thread = BACKWARD
        with m.range("FSDP::pre_backward"):
            pass
        self.pace(m.launch(self.kernel("head_backward"), COMPUTE, self.unit)[0])
        gathered = {}
        last = None
        for i in reversed(range(self.layers)):
            own = i not in gathered
            not_prefetched = self.backward[i] == "no_prefetch"
            if own and not_prefetched:
                m.host = max(m.host, m.free[COMPUTE] + 10 * US)
            with m.range(f"FSDP::pre_backward ({self.name(i)})"):
                if own:
                    gathered[i] = self.gather(i, "hidden", number)
                    if not_prefetched:
                        truth.append((gathered[i][0], "no_prefetch"))
                m.wait(COMPUTE, GATHER)
                with m.range(f"FSDP::all_gather_copy_out ({self.name(i)})"):
                    m.launch("split_with_sizes_copy", COMPUTE, 5 * US)
                if self.extra == "unused" and self.extra_at == i:  # layer i + 1 has finished its backward
                    self.gather(i + 1, "hidden", number, f"FSDP::backward_prefetch for {self.name(i + 1)}")
                    self.waste.add(("unused_gather", self.name(i + 1)))
                if i > 0 and self.backward[i - 1] != "no_prefetch":
                    gathered[i - 1] = self.gather(i - 1, {"queued": "hidden"}.get(self.backward[i - 1], self.backward[i - 1]), number,
                                                  f"FSDP::backward_prefetch for {self.name(i - 1)}")
                    if self.backward[i - 1] in ("bandwidth", "queued"):
                        truth.append((gathered[i - 1][0], self.backward[i - 1]))
            start = self.compute(i, "mm_backward", 1.6)
            with m.range(f"FSDP::post_backward_reshard ({self.name(i)})"):
                pass
            with m.range(f"FSDP::post_backward_reduce ({self.name(i)})"):
                m.launch("chunk_cat", COMPUTE, 6 * US)
                m.wait(REDUCE, COMPUTE)
                # The gather of layer i - 2 comes next on the communicator.
                long = i >= 2 and self.backward[i - 2] == "queued"
                last = m.collective("reduce_scatter", REDUCE, self.transfer(4.5 if long else 0.4), self.reduce_group, 2, self.reduced(i, long))
                if long:
                    truth.append((last[0], "bandwidth"))
                if self.settings["one_queue"]:
                    truth.append((last[0], "one_queue"))
            self.pace(start)
        with m.range("FSDP::root_post_backward_callback"):
            with m.range("FSDP::post_backward_reshard"):
                pass
            with m.range("FSDP::post_backward_reduce"):
                m.launch("chunk_cat", COMPUTE, 6 * US)
                m.wait(REDUCE, COMPUTE)
                truth.append((m.collective("reduce_scatter", REDUCE, self.transfer(0.5), self.reduce_group, 2, 3_000_000)[0], "last"))

    def reduced(self, i, long):
        return (40_000_000 if long else 5_000_000) + 16 * i

    def run(self, directory):
        for number in range(self.steps):
            self.step(number)
        m = self.m
        kept = [r for r in m.rows if r["name"].startswith("ProfilerStep") or self.rng.random() >= self.settings["lossy"]]
        for rank in range(self.settings["ranks"]):
            self.write(directory, rank, kept)
        lost = len(kept) < len(m.rows)
        truth = dict(causes=[dict(start_ns=start, cause=cause) for start, cause in self.causes],
                     waste=sorted(self.waste), settings=self.settings, lost=lost)
        (directory / "truth.json").write_text(json.dumps(truth))
        return truth

    def write(self, directory, rank, rows):
        clock = 0 if rank == 0 else self.rng.randint(-900, 900) * US
        moved = dict(self.late)
        groups = [dict(pg_name=g, pg_desc="mesh_" + g, pg_size=n, ranks=list(range(n))) for g, n in (("dp", 2), ("dp_reduce", 2), ("tp", 4), ("ep", 4))]
        out = []
        for r in rows:
            start = moved.get(r["start"], r["start"]) if rank > 0 and "nccl" in r["name"] else r["start"]
            out.append(dict(ph="X", cat=r["cat"], name=r["name"], pid=r["pid"], tid=r["tid"], ts=(start + clock) / 1000,
                            dur=(r["end"] - start) / 1000, args=r["args"]))
        head = dict(schemaVersion=1, baseTimeNanoseconds=0, traceEvents=out,
                    distributedInfo=dict(backend="nccl", rank=rank, world_size=8, pg_config=groups))
        (directory / f"rank{rank}.json").write_text(json.dumps(head))


def generate(seed, directory):
    return Training(seed).run(Path(directory))


if __name__ == "__main__":
    print(json.dumps(generate(int(sys.argv[1]), sys.argv[2])["settings"]))
