"""A server of the Model Context Protocol over stdio: assistants ask about recorded runs, and get answers of at most 2 kB with their evidence.

    python -m shardlens.mcp [--allow-measure]

The tools read runs and write nothing. With --allow-measure an assistant may also run the training of a recorded capture again.
Needs the package `mcp` (pip install 'mcp>=2.3,<3').
"""
from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from . import __version__, answers
from .program import ShardlensError
from .shown import give_up

if TYPE_CHECKING:
    from mcp.server import MCPServer


_MOST_MEASURED = 5  # changes


def server(allow_measure: bool = False) -> MCPServer[Any]:
    """The server with its tools. Errors: ImportError without the package `mcp`."""
    from mcp.server import MCPServer
    from mcp.server.mcpserver.exceptions import ToolError
    from mcp.types import ToolAnnotations

    found = MCPServer(
        "shardlens", version=__version__, log_level="WARNING",
        instructions="Times of sharded data-parallel training: analyze a recorded run first, explain a unit that it names, ask for advice, then simulate or compare.")

    # Only figures of this machine's files; the same question has the same answer.
    reads = ToolAnnotations(read_only_hint=True, destructive_hint=False, idempotent_hint=True, open_world_hint=False)

    def told(question: Callable[..., str], *arguments: object) -> str:
        try:
            return question(*arguments)
        except (ShardlensError, ValueError) as error:
            raise ToolError(answers.fitted(str(error).splitlines(), [])) from error

    @found.tool(structured_output=False, annotations=reads)
    def analyze(path: str) -> str:
        """Times of a recorded training run (a run directory, or traces of torch.profiler): compute, exposed communication and its causes by unit,
        differences of order, waste."""
        return told(answers.analyze, path)

    @found.tool(structured_output=False, annotations=reads)
    def explain_unit(path: str, unit: str, rank: int = 0) -> str:
        """Why the collectives of one unit (the FQN of its module; "" is the root) are exposed: counts, bytes, causes, the worst ones with times."""
        return told(answers.explain, path, unit, rank)

    @found.tool(structured_output=False, annotations=reads)
    def compare(before: str, after: str) -> str:
        """What changed between two recorded runs: step time, exposed communication, where the change comes from, and the structure."""
        return told(answers.compare, before, after)

    @found.tool(structured_output=False, annotations=reads)
    def simulate(path: str, plan: dict[str, Any] | None = None, settings: dict[str, Any] | None = None) -> str:
        """Step time and memory under another plan. path: a recorded run, or a model's config.json (then settings needs hardware, such as "8xH100").
        plan: the contents of a plan file. settings: step and machine, as flags of `shardlens simulate`, such as {"strategy": "shard_grad_op", "accumulate": 4}."""
        return told(answers.simulate, path, plan, settings)

    @found.tool(structured_output=False, annotations=reads)
    def advise(path: str, settings: dict[str, Any] | None = None) -> str:
        """Which changes of a recorded run's plan would make its steps shorter: predicted gains with 90 % intervals, memory, and the lines of PyTorch that make
        them; then what is wasteful as it is. settings: memory_limit and top, such as {"memory_limit": "80GiB", "top": 3}."""
        return told(answers.advise, path, settings)

    @found.tool(structured_output=False, annotations=reads)
    def search(path: str, memory_limit: str, settings: dict[str, Any] | None = None) -> str:
        """The fastest sharding plans that fit into a memory limit per GPU, such as "70GiB", and the contents of the best plan file. path: a model's config.json or
        model.json (then settings needs hardware, such as "8xH100"), or a run with its model's config.json, such as a capture. settings: step and machine, as flags of `shardlens search`."""
        return told(answers.search, path, memory_limit, settings)

    if allow_measure:
        @found.tool(structured_output=False, annotations=ToolAnnotations(read_only_hint=False, destructive_hint=False, idempotent_hint=False, open_world_hint=False))
        def measure(path: str, changes: int = 1) -> str:
            """What advise answers, and the measured gains of the first changes: runs the training of a capture again on this machine, eight times or more.
            path: a directory of `shardlens capture`, with its traces of all ranks."""
            if not 1 <= changes <= _MOST_MEASURED:
                raise ToolError(f"changes: expected 1 to {_MOST_MEASURED}, found {changes}")
            return told(answers.advise, path, None, changes)

    return found


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m shardlens.mcp", description="A server of the Model Context Protocol over stdio.")
    parser.add_argument("--allow-measure", action="store_true", help="an assistant may run the training of a recorded capture again")
    allow_measure = parser.parse_args(arguments).allow_measure
    try:
        made = server(allow_measure)
    except ImportError as error:
        give_up(f"error: {error}; the server needs the package mcp: pip install 'mcp>=2.3,<3'")
    made.run()


if __name__ == "__main__":
    main()
