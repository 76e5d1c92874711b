#!/usr/bin/env python3
"""Checks the direction of dependencies between the folders, in #include lines and in CMake's link lines.

    check_includes.py [ROOT]      prints every violation as file:line, exit 1 if there is one
    check_includes.py --self-test finds the violations in a tree with one of each kind

cmake/folders.txt is the rule; docs/develop/architecture.md explains it. A folder may use itself, what its row names, and what these may use.
"""
import pathlib
import re
import sys
import tempfile

import checking

FOLDERS = "cmake/folders.txt"
ROW = re.compile(r"(\S+)\s+(always|engine|gui|part)\s+(?:yes|no)(?:\s+(.*))?")


def read_folders(root):
    """(what each folder may include, with what these may include; the folders of the engine), from the list that CMake reads too."""
    direct, engine = {}, set()
    for number, line in enumerate((root / FOLDERS).read_text(encoding="utf-8").splitlines(), 1):
        if not line or line.startswith("#"):
            continue
        row = ROW.fullmatch(line.strip())
        if row is None:
            raise ValueError(f"{FOLDERS}:{number}: expected 'folder built tests folders…', found '{line}'")
        direct[row[1]] = (row[3] or "").split()
        if row[2] == "engine" and not row[1].startswith("examples"):
            engine.add(row[1])
    engine |= {folder for folder in direct if any(folder.startswith(each + "/") for each in engine)}
    uses = {}
    for folder in direct:
        seen, queue = set(), list(direct[folder])
        while queue:
            step = queue.pop()
            if step == folder:
                raise ValueError(f"{FOLDERS}: {folder} uses itself through {', '.join(direct[folder])}")
            if step not in direct:
                raise ValueError(f"{FOLDERS}: {folder} may include {step}, which has no row")
            if step not in seen:
                seen.add(step)
                queue.extend(direct[step])
        uses[folder] = sorted(seen)
    return uses, engine


try:
    USES, ENGINE_FOLDERS = read_folders(pathlib.Path(__file__).resolve().parent.parent)
except ValueError as error:
    sys.exit(str(error))

# The one program with engine, recorder and cost model together is built in cli/.
EXTRA_TARGETS = {"shardlens-worker": USES["cli/worker"]}

TORCH_FILES = re.compile(r"profiler/record/(operators/)?operator_observer(_test)?\.(h|cpp)|tests/profiler/record/session_test\.cpp|examples/.*|cli/worker/.*|(tests/engine|tests/device|tests/consumer|bench)/.*")
TORCH_HEADER = re.compile(r"(torch|ATen|c10|caffe2)/")
CUDA_HEADER = re.compile(r"(cuda|cupti|nvtx3|nccl|nvrtc)\w*[./]")
CUDA_FILES = re.compile(r"(profiler/record|core/dist)/.*|(tests|bench)/.*")
QT_HEADER = re.compile(r"Q[A-Z]\w*(/|$)|Qt\w+/")
BANNED = {"torch/torch.h": "it costs half a minute per file; include what is used",
          "torch/nn.h": "include the module's own header", "torch/extension.h": "it needs Python",
          "format": "g++ 12 does not have it; use <fmt/format.h>", "expected": "C++23 only; use core/base/result.h"}
INCLUDE = re.compile(r'\s*#\s*include\s*([<"])([^>"]+)[>"]')
TOP = ("core", "profiler", "sim", "gui", "cli", "tests", "bench", "examples")


def folder_of(path):
    """core/plan/x.h -> core/plan; cli/x.cpp -> cli: the deepest folder of the list; None outside of them."""
    parts = path.split("/")[:-1]
    for length in range(len(parts), 0, -1):
        if "/".join(parts[:length]) in USES:
            return "/".join(parts[:length])
    return None


def may_use(path):
    """The folders that the file may include from; None: any (tests and benchmarks may include everything)."""
    if path.startswith(("tests/", "bench/")):
        return None
    folder = folder_of(path)
    allowed = {folder, *USES.get(folder, [])}
    return allowed


def torch_allowed(path):
    mirrored = path[len("tests/"):] if path.startswith("tests/") else path
    return folder_of(mirrored) in ENGINE_FOLDERS or bool(TORCH_FILES.fullmatch(mirrored)) or bool(TORCH_FILES.fullmatch(path))


def check_file(root, path):
    allowed = may_use(path)
    for number, line in enumerate((root / path).read_text(encoding="utf-8").splitlines(), 1):
        match = INCLUDE.match(line)
        if not match:
            continue
        quote, header = match.groups()
        where = f"{path}:{number}"
        if header in BANNED:
            yield f"{where}: <{header}> is banned: {BANNED[header]}"
        elif quote == '"':
            yield from check_project_header(root, path, where, header, allowed)
        elif TORCH_HEADER.match(header) and not torch_allowed(path):
            yield f"{where}: <{header}> is LibTorch's; only the engine folders, profiler/record/operators/operator_observer.cpp and cli/worker may include it"
        elif CUDA_HEADER.match(header) and not CUDA_FILES.fullmatch(path):
            yield f"{where}: <{header}> is CUDA's; only profiler/record and core/dist may include it"
        elif QT_HEADER.match(header) and not path.startswith(("gui/", "tests/gui/", "bench/gui_")):
            yield f"{where}: <{header}> is Qt's; only gui may include it"


def check_project_header(root, path, where, header, allowed):
    target = folder_of(header)
    if not (root / header).is_file():
        yield f'{where}: "{header}" is not a file of the project; quotes are for paths from its root'
    elif header.startswith(("tests/", "bench/")):
        if allowed is not None:
            yield f'{where}: "{header}" belongs to the tests'
    elif target is None:
        yield f'{where}: "{header}" is in a folder that {FOLDERS} does not list; add a row'
    elif allowed is not None and target not in allowed:
        yield f'{where}: "{header}" points up: {folder_of(path)} may use {", ".join(sorted(allowed - {folder_of(path)})) or "nothing"}'


COMMAND = re.compile(r"\b(shardlens_library|shardlens_test|add_library|add_executable|target_link_libraries)\s*\(([^)]*)\)", re.S)
KEYWORDS = {"PUBLIC", "PRIVATE", "INTERFACE", "STATIC", "SHARED", "LINKS", "SOURCES", "ENGINE", "LABELS", "TIMEOUT", "SERIAL"}


def links_of(command, words):
    """The targets that one CMake command links."""
    if command == "target_link_libraries":
        return [word for word in words[1:] if word not in KEYWORDS]
    linked, inside = [], False
    for word in words[1:]:
        if word in KEYWORDS:
            inside = word == "LINKS"
        elif inside:
            linked.append(word)
    return linked


def cmake_commands(root):
    for file in sorted(root.glob("**/CMakeLists.txt")):
        path = file.relative_to(root).as_posix()
        if not path.startswith(TOP):
            continue
        text = re.sub(r"#[^\n]*", lambda match: " " * len(match.group()), file.read_text(encoding="utf-8"))
        for match in COMMAND.finditer(text):
            words = match.group(2).split()
            if words:
                yield path, text.count("\n", 0, match.start()) + 1, match.group(1), words


def check_links(root):
    home, torch_targets = {}, {"shardlens_torch_cpu", "shardlens_torch_cuda"}
    commands = list(cmake_commands(root))
    for path, _, command, words in commands:
        if command != "target_link_libraries":
            home[words[0]] = path.rsplit("/", 1)[0]
    for path, line, command, words in commands:
        target, folder = words[0], path.rsplit("/", 1)[0]
        if folder.startswith(("tests", "bench")):
            continue
        allowed = {folder, *USES.get(folder, []), *EXTRA_TARGETS.get(target, [])}
        for linked in links_of(command, words):
            if linked in torch_targets:
                if folder not in ENGINE_FOLDERS and target != "shardlens-worker" and not target.endswith("_torch"):
                    yield f"{path}:{line}: {target} links {linked}; only engine targets may"
            elif linked in home and home[linked] not in allowed and not any(part.startswith(home[linked] + "/") for part in allowed):
                yield f"{path}:{line}: {target} links {linked} of {home[linked]}, which points up"


def violations(root):
    for top in TOP:
        for file in sorted((root / top).glob("**/*")):
            if file.suffix in (".h", ".cpp") and file.is_file():
                yield from check_file(root, file.relative_to(root).as_posix())
    yield from check_links(root)


def self_test():
    cases = {
        "core/base/up.cpp": '#include "core/plan/plan.h"',
        "core/plan/torch.cpp": "#include <ATen/ATen.h>",
        "core/fsdp/banned.cpp": "#include <torch/torch.h>",
        "profiler/trace/sideways.cpp": '#include "sim/cost/cost.h"',
        "profiler/analysis/qt.cpp": "#include <QString>",
        "profiler/analysis/timeline/up.cpp": '#include "profiler/analysis/figures/o.h"',
        "sim/cost/cuda.cpp": "#include <cuda_runtime.h>",
        "cli/engine.cpp": '#include "core/fsdp/run/fsdp.h"',
        "gui/view/lost.cpp": '#include "not_here.h"',
        "core/plan/from_tests.cpp": '#include "tests/helper.h"',
        "core/plan/CMakeLists.txt": "shardlens_library(shardlens_plan SOURCES a.cpp LINKS shardlens_base\n  shardlens_fsdp)",
        "profiler/report/CMakeLists.txt": "add_library(shardlens_report STATIC a.cpp)\ntarget_link_libraries(shardlens_report PUBLIC shardlens_torch_cpu)",
    }
    good = {
        "core/base/base.h": "#include <string>",
        "profiler/analysis/figures/o.h": "#include <string>",
        "core/plan/plan.h": '#include "core/base/base.h"\n// #include "core/fsdp/run/fsdp.h"',
        "core/fsdp/run/fsdp.h": '#include <torch/nn/module.h>\n#include "core/plan/plan.h"',
        "sim/cost/cost.h": '#include "core/base/base.h"',
        "cli/worker/worker_main.cpp": '#include "core/fsdp/run/fsdp.h"',
        "tests/helper.h": '#include "sim/cost/cost.h"',
        "core/base/CMakeLists.txt": "shardlens_library(shardlens_base SOURCES a.cpp LINKS fmt::fmt)",
        "core/fsdp/CMakeLists.txt": "shardlens_library(shardlens_fsdp SOURCES a.cpp LINKS shardlens_base shardlens_torch_cpu) # shardlens_cost",
    }
    with tempfile.TemporaryDirectory() as folder:
        root = pathlib.Path(folder)
        for path, text in {**good, **cases}.items():
            (root / path).parent.mkdir(parents=True, exist_ok=True)
            (root / path).write_text(text, encoding="utf-8")
        found = list(violations(root))
    accused = sorted(line.split(":")[0] for line in found)
    if accused != sorted(cases):
        print("self-test: found\n  " + "\n  ".join(found) + "\nexpected one violation in each of\n  " + "\n  ".join(sorted(cases)))
        return 1
    print(f"check_includes self-test: {len(cases)} violations found, {len(good)} clean files passed")
    return 0


if __name__ == "__main__":
    sys.exit(checking.run("check_includes", violations, self_test, "dependencies point one way"))
