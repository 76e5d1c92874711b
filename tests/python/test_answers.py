"""Answers for assistants (shardlens.answers), and the server that gives them, over stdio with the client of the package `mcp`."""
import asyncio
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from shardlens import answers
from shardlens.program import ShardlensError, ask

MODEL = str(Path(__file__).resolve().parent.parent / "data" / "llama-tiny")


def test_an_answer_has_the_programs_figures_and_its_evidence(traces):
    text = answers.analyze(str(traces / "fsdp2-default"))
    analysis = ask(["analyze", traces / "fsdp2-default"])
    for rank in analysis["ranks"]:
        assert f"rank {rank['rank']}: 2 steps, {rank['span_ns'] / 1e6:.3f} ms" in text
        assert f"exposed communication {rank['exposed_comm_ns'] / 1e6:.3f}" in text
    assert text.splitlines()[-1] == f"evidence: shardlens analyze {traces / 'fsdp2-default'} --by span --csv"
    assert "cause host_waited (on the CPU the host computes, and it waited for this): " in text and "None" not in text


def test_a_unit_is_explained_by_its_own_collectives(traces):
    text = answers.explain(str(traces / "fsdp2-default"), "model.layers.0")
    (unit,) = [u for u in ask(["analyze", traces / "fsdp2-default"])["ranks"][0]["units"] if u["fqn"] == "model.layers.0"]
    part = unit["all_gather_forward"]
    assert f"all_gather_forward: {part['count']} times, {part['bytes']} bytes" in text
    assert f"exposed {part['exposed_ns'] / 1e6:.3f} ms, cause {part['cause']}" in text
    assert "model.layers.1" not in text
    with pytest.raises(ValueError, match="'model.layers.1'"):
        answers.explain(str(traces / "fsdp2-default"), "nothing")


def test_waste_is_named_with_its_unit(traces):
    """A head that is called twice in a forward is gathered twice."""
    run = str(traces / "fsdp2-head-twice")
    for text in (answers.analyze(run), answers.explain(run, "lm.lm_head")):
        assert "waste, rank 0: gathered_again of lm.lm_head, 4 times, 2.915 ms lost" in text
    assert "waste" not in answers.explain(run, "(root)")


def test_advice_is_the_programs_with_its_intervals(traces):
    path = traces / "fsdp2-accumulate"
    text, answer = answers.advise(str(path), {"top": 1}), ask(["advise", path, "--top", 1])
    (change,) = answer["changes"]
    low, high = change["interval_ns"]
    assert f"1. {change['title']}: {change['step_ns'] / 1e6:.3f} ms a step, {change['change_ns'] / 1e6:+.3f} ms (90 %: {low / 1e6:+.3f} to {high / 1e6:+.3f})" in text
    assert all(f"     {line}" in text.splitlines() for line in change["lines"]) and change["lines"] == change["pytorch"]
    assert "uncertain" not in text and len(text.encode()) <= 2000
    assert text.splitlines()[-1] == f"evidence: shardlens advise {path} --top 1"


def test_advice_that_is_uncertain_or_empty_says_so(monkeypatch):
    """By hand: a gain of 2 ms with an error of 3 ms; and nothing that fits."""
    base = {"measured_step_ns": 100_000_000, "simulated_step_ns": 103_000_000, "error": 0.03, "peak_allocated_bytes": 1, "fits": True}
    change = {"title": "a change", "step_ns": 101_000_000, "change_ns": -2_000_000, "interval_ns": [-2_500_000, -1_500_000], "verdict": "probably pays", "odds": 97, "peak_allocated_bytes": 7,
              "fits": True, "lines": ["do()"], "hides": [{"unit": "", "collective": "reduce_scatter", "ns": 1_250_000}]}
    waste = {"kind": "gathered_again", "unit": "", "ns": 500_000, "evidence": "2 of 3 steps"}
    given = {"baseline": base, "changes": [change], "others": [], "unknown": [], "waste": [waste]}
    monkeypatch.setattr("shardlens.run.advise", lambda path, **settings: given)
    lines = answers.advise("r").splitlines()
    assert lines[:3] == ["the run's own plan: 100.000 ms measured, 103.000 ms simulated, error +3.0 %", "uncertain: this error is larger than the gains below",
                         "1. a change: 101.000 ms a step, -2.000 ms (90 %: -2.500 to -1.500), probably pays, odds 97 in 100, peak 7 bytes allocated"]
    assert "   exposes less: reduce_scatter of (root) 1.250 ms" in lines
    assert "waste: gathered_again of (root), 0.500 ms a step lost: 2 of 3 steps" in lines
    given.update(changes=[], baseline=base | {"fits": False})
    assert answers.advise("r").splitlines()[1] == "no change fits"


def test_a_search_has_the_programs_plans_and_the_best_ones_contents():
    answer = answers.search(MODEL, "2GiB", {"hardware": "8xH100", "world_size": 4})
    found = ask(["search", "--model", MODEL, "--hardware", "8xH100", "--world-size", "4", "--memory-limit", "2GiB"])
    assert f"best: {found['best']['name']}" in answer and found["best"]["why"] in answer
    assert f"{found['pareto'][0]['step_ns'] / 1e6:.3f} ms a step" in answer
    assert f'plan: "mesh": {json.dumps(found["best"]["plan"]["mesh"])}' in answer
    assert answer.splitlines()[-1] == f"evidence: shardlens search --model {MODEL} --hardware 8xH100 --world-size 4 --memory-limit 2GiB"
    assert "no plan fits into 1KiB" in answers.search(MODEL, "1KiB", {"hardware": "8xH100"})
    for settings in ({"out": "plan.json"}, {"state": "x"}, {"memory_limit": "1GiB"}):
        with pytest.raises(ValueError, match="is not accepted here"):
            answers.search(MODEL, "2GiB", settings)


def test_answers_are_small_however_long_the_names_are():
    lines = [f"line {i} of unit {'layers.é' * 60}" for i in range(50)]
    text = answers.fitted(lines, [["analyze", "run " + "/deep" * 900], ["compare", "a", "b"]])
    assert len(text.encode()) <= 2000
    shown = sum(line.startswith("line ") for line in text.splitlines())
    assert f"({50 - shown} more lines left out)" in text and shown > 2
    assert text.splitlines()[-1] == "evidence: shardlens compare a b"


def test_a_clients_settings_and_paths_are_no_other_flags(traces, tmp_path, monkeypatch):
    """Whatever a client sends, the program is not asked to write or to run anything."""
    run, plan = str(traces / "fsdp2-default"), {"version": 1, "units": [{"modules": ""}]}
    monkeypatch.chdir(tmp_path)
    for settings in ({"out": "o"}, {"out=o --top": 1}, {"no_sync": "--out=o"}, {"strategy": "--out=o"}, {"batch": ["1", "--out", "o"]}, {"plan": "p"},
                     {"calibration": "c"}):
        with pytest.raises(ValueError, match="settings: "):
            answers.simulate(run, plan, settings)
    for settings in ({"out": "o"}, {"measure": 1}, {"top": "--out=o"}):
        with pytest.raises(ValueError, match="settings: "):
            answers.advise(run, settings)
    for path in ("--out=o", "-o", "--measure=1"):
        for question in (answers.analyze, answers.advise, lambda path: answers.compare(run, path), lambda path: answers.simulate(path, None, {"hardware": "8xH100"})):
            with pytest.raises(ShardlensError, match=path):
                question(path)
    with pytest.raises(ValueError, match="expected a path of this machine"):
        answers.analyze("https://example.invalid/run")
    assert not list(tmp_path.iterdir())


def calls(*questions, flags=()):
    """The results of tools, asked of a server in a process of its own; and the names of its tools."""
    from mcp import Client, StdioServerParameters, stdio_client

    async def ask_all():
        parameters = StdioServerParameters(command=sys.executable, args=["-m", "shardlens.mcp", *flags], env=dict(os.environ))
        async with Client(stdio_client(parameters)) as client:
            tools = (await client.list_tools()).tools
            return tools, [await client.call_tool(name, arguments) for name, arguments in questions]

    return asyncio.run(asyncio.wait_for(ask_all(), 300))


def test_assistants_ask_over_stdio(traces):
    pytest.importorskip("mcp")
    default, before, after = (str(traces / name) for name in ("fsdp2-default", "fsdp2-no-reshard", "fsdp2-reshard"))
    plan = {"version": 1, "layout": "per_parameter", "reshard_after_forward": False, "units": [{"modules": "model.layers.*"}, {"modules": ""}]}
    tools, results = calls(
        ("analyze", {"path": default}), ("explain_unit", {"path": default, "unit": "model.layers.0", "rank": 1}), ("compare", {"before": before, "after": after}),
        ("simulate", {"path": default, "plan": plan}), ("simulate", {"path": default, "settings": {"strategy": "shard_grad_op"}}),
        ("advise", {"path": default, "settings": {"top": 1}}), ("search", {"path": MODEL, "memory_limit": "2GiB", "settings": {"hardware": "8xH100"}}),
        ("analyze", {"path": default + "/none"}), ("explain_unit", {"path": default, "unit": "nothing"}))
    assert {tool.name for tool in tools} == {"analyze", "explain_unit", "compare", "simulate", "advise", "search"}
    assert all(tool.description and tool.annotations.read_only_hint and not tool.annotations.open_world_hint for tool in tools)
    texts = []
    for result in results:
        (content,) = result.content
        assert len(content.text.encode()) <= 2000
        texts.append(content.text)
    assert [result.is_error for result in results] == [False] * 7 + [True] * 2
    assert texts[0] == answers.analyze(default)
    assert texts[1] == answers.explain(default, "model.layers.0", 1)
    assert "1 × all_gather_backward after" in texts[2]
    step = ask(["simulate", "--workload", default, "--strategy", "shard_grad_op"])["step_ns"]
    assert f"this plan: {step / 1e6:.3f} ms a step" in texts[4]
    assert "error +" in texts[3] and "this plan: " in texts[3] and json.dumps(plan) not in texts[3]
    assert texts[5] == answers.advise(default, {"top": 1})
    assert texts[6] == answers.search(MODEL, "2GiB", {"hardware": "8xH100"})
    assert "no such file or directory" in texts[7] and "'model.layers.1'" in texts[8]


def test_a_server_measures_only_if_it_was_started_for_it(traces):
    pytest.importorskip("mcp")
    path = str(traces / "fsdp2-default")  # of a program, which cannot be repeated
    tools, (refused, settings, too_many) = calls(
        ("measure", {"path": path}), ("advise", {"path": path, "settings": {"measure": 1}}), ("measure", {"path": path, "changes": 1000}),
        flags=["--allow-measure"])
    assert [tool.annotations.read_only_hint for tool in tools if tool.name == "measure"] == [False]
    assert "--measure" in refused.content[0].text and "is not a capture" in refused.content[0].text
    assert settings.is_error and "'measure' is not accepted" in settings.content[0].text
    assert too_many.is_error and "expected 1 to 5" in too_many.content[0].text
    _, (unknown,) = calls(("measure", {"path": path}))
    assert unknown.is_error and "measure" in unknown.content[0].text


def test_without_the_package_the_server_says_what_it_needs():
    program = "import sys; sys.modules['mcp'] = None; from shardlens import mcp; mcp.main()"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=300)
    assert done.returncode == 1 and "pip install 'mcp>=2.3,<3'" in done.stderr
