"""Answers for assistants (shardlens.answers), and the server that gives them, over stdio with the client of the package `mcp`."""
import asyncio
import json
import os
import subprocess
import sys

import pytest

from shardlens import answers
from shardlens.program import ask


def test_an_answer_has_the_programs_figures_and_its_evidence(traces):
    text = answers.analyze(str(traces / "fsdp2-default"))
    analysis = ask(["analyze", traces / "fsdp2-default"])
    for rank in analysis["ranks"]:
        assert f"rank {rank['rank']}: 2 steps, {rank['span_ns'] / 1e6:.3f} ms" in text
        assert f"exposed communication {rank['exposed_comm_ns'] / 1e6:.3f}" in text
    assert text.splitlines()[-1] == f"evidence: shardlens analyze {traces / 'fsdp2-default'} --by span --csv"
    assert "cause host_is_compute: " in text and "None" not in text


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


def test_answers_are_small_however_long_the_names_are():
    lines = [f"line {i} of unit {'layers.é' * 60}" for i in range(50)]
    text = answers.fitted(lines, [["analyze", "run " + "/deep" * 900], ["compare", "a", "b"]])
    assert len(text.encode()) <= 2000
    shown = sum(line.startswith("line ") for line in text.splitlines())
    assert f"({50 - shown} more lines left out)" in text and shown > 2
    assert text.splitlines()[-1] == "evidence: shardlens compare a b"


def calls(*questions):
    """The results of tools, asked of a server in a process of its own; and the names of its tools."""
    from mcp import Client, StdioServerParameters, stdio_client

    async def ask_all():
        parameters = StdioServerParameters(command=sys.executable, args=["-m", "shardlens.mcp"], env=dict(os.environ))
        async with Client(stdio_client(parameters)) as client:
            tools = (await client.list_tools()).tools
            return tools, [await client.call_tool(name, arguments) for name, arguments in questions]

    return asyncio.run(asyncio.wait_for(ask_all(), 60))


def test_assistants_ask_over_stdio(traces):
    pytest.importorskip("mcp")
    default, before, after = (str(traces / name) for name in ("fsdp2-default", "fsdp2-no-reshard", "fsdp2-reshard"))
    plan = {"version": 1, "layout": "per_parameter", "reshard_after_forward": False, "units": [{"modules": "model.layers.*"}, {"modules": ""}]}
    tools, results = calls(
        ("analyze", {"path": default}), ("explain_unit", {"path": default, "unit": "model.layers.0", "rank": 1}), ("compare", {"before": before, "after": after}),
        ("simulate", {"path": default, "plan": plan}), ("simulate", {"path": default, "settings": {"strategy": "shard_grad_op"}}),
        ("analyze", {"path": default + "/none"}), ("explain_unit", {"path": default, "unit": "nothing"}))
    assert {tool.name for tool in tools} == {"analyze", "explain_unit", "compare", "simulate"}
    assert all(tool.description for tool in tools)
    texts = []
    for result in results:
        (content,) = result.content
        assert len(content.text.encode()) <= 2000
        texts.append(content.text)
    assert [result.is_error for result in results] == [False] * 5 + [True] * 2
    assert texts[0] == answers.analyze(default)
    assert texts[1] == answers.explain(default, "model.layers.0", 1)
    assert "1 × all_gather_backward after" in texts[2]
    step = ask(["simulate", "--workload", default, "--strategy", "shard_grad_op"])["step_ns"]
    assert f"this plan: {step / 1e6:.3f} ms a step" in texts[4]
    assert "error +" in texts[3] and "this plan: " in texts[3] and json.dumps(plan) not in texts[3]
    assert "no such file or directory" in texts[5] and "'model.layers.1'" in texts[6]


def test_without_the_package_the_server_says_what_it_needs():
    program = "import sys; sys.modules['mcp'] = None; from shardlens import mcp; mcp.main()"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60)
    assert done.returncode == 1 and "pip install 'shardlens[mcp]'" in done.stderr
