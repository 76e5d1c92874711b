"""installed.py ROOT COMMAND: uses an installed package `shardlens` with its command, as its tests do with nothing else on PATH or PYTHONPATH."""
import re
import subprocess
import sys
import tempfile
from pathlib import Path

import shardlens

root, command = Path(sys.argv[1]), sys.argv[2]


def run(*arguments):
    return subprocess.run(arguments, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)


def expect(what, condition, done):
    if not condition:
        sys.exit(f"FAILED: {what}: exit code {done.returncode}: {done.stdout}{done.stderr}")


assert root not in Path(shardlens.__file__).parents, f"{shardlens.__file__} is not an installed package"
version = re.search(r'^__version__ = "(.*)"', (root / "python/shardlens/__init__.py").read_text(), re.M)[1]
for way in ([sys.executable, "-m", "shardlens"], [sys.executable, command]):
    done = run(*way, "--version")
    expect(f"{way} --version", done.stdout == f"shardlens {version}\n", done)
done = run(sys.executable, "-m", "shardlens", "analyze", root / "tests/data/pytorch_traces/fsdp1-full")
expect("analyze", done.returncode == 0 and "communication hidden under compute" in done.stdout, done)
assert shardlens.open(root / "tests/data/recorded_run").units(), "no units"
with tempfile.TemporaryDirectory() as directory:
    done = run(sys.executable, "-m", "shardlens", "gui", directory)
    expect("gui without the app", done.returncode == 4 and "shardlens report" in done.stderr, done)
    engine = Path(shardlens.__file__).parent / "bin/shardlens-worker"
    if not engine.exists():
        done = run(sys.executable, "-m", "shardlens", "capture", "--model", root / "tests/data/llama-tiny", "--tokens", root / "tests/data/tokens.u16.bin",
                   "--out", f"{directory}/out")
        expect("capture without the engine", done.returncode == 4 and "scripts/wheel --engine" in done.stderr, done)
