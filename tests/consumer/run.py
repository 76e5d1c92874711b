#!/usr/bin/env python3
"""Installs a build's component `dev` in a new folder and builds the project of this folder against it, as a user of the libraries would.

    run.py BUILD [--torch DIR]      BUILD is configured and built; --torch: also the engine's part, with this LibTorch

Checked: find_package with components and versions, that scripts/setup builds all that is installed, that nothing of the source or build folder is in
it, that all headers and the example compile, that the programs print what `shardlens` prints, and that a host that adds the sources as a
subdirectory keeps its own flags.
"""
import argparse
import json
import os
import pathlib
import re
import shlex
import shutil
import subprocess
import sys
import tempfile

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parent.parent
RUN = ROOT / "traces" / "llama-emulated8"
ENGINE_HEADERS = ("core/composable", "core/module", "core/dist", "core/fsdp", "core/replicate", "core/models", "core/train", "profiler/record")


def fail(text):
    print(f"FAILED: {text}")
    sys.exit(1)


def call(*command, expect=0, environment=None):
    """Standard output and error of a command that ends with `expect`."""
    ended = subprocess.run([str(part) for part in command], capture_output=True, text=True, check=False, env=environment)
    if ended.returncode != expect:
        fail(f"{shlex.join(map(str, command))}: exit code {ended.returncode}\n{ended.stdout}{ended.stderr}")
    return ended.stdout + ended.stderr


def configure(build, *settings, expect=0, source=HERE):
    environment = {name: value for name, value in os.environ.items() if not name.startswith("SHARDLENS_")}
    return call("cmake", "-S", source, "-B", build, "-G", "Ninja", *settings, expect=expect, environment=environment)


def check_installed(prefix, build):
    """No path of the machine that built it."""
    for file in sorted(prefix.rglob("*")):
        if file.suffix in (".cmake", ".h"):
            text = file.read_text(encoding="utf-8")
            for folder in (ROOT, build):
                if re.search(rf"(?<![\w./-]){re.escape(str(folder))}/", text):  # not a part of another path
                    fail(f"{file} names {folder}")
            if file.suffix == ".h" and ('#include "core/' in text or '#include "profiler/' in text or '#include "sim/' in text):
                fail(f"{file} includes a header by its path in the sources")


def check_setup(build):
    """The targets of scripts/setup bring all that the install rules take from the build."""
    setup = (ROOT / "scripts" / "setup").read_text(encoding="utf-8")
    made = dict(re.findall(r"^(.+): (.+)$", call("ninja", "-C", build, "-t", "targets", "all"), re.M))
    asked = {name for names in re.findall(r"targets\+?=\(([^)]*)\)", setup) for name in names.split()} | {"shardlens-worker"}
    commands = call("ninja", "-C", build, "-t", "commands", *sorted(asked & made.keys()))
    rules = "".join(file.read_text(encoding="utf-8") for file in build.rglob("cmake_install.cmake"))
    installed = {str(pathlib.Path(file).relative_to(build)) for file in re.findall(rf'"({re.escape(str(build))}/[^"$]+)"', rules)}
    packaged = "packaged/shardlens"  # of scripts/wheel
    if missing := sorted(file for file in installed & made.keys() if file not in commands and file != packaged):
        fail(f"scripts/setup does not build {', '.join(missing)}, which cmake --install needs")


def check_refusals(prefix, work, with_engine):
    """find_package says what is wrong."""
    (work / "asks").mkdir()
    text = "cmake_minimum_required(VERSION 3.25)\nproject(Asks LANGUAGES CXX)\nfind_package(Shardlens ${ASKED})\n"
    text += 'message(STATUS "found ${Shardlens_FOUND} analysis ${Shardlens_analysis_FOUND} fsdp ${Shardlens_fsdp_FOUND}")\n'
    (work / "asks" / "CMakeLists.txt").write_text(text, encoding="utf-8")
    cases = [("REQUIRED;COMPONENTS;no_such", 1, "no component no_such; there are analysis, sim"),
             ("9.0;REQUIRED", 1, "9.0"),
             ("REQUIRED;COMPONENTS;fsdp", 1, "SHARDLENS_TORCH_DIR" if with_engine else "without the engine"),
             ("COMPONENTS;analysis;OPTIONAL_COMPONENTS;fsdp", 0, "found 1 analysis TRUE fsdp FALSE"),
             ("", 0, "found 1 analysis TRUE fsdp FALSE")]
    for number, (asked, status, expected) in enumerate(cases):
        environment = {name: value for name, value in os.environ.items() if not name.startswith("SHARDLENS_")}
        said = call("cmake", "-S", work / "asks", "-B", work / f"asks{number}", "-G", "Ninja", f"-DCMAKE_PREFIX_PATH={prefix}", f"-DASKED={asked}",
                    expect=status, environment=environment)
        if expected not in " ".join(said.split()):
            fail(f"find_package(Shardlens {asked}): expected '{expected}', printed:\n{said}")
    return len(cases)


def check_programs(built, program):
    """The consumer's programs have the figures that the program of this build prints."""
    ranks = json.loads(call(program, "analyze", "--json", RUN))["ranks"]
    expected = [f"{each['rank']} {each['comm_ns']} {each['exposed_comm_ns']}" for each in ranks]
    printed = call(built / "figures", RUN).split("\n")[:-1]
    if printed != expected or not expected:
        fail(f"figures printed {printed}, expected {expected}")
    for line in call(built / "what_if", RUN).split("\n")[:-1]:
        prefetch, duration = line.split()
        plan = json.loads((RUN / "plan.json").read_text(encoding="utf-8")) | {"forward_prefetch": int(prefetch)}
        (built / "plan.json").write_text(json.dumps(plan), encoding="utf-8")
        predicted = json.loads(call(program, "simulate", "--json", "--workload", RUN, "--plan", built / "plan.json"))
        if predicted["step_ns"] != int(duration):
            fail(f"what_if printed '{line}', simulate {predicted['step_ns']}")


def check_subdirectory(work):
    """A host's sources are compiled with the host's flags, and find the headers."""
    configure(work / "host", f"-DSHARDLENS_SOURCE={ROOT}")
    commands = json.loads((work / "host" / "compile_commands.json").read_text(encoding="utf-8"))
    own = next(each for each in commands if each["file"].endswith("figures.cpp"))
    flags = shlex.split(own["command"])
    foreign = [flag for flag in flags if flag.startswith(("-W", "-f", "-D")) and flag not in ("-DNDEBUG",)]
    foreign = [flag for flag in foreign if not flag.startswith(("-DFMT_", "-DSIMDJSON_"))]
    if foreign:
        fail(f"as a subdirectory, a host's source is compiled with {foreign}")
    call("env", "-C", own["directory"], *flags, "-fsyntax-only", "-o", os.devnull)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("build", type=pathlib.Path)
    parser.add_argument("--torch", type=pathlib.Path, help="folder of the Python package torch")
    options = parser.parse_args()
    build = options.build.resolve()
    program = build / "bin" / "shardlens"
    with tempfile.TemporaryDirectory() as folder:
        work = pathlib.Path(folder)
        prefix, built = work / "prefix", work / "built"
        check_setup(build)
        call("cmake", "--install", build, "--prefix", prefix, "--component", "dev")
        check_installed(prefix, build)
        include = prefix / "include"
        headers = sorted(str(each.relative_to(include)) for each in include.rglob("*.h"))
        with_engine = any("/core/fsdp/" in each for each in headers)
        torch_free = [each for each in headers if not each.startswith(tuple(f"shardlens/{folder}/" for folder in ENGINE_HEADERS))]
        (work / "headers.cpp").write_text("".join(f"#include <{each}>\n" for each in torch_free), encoding="utf-8")
        asked = check_refusals(prefix, work, with_engine)
        engine = []
        if options.torch:
            examples = shutil.copytree(ROOT / "examples", work / "examples")
            engine = [f"-DSHARDLENS_TORCH_DIR={options.torch}", f"-DEXAMPLE={examples / 'own_model.cpp'}"]
            configure(work / "example", f"-DCMAKE_PREFIX_PATH={prefix}", engine[0], source=examples)
        configure(built, f"-DCMAKE_PREFIX_PATH={prefix}", f"-DHEADERS={work / 'headers.cpp'}", "-DWANTED_VERSION=" + version(), *engine)
        call("cmake", "--build", built, "--parallel", "2")
        check_programs(built, program)
        if options.torch:
            call(built / "train", work / "run")
            if "communication hidden under compute" not in call(program, "analyze", work / "run"):
                fail("analyze cannot read what train recorded")
        check_subdirectory(work)
    print(f"{len(torch_free)} headers compiled, {asked} refusals, programs against an installation and as a host"
          + (", with the engine" if options.torch else ""))
    return 0


def version():
    text = (ROOT / "python" / "shardlens" / "__init__.py").read_text(encoding="utf-8")
    return text.split('__version__ = "')[1].split('"')[0]


if __name__ == "__main__":
    sys.exit(main())
