"""Versions that bits depend on."""

from mission_gym.procs.machine import compare_versions, versions


def test_what_the_default_learner_depends_on_is_kept() -> None:
    assert {"mission-gym", "numpy", "torch", "gymnasium", "numba", "scipy", "python"} <= versions().keys()


def test_a_version_that_was_not_kept_is_not_changed() -> None:
    now = versions()
    assert compare_versions(now) == ([], [])
    old = {name: value for name, value in now.items() if name not in ("numba", "scipy")} | {"numpy": "1.0"}
    assert compare_versions(old) == ([f"numpy 1.0 -> {now['numpy']}"], ["numba", "scipy"])
