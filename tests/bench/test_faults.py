"""A sample of `bench faults`, and the report of a fault that does not hold."""

import pytest

from mission_gym.cli.main import main
from mission_gym.errors import UsageError
from mission_gym_bench.faults import main as faults
from mission_gym_bench.faults.harness import FaultCase, NotHeld, SkippedFault, must
from mission_gym_bench.faults.kills import make_kills

# Group and name of faults that take a second or two each on a quiet machine; `bench faults --full` has all.
SAMPLE = {
    ("environments", "raise in step, workers"),
    ("files", "policy.safetensors: bits flipped"),
    ("trust", "code inside the run: eval"),
    ("disk and console", "disk full at the start"),
}


def test_the_sample_holds_and_is_counted_by_group():
    chosen = [fault for fault in faults.make_faults() if (fault.group, fault.name) in SAMPLE]
    assert len(chosen) == len(SAMPLE)
    kill = make_kills(num_full=1, chain=1)
    reports = faults.run_faults([*kill, *chosen], at_once=1)  # one process that loads everything, not two
    assert {report.fault.name: report.problem for report in reports if report.problem} == {}
    rows = faults.make_rows(reports)
    assert [row["case"] for row in rows][:2] == ["faults: kills", "faults: environments"]
    assert all(row["peers"] == {} and row["ratio"] is None and row["ours"] == row["held"] for row in rows)
    skipped = sum(bool(report.skipped) for report in reports)
    assert sum(row["tried"] for row in rows) == len(SAMPLE) + 1 - skipped


def test_there_are_enough_faults_with_unique_names():
    every = faults.make_faults()
    assert len({(fault.group, fault.name) for fault in every}) == len(every)
    assert sum(fault.tried for fault in every if fault.group == "kills") >= 200
    assert len([fault for fault in every if fault.group != "kills"]) >= 150
    assert {fault.group for fault in every if fault.quick} == {fault.group for fault in every}
    assert all(fault.holds for fault in every)


def fail(harness):
    must(False, "it fell over")


def skip(harness):
    raise SkippedFault("needs two moons")


def break_off(harness):
    raise KeyError("of the check itself")


def test_a_fault_that_does_not_hold_gives_exit_code_1(monkeypatch, tmp_path, capsys):
    made = [
        FaultCase("files", "held", "nothing", lambda harness: None, quick=True),
        FaultCase("files", "not held", "nothing", fail, quick=True, tried=3),
        FaultCase("clock", "skipped", "nothing", skip, quick=True),
        FaultCase("clock", "broken", "nothing", break_off, quick=True),
        FaultCase("clock", "only in full", "nothing", fail),
    ]
    monkeypatch.setattr(faults, "make_faults", lambda: made)
    monkeypatch.chdir(tmp_path)
    assert main(["bench", "faults"]) == 1
    captured = capsys.readouterr()
    words = captured.out.split()
    assert words[:3] == ["group", "tried", "held"]
    assert words[3:12] == ["files", "4", "1", "clock", "1", "0", "all", "5", "1"]
    assert "not held: it fell over" in captured.out
    assert "broken: KeyError: 'of the check itself'" in captured.out
    assert "skipped: needs two moons" in captured.out
    assert "files: held: held" in captured.err


def test_it_needs_a_checkout(monkeypatch, tmp_path):
    monkeypatch.setattr("mission_gym.__file__", str(tmp_path / "a" / "b" / "__init__.py"))
    with pytest.raises(UsageError, match=r"needs a checkout .*: tests/support/toys\.py is missing"):
        faults.find_toys()


def test_a_false_condition_is_not_held():
    must(True, "")
    with pytest.raises(NotHeld, match="what happened"):
        must(False, "what happened")
