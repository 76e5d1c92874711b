"""What a recording says drove its training loop: the modules that a program of each framework has imported."""
import importlib.metadata
import types

from shardlens.live_framework import framework


def accelerate_state(made):
    return types.SimpleNamespace(AcceleratorState=types.SimpleNamespace(_shared_state={"distributed_type": "FSDP"} if made else {}))


def test_a_plain_program_has_none():
    assert framework({}) is None
    assert framework({"accelerate.state": accelerate_state(False), "transformers.trainer": object()}) is None


def test_accelerate_and_the_trainer_that_uses_it(monkeypatch):
    monkeypatch.setattr(importlib.metadata, "version", lambda name: {"accelerate": "1.15.0", "transformers": "5.24.0"}[name])
    assert framework({"accelerate.state": accelerate_state(True)}) == {"name": "accelerate", "version": "1.15.0"}
    assert framework({"accelerate.state": accelerate_state(True), "transformers.trainer": object()}) == {"name": "transformers", "version": "5.24.0"}


def test_torchtitan_run_as_a_module_and_from_its_sources(monkeypatch):
    def missing(name):
        raise importlib.metadata.PackageNotFoundError(name)

    monkeypatch.setattr(importlib.metadata, "version", missing)
    main = types.SimpleNamespace(__spec__=types.SimpleNamespace(name="torchtitan.train"))
    assert framework({"__main__": main}) == {"name": "torchtitan", "version": None}
    assert framework({"torchtitan.train": object(), "accelerate.state": accelerate_state(True)})["name"] == "torchtitan"


def test_another_version_of_a_framework_ends_no_recording():
    assert framework({"accelerate.state": object()}) is None
