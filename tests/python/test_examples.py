"""examples/python: a Llama of transformers recorded under torchrun, the notebook's cells on that run, and the gate."""
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).resolve().parents[2] / "examples" / "python"


@pytest.fixture(scope="module")
def llama(tmp_path_factory):
    pytest.importorskip("transformers")
    run = tmp_path_factory.mktemp("examples") / "llama"
    done = subprocess.run(
        [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", EXAMPLES / "record_llama.py", run],
        capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr[-2000:]
    return run


def test_the_gate_passes_on_the_recorded_llama(llama):
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "shardlens.pytest_plugin", f"--shardlens-run={llama}",
         f"--shardlens-baseline={llama}", EXAMPLES / "test_overlap.py"], cwd=llama.parent, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0 and "7 passed" in done.stdout, done.stdout


def test_the_notebook_runs(llama):
    """Its cells, in order, in one Python. It is committed without outputs."""
    pytest.importorskip("pandas")
    notebook = json.loads((EXAMPLES / "look_at_run.ipynb").read_text())
    cells = [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]
    assert all(cell["outputs"] == [] and cell["execution_count"] is None for cell in cells)
    shown = []
    for cell in cells:  # what a notebook shows is the value of a cell's last line
        *lines, last = "".join(cell["source"]).splitlines()
        shown.append("\n".join([*lines, f"print({last})"]))
    done = subprocess.run([sys.executable, "-c", "\n".join(shown)], env={**os.environ, "SHARDLENS_RUN": str(llama)}, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    # Which units are exposed most, and why, differs between runs.
    assert str(llama) in done.stdout and re.search(r"model\.layers\.\d|lm_head", done.stdout), done.stdout
    assert re.search(r"host_waited|host_late|held_by|waited_for|behind|limited_by|needed_at_once|unknown", done.stdout), done.stdout
    assert re.search(r"^error [+-]\d+\.\d%, change [+-]\d+\.\d%$", done.stdout, re.M), done.stdout
