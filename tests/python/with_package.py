"""Runs a module with python/ of this repository on the path, also in processes that it starts: with_package.py -m pytest …"""
import os
import runpy
import sys
from pathlib import Path

package = str(Path(__file__).resolve().parents[2] / "python")
sys.path.insert(0, package)
os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [package, os.environ.get("PYTHONPATH")]))
assert sys.argv[1] == "-m"
del sys.argv[:2]
runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
