"""One damaged run among good ones: lists leave it out and name it, commands about it say a sentence."""

import json
import re
import shutil

import pytest

from mission_gym.cli.main import main
from mission_gym.config.layers import format_config
from mission_gym.run.config import resolve
from mission_gym.store.evals import read_evals, write_eval
from mission_gym.store.rundir import Lineage, RunDir, write_lineage
from mission_gym.store.tables import MetricsLog

ODD = [b"null", b"[]", b"7", b'"text"', b"", b"\xff\xfe", b"{", b"[" * 100_000, None]
STATUSES = [
    b'{"created": "x"}',
    b'{"step": []}',
    b'{"fps": {}}',
    b'{"verdict": 3}',
    b'{"step": 1%s}' % (b"0" * 400),
]
LINEAGES = [b"{}", b'{"env_signature": 1}']


def make(runs_dir, name, parent=None):
    run = RunDir.create(runs_dir, name)
    run.config_yaml.write_text(format_config(resolve("toys:Identity", {})))
    path = None if parent is None else str(parent.path)
    write_lineage(run, Lineage("e", parent and parent.name, path, parent and 64))
    run.write_status(state="done", step=64, total=64)
    return run


def spoil(path, content):
    """Write the bytes, or with None put a folder in the place of the file."""
    path.unlink()
    if content is None:
        path.mkdir()
    else:
        path.write_bytes(content)


@pytest.fixture
def runs(tmp_path):
    bad = make(tmp_path, "bad")
    return bad, make(tmp_path, "good", bad)


def call(runs, *args):
    return main([*args, "--runs-dir", str(runs[0].path.parent)])


@pytest.mark.parametrize("content", [*ODD, *STATUSES])
def test_a_damaged_status_harms_no_other_run(runs, content, capsys):
    bad, good = runs
    spoil(bad.status_json, content)
    assert call(runs, "runs", "list", "--json") == 0
    out, err = capsys.readouterr()
    assert [row["name"] for row in json.loads(out)] == [good.name]
    assert re.fullmatch(rf"{bad.name} is left out: .*status\.json.*\n", err)
    for args in (["runs", "list"], ["runs", "show", "latest"], ["runs", "show", "goo"], ["runs", "clean"]):
        assert call(runs, *args) == 0
    capsys.readouterr()
    assert call(runs, "runs", "show", "bad") == 2
    assert re.fullmatch(r"mission-gym: .*status\.json.*\n", capsys.readouterr().err)


@pytest.mark.parametrize("content", [*ODD, *LINEAGES])
def test_a_damaged_lineage_harms_no_other_run(runs, content, capsys):
    bad = runs[0]
    spoil(bad.lineage_json, content)
    assert call(runs, "runs", "lineage", "good", "--json") == 0
    out, err = capsys.readouterr()
    assert [item["name"] for item in json.loads(out)["ancestors"]] == [bad.name]
    assert re.fullmatch(rf"{bad.name} is left out: .*lineage\.json.*\n", err)
    assert call(runs, "runs", "lineage", "bad") == 2
    assert re.fullmatch(r"mission-gym: .*lineage\.json.*\n", capsys.readouterr().err)


@pytest.mark.parametrize("content", [*ODD, b"a: &x 1\nb: *x\n", b"- " * 100])
def test_a_damaged_config_harms_no_other_run(runs, content, capsys):
    bad = runs[0]
    spoil(bad.config_yaml, content)
    for args in (
        ["runs", "list"],
        ["runs", "show", "good"],
        ["runs", "show", "bad"],
        ["runs", "compare", "bad", "good"],
    ):
        assert call(runs, *args) == 0
    assert call(runs, "config", "bad") == 2
    assert re.search(r"mission-gym: .*config\.yaml\]\n$", capsys.readouterr().err)
    assert call(runs, "runs", "clean") == 0


def test_values_of_any_type_are_shown(runs, capsys):
    runs[0].config_yaml.write_text("env: {env_id: [1]}\nrun: {notes: {a: 1}}\nsources: {}\n")
    assert call(runs, "runs", "show", "bad") == 0
    runs[0].config_yaml.write_text("run: {}\nsources: {}\n")
    assert call(runs, "runs", "show", "bad") == 0
    assert re.search(r"environment +n/a", capsys.readouterr().out)


@pytest.mark.parametrize("content", [*ODD, b'{"step": "x", "suite": "select"}', b'{"step": 64}'])
def test_a_damaged_evaluation_does_not_count(runs, content, capsys):
    good = runs[1]
    path = write_eval(good, 32, "select", {"score": 9.0})
    write_eval(
        good, 64, "select", {"score": 1.0, "outcomes": {"won": {"rate": 1.0, "low": 0.5, "high": None}}}
    )
    spoil(path, content)
    assert [result["step"] for result in read_evals(good)] == [64]
    assert call(runs, "runs", "show", "good", "--json") == 0
    shown = capsys.readouterr()
    assert json.loads(shown.out)["best_step"] == 64
    assert shown.err.count("an evaluation is ignored") == 1
    assert path.name in shown.err
    assert call(runs, "runs", "compare", "good", "bad") == 0
    assert capsys.readouterr().err.count("an evaluation is ignored") == 1


ROWS = [
    {"event": "timeline", "time/updates": [1, 2], "time/spans": [["main", "?", 0, 1]], "time/cores": []},
    {"event": "progress", "phase/wall_s": "long", "phase/env_s": None, "phase/act_s": 10**400},
]


@pytest.mark.parametrize(
    ("line", "message"),
    [
        (b"null\n", r"line 3 is truncated or altered: it is not an event"),
        (b"[" * 100_000 + b"\n", r"line 3 is truncated or altered"),
        (b'{"event": "timeline", "time/spans": 3}\n', r"metrics\.jsonl is damaged: spans should be"),
        (
            b'{"event": "end", "time/machine": []}\n{"event": "end", "time/machine": [1]}\n',
            r"damaged: machine",
        ),
        (b'{"event": "timeline", "time/spans": [["main", "env", 0, Infinity]]}\n', r"damaged: spans\.0\.3"),
    ],
)
def test_a_damaged_row_is_told(runs, line, message, capsys, tmp_path):
    good = runs[1]
    log = MetricsLog(good.metrics_jsonl)
    for row in ROWS:
        log.append(row)
    log.close()
    args = ["runs", "timeline", "good", "--out", str(tmp_path / "a.html")]
    assert call(runs, *args) == 0
    with good.metrics_jsonl.open("ab") as file:
        file.write(line)
    assert call(runs, *args) == 2
    assert re.search(message, capsys.readouterr().err)


def test_a_cyclic_lineage_is_refused(runs, capsys):
    first, second = runs
    write_lineage(first, Lineage("e", second.name, str(second.path), 64))
    assert call(runs, "runs", "lineage", "good") == 2
    names = " <- ".join((second.name, first.name, second.name))
    assert f"mission-gym: {names} is a cycle; a lineage.json of these" in capsys.readouterr().err
    write_lineage(first, Lineage("e", first.name, str(first.path), 64))
    for name in ("good", "bad"):
        assert call(runs, "runs", "lineage", name) == 2
    assert "is a cycle" in capsys.readouterr().err


def test_a_lineage_whose_names_disagree_is_drawn(runs, capsys):
    write_lineage(runs[1], Lineage("e", "another-name", f"{runs[0].path}/../{runs[0].name}", 64))
    assert call(runs, "runs", "lineage", "bad") == 0
    assert f"{runs[1].name} from step 64" in capsys.readouterr().out


def test_an_overlong_name_is_not_found(runs, capsys):
    assert call(runs, "runs", "show", "a" * 5000) == 2
    assert "no run 'aaa" in capsys.readouterr().err


def test_escapes_in_a_run_are_text(runs, capsys):
    evil = "\x1b]0;title\x07\x9b31mred\u202e"
    runs[1].write_status(state="failed", cause=evil)
    assert call(runs, "runs", "show", "good") == 0
    out = capsys.readouterr().out
    assert "failed: ]0;title31mred" in out
    assert not re.search("[\x1b\x07\x9b\u202e]", out)
    assert call(runs, "runs", "show", "good", "--json") == 0
    assert json.loads(capsys.readouterr().out)["cause"] == evil
    shutil.rmtree(runs[1].path)
    assert call(runs, "runs", "show", evil) == 2
    assert "\x1b" not in capsys.readouterr().err
