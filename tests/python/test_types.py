"""The package and its examples have types that mypy accepts (--strict), and a program that uses them wrongly is refused."""
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
pytest.importorskip("mypy")


def mypy(tmp_path, *arguments):
    environment = {**os.environ, "MYPYPATH": str(ROOT / "python")}
    return subprocess.run([sys.executable, "-m", "mypy", f"--cache-dir={tmp_path}/cache", *arguments], cwd=ROOT, env=environment, capture_output=True, text=True, timeout=300)


def test_the_package_and_the_examples_are_strictly_typed(tmp_path):
    done = mypy(tmp_path)
    assert done.returncode == 0 and done.stdout.startswith("Success: no issues found in"), done.stdout


def test_a_wrong_use_of_rows_and_answers_is_found(tmp_path):
    (tmp_path / "program.py").write_text(
        "import shardlens\n"
        "run = shardlens.open('run')\n"
        "count: int = run.gathers('lm_head')\n"
        "step: int = shardlens.simulate('model', hardware='8xH100')['step_ns']\n"
        "for row in run.units():\n"
        "    print(row['exposed'])\n"
        "    print(row['cause'] == 'slow')\n"
        "print(run.analysis['ranks'][0]['units'][0]['all_gather_forward']['count'])\n"
        "print(shardlens.search('model')['best']['plan'])\n"
        "shardlens.record('run')\n")
    done = mypy(tmp_path, tmp_path / "program.py")
    found = [line.split("program.py:")[1].split(":")[0] + " " + line.rsplit("[", 1)[1] for line in done.stdout.splitlines() if ": error:" in line]
    assert found == ["6 typeddict-item]", "7 comparison-overlap]", "8 index]", "9 index]", "10 call-arg]"], done.stdout
