#!/usr/bin/env python3
"""Compares the time of simulating many plans with that of llm-analysis, a closed-form model, on the same plans.

    search_bench.py --bin build/release/bin [--plans 10000] [--processes 2] [--rounds 3]

search_bench (built with -DSHARDLENS_BENCH=ON) simulates every candidate of an 80-layer 70B model on 8 GPUs and writes the list;
llm-analysis 0.2.2 (PyPI, installed into a separate folder) then predicts the same list, with as many processes as search_bench has threads.
llm-analysis models batch, accumulation, ZeRO stage and checkpoints of a plan, but not units, prefetch, streams or the allocator.
"""
import argparse
import csv
import logging
import multiprocessing
import os
import pathlib
import re
import subprocess
import sys
import tempfile
import time

import ratios

PACKAGES = ["llm-analysis==0.2.2", "fire==0.5.0", "six==1.16.0", "termcolor==2.4.0"]
SEQ, RANKS = 4096, 8
ANALYSIS = None


def site():
    """The folder with llm-analysis; installs it if needed, without the older transformers that it requires."""
    cache = pathlib.Path(os.environ.get("XDG_CACHE_HOME", pathlib.Path.home() / ".cache")) / "shardlens" / "llm-analysis-0.2.2"
    if not (cache / "llm_analysis").exists():
        subprocess.run([sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target", str(cache), *PACKAGES], check=True)
    return str(cache)


def prepare(folder):
    global ANALYSIS
    sys.path.insert(0, folder)
    logging.disable(logging.CRITICAL)
    from llm_analysis import analysis, config
    model = config.ModelConfig(name="70b", num_layers=80, n_head=64, num_key_value_heads=8, hidden_dim=8192, ffn_embed_dim=28672,
                               expansion_ratio=3.5, vocab_size=128256, max_seq_len=131072)
    gpu = config.GPUConfig(name="H100", mem_per_GPU_in_GB=1 << 20, hbm_bandwidth_in_GB_per_sec=3350,
                           intra_node_bandwidth_in_GB_per_sec=344, intra_node_min_message_latency=8e-6, peak_fp16_TFLOPS=989.4)
    made = analysis.LLMAnalysis(model, gpu, config.DtypeConfig(), config.ParallelismConfig(dp_size=RANKS), flops_efficiency=0.7,
                                hbm_memory_efficiency=0.87)
    ANALYSIS = (analysis, made)


def predict(row):
    analysis, made = ANALYSIS
    zero = analysis.DSZeRO.NONE if row["shard"] == "1" else analysis.DSZeRO.STAGE_3 if row["reshard"] == "1" else analysis.DSZeRO.STAGE_2
    recompute = analysis.ActivationRecomputation.FULL if row["checkpoint"] == "1" else analysis.ActivationRecomputation.NONE
    result = made.training(batch_size_per_gpu=int(row["batch"]), gradient_accumulation_steps=int(row["accumulate"]), seq_len=SEQ,
                           activation_recomputation=recompute, ds_zero=zero, mlp_gated_linear_units=True)
    return result["latency_per_iter"]


def simulated(options):
    """Seconds of search_bench, and the plans that it simulated."""
    with tempfile.TemporaryDirectory() as directory:
        plans = os.path.join(directory, "plans.csv")
        ours = subprocess.run([str(options.bin / "search_bench"), "--plans", str(options.plans), "--threads", str(options.processes),
                               "--csv", plans], check=True, capture_output=True, text=True)
        print("simulated:    " + ours.stdout.strip(), flush=True)
        with open(plans, newline="") as file:
            return float(re.search(r"plans in ([\d.]+) s", ours.stdout)[1]), list(csv.DictReader(file))


def predicted(options, rows):
    """Seconds of llm-analysis for the same plans."""
    predict(rows[0])  # work that is only done once is not measured
    with multiprocessing.get_context("fork").Pool(options.processes) as pool:
        begin = time.monotonic()
        found = pool.map(predict, rows, chunksize=64)
        taken = time.monotonic() - begin
    print(f"llm-analysis: {len(found)} plans in {taken:.3f} s on {options.processes} processes: "
          f"{taken * 1e6 * options.processes / len(found):.1f} us of a core a plan", flush=True)
    return taken


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bin", type=pathlib.Path, required=True)
    parser.add_argument("--plans", type=int, default=10000)
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    if not (options.bin / "search_bench").is_file():
        parser.error(f"--bin {options.bin}: does not contain search_bench")
    folder = site()
    prepare(folder)
    ours, theirs = [], []
    for _ in range(options.rounds):
        seconds, rows = simulated(options)
        ours.append(seconds)
        theirs.append(predicted(options, rows))
    ratios.report("search/llm-analysis", ratios.by_round(ours, theirs))


if __name__ == "__main__":
    main()
