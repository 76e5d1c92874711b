"""Reads the calls that tests/tools/file_calls.c has logged, and finds those that could destroy what is not ours.

    call_log.py    finds the calls that it should in a log with one of each kind
"""
import os
import re
import sys

# Calls that are allowed although they do not follow the rules: call, path, reason.
EXCEPTIONS = [
    ("truncate", r".*\.lock$", "the process that has the lock writes its name there, if nothing else is there"),
    ("any", r"/(proc|sys|dev/(?!shm/))", "devices and descriptors cannot be lost"),
]


def is_lock(path):
    return re.search(r"(^|/)(\.?[\w.-]*\.)?lock$", path) is not None


def violations(lines, folder, outputs, grows=False, marked=False):
    """Creations that are not exclusive, and removals and renames of what the process has not made.

    outputs  what the command was told to write
    grows    it goes on in the file if it exists
    marked   the output is a directory with the mark of an earlier command, which may be emptied"""
    own, found = {}, []
    targets = [f"{folder}/{each}" for each in outputs]

    def is_own(process, path):
        return path in own.setdefault(process, set())

    def is_output(path):
        return any((path + "/").startswith(each + "/") for each in targets)

    def report(call, what, path):
        if any(each in ("any", call) and re.match(pattern, path) for each, pattern, _ in EXCEPTIONS):
            return
        found.append(f"{call} {what}: {path.replace(str(folder) + '/', '')}")

    for line in lines:
        process, call, what, path, other = line.split("\t")
        path, other = os.path.normpath(path), os.path.normpath(other)
        words, mine = what.split(","), own.setdefault(process, set())
        if "failed" in words:
            continue
        if call in ("open", "fopen"):
            if "excl" in words or "tmpfile" in words:
                mine.add(path)
            elif "trunc" in words:
                report(call, "with O_TRUNC" + ("" if "there" in words else ", though the file is new"), path)
                if "new" in words:
                    mine.add(path)
            elif is_lock(path) and "nofollow" in words:
                mine.add(path)
            elif grows and path in targets and "nofollow" in words:
                pass
            else:
                report(call, "with O_CREAT, without O_EXCL", path)
        elif call in ("mkdir", "symlink"):
            mine.add(path)
        elif call == "truncate":
            if not is_own(process, path):
                report(call, "of what others may have written", path)
        elif call in ("rename", "rename_new", "exchange", "link"):
            if not is_own(process, path) and not path.startswith("/proc/"):
                report(call, "of what the process has not made", path)
            if call in ("rename", "exchange") and not is_output(other) and not any(other.startswith(each + "/") for each in mine):
                report(call, "to what is no output", other)
            mine.discard(path)
            moved = {each for each in mine if each.startswith(path + "/")}
            mine.difference_update(moved)
            mine.update({other, *(other + each[len(path):] for each in moved)})
        elif call == "remove":
            if not is_own(process, path) and not (marked and is_output(path)):
                report(call, "of what the process has not made", path)
            mine.discard(path)
    return found


# A call as it is logged, in a lab with the output work/out, and what is found.
SELF_TEST = [
    ("1 open creat,excl,nofollow,new,done /lab/work/out.tmp1", None),
    ("1 rename done /lab/work/out.tmp1 /lab/work/out", None),
    ("1 open creat,trunc,new,done /lab/work/out.tmp2", "open with O_TRUNC, though the file is new: work/out.tmp2"),
    ("1 open creat,trunc,there,done /lab/work/notes.txt", "open with O_TRUNC: work/notes.txt"),
    ("1 open creat,new,done /lab/work/log", "open with O_CREAT, without O_EXCL: work/log"),
    ("1 open creat,nofollow,there,done /lab/work/out/capture.lock", None),
    ("1 open creat,there,done /lab/work/out/capture.lock", "open with O_CREAT, without O_EXCL: work/out/capture.lock"),
    ("1 truncate done /lab/work/out/capture.lock", None),
    ("1 truncate done /lab/work/notes.txt", "truncate of what others may have written: work/notes.txt"),
    ("1 open creat,trunc,there,failed /lab/work/notes.txt", None),
    ("1 mkdir done /lab/work/new", None),
    ("1 open tmpfile,new,done /lab/work/new/file", None),
    ("1 rename done /lab/work/new /lab/work/out/new", None),
    ("1 remove file,done /lab/work/./out/new/file", None),
    ("1 remove file,done /lab/work/notes.txt", "remove of what the process has not made: work/notes.txt"),
    ("2 remove file,done /lab/work/out", "remove of what the process has not made: work/out"),
    ("1 rename done /lab/work/notes.txt /lab/work/out", "rename of what the process has not made: work/notes.txt"),
    ("1 rename done /lab/work/out/new /lab/work/notes.txt", "rename to what is no output: work/notes.txt"),
    ("1 fopen creat,trunc,there,done /dev/null", None),
]


def self_test():
    lines = ["\t".join([*line.split(), ""][:5]) for line, _ in SELF_TEST]
    found = violations(lines, "/lab", ["work/out"])
    wanted = [each for _, each in SELF_TEST if each]
    for each in found:
        if each not in wanted:
            print(f"found, but allowed: {each}")
    for each in wanted:
        if each not in found:
            print(f"not found: {each}")
    return 0 if found == wanted else 1


if __name__ == "__main__":
    sys.exit(self_test())
