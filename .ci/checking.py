"""What the checks of this folder have in common."""
import pathlib
import sys


def run(name, violations, self_test, clean):
    """Exit code of `check_NAME.py [ROOT]`, which prints every violation(root), or what `clean` says; or `check_NAME.py --self-test`."""
    arguments = sys.argv[1:]
    if arguments == ["--self-test"]:
        return self_test()
    root = pathlib.Path(arguments[0] if arguments else pathlib.Path(__file__).parent.parent).resolve()
    found = list(violations(root))
    for line in found:
        print(line)
    print(f"{name}: {len(found)} violations" if found else f"{name}: {clean}")
    return 1 if found else 0
