"""Paths and recordings that several tests use. tests/python/run sets PYTHONPATH and SHARDLENS_PROGRAM."""
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).resolve().parent
TRACES = HERE.parent / "data" / "pytorch_traces"


@pytest.fixture(scope="session")
def traces():
    return TRACES


@pytest.fixture(scope="session")
def recorded(tmp_path_factory):
    """The run directories of recorded_training.py."""
    out = tmp_path_factory.mktemp("recorded")
    done = subprocess.run([sys.executable, HERE / "recorded_training.py", out], capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr[-3000:]
    return out
