#!/usr/bin/env python3
"""Checks, on random inputs, properties that hold for any input.

    check_properties.py --bin DIR [--seeds A:B] [--only NAME]

sums       random traces of several ranks, streams and steps: compute, communication and their overlap are those of an interval calculation made here;
           the parts of a step sum to its length, and the exposed times of units to that of the rank
convert    analyze of a converted trace, as JSON and as gzip, and of one converted twice, is analyze of the trace
simulate   a simulated run is a run like any other: predicted from its own trace, its step takes as long as it did
bounds     random models and settings of a step: no time is negative, none is below what products need at the vendor's rate of their dtype, intervals are
           finite and contain the step, and memory does not shrink with the batch or the sequence (but for what the allocator rounds and
           leaves as gaps); settings that are refused, with a message, are drawn again
calibrate  simulated with a calibration from a simulated run, the run's own step takes as long as it did, within 10 %
save       random weights, saved under one strategy and loaded and saved under another, are the same bytes, in fp32, bf16 and fp16 (needs
           shardlens-worker)
Exit 1 if a property does not hold; the seed is printed.
"""
import argparse
import json
import pathlib
import random
import shutil
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
    alone = folder / traces[0].name  # without the plan of its run, with whose order it would be compared
    shutil.copyfile(traces[0], alone)
    before = figures_of(alone)
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


NODES = {"8xA100-40": 8, "8xA100-80": 8, "8xH100": 8, "8xH100-96": 8, "8xH200": 8, "4xH200": 4, "8xB200": 8, "8xB300": 8, "4xGB200": 4, "4xGB300": 4, "8xL40S": 8, "8xRTXPRO6000": 8,
         "4xPCIe": 4}
BITS = ("fp8_tensorwise", "fp8_rowwise", "mxfp8", "nvfp4")


def random_model(chance):
    """(config.json, numbers in the linear layers of all blocks that a token passes, numbers in the head). Of frozen layers, whose weights have no
    gradients, two thirds of the numbers count."""
    heads = chance.choice((4, 8, 16, 32))
    hidden, layers, vocabulary = heads * chance.choice((64, 128)), chance.randint(1, 24), chance.choice((1000, 32000, 50304, 128256))
    if chance.random() < 0.3:
        config = {"model_type": "gpt2", "n_embd": hidden, "n_layer": layers, "n_head": heads, "n_positions": 65536, "vocab_size": vocabulary,
                  "resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0}
        return config, layers * 12 * hidden ** 2, hidden * vocabulary
    inner, shared = 128 * chance.randint(hidden // 64, hidden // 32), chance.choice((1, 2, 4))
    config = {"model_type": chance.choice(("llama", "qwen3")), "hidden_size": hidden, "intermediate_size": inner, "num_hidden_layers": layers, "num_attention_heads": heads,
              "num_key_value_heads": heads // shared, "head_dim": hidden // heads, "vocab_size": vocabulary, "max_position_embeddings": 65536,
              "tie_word_embeddings": chance.random() < 0.5}
    attention, kind = layers * (2 * hidden ** 2 + 2 * hidden ** 2 // shared), chance.random()
    if kind < 0.2:
        inner, chosen = 128 * chance.randint(1, 16), chance.choice((1, 2, 4))
        config |= {"model_type": "gpt_oss", "intermediate_size": inner, "num_local_experts": chance.choice((8, 32)), "num_experts_per_tok": chosen, "sliding_window": 128}
        return config, attention + layers * chosen * 3 * hidden * inner, hidden * vocabulary
    if kind < 0.35:  # all but the first block's input has a gradient, too
        config["lora"] = {"r": chance.choice((8, 16)), "target_modules": ["q_proj", "v_proj", "down_proj"]}
        return config, 2 * (layers - 1) / layers * (attention + layers * 3 * hidden * inner) / 3, 2 * hidden * vocabulary / 3
    return config, attention + layers * 3 * hidden * inner, hidden * vocabulary


def gpu_of(node):
    return json.loads((ROOT / f"sim/hardware/specs/{node}.json").read_text(encoding="utf-8"))["gpu"]


def rate_of(node, dtype):
    """The vendor's rate of dense products, TFLOP/s; 0: there is none."""
    key = {"fp32": "fp32_tflops", "bf16": "half_tflops", "fp16": "half_tflops", "nvfp4": "nvfp4_tflops", "mxfp8": "mxfp8_tflops"}.get(dtype, "fp8_tflops")
    return gpu_of(node).get(key, {"value": 0})["value"]


def random_step(chance, family):
    """(flags of simulate without batch and sequence, node, dtype of products in blocks, dtype of the others)."""
    node = chance.choice(sorted(NODES))
    nvlink, watts = not {"8xL40S", "8xRTXPRO6000", "4xPCIe", "8xA100-40", "8xA100-80"} & {node}, gpu_of(node)["power_watts"]["value"]
    programs = ("torchtitan", "torchtitan-2024", "torchtitan-2025", "torchtitan-0.3", "simple-fsdp", "graph-trainer")
    stack = chance.choice(("bare", "transformers", "transformers-flash-2", None, *(() if family == "gpt2" else programs)))
    precision = chance.choice(("fp32", "bf16", "bf16", "bf16", "fp16"))
    blocks = chance.choice([None, None, *(dtype for dtype in BITS if rate_of(node, dtype) and precision != "fp32")])
    flags = ["--hardware", node, "--precision", precision, "--strategy", chance.choice((*STRATEGIES, "no_shard", "hybrid_shard")), "--world-size", chance.choice((2, 4, NODES[node])),
             "--compile", chance.choice(("none", "block", "model"))]
    for value, flag in ((stack, "--stack"), (chance.choice((None, None, *(("symmetric", "copy_engine") if nvlink else ()))), "--transport"),
                        (chance.choice((None, None, f"{0.3 * watts:.0f}:{watts}", f"{0.6 * watts:.0f}")), "--power-limit"), (chance.choice((None, 4)), "--loss-chunks"),
                        (chance.choice((None, 3)), "--accumulate"), (blocks, "--matmul-dtype"), (chance.choice((None, 1)) if blocks else None, "--matmul-tail"),
                        (chance.choice((None, 30)), "--operator-us")):
        flags += [flag, value] if value is not None else []
    flags += ["--cuda-graphs"] if chance.random() < 0.2 else []
    return flags, node, blocks or precision, precision


def numbers_below(node, path=""):
    """(path, number) of everything in the JSON."""
    if isinstance(node, dict):
        for key, value in node.items():
            yield from numbers_below(value, f"{path}/{key}")
    elif isinstance(node, list):
        for i, value in enumerate(node):
            yield from numbers_below(value, f"{path}/{i}")
    elif isinstance(node, (int, float)) and not isinstance(node, bool):
        yield path, node


def predicted(flags):
    """The figures, or None if the setting is refused as it should be."""
    done = subprocess.run([BINARIES / "shardlens", "simulate", *map(str, flags), "--json"], stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
    expect(done.returncode in (0, 2, 3), f"{flags}: exit {done.returncode}: {done.stderr[-600:]}")
    expect(done.returncode == 0 or (done.stderr.startswith("shardlens: ") and len(done.stderr) < 1500), f"{flags}: no message: {done.stderr[:600]}")
    return json.loads(done.stdout) if done.returncode == 0 else None


def bounds(chance, folder):
    one = None
    while one is None:
        config, in_blocks, in_head = random_model(chance)
        (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
        step, node, blocks, others = random_step(chance, config["model_type"])
        flags = ["--model", folder / "config.json", *step]
        batch, seq = chance.choice((1, 2, 4)), chance.choice((64, 256, 1024, 4096))
        one = predicted([*flags, "--batch", batch, "--seq", seq])
    for path, number in numbers_below(one):
        expect(-1e30 < number < 1e30, f"{flags}: {path} is {number}")
        expect(number >= 0 or not path.split("/")[-1].endswith(("_ns", "_bytes", "_per_s")), f"{flags}: {path} is {number}")
    low, high = one["interval_ns"]
    expect(0 < low <= one["step_ns"] <= high, f"{flags}: the interval {low} to {high} ns of a step of {one['step_ns']}")
    tokens = batch * seq * (flags[flags.index("--accumulate") + 1] if "--accumulate" in flags else 1)
    least = 6e-3 * tokens * (in_blocks / max(rate_of(node, blocks), rate_of(node, others)) + in_head / rate_of(node, others))
    expect(one["step_ns"] >= least, f"{flags}: a step of {one['step_ns']} ns, products need {least:.0f} at the vendor's rate")
    for more in ((2 * batch, seq), (batch, 2 * seq)):
        two = predicted([*flags, "--batch", more[0], "--seq", more[1]])
        expect(two is not None, f"{flags}: batch {more[0]}, {more[1]} tokens is refused, {batch} and {seq} are not")
        # Blocks are rounded and not always split, and segments have gaps, so that these need not grow.
        for memory, gaps in (("peak_requested_bytes", 0), ("peak_allocated_bytes", 0.01), ("peak_reserved_bytes", 0.1)):
            rounded = gaps and 24 * 2 ** 20 + gaps * one[memory]
            expect(two[memory] >= one[memory] - rounded, f"{flags}: {memory} is {one[memory]} with batch {batch} and {seq} tokens, {two[memory]} with {more[0]} and {more[1]}")


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


PROPERTIES = {"sums": sums, "convert": convert, "simulate": simulate, "bounds": bounds, "calibrate": calibrate, "save": save}


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
