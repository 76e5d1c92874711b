#!/usr/bin/env python3
"""How the engine's step and a simulation grow with ranks and units.

    bench/growth_bench.py [--quick] [--steps 12] [--rounds 3] [--bin build/release/bin]

The engine trains a Llama of hidden size 64, one unit for each layer, batch 1 x 32, on this machine: 2 to 8 ranks with 10 layers, and 10 to
200 layers on two ranks. Beside it is the bound of bench/bound.py, measured in the same processes in alternation. More ranks than cores are
oversubscribed, so what counts is CPU time: that of all ranks together. Then compute is measured with turns, too, as bench/bound.py describes it.
`shardlens simulate` predicts 10 to 1 000 layers on 8 ranks, and 8 to 1 024 ranks with 100 layers.

An exponent e between two sizes says that the time grew as size^e: 1 is linear. Between ranks it is that of CPU in parts of the bound's with turns, whose number of
reads grows as the square of the ranks; 0 says that the engine's own cost grows as the bound does. The ratio to the bound without turns is printed, too, and grows with the
processes of a core. The exit code is 1 if the exponent of the last, largest sizes of a series is above its limit.
"""
import argparse
import json
import math
import os
import pathlib
import resource
import statistics
import subprocess
import sys
import tempfile

import bound
import ratios

ROOT = pathlib.Path(__file__).resolve().parent.parent
LIMIT = 1.1  # of an exponent; of one that should be 0: 0.1
RANKS, UNITS = (2, 4, 8), (10, 50, 200)
SIMULATED_RANKS, SIMULATED_LAYERS = (8, 64, 1024), (10, 100, 1000)
CONFIG = dict(architectures=["LlamaForCausalLM"], model_type="llama", hidden_size=64, intermediate_size=172, num_attention_heads=4, num_key_value_heads=2,
              vocab_size=256, max_position_embeddings=256, tie_word_embeddings=False, hidden_act="silu", rms_norm_eps=1e-6)


def model_of(directory, layers):
    folder = pathlib.Path(directory, f"layers{layers}")
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text(json.dumps(dict(CONFIG, num_hidden_layers=layers)))
    return folder


def nodes_of(directory, ranks):
    """A spec of so many nodes of eight GPUs."""
    spec = json.loads((ROOT / "sim" / "hardware" / "specs" / "8xH100.json").read_text())
    spec["nodes"] = max(1, ranks // 8)
    spec["fabric"]["network_gbps"] = {"value": 50, "source": "assumed"}
    file = pathlib.Path(directory, f"nodes{spec['nodes']}.json")
    file.write_text(json.dumps(spec))
    return file


def exponents(sizes, times):
    """Between each size and the one before it."""
    return [math.nan, *(math.log(b / a) / math.log(n / m) for m, n, a, b in zip(sizes, sizes[1:], times, times[1:]))]


def shown(value):
    return "" if math.isnan(value) else f"{value:.2f}"


def engine(args, directory, series, sizes):
    """Prints the rows of a series of sizes; the last exponent."""
    tokens = pathlib.Path(directory, "tokens.bin")
    tokens.write_bytes(bytes(value % 200 if i % 2 == 0 else 0 for i, value in enumerate(range(1 << 17))))
    rounds = {size: [] for size in sizes}
    for _ in range(args.rounds):
        for size in sizes:
            ranks, units = (size, UNITS[0]) if series == "ranks" else (RANKS[0], size)
            flags = ["--model", str(model_of(directory, units)), "--tokens", str(tokens), "--batch", "1", "--seq", "32", "--steps", str(args.steps)]
            rounds[size].append(bound.measure(args.bin, flags, ranks, turns=series == "ranks"))
            print(f"  {series} {size}: {rounds[size][-1].engine:.1f} ms, bound {rounds[size][-1].bound:.1f} ms", file=sys.stderr, flush=True)

    def middle(size, figure):
        return statistics.median(figure(each) for each in rounds[size])

    cpu = [middle(size, lambda each: each.engine_cpu) for size in sizes]
    least = [middle(size, lambda each: each.compute_cpu + each.communication_cpu) for size in sizes]
    parts = [middle(size, lambda each: statistics.median(each.cpu_ratio)) for size in sizes]
    with_turns = [middle(size, lambda each: statistics.median(each.turns_ratio)) for size in sizes] if series == "ranks" else []
    grown = exponents(sizes, with_turns or cpu)
    for i, size in enumerate(sizes):
        walls = [statistics.median(each.ratio) for each in rounds[size]]
        over = ", oversubscribed" if series == "ranks" and size > bound.cores() else ""
        print(f"| {size} {series}{over} | {middle(size, lambda each: each.engine):.2f} | {middle(size, lambda each: each.bound):.2f} | "
              f"{statistics.median(walls):.2f} ({min(walls):.2f} to {max(walls):.2f}) | {cpu[i]:.2f} | {least[i]:.2f} | {parts[i]:.2f} | {f'{with_turns[i]:.2f} | ' if with_turns else ''}{shown(grown[i])} |", flush=True)
    # Exponents are judged by their limits: near 0, or below, one is no ratio.
    if with_turns:
        ratios.report(f"growth/{sizes[-1]}-ranks/cpu-over-turns", [statistics.median(each.turns_ratio) for each in rounds[sizes[-1]]])
    ratios.report(f"growth/{sizes[-1]}-{series}/cpu-over-bound", [statistics.median(each.cpu_ratio) for each in rounds[sizes[-1]]])
    return grown[-1]


def cpu_of(command):
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def simulated(args, directory, series, sizes):
    """The same for `shardlens simulate`: CPU of the whole process, in ms."""
    times = []
    for size in sizes:
        ranks, layers = (size, 100) if series == "ranks" else (8, size)
        command = [args.bin / "shardlens", "simulate", "--model", model_of(directory, layers), "--hardware", nodes_of(directory, ranks), "--stack", "bare",
                   "--world-size", str(ranks), "--batch", "1", "--seq", "32", "--json"]
        times.append(statistics.median(cpu_of(command) for _ in range(args.rounds * 5)) * 1e3)
    grown = exponents(sizes, times)
    for size, time, exponent in zip(sizes, times, grown):
        print(f"| {size} {series} | {time:.1f} | {shown(exponent)} |", flush=True)
    return grown[-1]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="one round")
    parser.add_argument("--steps", type=int, default=12)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--bin", type=pathlib.Path, default=ROOT / "build/release/bin")
    args = parser.parse_args()
    args.rounds = 1 if args.quick else args.rounds
    print(f"{bound.cores()} cores, load {os.getloadavg()[0]:.1f} at the start; {args.rounds} rounds of {args.steps} steps\n")
    last = {}
    with tempfile.TemporaryDirectory() as directory:
        for series, sizes in (("units", UNITS), ("ranks", RANKS)):
            last_columns = ["exponent"] if series == "units" else ["CPU / bound with turns", "its exponent"]
            print(f"| engine | step (ms) | bound (ms) | step / bound | CPU of all ranks (ms) | of the bound | CPU / that | {' | '.join(last_columns)} |"
                  f"\n|---|---:|---:|---|---:|---:|---:|{'---:|' * len(last_columns)}")
            last[f"engine/{series}"] = engine(args, directory, series, sizes)
            print()
        for series, sizes in (("layers", SIMULATED_LAYERS), ("ranks", SIMULATED_RANKS)):
            print("| simulate | CPU (ms) | exponent |\n|---|---:|---:|")
            last[f"simulate/{series}"] = simulated(args, directory, series, sizes)
            print()
    above = [name for name, exponent in last.items() if exponent > (0.1 if name == "engine/ranks" else LIMIT)]
    print(f"superlinear: {', '.join(above)}" if above else "nothing is superlinear")
    return 1 if above else 0


if __name__ == "__main__":
    sys.exit(main())
