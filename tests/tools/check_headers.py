#!/usr/bin/env python3
"""Checks that a build uses only the CUDA headers of the Python packages that scripts/setup installs, not those of the machine.

    check_headers.py BUILD PACKAGES    BUILD: made by Ninja; PACKAGES: the folder with the packages
    check_headers.py --self-test

Otherwise a header that no package has would be missed only on a machine without CUDA.
"""
import pathlib
import re
import subprocess
import sys

CUDA = re.compile(r"/include/(?:.*/)?(?:(?:crt|nv|cooperative_groups)/.*|(?:cuda|cupti|cublas|nvrtc|nccl)[^/]*\.h(?:pp)?)$", re.M)


def outside(dependencies, packages):
    """The CUDA headers that are not in `packages`, from what `ninja -t deps` prints."""
    found = {line.strip() for line in dependencies.splitlines() if line.startswith(" ") and CUDA.search(line)}
    return sorted(header for header in found if not header.startswith(f"{packages}/"))


def self_test():
    printed = "a.o: #deps 3, deps mtime 1 (VALID)\n    /w/nvidia/cu13/include/cupti.h\n    /usr/local/include/crt/host_defines.h\n    /usr/include/stdio.h\n"
    assert outside(printed, "/w") == ["/usr/local/include/crt/host_defines.h"]
    assert outside(printed, "/usr/local") == ["/w/nvidia/cu13/include/cupti.h"]
    assert outside(printed.replace("/usr/local", "/w"), "/w") == []


def main():
    if sys.argv[1:] == ["--self-test"]:
        self_test()
        return
    build, packages = sys.argv[1], pathlib.Path(sys.argv[2]).resolve()
    printed = subprocess.run(["ninja", "-C", build, "-t", "deps"], check=True, capture_output=True, text=True).stdout
    if not CUDA.search(printed):
        sys.exit(f"no file of {build} includes a header of CUDA, so nothing was checked")
    if found := outside(printed, packages):
        sys.exit(f"headers of CUDA that are not in {packages}:\n  " + "\n  ".join(found))


if __name__ == "__main__":
    main()
