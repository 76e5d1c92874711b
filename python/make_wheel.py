#!/usr/bin/env python3
"""Makes the wheels and the source distribution; scripts/wheel calls it. Needs the packages of python/wheel_requirements.txt.

    make_wheel.py OUT --program FILE [--worker FILE [--torch VERSION]]      the program, built as target shardlens_packaged; shardlens-worker
    make_wheel.py OUT --program FILE --sysroot DIR        only a wheel, of a program for ARM64 whose libraries are in a folder

A wheel contains the shared libraries that its programs need and that other machines may lack, with their licences, and has the tag that
auditwheel finds. Those of torch are not in the engine's wheel: it finds them where pip installs them.
"""
import argparse
import base64
import hashlib
import os
import re
import shutil
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

import sbom

ROOT = Path(__file__).resolve().parents[1]
BUNDLED = ("isal", "re2", "simdjson", "sqlite3", "zstd")
INSIDE = ("cli11", "fmt", "nlohmann-json3", "libstdc++")  # compiled into the program


# Of torch and its companions, as seen from site-packages/shardlens/bin.
BESIDE = ("torch/lib", "nvidia/cu13/lib")
OF_TORCH = ("libtorch*", "libc10*", "libcupti*", "libcudart*", "libnvrtc*")


def run(hook, *arguments, cwd=ROOT, **environment):
    """Calls a function of the build backend in the source tree. Returns what it made."""
    program = f"import sys, scikit_build_core.build as backend; print(backend.{hook}(*{arguments!r}))"
    done = subprocess.run([sys.executable, "-c", program], cwd=cwd, capture_output=True, text=True, check=False, env={**os.environ, **environment})
    if done.returncode != 0:
        sys.exit(f"error: {hook} failed\n{done.stdout[-4000:]}{done.stderr[-4000:]}")
    return done.stdout.splitlines()[-1]


def check(wheel):
    """Checks that a wheel has every library that it needs, and a licence of each."""
    names = zipfile.ZipFile(wheel).namelist()
    for library in BUNDLED:
        if not any(name.startswith(f"shardlens.libs/lib{library}") for name in names):
            sys.exit(f"error: {wheel}: lib{library} is not in it")
    for library in (*BUNDLED, *INSIDE):
        if not any(name.startswith(f"shardlens/licenses/{library.removeprefix('lib')}") for name in names):
            sys.exit(f"error: {wheel}: there is no licence of {library} in it; Debian has it in /usr/share/doc")


def repair(wheel, out, *options):
    """Returns auditwheel's copy of a wheel, with the libraries that it needs."""
    done = subprocess.run([sys.executable, "-m", "auditwheel", "repair", "--wheel-dir", out, *options, wheel], capture_output=True, text=True, check=False)
    if done.returncode != 0:
        sys.exit(f"error: auditwheel failed\n{done.stdout}{done.stderr}")
    (made,) = Path(out).glob("*.whl")
    return made


def find_torch_beside(wheel):
    """Adds torch's folders to where the programs of a wheel look for libraries: auditwheel removes them, because they are outside of the wheel."""
    with tempfile.TemporaryDirectory() as directory:
        folder = Path(directory)
        with zipfile.ZipFile(wheel) as archive:
            infos = [info for info in archive.infolist() if not info.is_dir()]
            archive.extractall(folder)
        changed = [folder / info.filename for info in infos if re.fullmatch(r"shardlens/bin/(shardlens-worker|lib.*\.so)", info.filename)]
        for program in changed:
            found = subprocess.run(["patchelf", "--print-rpath", program], capture_output=True, text=True, check=True).stdout.strip()
            places = [place for place in found.split(":") if place.startswith("$ORIGIN")] + [f"$ORIGIN/../../{place}" for place in BESIDE]
            subprocess.run(["patchelf", "--set-rpath", ":".join(places), program], check=True)
        (record,) = [info.filename for info in infos if info.filename.endswith(".dist-info/RECORD")]
        rows = []
        for row in (folder / record).read_text().splitlines():
            path = folder / row.rsplit(",", 2)[0]
            if path in changed:
                digest = base64.urlsafe_b64encode(hashlib.sha256(path.read_bytes()).digest()).decode().rstrip("=")
                row = f"{path.relative_to(folder)},sha256={digest},{path.stat().st_size}"
            rows.append(row)
        (folder / record).write_text("\n".join(rows) + "\n")
        with zipfile.ZipFile(wheel, "w", zipfile.ZIP_DEFLATED) as archive:
            for info in infos:
                archive.writestr(info, (folder / info.filename).read_bytes(), zipfile.ZIP_DEFLATED)


def for_torch(source, torch, directory):
    """Copies the engine's package for another torch. The package's version names that torch, so that both wheels can be in one folder."""
    copy = Path(directory) / "python" / source.name
    shutil.copytree(source, copy)
    (copy.parent / "shardlens").mkdir()
    shutil.copyfile(source.parent / "shardlens" / "__init__.py", copy.parent / "shardlens" / "__init__.py")
    project = re.sub(r'"torch==[^"]*"', f'"torch=={torch}"', (copy / "pyproject.toml").read_text())
    (copy / "pyproject.toml").write_text(project + f'result = "{{value}}+torch{torch}"\n')
    return copy


def engine_wheel(worker, directory, other_torch):
    """The wheel of the engine."""
    source = ROOT / "python" / "engine"
    torch = re.search(r"^torch==(.*)$", (ROOT / "requirements.txt").read_text(), re.M)[1]
    if f'"torch=={torch}"' not in (source / "pyproject.toml").read_text():
        sys.exit(f"error: python/engine/pyproject.toml has another torch than requirements.txt, {torch}")
    if other_torch not in (None, torch):
        torch, source = other_torch, for_torch(source, other_torch, directory)
    defined = {"cmake.define.SHARDLENS_WORKER": str(worker.resolve()), "cmake.define.SHARDLENS_TORCH": torch, "build-dir": f"{directory}/build-engine"}
    linux = run("build_wheel", directory, defined, cwd=source)
    wheel = repair(Path(directory) / linux, Path(directory) / "engine", *(f"--exclude={name}" for name in OF_TORCH))
    find_torch_beside(wheel)
    return wheel


def program_wheel(program, directory, sysroot):
    """The wheel of the program. With a sysroot it is one for ARM64, whose libraries auditwheel looks for there."""
    defined, environment, options = {"cmake.define.SHARDLENS_PREBUILT": str(program.resolve()), "build-dir": f"{directory}/build"}, {}, []
    if sysroot:
        defined["cmake.define.SHARDLENS_SYSROOT"] = str(sysroot.resolve())
        environment["_PYTHON_HOST_PLATFORM"] = "linux-aarch64"  # of which the wheel's tag is made
        options = [f"--ldpaths={sysroot.resolve()}/usr/lib/aarch64-linux-gnu:{sysroot.resolve()}/lib/aarch64-linux-gnu"]
    linux = run("build_wheel", directory, defined, **environment)
    wheel = repair(Path(directory) / linux, Path(directory) / "repaired", *options)
    check(wheel)
    return wheel


def main(arguments):
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("out", type=Path)
    parser.add_argument("--program", type=Path, required=True)
    parser.add_argument("--worker", type=Path)
    parser.add_argument("--sysroot", type=Path)
    parser.add_argument("--torch", help="the version of torch that the worker was built with, if not that of requirements.txt")
    options = parser.parse_args(arguments)
    options.out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as directory:
        made = [program_wheel(options.program, directory, options.sysroot)]
        if not options.sysroot:
            made.append(Path(directory) / run("build_sdist", directory))
        if options.worker:
            made.append(engine_wheel(options.worker, directory, options.torch))
        for file in made:
            if file.suffix == ".whl":
                sbom.add(file, options.sysroot)
            shutil.copyfile(file, options.out / file.name)
            print(os.path.relpath(options.out / file.name))


if __name__ == "__main__":
    main(sys.argv[1:])
