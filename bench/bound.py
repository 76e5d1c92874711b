"""The least time that a training step can take on this machine.

The bound of a step is

    (compute CPU of all ranks + communication CPU of all ranks) / cores + waits

and at least one rank's compute CPU divided by its threads. Compute is the same batch through the same model without sharding: forward, backward,
gradient norm, and the optimizer on as many elements as a rank's shards have. Communication is the collectives of the engine's step one after the
other over the engine's groups, with nothing beside them: their kind, order, number and sizes. Its CPU time is that of all threads of the process, in the
kernel too. Waits are the time without CPU in the collectives that no order hides: the first all-gather, the last reduction and the gradient norm.
bench/step_bound.cpp measures all of them on all ranks at once, so that they share memory and caches as in a step, in rounds that alternate with
steps of the engine. So an engine at the bound has no cost of its own: no copies, no hooks, no thread that waits while another one could work. The
transport is within the bound, and so is how the engine calls it.

With more ranks than cores a core changes processes whenever ranks meet, at each unit, and finds other data in its caches. Compute of the bound has no
such meetings. So there is a second measure of it, "with turns": the same unsharded step, in which all ranks meet before each unit's forward and backward,
less as many meetings alone. No engine is part of it.
"""
import dataclasses
import json
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile


def cores():
    return len(os.sched_getaffinity(0))


def start_ranks(program, flags, ranks, directory):
    """Runs `ranks` processes of a program to their end; what each printed."""
    running = []
    for rank in range(ranks):
        environment = dict(os.environ, RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE=str(ranks), SHARDLENS_RENDEZVOUS=f"{directory}/store")
        running.append(subprocess.Popen([program, *flags], env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True))
    printed = []
    for process in running:
        out, messages = process.communicate()
        if process.returncode:
            sys.exit(f"{pathlib.Path(program).name} ended with {process.returncode}:\n{messages}")
        printed.append(out)
    return printed


@dataclasses.dataclass
class Measured:
    """Medians over rounds, in ms; CPU is that of all ranks together."""
    bound: float
    engine: float  # wall clock of the engine's step
    compute_cpu: float
    communication_cpu: float
    engine_cpu: float
    waits: float
    cpu_ratio: list  # engine's CPU in parts of compute and communication, of each round
    turns_ratio: list  # the same with turns; empty if it was not measured
    ratio: list  # the engine's step in parts of the bound, of each round
    collectives: int
    bytes: int  # of the larger side of each collective, on one rank


def measure(bin_, flags, ranks, threads=1, turns=False):
    """`flags`: --model, --tokens, --batch, --seq, --steps (rounds), and those of the plan. `turns`: compute with turns, too."""
    flags = [*flags, "--turns"] if turns else flags
    with tempfile.TemporaryDirectory() as directory:
        printed = start_ranks(pathlib.Path(bin_) / "step_bound", [*flags, "--out", directory, "--threads", str(threads)], ranks, directory)
    of_ranks = [json.loads(text.strip().splitlines()[-1]) for text in printed]
    rounds = range(len(of_ranks[0]["engine_ms"]))

    def total(key):
        return [sum(rank[key][i] for rank in of_ranks) for i in rounds]

    def largest(key):
        return [max(rank[key][i] for rank in of_ranks) for i in rounds]

    compute, communication, waits = total("compute_cpu_ms"), total("communication_cpu_ms"), largest("waits_ms")
    bounds = [max((compute[i] + communication[i]) / cores(), largest("compute_cpu_ms")[i] / threads) + waits[i] for i in rounds]
    middle = statistics.median
    engine, engine_cpu = largest("engine_ms"), total("engine_cpu_ms")
    with_turns = total("turns_cpu_ms") if turns else []
    return Measured(middle(bounds), middle(engine), middle(compute), middle(communication), middle(engine_cpu), middle(waits),
                    [engine_cpu[i] / (compute[i] + communication[i]) for i in rounds],
                    [engine_cpu[i] / (with_turns[i] + communication[i]) for i in rounds if turns], [engine[i] / bounds[i] for i in rounds],
                    of_ranks[0]["collectives"], of_ranks[0]["bytes"])
