#!/usr/bin/env python3
"""Makes the Debian packages of a build with CPack and looks at what they contain and need.

    check_packages.py BUILD [--keep DIR]      exit 1 if a package lacks a file or a dependency; 77 if dpkg's tools are missing

The program of the package is unpacked and run from there.
"""
import argparse
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
FILES = {
    "shardlens": ["usr/bin/shardlens", "usr/share/man/man1/shardlens.1.gz", "usr/share/man/man1/shardlens-analyze.1.gz",
                  "usr/share/bash-completion/completions/shardlens", "usr/share/zsh/vendor-completions/_shardlens",
                  "usr/share/fish/vendor_completions.d/shardlens.fish", "usr/share/shardlens/schemas/analyze.json",
                  "usr/share/doc/shardlens/copyright", "usr/share/doc/shardlens/changelog.gz"],
    "libshardlens-dev": ["usr/lib/libshardlens_scenario.a", "usr/include/shardlens/sim/scenario/scenario.h", "usr/lib/cmake/Shardlens/ShardlensConfig.cmake",
                         "usr/share/doc/libshardlens-dev/copyright"],
    "shardlens-gui": ["usr/bin/shardlens-gui", "usr/share/man/man1/shardlens-gui.1.gz", "usr/share/doc/shardlens-gui/changelog.gz", "usr/share/applications/shardlens.desktop", "usr/share/mime/packages/shardlens.xml",
                      "usr/share/metainfo/io.github.shardlens.Shardlens.metainfo.xml", "usr/share/icons/hicolor/scalable/apps/shardlens.svg",
                      "usr/share/shardlens/traces/llama-emulated8/run.json"],
}
DEPENDS = {"shardlens": ["libc6", "libstdc++6", "libfmt9", "libzstd1", "libre2-9", "libyaml-0-2"], "libshardlens-dev": ["libfmt-dev", "libsimdjson-dev"],
           "shardlens-gui": ["libqt6widgets6", "libqt6svg6", "libc6", "qt6-qpa-plugins"]}


def output(*command, **more):
    ended = subprocess.run([str(part) for part in command], capture_output=True, text=True, check=False, **more)
    if ended.returncode:
        print(f"FAILED: {' '.join(map(str, command))}: exit code {ended.returncode}\n{ended.stdout}{ended.stderr}")
        sys.exit(1)
    return ended.stdout


def faults_of(package, version, folder):
    field = {name: output("dpkg-deb", "-f", package, name).strip() for name in ("Package", "Version", "Depends", "Architecture", "Maintainer")}
    name = field["Package"]
    if field["Version"] != version:
        yield f"{name}: version {field['Version']}, expected {version}"
    unpacked = folder / name
    unpacked.mkdir(parents=True)
    output("dpkg-deb", "-x", package, unpacked)
    for file in FILES.get(name, ["(a package that nobody expects)"]):
        if not (unpacked / file).exists():
            yield f"{name}: {file} is missing"
    for needed in DEPENDS.get(name, []):
        if not re.search(rf"(^|[ ,]){re.escape(needed)}(t64)?( |,|$)", field["Depends"]):
            yield f"{name}: does not depend on {needed}: {field['Depends']}"
    if "torch" in field["Depends"] or any(unpacked.rglob("shardlens-worker")):
        yield f"{name}: has a part of the engine, which LibTorch's package would have to provide"
    for program in (unpacked / "usr" / "bin").glob("*") if (unpacked / "usr" / "bin").exists() else []:
        if "not stripped" in output("file", program):
            yield f"{name}: {program.name} is not stripped"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("build", type=pathlib.Path)
    parser.add_argument("--keep", type=pathlib.Path)
    options = parser.parse_args()
    for tool in ("dpkg-shlibdeps", "dpkg-deb", "file", "cpack"):
        if not shutil.which(tool):
            print(f"skipped: no {tool}")
            return 77
    version = re.search(r'^__version__ = "([0-9.]+)"$', (ROOT / "python/shardlens/__init__.py").read_text(encoding="utf-8"), re.M)[1]
    with tempfile.TemporaryDirectory() as folder:
        folder = pathlib.Path(folder)
        environment = dict(os.environ, SOURCE_DATE_EPOCH="1700000000")
        output("cpack", "--config", options.build.resolve() / "CPackConfig.cmake", "-G", "DEB", "-B", folder / "made", cwd=folder, env=environment)
        packages = sorted((folder / "made").glob("*.deb"))
        expected = {"shardlens", "libshardlens-dev"} | ({"shardlens-gui"} if (options.build / "bin" / "shardlens-gui").exists() else set())
        wrong = [fault for package in packages for fault in faults_of(package, version, folder / "unpacked")]
        names = {package.name.split("_")[0] for package in packages}
        wrong += [f"packages {sorted(names)}, expected {sorted(expected)}"] if names != expected else []
        said = output(folder / "unpacked" / "shardlens" / "usr" / "bin" / "shardlens", "--version")
        wrong += [f"the unpacked program says {said}"] if said != f"shardlens {version}\n" else []
        if options.keep:
            options.keep.mkdir(parents=True, exist_ok=True)
            for package in packages:
                shutil.copy(package, options.keep)
        print("\n".join(wrong) or ", ".join(f"{package.name} {package.stat().st_size // 1024} KiB" for package in packages))
        return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
