#!/usr/bin/env python3
"""Checks rules that the compiler does not: every source file is in a CMakeLists.txt, file lengths, leftover markers, private paths, and that
files are read and written, and text is printed, only by the modules for it.

    check_sources.py [ROOT]       prints every violation as file:line, exit 1 if there is one
    check_sources.py --self-test  finds the violations in a tree with one of each kind
"""
import pathlib
import re
import sys
import tempfile

import checking

TOP = ("core", "profiler", "sim", "gui", "cli", "tests", "bench")
HEADER_LINES, SOURCE_LINES, FOLDER_FILES, CLASS_SOURCES = 250, 600, 40, 3
# The class of a function that is defined at the beginning of a line.
MEMBER = re.compile(r"^(?!\s|//|#|return)[^\n(=]*?\b(\w+)::~?\w+\(", re.M)
MARKER = re.compile(r"\b(TODO|FIXME|XXX|HACK)\b|not implemented|placeholder(?!Text)", re.I)
READS = re.compile(r"\bstd::w?i?fstream\b|\bQFile\b|(?<!\w)f(?:re)?open\(|(?<![\w:])::open(?:at)?\(")
OPENS = {"core/files/input_file.cpp": "the one place", "core/files/directory_lock.cpp": "locks", "core/files/output_folder.cpp": "writes"}
# What writes to stdout or stderr. core/base/standard_output.h and python/shardlens/shown.py take only text in which nothing is raw.
OUTPUT = {
    ".cpp": re.compile(r"\b(stdout|stderr)\b|\bwrite\((STD(OUT|ERR)_FILENO|[12])\b|\bstd::(cout|cerr|clog|printf|puts|putchar|perror)\b|\bfmt::print\b|\bfprintf\b|\bqDebug\b"),
    ".py": re.compile(r"(?<![\w.])print\(|\bsys\.(stdout|stderr|__std\w+__)\b|\bsys\.exit\((?![\w.]*\(|\d*\))|\bwarnings\.warn\(|\btraceback\.print_\w+"),
}
OUTPUT[".h"] = OUTPUT[".cpp"]
OUTPUT_FOLDERS = ("core", "profiler", "sim", "gui", "cli", "python/shardlens")
# Where data for programs are written to stdout, each in a format that has its own way to quote: JSON, CSV, scripts of a shell, the flags' help.
DATA = re.compile(r"\bwrite_data\(")
DATA_FILES = ("cli/command/advise_command.cpp", "cli/command/analyze_command.cpp", "cli/command/calibrate_command.cpp", "cli/command/check_command.cpp",
              "cli/command/checkpoint_command.cpp", "cli/command/command_line.cpp", "cli/command/compare_command.cpp", "cli/command/completion_command.cpp",
              "cli/command/docs_command.cpp", "cli/command/doctor_command.cpp", "cli/command/merge_command.cpp", "cli/command/plan_command.cpp", "cli/command/schema_command.cpp",
              "cli/command/search_command.cpp",
              "cli/command/simulate_command.cpp", "cli/command/validate_command.cpp", "cli/results/parameter_ranges.cpp", "cli/results/plan_from_trace.cpp",
              "core/base/standard_output.h", "gui/app/main.cpp", "gui/app/startup.cpp")
OUTPUT_FILES = ("core/base/standard_output.cpp", "python/shardlens/shown.py")
PRIVATE = re.compile(r"(?<![\w.])/(work|root|home/\w+)/")

# What makes, replaces or removes files. In C++ that is core/files/output_folder.h and what is made of it, in Python shardlens/files.py: they
# follow no link, replace a file as a whole, and remove only what they made. Each other place has its reason.
WRITES_TOP = ("core", "profiler", "sim", "gui", "cli", "examples")
WRITES = re.compile(
    r"""\bstd::(?:basic_)?w?o?fstream\b
    | (?<![\w.>])(?:std::|::)?(?:fopen|freopen|fdopen)\(
    | (?<![\w.>])::open(?:at|at2)?\((?=[^;]*\bO_(?:CREAT|TRUNC|WRONLY|RDWR|APPEND|TMPFILE)\b)
    | (?<![\w.>)])::(?:creat|mkstemps?|mkdtemp|mkdir(?:at)?|mkfifo(?:at)?|mknod(?:at)?|symlink(?:at)?|link(?:at)?|unlink(?:at)?|rmdir|
                       rename(?:at2?)?|truncate|f?chmod(?:at)?|f?chown(?:at)?)\(
    | \b(?:filesystem|fs)::(?:remove|remove_all|rename|create_\w+|copy|copy_file|copy_symlink|resize_file|permissions|last_write_time)\(
    | \bQ(?:File|SaveFile|TemporaryFile|TemporaryDir|PdfWriter|LockFile)\b
    | \bsetFileName\(""", re.X)
MAY_WRITE = {
    "core/files/output_folder.cpp": "the module",
    "core/files/output_file.cpp": "the module",
    "cli/flags/standard_descriptors.cpp": "/dev/null",
    "gui/app/main.cpp": "the settings of a run without a user, in a folder that Qt makes with a random name and mode 0700",
    "gui/view/window/selftest.cpp": "likewise, for the pictures of the self-test",
    "gui/model/compare/plan_runs.h": "likewise, for the plan that a capture is started with",
}
PYTHON_WRITES = re.compile(
    r"""(?<![\w.])open\([^)\n]*,\s*(?:mode\s*=\s*)?["'][^"']*[wax+]
    | \.(?:open|fdopen)\([^)\n]*["'][rbt]*[wax+]
    | \bos\.(?:open|mkdir|makedirs|remove|removedirs|unlink|rmdir|rename|renames|replace|link|symlink|truncate|chmod|chown|mkfifo)\(
    | \.(?:write_text|write_bytes|mkdir|touch|unlink|rmdir|rename|symlink_to|hardlink_to|chmod)\(
    | \bshutil\.(?:rmtree|move|copy|copy2|copyfile|copytree|make_archive|unpack_archive)\(
    | \btempfile\b""", re.X)
PYTHON_MAY_WRITE = {"python/shardlens/files.py": "the module"}


def without_comments(text, python):
    """The text with as many lines, in which no comment or string of several lines is left."""
    pattern = r'"""(?:.|\n)*?"""|#[^\n]*' if python else r"//[^\n]*|/\*(?:.|\n)*?\*/"
    return re.sub(pattern, lambda found: "\n" * found.group().count("\n"), text)


def check_writes(root, file, pattern, allowed):
    path = file.relative_to(root).as_posix()
    if path in allowed:
        return
    text = without_comments(file.read_text(encoding="utf-8"), file.suffix == ".py")
    for found in pattern.finditer(text):
        module = "python/shardlens/files.py" if file.suffix == ".py" else "core/files/output_folder.h, output_file.h or atomic_file.h"
        yield f"{path}:{text.count(chr(10), 0, found.start()) + 1}: {found.group().strip()}: files are made, replaced and removed by {module}"


def listed(root, file):
    """Whether the CMakeLists.txt of the file's folder, or of the nearest folder above that has one, builds it: by name, by a pattern, or because
    a library there takes every source of its folder."""
    folder = file.parent
    while folder != root.parent:
        lists = folder / "CMakeLists.txt"
        if lists.is_file():
            text = re.sub(r"#[^\n]*", "", lists.read_text(encoding="utf-8"))
            words = re.split(r"[\s()\"]+", text)
            path = file.relative_to(folder)
            takes_all = any("SOURCES" not in body for body in re.findall(r"shardlens_library\(([^)]*)\)", text))
            return takes_all or path.as_posix() in words or (path.parent / "*.cpp").as_posix() in words
        folder = folder.parent
    return False


def check_file(root, file):
    path = file.relative_to(root).as_posix()
    lines = file.read_text(encoding="utf-8").splitlines()
    limit = HEADER_LINES if file.suffix == ".h" else SOURCE_LINES
    if len(lines) > limit:
        yield f"{path}:{limit + 1}: {len(lines)} lines, expected at most {limit}; split it by concept"
    if file.suffix == ".cpp" and not listed(root, file):
        yield f"{path}:1: not in a CMakeLists.txt, so it is not built"
    if file.suffix == ".h" and "#pragma once" not in lines:
        yield f"{path}:1: no #pragma once"
    for number, line in enumerate(lines, 1):
        for pattern, what in ((MARKER, "a leftover marker"), (PRIVATE, "a path of one machine")):
            found = pattern.search(line)
            if found:
                yield f"{path}:{number}: {what}: {found.group()}"


def check_reading(root, file):
    """Inputs are opened in one place, which refuses devices, directories and files of any size, and does not wait."""
    path = file.relative_to(root).as_posix()
    text = file.read_text(encoding="utf-8")
    if path in OPENS or path.split("/")[0] in ("tests", "bench"):
        return
    for found in READS.finditer(text):
        call = text[found.start():text.find(";", found.start())]
        if "O_WRONLY" in call or '"/dev/null"' in call or "O_DIRECTORY" in call:
            continue
        number = text.count("\n", 0, found.start()) + 1
        yield f"{path}:{number}: {found.group()}: files are read through core/files/input_file.h"


def code_of(line, suffix):
    """The line without its comment and the text of its strings."""
    line = re.sub(r'"(?:[^"\\]|\\.)*"', '""', line)
    return line.split("#" if suffix == ".py" else "//")[0]


def check_output(root, file):
    path = file.relative_to(root).as_posix()
    if path in OUTPUT_FILES:
        return
    for number, line in enumerate(file.read_text(encoding="utf-8").splitlines(), 1):
        code = code_of(line, file.suffix)
        if DATA.search(code) and file.suffix != ".py" and path not in DATA_FILES:
            yield f"{path}:{number}: write_data writes a string as it is; use write_stdout, or add the file to DATA_FILES of check_sources.py"
        found = OUTPUT[file.suffix].search(code)
        if found:
            yield f"{path}:{number}: {found.group()} writes text that may be untrusted; use {OUTPUT_FILES[file.suffix == '.py']}"


def check_names(root):
    """A header's name says what it is: outside of the tests, no two have the same."""
    first = {}
    for top in TOP:
        for file in sorted((root / top).glob("**/*.h")) if top != "tests" else ():
            path = file.relative_to(root).as_posix()
            if file.name in first:
                yield f"{path}:1: {first[file.name]} has this name too"
            first.setdefault(file.name, path)


def check_folders(root):
    """A folder is small enough to look through."""
    for top in TOP:
        for folder in sorted({file.parent for file in (root / top).glob("**/*.*")} if top not in ("tests", "bench") else ()):
            files = [file for file in folder.iterdir() if file.is_file()]
            if len(files) > FOLDER_FILES:
                yield f"{folder.relative_to(root).as_posix()}:1: {len(files)} files, expected at most {FOLDER_FILES}; divide it by concept"


def check_classes(root):
    """A class is one concept: its functions are in few sources."""
    for top in TOP:
        sources = {}
        for file in sorted((root / top).glob("**/*.cpp")) if top not in ("tests", "bench") else ():
            for name in set(MEMBER.findall(file.read_text(encoding="utf-8"))):
                sources.setdefault((file.parent, name), []).append(file)
        for (folder, name), files in sorted(sources.items()):
            declared = re.compile(rf"^\s*(?:class|struct) (?:\w+::)*{name}\b[^;]*{{", re.M)
            if len(files) > CLASS_SOURCES and any(declared.search(each.read_text(encoding="utf-8")) for each in folder.glob("*.[hc]*")):
                yield (f"{files[-1].relative_to(root).as_posix()}:1: class {name} is in {len(files)} sources, expected at most {CLASS_SOURCES}; "
                       "divide it by concept")


def violations(root):
    yield from check_names(root)
    yield from check_classes(root)
    yield from check_folders(root)
    for top in TOP:
        for file in sorted((root / top).glob("**/*")):
            if file.suffix in (".h", ".cpp") and file.is_file():
                yield from check_file(root, file)
                yield from check_reading(root, file)
    for top in OUTPUT_FOLDERS:
        for file in sorted((root / top).glob("**/*")):
            if file.suffix in OUTPUT and file.is_file():
                yield from check_output(root, file)
    for top in WRITES_TOP:
        for file in sorted((root / top).glob("**/*")):
            if file.suffix in (".h", ".cpp") and file.is_file():
                yield from check_writes(root, file, WRITES, MAY_WRITE)
    for file in sorted((root / "python/shardlens").glob("**/*.py")):
        yield from check_writes(root, file, PYTHON_WRITES, PYTHON_MAY_WRITE)


def self_test():
    cases = {
        "core/base/unlisted.cpp": "int a;",
        "core/base/long.h": "#pragma once\n" * 251,
        "core/base/unguarded.h": "int a;",
        "core/base/marker.h": "#pragma once\n// TO" + "DO: later",
        "core/base/stream.h": "#pragma once\nstd::ifstream in(path);",
        "core/files/descriptor.h": "#pragma once\nint a = ::open(path,\n  O_RDONLY);",
        "core/base/private.h": '#pragma once\nauto p = "/ho' + 'me/me/x";',
    }
    cases["core/plan/a.h"] = "#pragma once"
    cases["core/spread/s4.cpp"] = "void Spread::d() {}"
    for number, line in enumerate(['fmt::print("{}", name);', "std::cerr << name;", "std::fputs(name, stderr);", "::write(STDERR_FILENO, name, 1);",
                                   "std::puts(name);", "write_data(name);"]):
        cases[f"cli/command/raw{number}.cpp"] = line
    for number, line in enumerate(["print(name)", "sys.stdout.write(name)", 'sys.exit(f"{name}")', "warnings.warn(name)", "traceback.print_exc()"]):
        cases[f"python/shardlens/raw{number}.py"] = line
    cases["core/many"] = None
    calls = ["std::ofstream out(path);", "std::fstream file;", "::open(p.c_str(),\n O_RDWR | O_CREAT, 0644);", "::unlink(p);", "::mkdtemp(name);",
             "fs::remove_all(p);", "std::filesystem::rename(a, b);", "fs::create_directories(p);", "QSaveFile file(p);", "std::fopen(p, mode);"]
    for i, call in enumerate(calls):
        cases[f"core/plan/writes{i}.h"] = f"#pragma once\n{call}"
    python_calls = ["open(path, 'w')", "path.open(\"ab\")", "os.replace(a, b)", "path.write_text(text)", "shutil.rmtree(path)", "import tempfile"]
    for i, call in enumerate(python_calls):
        cases[f"python/shardlens/writes{i}.py"] = call + "\n"
    good = {"core/base/CMakeLists.txt": "shardlens_library(b SOURCES sub/a.cpp) # unlisted.cpp", "core/base/sub/a.cpp": "int a;",
            "core/files/CMakeLists.txt": "shardlens_library(f LINKS b)",
            "core/files/input_file.cpp": "int a = ::open(path, O_RDONLY);", "core/files/output_folder.cpp": "int a = ::unlinkat(f, n, 0);",
            "core/base/a.h": '#pragma once\nint a = ::open("/dev/null", O_RDONLY);', "core/plan/CMakeLists.txt": "shardlens_library(p LINKS b)", "core/plan/all.cpp": "int a;",
            "core/spread/CMakeLists.txt": "shardlens_library(s LINKS b)", "core/spread/spread.h": "#pragma once\nclass Spread {\n};\nclass Tight {\n};",
            **{f"core/spread/s{i}.cpp": f"Result<int> Spread::{name}(\n    int at) {{}}" for i, name in ((1, "a"), (2, "b"), (3, "c"))},
            "core/spread/t.cpp": "  Tight::make();\n// Tight::b()\nTight::Tight() {}",
            "cli/CMakeLists.txt": "file(GLOB commands command/*.cpp)", "cli/command/one.cpp": 'write_stderr("stderr: {}", name);  // not to stdout',
            "sim/reads.h": "#pragma once\n// ::unlink(p)\n// O_CREAT\nfolder.remove(name, id);",
            "python/shardlens/reads.py": '"""os.replace(a, b)"""\nopen(path, "rb")\ntext.replace(a, b)\nshutil.copyfileobj(a, b)  # os.unlink(p)\n',
            "python/shardlens/files.py": "os.replace(a, b)",
            "python/shardlens/shown.py": "print(text)", "python/shardlens/one.py": "sys.exit(main())\nsys.exit(3)\nshow(name)"}
    with tempfile.TemporaryDirectory() as folder:
        root = pathlib.Path(folder)
        for number in range(FOLDER_FILES + 1):
            (root / "core/many").mkdir(parents=True, exist_ok=True)
            (root / f"core/many/a{number}.py").touch()
        for path, text in {**good, **cases}.items():
            if text is None:
                continue
            (root / path).parent.mkdir(parents=True, exist_ok=True)
            (root / path).write_text(text, encoding="utf-8")
        found = list(violations(root))
    if sorted({line.split(":")[0] for line in found}) != sorted(cases):
        print("self-test: found\n  " + "\n  ".join(found) + "\nexpected a violation in each of\n  " + "\n  ".join(sorted(cases)))
        return 1
    print(f"check_sources self-test: {len(cases)} violations found, {len(good)} clean files passed")
    return 0


if __name__ == "__main__":
    sys.exit(checking.run("check_sources", violations, self_test, "every source file is built and within its limits"))
