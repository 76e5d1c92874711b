"""Common code of the checks in this folder."""
import pathlib
import sys


def run(name, violations, self_test, clean):
    """Runs `check_NAME.py [ROOT]`, which prints every violation of violations(root), or the message `clean` if there is none; or
    `check_NAME.py --self-test`. Returns the exit code."""
    arguments = sys.argv[1:]
    if arguments == ["--self-test"]:
        return self_test()
    root = pathlib.Path(arguments[0] if arguments else pathlib.Path(__file__).parent.parent).resolve()
    found = list(violations(root))
    for line in found:
        print(line)
    print(f"{name}: {len(found)} violations" if found else f"{name}: {clean}")
    return 1 if found else 0
