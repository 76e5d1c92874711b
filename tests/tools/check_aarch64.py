#!/usr/bin/env python3
"""Compares what the program of an ARM64 wheel prints with what this machine's program prints.

    check_aarch64.py WHEEL --sysroot DIR --program build/release/bin/shardlens

WHEEL is one of scripts/wheel --aarch64, and DIR the folder of libraries for ARM64 that it says it extracted: the C library and the loader come
from there. The program runs under qemu-aarch64-static. Each command must end with the same exit code and print the same bytes. Exit code 1 if one
does not.
"""
import argparse
import os
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def commands(run, model):
    """The commands that are compared: reading, analysis, simulation, search, and messages."""
    return {
        "version": ["--version"],
        "analyze": ["analyze", run, "--json"],
        "table": ["analyze", run, "--by", "unit"],
        "compare": ["compare", run, run, "--json"],
        "check": ["check", "--baseline", run, "--candidate", run, "--json"],
        "what-if": ["simulate", "--workload", run, "--json"],
        "advise": ["advise", run, "--json"],
        "plan": ["plan", "--model", model, "--world-size", "8", "--json"],
        "simulate": ["simulate", "--model", model, "--hardware", "8xH100", "--precision", "bf16", "--seq", "64", "--json"],
        "search": ["search", "--model", model, "--hardware", "8xH100", "--precisions", "bf16", "--seq", "64", "--memory-limit", "70GiB", "--json"],
        "schema": ["schema", "analyze"],
        "wrong flag": ["analyze", run, "--bye", "unit"],
        "no run": ["analyze", "/does/not/exist"],
    }


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("wheel", type=Path)
    parser.add_argument("--sysroot", type=Path, required=True)
    parser.add_argument("--program", type=Path, default=ROOT / "build/release/bin/shardlens")
    parser.add_argument("--run", type=Path, default=ROOT / "traces/llama-emulated8", help="a recorded or captured run")
    parser.add_argument("--model", type=Path, default=ROOT / "tests/data/llama-tiny", help="a folder with a config.json")
    options = parser.parse_args()
    different = []
    with tempfile.TemporaryDirectory() as directory:
        with zipfile.ZipFile(options.wheel) as wheel:
            wheel.extractall(directory)
        program = Path(directory) / "shardlens/bin/shardlens"
        program.chmod(0o755)
        other = ["qemu-aarch64-static", "-L", options.sysroot, program]
        for name, arguments in commands(options.run.resolve(), options.model.resolve()).items():
            arguments = [str(argument) for argument in arguments]
            ours, theirs = (subprocess.run([*map(str, command), *arguments], capture_output=True, check=False, cwd=directory, timeout=600,
                                           env={"PATH": os.environ["PATH"], "HOME": directory}) for command in ([options.program.resolve()], other))
            same = (ours.returncode, ours.stdout, ours.stderr) == (theirs.returncode, theirs.stdout, theirs.stderr)
            print(f"{name:12} exit code {theirs.returncode}, {len(theirs.stdout) + len(theirs.stderr):8} bytes  {'same' if same else 'DIFFERENT'}", flush=True)
            if not same:
                different.append(name)
                for kind, a, b in (("stdout", ours.stdout, theirs.stdout), ("stderr", ours.stderr, theirs.stderr)):
                    lines = [(x, y) for x, y in zip(a.decode().splitlines(), b.decode().splitlines()) if x != y]
                    for x, y in lines[:3]:
                        print(f"  {kind} here:  {x[:200]}\n  {kind} there: {y[:200]}")
    sys.exit(1 if different else 0)


if __name__ == "__main__":
    main()
