"""shardlens.open(paths, on=…): 64 generated ranks, summarized where they lie, equal one process that reads all traces.

Ray and Dask are tried where they are installed; CI has Dask (tests/requirements.txt).
"""
import gzip
import json
import os
import subprocess
import sys
import tempfile
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from pathlib import Path

import pytest

import shardlens
from shardlens import program

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tools"))
import generate_ranks  # noqa: E402

RANKS = 64


@pytest.fixture(scope="module")
def many(tmp_path_factory):
    """A directory of 64 ranks' traces, and their clocks."""
    directory = tmp_path_factory.mktemp("many")
    return directory, generate_ranks.generate(RANKS, directory, layers=2, steps=2, operators=16)


@pytest.fixture(scope="module")
def whole(many):
    """What one process finds in all traces, as text."""
    return program.run(["analyze", many[0], "--json"]).stdout


def merged(run):
    return program.run([*run._command, "--json"]).stdout


def package_for_workers(monkeypatch):
    """Workers in other processes need the package on their path, as an installed one is."""
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(Path(shardlens.__file__).resolve().parent.parent), os.environ.get("PYTHONPATH", "")]))


def test_an_executor_of_threads_gives_the_figures_of_one_process(many, whole, tmp_path):
    with ThreadPoolExecutor(2) as pool:
        run = shardlens.open(many[0], on=pool, summaries=tmp_path / "summaries")
    assert merged(run) == whole
    offsets = [clock["offset_ns"] for clock in run.analysis["clocks"]]
    assert max(abs(found - true) for found, true in zip(offsets, many[1])) < 2_000  # ends scatter by 2 us
    assert len(run.steps()) == 2 * RANKS
    assert {row["unit"] for row in run.collectives()} >= {"model.layers.0", "model.layers.1"}
    summaries = sum(file.stat().st_size for file in (tmp_path / "summaries").iterdir())
    traces = sum(len(gzip.decompress(file.read_bytes())) for file in many[0].iterdir())
    assert summaries <= 0.02 * traces
    again = shardlens.open(tmp_path / "summaries")
    assert again.steps() == run.steps()
    with pytest.raises(shardlens.ShardlensError, match="check needs the traces"):
        again.check(against=many[0])
    assert "rank 63:" in again.summary()


def test_the_text_of_merge_is_that_of_analyze(many, tmp_path):
    written = program.ask(["analyze", "--summarize", "--out", tmp_path, many[0]])["summaries"]
    assert [row["rank"] for row in sorted(written, key=lambda row: row["rank"])] == list(range(RANKS))
    for flags in ([], ["--by", "rank"], ["--by", "step", "--csv"], ["--by", "span", "--csv"], ["--by", "order", "--top", "5"]):
        assert program.run(["merge", tmp_path, *flags]).stdout == program.run(["analyze", many[0], *flags]).stdout, flags
    with pytest.raises(shardlens.ShardlensError, match="--critical-path: not in summaries"):
        program.run(["merge", tmp_path, "--critical-path"])


def test_remote_paths_are_read_by_fsspec(many, whole):
    fsspec = pytest.importorskip("fsspec")
    memory = fsspec.filesystem("memory")
    for file in many[0].iterdir():
        memory.pipe_file(f"/many/{file.name}", file.read_bytes())
    with ThreadPoolExecutor(2) as pool:
        run = shardlens.open("memory://many", on=pool)
    assert merged(run) == whole
    assert json.loads(merged(shardlens.open("memory://many/rank1[01].pt.trace.json.gz")))["ranks"][1]["rank"] == 11
    with pytest.raises(shardlens.ShardlensError, match="memory://many/none.json.gz: no such file"):
        shardlens.open("memory://many/none.json.gz")
    with pytest.raises(shardlens.ShardlensError, match="advise needs the traces as local files"):
        run.advise()


def test_a_recorded_run_brings_its_plan_and_actions_along(traces):
    directory = traces.parent / "recorded_run"
    names = sorted(directory.glob("rank*.pt.trace.json.zst"))
    with ThreadPoolExecutor(1) as pool:
        run = shardlens.open(names, on=pool)
    assert merged(run) == program.run(["analyze", directory, "--json"]).stdout
    assert run.analysis["ranks"][0]["order"]["planned_vs_issued"]["compared"] > 0


def test_faults_are_those_of_the_first_trace(many, tmp_path):
    broken = tmp_path / "rank0.json"
    broken.write_text('{"traceEvents": [')
    with ThreadPoolExecutor(1) as pool:
        with pytest.raises(shardlens.ShardlensError, match="rank0.json") as error:
            shardlens.open(broken, on=pool)
        assert error.value.exit_code == 3
        with pytest.raises(shardlens.ShardlensError, match="a second summary|like that of"):
            shardlens.open([many[0] / "rank1.pt.trace.json.gz"] * 2, on=pool)
    with pytest.raises(TypeError, match="a Dask client or an executor, found int"):
        shardlens.open(many[0], on=3)
    with pytest.raises(ValueError, match='found "?.spark'):
        shardlens.open(many[0], on="spark")


def test_a_worker_that_ends_is_named_with_its_trace(many):
    with ProcessPoolExecutor(1, initializer=os._exit, initargs=(1,)) as pool, pytest.raises(shardlens.ShardlensError, match="rank0.*because a worker failed: Broken") as error:
        shardlens.open(many[0], on=pool)
    assert error.value.exit_code == 4


def test_dask_without_a_client_says_what_to_do(many):
    pytest.importorskip("distributed")
    with pytest.raises(shardlens.ShardlensError, match=r"make a client first, distributed.Client"):
        shardlens.open(many[0], on="dask")


def test_a_missing_package_is_named(many):
    """Without site-packages there is neither ray nor fsspec."""
    code = ("import shardlens\n"
            "for path, on in ((%r, 'ray'), (%r, 'dask'), ('s3://bucket/rank0.json', None)):\n"
            "    try:\n        shardlens.open(path, on=on)\n"
            "    except shardlens.ShardlensError as error:\n        print(error.exit_code, error)\n") % (str(many[0]), str(many[0]))
    path = str(Path(shardlens.__file__).resolve().parent.parent)
    done = subprocess.run([getattr(sys, "_base_executable", sys.executable), "-I", "-S", "-c", f"import sys; sys.path.insert(0, {path!r})\n{code}"],
                          capture_output=True, text=True, check=True)
    lines = done.stdout.splitlines()
    assert lines[0].startswith('2 on="ray" needs the package ray, which is not installed')
    assert lines[1].startswith('2 on="dask" needs the package distributed')
    assert lines[2].startswith("2 s3://bucket/rank0.json needs the package fsspec")


def test_a_dask_cluster_gives_the_figures_of_one_process(many, whole, monkeypatch):
    distributed = pytest.importorskip("distributed")
    package_for_workers(monkeypatch)
    with distributed.LocalCluster(n_workers=2, threads_per_worker=1, dashboard_address=None) as cluster, distributed.Client(cluster) as client:
        run = shardlens.open(many[0], on=client)
        assert merged(shardlens.open([many[0] / "rank3.pt.trace.json.gz", many[0] / "rank4.pt.trace.json.gz"], on="dask"))
    assert merged(run) == whole


def test_a_ray_cluster_gives_the_figures_of_one_process(many, whole, monkeypatch, tmp_path):
    monkeypatch.setenv("RAY_AUTH_MODE", "disabled")
    ray = pytest.importorskip("ray")
    package_for_workers(monkeypatch)
    with pytest.raises(shardlens.ShardlensError, match="call ray.init"):
        shardlens.open(many[0], on="ray")
    folder = tempfile.TemporaryDirectory(prefix="ray-", dir="/tmp")  # the paths of its sockets are limited to 107 bytes
    ray.init(num_cpus=2, include_dashboard=False, _temp_dir=folder.name)
    try:
        assert merged(shardlens.open(many[0], on=ray)) == whole
        with pytest.raises(shardlens.ShardlensError, match="no such file"):
            shardlens.open(tmp_path / "rank0.json", on="ray")
    finally:
        ray.shutdown()
        folder.cleanup()
