#!/usr/bin/env python3
"""Makes the wheel and the source distribution; scripts/wheel calls it. Needs the packages of python/wheel_requirements.txt.

    make_wheel.py OUT --program FILE      FILE: the program, built as target shardlens_packaged

The wheel contains the shared libraries that the program needs and that other machines may lack, with their licences, and has the tag that
auditwheel finds.
"""
import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
BUNDLED = ("isal", "simdjson", "zstd")
INSIDE = ("cli11", "fmt", "nlohmann-json3", "libstdc++")  # compiled into the program


def run(hook, *arguments):
    """Calls a function of the build backend in the source tree. Returns what it made."""
    program = f"import sys, scikit_build_core.build as backend; print(backend.{hook}(*{arguments!r}))"
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        sys.exit(f"error: {hook} failed\n{done.stdout[-4000:]}{done.stderr[-4000:]}")
    return done.stdout.splitlines()[-1]


def check(wheel):
    """A wheel for others has every library that it needs, and a licence of each."""
    names = zipfile.ZipFile(wheel).namelist()
    for library in BUNDLED:
        if not any(name.startswith(f"shardlens.libs/lib{library}") for name in names):
            sys.exit(f"error: {wheel}: lib{library} is not in it")
    for library in (*BUNDLED, *INSIDE):
        if not any(name.startswith(f"shardlens/licenses/{library.removeprefix('lib')}") for name in names):
            sys.exit(f"error: {wheel}: there is no licence of {library} in it; Debian has it in /usr/share/doc")


def main(arguments):
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("out", type=Path)
    parser.add_argument("--program", type=Path, required=True)
    options = parser.parse_args(arguments)
    options.out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as directory:
        linux = run("build_wheel", directory, {"cmake.define.SHARDLENS_PREBUILT": str(options.program.resolve()), "build-dir": f"{directory}/build"})
        repaired = Path(directory) / "repaired"
        done = subprocess.run([sys.executable, "-m", "auditwheel", "repair", "--wheel-dir", repaired, Path(directory) / linux],
                              capture_output=True, text=True, check=False)
        if done.returncode != 0:
            sys.exit(f"error: auditwheel failed\n{done.stdout}{done.stderr}")
        (wheel,) = repaired.glob("*.whl")
        check(wheel)
        source = run("build_sdist", directory)
        for file in (wheel, Path(directory) / source):
            shutil.copyfile(file, options.out / file.name)
            print(os.path.relpath(options.out / file.name))


if __name__ == "__main__":
    main(sys.argv[1:])
