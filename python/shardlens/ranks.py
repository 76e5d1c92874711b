"""Summaries of many ranks' traces, each made where the trace lies: in this process, an executor, or a Ray or Dask cluster.

ray, dask and fsspec are imported only if they are asked for.
"""
from __future__ import annotations

import glob
import os
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

from . import files, program
from .shown import shown

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence
    from types import ModuleType

    Place = str | os.PathLike[str]

ENDING = ".summary.msgpack.gz"
_TRACES = (".json", ".json.gz", ".json.zst", ".spool")
# Files of a run directory that the analysis reads next to a trace.
_COMPANIONS = ("plan.json", "workload.json", "run.json", "config.json", "model.json", "metrics.jsonl")
_LARGEST_TRACE, _LARGEST_COMPANION = 16 << 30, 1 << 30  # bytes, as the program reads them


def is_remote(path: Place) -> bool:
    """Whether fsspec opens it: "s3://bucket/run", "memory://…"."""
    return "://" in str(path)


def are_summaries(paths: Sequence[Place]) -> bool:
    """Whether all paths are summaries, or directories of these without traces."""
    return bool(paths) and all(_is_summary(path) for path in paths)


def _is_summary(path: Place) -> bool:
    if is_remote(path):
        return False
    path = Path(path)
    if path.is_dir():
        return any(path.glob("*" + ENDING)) and not _traces_of(os.listdir(path))
    return path.name.endswith(ENDING)


def _import(name: str, what: str) -> ModuleType:
    from importlib import import_module

    try:
        return import_module(name)
    except ImportError as error:
        raise program.ShardlensError(f"{what} needs the package {name.partition('.')[0]}, which is not installed ({error})", 2) from error


def _filesystem(url: Place) -> tuple[Any, str]:
    """The file system of a URL, and the path in it."""
    system, inside = _import("fsspec.core", str(url)).url_to_fs(str(url))
    return system, inside


def _rank_of(name: str) -> int | None:
    found = re.search(r"rank[-_]?(\d+)", name)
    return int(found[1]) if found else None


def _traces_of(names: Iterable[str]) -> list[str]:
    """The traces among the names of a directory's files; a spool only if its rank has no trace."""
    traces = [name for name in names if name.endswith(_TRACES[:3]) and name not in _COMPANIONS]
    ranks = {_rank_of(name) for name in traces} - {None}
    spools = [name for name in names if name.endswith(".spool") and (_rank_of(name) is None or _rank_of(name) not in ranks)]
    return sorted(traces + spools)


def expand(paths: Iterable[Place]) -> list[str]:
    """The traces of directories and patterns; other paths as they are, because they may exist only where they are read."""
    traces = []
    for path in (os.fspath(each) for each in paths):
        if is_remote(path):
            system, inside = _filesystem(path)
            if glob.has_magic(inside):
                found = sorted(map(system.unstrip_protocol, system.glob(inside)))
            elif system.isdir(inside):
                names = {entry.rsplit("/", 1)[-1]: entry for entry in system.ls(inside, detail=False)}
                found = [system.unstrip_protocol(names[name]) for name in _traces_of(names)]
            else:
                found = [path]
        elif os.path.isdir(path):
            found = [os.path.join(path, name) for name in _traces_of(os.listdir(path))]
        elif glob.has_magic(path) and not os.path.exists(path):
            found = sorted(glob.glob(path))
        else:
            found = [path]
        if not found:
            raise program.ShardlensError(f"{path}: contains no trace", 3)
        traces += found
    return traces


def _get_file(system: Any, path: str, file: str, most: int) -> None:
    """Copies a remote file of at most `most` bytes."""
    about = system.info(path)
    if about.get("type") != "file":
        raise program.ShardlensError(f"{system.unstrip_protocol(path)}: is no file", 3)
    if (about.get("size") or 0) > most:
        raise program.ShardlensError(f"{system.unstrip_protocol(path)}: is larger than {most >> 20} MiB", 3)
    system.get_file(path, file)


def _fetch(url: str, directory: str) -> str:
    """Copies a trace and the files of its run into a directory; returns the trace's path."""
    system, inside = _filesystem(url)
    parent, _, name = inside.rpartition("/")
    if not system.exists(inside):
        raise program.ShardlensError(f"{url}: no such file or directory", 3)
    companions = [*_COMPANIONS, f"rank{_rank_of(name) or 0}.actions.jsonl"]
    for each in [name, *companions]:
        path = f"{parent}/{each}" if parent else each
        if each == name or system.exists(path):
            _get_file(system, path, os.path.join(directory, each), _LARGEST_TRACE if each == name else _LARGEST_COMPANION)
    return os.path.join(directory, name)


def summarize(path: str) -> tuple[str, bytes]:
    """Name and bytes of the summary of one trace: what runs on a worker."""
    with files.PrivateFolder() as directory:
        out = os.path.join(directory, "out")
        local = _fetch(path, directory) if is_remote(path) else path
        try:
            written = program.ask(["analyze", "--summarize", "--out", out, local])["summaries"][0]["path"]
        except program.ShardlensError as error:
            raise program.ShardlensError(str(error).replace(shown(local), shown(path)), error.exit_code, lines=True) from None
        return os.path.basename(written), Path(written).read_bytes()


def _fault(path: str, error: Exception) -> program.ShardlensError:
    """What a worker failed with, as an error that names the trace."""
    if isinstance(error, program.ShardlensError):
        return error
    return program.ShardlensError(f"{path}: no summary, because a worker failed: {type(error).__name__}: {error}", 4)


def _on_futures(client: Any, paths: Sequence[str], **options: object) -> Iterator[tuple[str, bytes]]:
    futures = [client.submit(summarize, path, **options) for path in paths]
    try:
        for path, future in zip(paths, futures):
            try:
                yield future.result()
            except Exception as error:  # noqa: BLE001  whatever the executor says of a worker that ended
                raise _fault(path, error) from None
    finally:
        for future in futures:
            future.cancel()


def _on_ray(ray: Any, paths: Sequence[str]) -> Iterator[tuple[str, bytes]]:
    if not ray.is_initialized():
        raise program.ShardlensError("on=ray: call ray.init() first", 2)
    work = ray.remote(summarize)
    references = [work.remote(path) for path in paths]
    try:
        for path, reference in zip(paths, references):
            try:
                yield ray.get(reference)
            except ray.exceptions.RayError as error:
                raise _fault(path, getattr(error, "cause", error)) from None
    finally:
        for reference in references:
            ray.cancel(reference)


def _dask_client() -> Any:
    """The current client."""
    try:
        return _import("distributed", 'on="dask"').get_client()
    except ValueError:
        raise program.ShardlensError('on="dask": make a client first, distributed.Client(…), or give it as on=client', 2) from None


def _results(on: Any, paths: Sequence[str]) -> Iterator[tuple[str, bytes]]:
    """What summarize() returns for each path, in order."""
    if on is None:
        return map(summarize, paths)
    if isinstance(on, str):
        if on == "ray":
            return _on_ray(_import("ray", 'on="ray"'), paths)
        if on == "dask":
            return _on_futures(_dask_client(), paths, pure=False)
        raise ValueError(f'on: expected "ray", "dask", the module ray, a Dask client or an executor, found {on!r}')
    if getattr(on, "__name__", "") == "ray":
        return _on_ray(on, paths)
    if callable(getattr(on, "submit", None)):
        dask = type(on).__module__.partition(".")[0] == "distributed"
        return _on_futures(on, paths, **({"pure": False} if dask else {}))
    raise TypeError(f'on: expected "ray", "dask", the module ray, a Dask client or an executor, found {type(on).__name__}')


def write_summaries(paths: Iterable[Place], on: Any, directory: Place) -> list[Path]:
    """Writes the summaries of all traces into a directory and returns their paths.

    Errors: ShardlensError of the first trace that cannot be summarized.
    """
    directory = Path(directory)
    files.make_folder(directory)
    traces = expand(paths)
    written: dict[Path, str] = {}
    for trace, (name, summary) in zip(traces, _results(on, traces)):
        file = directory / name
        if file in written:
            raise program.ShardlensError(f"{trace}: its summary is {name}, like that of {written[file]}; open one run at a time", 3)
        written[file] = trace
        files.write(file, summary)
    return list(written)
