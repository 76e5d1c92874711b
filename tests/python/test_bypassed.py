"""A compiled wrapper that is called past FSDP's hooks is named, and the same program compiled in place is not."""
import json
import subprocess
import sys
from pathlib import Path

import pytest
from shardlens.program import ask

from test_plugin import pytest_of

WORDS = "FSDP's hooks did not run in 1 of 5 units: nothing is prefetched; compile in place, `module.compile()`, before fully_shard"


@pytest.fixture(scope="module")
def compiled(tmp_path_factory):
    out = tmp_path_factory.mktemp("compiled")
    done = subprocess.run([sys.executable, Path(__file__).with_name("compiled_training.py"), out], capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr[-3000:]
    return out


@pytest.mark.parametrize(("case", "named"), [("wrapper", True), ("in_place", False)])
def test_bypassed_hooks_are_named(compiled, case, named):
    run = json.loads((compiled / case / "run.json").read_text())
    messages = [d["message"] for d in ask(["analyze", compiled / case])["diagnostics"]]
    assert (WORDS in run["notes"]) == named
    assert (f"shardlens.record: {WORDS}" in messages) == named
    assert (WORDS in (compiled / f"{case}.warnings").read_text()) == named


@pytest.mark.parametrize(("case", "named"), [("wrapper", True), ("in_place", False)])
def test_a_failing_test_says_so(compiled, tmp_path, case, named):
    done, _ = pytest_of(tmp_path, "def test_run(shardlens_run):\n    assert False\n", "--shardlens-run", str(compiled / case))
    assert done.returncode == 1
    assert (WORDS in done.stdout) == named
