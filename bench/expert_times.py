#!/usr/bin/env python3
"""Measures forward and backward of one layer's experts in fp32 on the CPU: Shardlens (grouped), the same library with a loop over the
experts, and transformers (eager, grouped_mm, batched_mm). All on the same machine, alternately; the median over rounds. batched_mm, a hundred times
as slow, is measured once.

    bench/expert_times.py [--rounds 5] [--repeats 5] [--threads 1] [--bin build/release/bin]

Needs Python with torch and transformers (requirements of the tests).
"""
import argparse
import json
import os
import pathlib
import statistics
import subprocess
import time

import ratios

ROOT = pathlib.Path(__file__).resolve().parent.parent
SHAPES = {  # rows, hidden, intermediate, experts, experts per row
    "8 experts, 2 a row": (512, 256, 896, 8, 2),
    "64 experts, 8 a row": (512, 256, 96, 64, 8),
}


def transformers_ms(shape, implementation, repeats):
    import torch
    from transformers import AutoConfig
    from transformers.models.mixtral.modeling_mixtral import MixtralExperts
    rows, hidden, intermediate, experts, per_row = shape
    config = AutoConfig.for_model("mixtral", hidden_size=hidden, intermediate_size=intermediate, num_local_experts=experts,
                                  num_experts_per_tok=per_row)
    config._experts_implementation = implementation
    torch.manual_seed(1)
    module = MixtralExperts(config)
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.normal_(std=0.02)
    x = torch.randn(rows, hidden, requires_grad=True)
    weights, chosen = torch.randn(rows, experts).softmax(-1).topk(per_row)
    weights = weights.detach().requires_grad_()
    grad = torch.randn(rows, hidden)
    out = []
    for index in range(repeats + 1):
        for each in (x, weights, *module.parameters()):
            each.grad = None
        start = time.perf_counter()
        module(x, chosen, weights).backward(grad)
        if index:
            out.append((time.perf_counter() - start) * 1e3)
    return out


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--bin", type=pathlib.Path, default=ROOT / "build/release/bin")
    args = parser.parse_args()
    for name in ("rounds", "repeats", "threads"):
        if getattr(args, name) < 1:
            parser.error(f"--{name}: expected at least 1")
    if not (args.bin / "expert_times").is_file():
        parser.error(f"--bin: {args.bin}/expert_times does not exist; `scripts/bench` builds it")
    os.environ["OMP_NUM_THREADS"] = str(args.threads)
    try:
        import torch
        import transformers  # noqa: F401
    except ImportError as error:
        parser.error(f"{error}: run it with build/test-python, which `scripts/test` makes")
    torch.set_num_threads(args.threads)
    for name, shape in SHAPES.items():
        found = {}
        for round_ in range(args.rounds):
            command = [args.bin / "expert_times", *map(str, (*shape, args.threads, args.repeats))]
            ours = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
            assert ours["largest_difference"] < 1e-4, ours
            runs = {"Shardlens, grouped": ours["grouped_ms"], "loop over the experts": ours["loop_ms"]}
            for implementation in ("eager", "grouped_mm"):
                runs[f"transformers, {implementation}"] = transformers_ms(shape, implementation, args.repeats)
            if round_ == 0:
                runs["transformers, batched_mm"] = transformers_ms(shape, "batched_mm", 1)
            for label, values in runs.items():
                found.setdefault(label, []).append(statistics.median(values))
        rows, hidden, intermediate, *_ = shape
        print(f"\n{name}: {rows} rows, hidden {hidden}, intermediate {intermediate}, {args.threads} threads, load {os.getloadavg()[0]:.1f}\n")
        print("| | forward and backward (ms) | rounds, min to max | grouped / this |\n|---|---|---|---|")
        grouped = statistics.median(found["Shardlens, grouped"])
        for label, values in found.items():
            middle = statistics.median(values)
            print(f"| {label} | {middle:.2f} | {min(values):.2f} to {max(values):.2f} | {grouped / middle:.2f} |")
        for label in list(found)[1:]:
            short = label.removeprefix("transformers, ").replace(" ", "-")
            ratios.report(f"experts/{shape[3]}/{short}", ratios.by_round(found["Shardlens, grouped"], found[label]))


if __name__ == "__main__":
    main()
