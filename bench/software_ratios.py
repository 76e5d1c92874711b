#!/usr/bin/env python3
"""What compile, float8 and CUDA graphs gain: published runs compared with `simulate`.

    bench/software_ratios.py [--bin build/release/bin]

Each group is one model, machine and batch; a row's gain is its throughput over that of the group's first row. Nothing is fitted here.
"""
import argparse
import json
import pathlib
import subprocess
import tempfile

ROOT = pathlib.Path(__file__).resolve().parent.parent
LLAMA_8B = {"model_type": "llama", "hidden_size": 4096, "intermediate_size": 14336, "num_hidden_layers": 32, "num_attention_heads": 32, "num_key_value_heads": 8,
            "vocab_size": 128256, "max_position_embeddings": 131072, "tie_word_embeddings": False}
SELECTIVE = ["attention", "every_second_product"]
COMPILE = ["--compile", "block"]


def tensorwise(rest):
    return [*COMPILE, "--matmul-dtype", rest]


# Tokens per second and GPU.
GROUPS = [
    {"source": "torchtitan benchmarks/llama3_h100_202412_torchtitan.md, table 1", "model": LLAMA_8B, "hardware": "8xH100-96", "batch": 2, "seq": 8192, "checkpoint": SELECTIVE,
     "rows": [("eager", [], 5762), ("compile", COMPILE, 6667), ("compile, float8", tensorwise("fp8_tensorwise"), 8532)]},
    {"source": "torchtitan components/quantization/mxfp8.md, B200 with limited power", "model": LLAMA_8B, "hardware": "8xB200", "batch": 1, "seq": 8192, "checkpoint": SELECTIVE,
     "rows": [("compile", COMPILE, 8307.5), ("compile, mxfp8", tensorwise("mxfp8"), 9969), ("compile, float8", tensorwise("fp8_tensorwise"), 10417)]},
]


def simulated(binary, group, flags, stack, folder):
    model, plan = folder / "config.json", folder / "plan.json"
    model.write_text(json.dumps(group["model"]))
    blocks = [f"model.layers.{i}" for i in range(group["model"]["num_hidden_layers"])]
    document = {"version": 1, "dialect": "fsdp2", "layout": "per_parameter", "mixed_precision": {"param_dtype": "bf16", "reduce_dtype": "fp32"},
                "units": [{"modules": block} for block in [*blocks, ""]], "activation_checkpointing": blocks, "checkpointing_saves": group["checkpoint"]}
    plan.write_text(json.dumps(document))
    command = [binary / "shardlens", "simulate", "--model", model, "--plan", plan, "--hardware", group["hardware"], "--batch", str(group["batch"]), "--seq", str(group["seq"]),
               "--json", *(["--stack", stack] if stack else []), *flags]
    done = subprocess.run([str(part) for part in command], capture_output=True, text=True)
    if done.returncode != 0:
        raise SystemExit(done.stderr)
    return json.loads(done.stdout)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--bin", type=pathlib.Path, default=ROOT / "build/release/bin")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        for group in GROUPS:
            print(f"\n{group['source']}; {group['hardware']}, batch {group['batch']} of {group['seq']}")
            print("| software | published | gain | default stack: predicted | gain | reserved | torchtitan's operators, bare: gain |")
            print("|---|---:|---:|---:|---:|---:|---:|")
            first = {}
            for software, flags, published in group["rows"]:
                cells = []
                for stack in ("", "torchtitan"):
                    result = simulated(arguments.bin, group, flags, stack, pathlib.Path(name))
                    tokens = result["tokens_per_s"] / 8
                    gain = tokens / first.setdefault(stack, tokens) - 1
                    cells += [f"{tokens:.0f}", f"{100 * gain:+.1f} %", f"{result['peak_reserved_bytes'] / 2**30:.1f} GiB"] if not stack else [f"{100 * gain:+.1f} %"]
                base = first.setdefault("published", published)
                print(f"| {software} | {published:.0f} | {100 * (published / base - 1):+.1f} % | {' | '.join(cells)} |")


if __name__ == "__main__":
    main()
