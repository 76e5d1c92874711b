#!/usr/bin/env python3
"""Checks how the programs and libraries in a folder are linked and compiled.

    check_hardening.py FILE...    ELF files, or folders of them; exit 1 if one lacks something
    check_hardening.py --self-test

Each file: position-independent; relocations are read-only before main (full RELRO); no stack or other memory that is both writable and executable;
no folder for libraries that is relative, so that nothing is loaded from the current directory (an empty one means that too). Programs of this
project are also compiled with stack protectors and _FORTIFY_SOURCE, which shows in the functions that they import.
"""
import argparse
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile

CHECKED = re.compile(r"__(?:memcpy|memmove|memset|strcpy|strncpy|strcat|snprintf|vsnprintf|read|fread|fdelt|explicit_bzero|realpath|getcwd|readlink)_chk")


def readelf(*arguments):
    return subprocess.run(["readelf", "-W", *map(str, arguments)], capture_output=True, text=True, check=False).stdout


def faults_of(file, compiled=True):
    """The protections that this ELF file lacks."""
    header, segments, dynamic = readelf("-h", file), readelf("-l", file), readelf("-d", file)
    if "DYN" not in (re.search(r"Type:\s+(\w+)", header) or [""])[0]:
        yield "is not position-independent"
    if "GNU_RELRO" not in segments or not re.search(r"BIND_NOW|Flags:.*\bNOW\b", dynamic):
        yield "has no full RELRO (-z relro -z now)"
    if re.search(r"^\s*(?:LOAD|GNU_STACK)\s.*\bRWE\b", segments, re.M):
        yield "has memory that is writable and executable"
    if "TEXTREL" in dynamic:
        yield "has relocations in code"
    for folders in re.findall(r"\((?:RUNPATH|RPATH)\).*\[(.*)\]", dynamic):
        for folder in folders.split(":"):
            if not folder.startswith(("/", "$ORIGIN")):
                yield f"loads libraries from '{folder}', which is relative to the current directory"
    if compiled:
        imported = readelf("--dyn-syms", file)
        if "__stack_chk_fail" not in imported:
            yield "has no stack protector (-fstack-protector-strong)"
        if not CHECKED.search(imported):
            yield "is not compiled with _FORTIFY_SOURCE"


def files_of(paths):
    for path in paths:
        for file in sorted(path.iterdir()) if path.is_dir() else [path]:
            if file.is_file() and file.open("rb").read(4) == b"\x7fELF":
                yield file


def self_test():
    """A program with each fault is found out, and one without any is not."""
    compiler = shutil.which("cc") or shutil.which("gcc")
    if not compiler:
        print("skipped: no C compiler")
        return 0
    source = '#include <string.h>\nint main(int n, char** v) { char text[16]; strcpy(text, v[n - 1]); return text[0]; }\n'
    good = ["-O2", "-fPIE", "-pie", "-Wl,-z,relro,-z,now", "-D_FORTIFY_SOURCE=2", "-fstack-protector-strong"]
    cases = [([], ""), (["-no-pie", "-fno-pie"], "position-independent"), (["-Wl,-z,lazy"], "RELRO"), (["-Wl,-z,execstack"], "writable and executable"),
             (["-Wl,-rpath,/usr/lib:"], "''"), (["-Wl,-rpath,lib"], "'lib'"), (["-fno-stack-protector"], "stack protector"),
             (["-U_FORTIFY_SOURCE"], "_FORTIFY_SOURCE")]
    with tempfile.TemporaryDirectory() as folder:
        for number, (flags, expected) in enumerate(cases):
            program = pathlib.Path(folder) / str(number)
            subprocess.run([compiler, "-x", "c", "-w", "-", "-o", program, *good, *flags], input=source, text=True, check=True)
            found = list(faults_of(program))
            if len(found) != (1 if expected else 0) or expected not in "".join(found):
                print(f"{flags}: found {found}, expected '{expected}'")
                return 1
    print(f"{len(cases)} programs judged as expected")
    return 0


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", nargs="*", type=pathlib.Path)
    parser.add_argument("--self-test", action="store_true")
    parser.add_argument("--linked-only", action="store_true", help="not how they were compiled")
    options = parser.parse_args()
    if options.self_test:
        return self_test()
    checked = bad = 0
    for file in files_of(options.files):
        checked += 1
        for fault in faults_of(file, not options.linked_only):
            bad += 1
            print(f"{file}: {fault}")
    print(f"{checked} files checked, {bad} faults")
    return 1 if bad or not checked else 0


if __name__ == "__main__":
    sys.exit(main())
