#!/usr/bin/env python3
"""Checks, on random inputs, properties that hold for any input.

    check_properties.py --bin DIR [--seeds A:B] [--only NAME]

sums       random traces of several ranks, streams and steps: compute, communication and their overlap are those of an interval calculation made here;
           the parts of a step sum to its length, and the exposed times of units to that of the rank
convert    analyze of a converted trace, as JSON and as gzip, and of one converted twice, is analyze of the trace
simulate   a simulated run is a run like any other: predicted from its own trace, its step takes as long as it did
calibrate  simulated with a calibration from a simulated run, the run's own step takes as long as it did, within 10 %
save       random weights, saved under one strategy and loaded and saved under another, are the same bytes, in fp32, bf16 and fp16 (needs
           shardlens-worker)
Exit 1 if a property does not hold; the seed is printed.
"""
import argparse
import json
import pathlib
import random
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
DATA = ROOT / "tests/data"
BINARIES = None
MODELS = ("llama-tiny", "gpt2-tiny", "qwen2-tiny", "mixtral-tiny", "gemma2-tiny")
STRATEGIES = ("full_shard", "shard_grad_op", "replicate")
SPECS = ("8xA100-40", "8xA100-80", "8xH100", "8xH200", "8xB200", "4xPCIe")


class Broken(Exception):
    """A property that does not hold."""


def expect(holds, what):
    if not holds:
        raise Broken(what)


def shardlens(*arguments, code=0):
    done = subprocess.run([BINARIES / "shardlens", *map(str, arguments)], stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
    expect(done.returncode == code, f"{' '.join(map(str, arguments))}: exit {done.returncode}: {done.stderr[-600:]}")
    return done.stdout


# Sets of half-open intervals in nanoseconds.

def union(intervals):
    out = []
    for start, end in sorted(i for i in intervals if i[0] < i[1]):
        if out and start <= out[-1][1]:
            out[-1] = (out[-1][0], max(out[-1][1], end))
        else:
            out.append((start, end))
    return out


def intersection(a, b):
    return union([(max(s, t), min(e, f)) for s, e in a for t, f in b if max(s, t) < min(e, f)])


def length(intervals):
    return sum(end - start for start, end in intervals)


def microseconds(ns):
    return f"{ns // 1000}.{ns % 1000:03d}"


def random_rank(chance, rank, world):
    """(events as JSON, [(step, start, end, compute, communication)]) of a device trace; nothing crosses the ends of a step."""
    events, steps, at = [], [], 10_000_000_000 + chance.randrange(10 ** 6)

    def add(cat, name, start, end, tid, **args):
        events.append(f'{{"ph": "X", "cat": "{cat}", "name": "{name}", "pid": {0 if cat == "kernel" else 100}, "tid": {tid}, "ts": {microseconds(start)}, '
                      f'"dur": {microseconds(end - start)}, "args": {json.dumps(args)}}}')
    for step in range(chance.randint(1, 4)):
        span = chance.randrange(10_000, 3_000_000)
        compute, comm = [], []
        for stream in range(chance.randint(1, 3)):
            cursor = at + chance.randrange(span)
            while cursor < at + span and chance.random() < 0.95:
                end = min(at + span, cursor + chance.randrange(1, span // 4 + 2))
                if stream == 2 or chance.random() < 0.2:
                    kind = chance.choice(("AllGather", "ReduceScatter", "AllReduce"))
                    add("kernel", f"ncclDevKernel_{kind}_RING_LL(ncclDevComm*)", cursor, end, stream, stream=stream)
                    comm.append((cursor, end))
                else:
                    add("kernel", chance.choice(("sgemm", "void at::native::elementwise", "softmax")), cursor, end, stream, stream=stream)
                    compute.append((cursor, end))
                cursor = end + chance.choice((0, 1, chance.randrange(span // 4 + 1)))
        add("user_annotation", f"ProfilerStep#{step}", at, at + span, 7)
        steps.append((step, at, at + span, union(compute), union(comm)))
        at += span
    # The next step's begin, which ends the last one where a trace's steps are those of the device.
    chance.shuffle(events)
    return (f'{{"distributedInfo": {{"rank": {rank}, "world_size": {world}, "backend": "nccl"}}, "traceEvents": [\n' + ",\n".join(events) + "\n]}\n"), steps


def sums(chance, folder):
    world = chance.randint(1, 3)
    expected = {}
    for rank in range(world):
        text, expected[rank] = random_rank(chance, rank, world)
        (folder / f"rank{rank}.pt.trace.json").write_text(text, encoding="utf-8")
    for rank in json.loads(shardlens("analyze", folder, "--json"))["ranks"]:
        windows = {step["step"]: step for step in rank["steps"]}
        for number, start, end, compute, comm in expected[rank["rank"]]:
            found = windows.get(number)
            if found is None:
                continue  # the last step of a device trace may have no end
            where = f"rank {rank['rank']}, step {number}"
            for f in (found, rank):
                parts = f["compute_ns"] + f["exposed_comm_ns"] + f["exposed_copy_ns"] + f["idle_ns"]
                expect(parts == f["span_ns"], f"{where}: the parts sum to {parts}, the span is {f['span_ns']}")
                expect(f["overlap_ns"] + f["exposed_comm_ns"] <= f["comm_ns"] or f["comm_ns"] == 0, f"{where}: overlap and exposed exceed communication")
            if found["span_ns"] != end - start:
                continue  # cut by device times
            both = intersection(compute, comm)
            figures = {"compute_ns": length(compute), "comm_ns": length(comm), "overlap_ns": length(both), "exposed_comm_ns": length(comm) - length(both)}
            for name, value in figures.items():
                expect(found[name] == value, f"{where}: {name} is {found[name]}, calculated {value}")
        exposed = sum(part["exposed_ns"] for unit in rank["units"] for part in unit["parts"].values()) if rank["units"] and isinstance(
            rank["units"][0].get("parts"), dict) else rank["exposed_comm_ns"]
        expect(exposed == rank["exposed_comm_ns"], f"rank {rank['rank']}: units have {exposed} ns exposed, the rank {rank['exposed_comm_ns']}")


def figures_of(path):
    document = json.loads(shardlens("analyze", path, "--json"))
    document.pop("diagnostics", None)  # they name files
    return document


def convert(chance, folder):
    kinds = [DATA / "pytorch_traces" / name.name for name in sorted((DATA / "pytorch_traces").iterdir()) if name.is_dir()]
    source = chance.choice([*kinds, ROOT / "traces/llama-emulated8", DATA / "recorded_run", None, None])
    if source is None:
        source = folder / "random"
        source.mkdir()
        for rank in range(2):
            (source / f"rank{rank}.pt.trace.json").write_text(random_rank(chance, rank, 2)[0], encoding="utf-8")
    traces = [p for p in sorted(source.iterdir()) if ".trace.json" in p.name]
    before = figures_of(traces[0])
    shardlens("convert", traces[0], "--out", folder / "one.json.gz")
    shardlens("convert", folder / "one.json.gz", "--out", folder / "two.json")
    for name in ("one.json.gz", "two.json"):
        after = figures_of(folder / name)
        for key, value in before.items():
            expect(after[key] == value, f"{traces[0].relative_to(ROOT) if traces[0].is_relative_to(ROOT) else 'random trace'}: {key} differs after convert to {name}")


def random_scenario(chance):
    flags = ["--model", DATA / chance.choice(MODELS), "--hardware", chance.choice(SPECS), "--strategy", chance.choice(STRATEGIES),
             "--batch", chance.choice((1, 2, 8)), "--seq", chance.choice((16, 64, 128)), "--stack", "bare"]
    if chance.random() < 0.3:
        flags += ["--accumulate", "2"]
    return flags


def simulated_run(chance, folder):
    flags = random_scenario(chance)
    made = json.loads(shardlens("simulate", *flags, "--out", folder / "run", "--json"))
    return flags, made


def simulate(chance, folder):
    flags, made = simulated_run(chance, folder)
    figures = json.loads(shardlens("analyze", folder / "run", "--json"))["ranks"][0]
    expect(figures["steps"][0]["span_ns"] == made["step_ns"], f"{flags}: the trace's step takes {figures['steps'][0]['span_ns']} ns, predicted {made['step_ns']}")
    for name in ("compute_ns", "exposed_comm_ns", "idle_ns"):
        if name in made:
            expect(figures["steps"][0][name] == made[name], f"{flags}: {name} of the trace is {figures['steps'][0][name]}, predicted {made[name]}")


def calibrate(chance, folder):
    flags, made = simulated_run(chance, folder)
    again = json.loads(shardlens("simulate", "--workload", folder / "run", "--json"))
    share = again["step_ns"] / made["step_ns"]
    expect(0.9 <= share <= 1.1, f"{flags}: predicted from its own trace the step takes {share:.3f} times as long")


def save(chance, folder):
    tokens, model = DATA / "tokens.u16.bin", DATA / chance.choice(("llama-tiny", "gpt2-tiny", "qwen2-tiny"))
    first, second = chance.sample(STRATEGIES, 2)
    precision = "fp32" if "replicate" in (first, second) else chance.choice(("fp32", "bf16", "fp16"))  # replicate has no other yet
    start = folder / "start"
    start.mkdir()
    (start / "config.json").write_text((model / "config.json").read_text(encoding="utf-8"), encoding="utf-8")
    same = ["--tokens", tokens, "--steps", "1", "--seq", "16", "--lr", "0", "--weight-decay", "0", "--precision", precision]
    shardlens("capture", "--model", start, *same, "--strategy", first, "--nproc", chance.choice((1, 2, 3)), "--seed", chance.randrange(2 ** 32),
              "--out", folder / "a", "--save", folder / "first", "--save-format", "full")
    shardlens("capture", "--model", folder / "first", *same, "--strategy", second, "--nproc", chance.choice((1, 2, 3)), "--out", folder / "b", "--save-format", "full", "--save", folder / "second")
    one, two = ((folder / name / "model.safetensors").read_bytes() for name in ("first", "second"))
    expect(one == two, f"{model.name}, {precision}, saved under {first}, then under {second}: the checkpoints differ")


PROPERTIES = {"sums": sums, "convert": convert, "simulate": simulate, "calibrate": calibrate, "save": save}


def main():
    global BINARIES  # pylint: disable=global-statement
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bin", required=True, type=pathlib.Path, help="folder with shardlens")
    parser.add_argument("--seeds", default="0:20", help="A:B, seeds A to B - 1 [0:20]")
    parser.add_argument("--only", choices=sorted(PROPERTIES), action="append", help="may be repeated")
    options = parser.parse_args()
    BINARIES = options.bin.resolve()
    first, last = map(int, options.seeds.split(":"))
    chosen = options.only or [name for name in PROPERTIES if name != "save" or (BINARIES / "shardlens-worker").exists()]
    broken = 0
    for name in chosen:
        held = 0
        for seed in range(first, last):
            with tempfile.TemporaryDirectory(prefix="shardlens-property-") as folder:
                try:
                    PROPERTIES[name](random.Random(f"{name} {seed}"), pathlib.Path(folder))
                    held += 1
                except Broken as what:
                    broken += 1
                    print(f"FAILED  {name}, seed {seed}: {what}", flush=True)
        print(f"{name}: holds for {held} of {last - first} seeds", flush=True)
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(main())
