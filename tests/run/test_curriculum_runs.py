"""Runs with a curriculum: moves, backends, evaluations, branches, refusals.

`test_exact_resume.py` stops and resumes them."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import mission_gym as mg
from mission_gym.api import Run
from mission_gym.check.repro import replay_bundle
from mission_gym.errors import ConfigError, EnvContractError, EnvFailure, RunStateError, UsageError
from mission_gym.run.branch import branch_run
from mission_gym.run.config import resolve
from mission_gym.run.open import evaluate_run, keep_result, open_run
from mission_gym.run.resume import resume_run
from mission_gym.run.stages import read_files
from mission_gym.run.start import start_run
from mission_gym.store.checkpoints import list_checkpoints, load_checkpoint
from mission_gym.store.evals import read_evals
from mission_gym.store.resolve import RunRef
from mission_gym.store.rundir import RunDir
from runs import cache_runs, drain, final_state, rows, silent, start, stop_at_poll
from stage_toys import STAGES, Staged

ENV = "stage_toys:Staged"
KINDS: dict[str, dict[str, Any]] = {
    "serial": {},
    "workers": {"vector": "workers", "num_workers": 2},
    "threads": {"vector": "threads", "overlap": "off"},
    "acting here": {"vector": "workers", "num_workers": 2, "acting": "torch", "acting_rows": 2},
}


def begin(folder: Path, env: str = ENV, **flags: Any) -> Any:
    return start(folder, env, **({"curriculum": STAGES, "acting_rows": 4} | flags))


@pytest.fixture(scope="module")
def straight(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., RunDir]:
    get = cache_runs(lambda: tmp_path_factory.mktemp("straight"))
    return lambda **flags: get(ENV, curriculum=STAGES, **{"acting_rows": 4} | flags)


def test_a_run_moves_through_its_stages_and_reports_them(straight: Callable[..., RunDir]) -> None:
    run = straight()
    moves = rows(run, "stage")
    assert [(move["before"], move["stage"], move["of"]) for move in moves] == [(1, 2, 3), (2, 3, 3)]
    assert moves[0]["why"].endswith(">= 0.3 over 16 episodes"), "4 of each of the 4 environments"
    assert (moves[1]["why"], moves[1]["step"]) == ("128 steps", moves[0]["step"] + 128)
    told = [(row["curriculum/stage"], row["curriculum/stage_steps"]) for row in rows(run, "progress")]
    assert told[0] == (1, 64)
    assert told[-1] == (3, 384 - moves[1]["step"])
    assert run.read_status()["stage"] == {"number": 3, "of": 3, "name": "bots=3, level=1"}
    assert rows(run, "plan")[0]["stages"] == ["bots=1", "bots=1, level=4", "bots=3, level=1"]
    facts = [
        (fact["name"], fact["value"], fact["reason"])
        for fact in json.loads(run.plan_json.read_text())["facts"]
    ]
    assert ("curriculum", "1 bots=1", "until won >= 0.3 over 14 episodes") in facts
    assert ("", "3 bots=3, level=1", "until the end; for evaluations") in facts
    assert " stage step=" in run.log_txt.read_text()


@pytest.mark.parametrize("kind", ["workers", "threads", "acting here"])
def test_every_backend_makes_the_same_run_and_resumes_it_where_a_stage_ends(
    kind: str, straight: Callable[..., RunDir], tmp_path: Path
) -> None:
    flags = {"eval_freq": 0, "eval_episodes": None}
    acting = {key: KINDS[kind][key] for key in ("acting", "acting_rows") if key in KINDS[kind]}
    with begin(tmp_path, **KINDS[kind], **flags) as session:
        for _ in session.updates():
            if rows(session.run, "stage"):
                break
        run = session.run
    assert run.read_status()["stage"]["number"] == 2
    with resume_run(run, silent) as session:
        drain(session)
    serial = straight(**acting, **flags)
    assert final_state(run)[0] == final_state(serial)[0]
    assert rows(run, "stage") == rows(serial, "stage")


def test_evaluations_are_on_the_last_stage_or_on_another(straight: Callable[..., RunDir]) -> None:
    """The environments report the bots that they were built with."""
    run = straight()
    assert {result["stage"] for result in (play(run), play(run, "last"), play(run, "3"))} == {
        "bots=3, level=1"
    }
    assert play(run)["metrics"]["bots"]["mean"] == 3.0
    assert play(run, "bots=1")["metrics"]["bots"]["mean"] == 1.0
    suites = [result["suite"] for result in read_evals(run)]
    assert {"report-sampled", "report-sampled-stage1"} <= set(suites)
    with pytest.raises(UsageError, match=r"eval_stage=bots=2 is not a stage \(did you mean"):
        play(run, "bots=2")
    assert Run(run.path).evaluate(2, eval_stage="1")["stage"] == "bots=1"


def play(run: RunDir, stage: str | None = None) -> dict[str, Any]:
    opened = open_run(RunRef(run, None), eval_stage=stage)
    document, _ = evaluate_run(opened, 4, explore=True)
    keep_result(opened, document)
    return document


def test_runs_may_evaluate_on_another_stage(tmp_path: Path) -> None:
    with begin(tmp_path, eval_stage="2", timesteps=64) as session:
        assert session.environment.played is session.environment.stages.variants[1]
        run = drain(session)
    assert play(run)["stage"] == "bots=1, level=4"
    refusal = "eval_stage=1 is not used: the run has no curriculum; set one with --curriculum, or remove it"
    with pytest.raises(ConfigError, match=refusal), begin(tmp_path, curriculum=None, eval_stage="1"):
        pass


def test_a_stop_rule_is_about_the_stage_of_evaluations(tmp_path: Path) -> None:
    with begin(tmp_path, stop_when="return>=5.5", eval_episodes=8, timesteps=10_000) as session:
        run = drain(session)
    assert run.read_status()["cause"].startswith("goal reached: return>=5.5")


def test_a_branch_goes_on_in_its_parents_stage(straight: Callable[..., RunDir], tmp_path: Path) -> None:
    parent = straight()
    flags = {"timesteps": 512, "runs_dir": str(tmp_path)}
    with branch_run(RunRef(parent, "last"), flags, silent) as session:
        assert session.progression.status() == {"number": 3, "of": 3, "name": "bots=3, level=1"}
        drain(session)
    assert rows(session.run, "stage") == []
    said: list[dict[str, Any]] = []
    other = {"stages": [{"kwargs": {"bots": 2}, "until": {"steps": 64}}, {"kwargs": {"bots": 5}}]}
    with branch_run(RunRef(parent, "last"), flags | {"curriculum": other}, said.append) as session:
        run = drain(session)
    notes = next(event for event in said if event["event"] == "plan")["time/plan"]["notes"]
    assert (
        "env.curriculum: stages (bots=1 -> bots=1, level=4 -> bots=3, level=1) -> stages (bots=2 -> bots=5)"
        " (a new curriculum starts with its first stage)"
    ) in notes
    assert [(move["step"], move["stage"]) for move in rows(run, "stage")] == [(448, 2)]
    with branch_run(RunRef(run, "last"), flags | {"curriculum": False, "timesteps": 576}, silent) as session:
        assert "curriculum/stage" not in rows(drain(session), "progress")[-1]


def test_a_branch_takes_arguments_over_into_stages_and_refuses_those_given_anew(tmp_path: Path) -> None:
    with begin(tmp_path, curriculum=None, env_kwargs={"bots": 2}, timesteps=64) as session:
        plain = drain(session)
    flags = {"timesteps": 128, "runs_dir": str(tmp_path), "curriculum": STAGES}
    with branch_run(RunRef(plain, "last"), flags, silent) as session:
        run = drain(session)
    assert session.config.env.env_kwargs == {}
    refusal = "bots=7 is given for all stages, and the stages of curriculum stages"
    with (
        pytest.raises(ConfigError, match=refusal),
        branch_run(RunRef(run, "last"), {"timesteps": 192, "env_kwargs": ["bots=7"]}, silent),
    ):
        pass


def test_files_of_stages_belong_to_the_run(tmp_path: Path) -> None:
    maps = [tmp_path / name / "map.txt" for name in ("a", "b")]
    for number, path in enumerate(maps, 1):
        path.parent.mkdir()
        path.write_text("x" * number)
    stages = [{"name": "a", "kwargs": {"map_file": str(maps[0])}, "until": {"steps": 64}}]
    stages += [{"name": "b", "kwargs": {"map_file": str(maps[1])}}]
    flags = {"curriculum": {"stages": stages}, "timesteps": 128}
    with begin(tmp_path / "one", **flags) as session:
        stop_at_poll(session, 30)
        run = drain(session)
    with begin(tmp_path / "two", **flags) as session:
        whole = drain(session)
    assert sorted(read_files(run)) == ["stages.0.map_file", "stages.1.map_file"]
    for path in maps:
        path.unlink()
    with resume_run(run, silent) as session:
        drain(session)
    assert final_state(run)[0] == final_state(whole)[0]
    assert play(run)["stage"] == "b"
    with branch_run(RunRef(run, "last"), {"timesteps": 192}, silent) as session:
        drain(session)


def test_all_that_does_not_fit_is_refused_before_there_is_a_run(tmp_path: Path) -> None:
    stages = [
        {"kwargs": {"bots": 1}, "until": {"metric": "won>=1", "episodes": 5}},
        {"kwargs": {"bot": 2}, "until": {"steps": 5}},
        {"kwargs": {"shape": 7}, "until": {"steps": 5}},
        {"options": {"level": -1}, "until": {"steps": 5}},
        {"kwargs": {"bots": 3}},
    ]
    with pytest.raises(ConfigError) as caught, begin(tmp_path, curriculum={"stages": stages}):
        pass
    found = caught.value.problems
    assert [problem.partition(":")[0] for problem in found] == [
        "stage 2 (bot=2)", "stage 3 (shape=7)", "stage 4 (level=-1)",
    ]  # fmt: skip
    assert "unexpected keyword argument 'bot' (did you mean 'bots'?)" in found[0]
    assert "it observes Box(-100.0, 100.0, (7,), float32), but the stage of evaluations" in found[1]
    assert "reset() raised ValueError: there is no level -1" in found[2]
    with (
        pytest.raises(ConfigError) as caught,
        begin(tmp_path, curriculum={"stages": [{"until": {"metric": "wno>1"}}, {"name": "b"}]}),
    ):
        pass
    assert (
        "until of stage 1: 'wno' is not a metric (did you mean 'won'?); use one of return, length, won, lost"
        in str(caught.value)
    )
    assert not list(tmp_path.iterdir())


def test_stages_are_told_in_their_order_and_what_is_wrong_in_all_once(tmp_path: Path) -> None:
    stages = [{"name": f"s{bots}", "kwargs": {"bots": bots}, "until": {"steps": 5}} for bots in (1, 2)]
    wrong = [{"name": "a", "kwargs": {"bot": 1}, "until": {"steps": 5}}, *stages]
    last = {"name": "z", "kwargs": {"shap": 7}}
    with pytest.raises(ConfigError) as caught, begin(tmp_path, curriculum={"stages": [*wrong, last]}):
        pass
    told = [problem.partition(":")[0] for problem in caught.value.problems]
    assert told == ["stage 1 (a)", "stage 4 (z)"]
    plain = {"curriculum": {"stages": [*stages, {"name": "z"}]}, "env_kwargs": {"bot": 3}}
    with pytest.raises(EnvContractError) as other, begin(tmp_path, **plain):
        pass
    assert str(other.value).startswith("building 'stage_toys:Staged' raised TypeError")
    assert str(other.value).count("(did you mean 'bots'?)") == 1


def test_a_failure_is_kept_with_its_stage(tmp_path: Path) -> None:
    stages = [
        {"kwargs": {"bots": 1, "die": 0}, "until": {"steps": 64}},
        {"kwargs": {"bots": 2, "die": 3}, "options": {"level": 2}},
    ]
    flags = {"curriculum": {"stages": stages}, "max_restarts": 0, "eval_freq": 0, "eval_episodes": None}
    with (
        pytest.raises(EnvFailure, match="died at step 3"),
        begin(tmp_path, "stage_toys:Dying", **flags) as session,
    ):
        drain(session)
    (bundle,) = session.run.path.glob("repro-*.json")
    told = json.loads(bundle.read_text())
    assert (told["env_kwargs"], told["options"], told["stage"]) == ({"bots": 2, "die": 3}, {"level": 2}, 1)
    assert replay_bundle(bundle).failed


def test_batched_environments_take_options_and_no_arguments(tmp_path: Path) -> None:
    env, batched = "stage_toys:StagedVector", {"vector": "batched"}
    options = {"stages": [{"name": "a", "until": {"steps": 128}}, {"options": {"level": 3}}]}
    runs = []
    for poll in (10**9, 40):
        with begin(tmp_path, env, curriculum=options, **batched) as session:
            stop_at_poll(session, poll)
            runs.append(drain(session))
    assert [move["step"] for move in rows(runs[0], "stage")] == [128]
    with resume_run(runs[1], silent) as session:
        drain(session)
    assert runs[1].read_status()["stage"]["number"] == 2
    with pytest.raises(
        ConfigError, match="vector=batched builds one environment for all rows, and the stages"
    ):
        begin(tmp_path, env, **batched).__enter__()
    itself = {"env_kwargs": {"mode": "SameStep"}, "curriculum": options}
    with (
        pytest.raises(UsageError, match="resets its rows by itself"),
        begin(tmp_path, env, **batched, **itself),
    ):
        pass


def test_shipped_settings_for_batches_leave_room_for_wrappers_aloud(tmp_path: Path) -> None:
    env, said = "mission_gym/Capture-v0", list[dict[str, Any]]()
    flags = {
        "wrap": ["time-limit:20"], "n_envs": 4, "n_steps_per_env": 16, "batch_size": 32, "timesteps": 64,
        "eval_freq": 0, "runs_dir": str(tmp_path), "tensorboard": False,
    }  # fmt: skip
    with start_run(resolve(env, flags), said.append) as session:
        drain(session)
    assert session.config.vector.vector == "serial"
    notes = next(event for event in said if event["event"] == "plan")["time/plan"]["notes"]
    told = "wrappers are given (time-limit:20); single environments are used"
    assert any(told in note for note in notes)
    with (
        pytest.raises(ConfigError, match=r"wrappers are given .*; use another vector, or remove them \[flag"),
        start_run(resolve(env, flags | {"vector": "batched"}), said.append),
    ):
        pass


def test_shipped_settings_for_batches_are_adapted_aloud(tmp_path: Path) -> None:
    said: list[dict[str, Any]] = []
    flags = {
        "curriculum": "levels", "n_envs": 4, "n_steps_per_env": 16, "batch_size": 32, "timesteps": 64,
        "eval_freq": 0, "runs_dir": str(tmp_path), "tensorboard": False,
    }  # fmt: skip
    with start_run(resolve("mission_gym/Capture-v0", flags), said.append) as session:
        drain(session)
    assert session.config.vector.vector == "serial"
    notes = next(event for event in said if event["event"] == "plan")["time/plan"]["notes"]
    assert any(
        "levels (easy -> normal -> hard) have different kwargs; single environments are used" in note
        for note in notes
    )
    config_dir = {variant.request.kwargs["config_dir"] for variant in session.environment.stages.variants}
    assert config_dir == {str(session.run.env / "levels")}


def test_a_shorter_curriculum_in_the_config_is_refused_by_a_resume(
    tmp_path: Path, straight: Callable[..., RunDir]
) -> None:
    with begin(tmp_path) as session:
        stop_at_poll(session, 110)
        run = drain(session)
    assert run.read_status()["stage"]["number"] == 3
    text = run.config_yaml.read_text()
    head, _, rest = text.partition("    - kwargs:\n        bots: 3\n")
    run.config_yaml.write_text(
        head.replace("      until:\n        steps: 128\n", "") + rest.partition("        level: 1\n")[2]
    )
    with (
        pytest.raises(RunStateError, match="the checkpoint is in stage 3, and the curriculum has 2"),
        resume_run(run, silent),
    ):
        pass


def test_a_checkpoint_keeps_the_curriculum_and_where_it_was(straight: Callable[..., RunDir]) -> None:
    last = load_checkpoint(list_checkpoints(straight().checkpoints)[-1].path)
    assert last.state_json["config"]["env.curriculum"]["stages"][0]["kwargs"] == {"bots": 1}
    assert last.state_json["counters"]["session"]["curriculum"]["stage"] == 2


def test_first_ready_blocks_go_through_stages(tmp_path: Path) -> None:
    with begin(tmp_path, blocks="first_ready", **KINDS["workers"]) as session:
        run = drain(session)
    assert run.read_status()["stage"]["number"] == 3


def test_a_callable_of_python_has_stages_too(tmp_path: Path) -> None:
    class Own(Staged):
        pass

    run = mg.train(
        Own, curriculum=STAGES, runs_dir=str(tmp_path), progress=False, n_envs=4, n_steps_per_env=16,
        batch_size=16, timesteps=256, eval_freq=0, tensorboard=False, vector="serial",
    )  # fmt: skip
    assert run.status()["stage"]["number"] > 1
    assert run.evaluate(2, eval_stage="last")["stage"] == "bots=3, level=1"


def test_several_agents_go_through_stages_and_stay_the_same(tmp_path: Path) -> None:
    env, flags = "agent_toys:Lives", {"acting_rows": None, "eval_freq": 0, "eval_episodes": None}
    lives = [
        {"kwargs": {"life": 2}, "until": {"metric": "length<=6", "episodes": 3}},
        {"kwargs": {"life": 4}},
    ]
    with begin(tmp_path, env, curriculum={"stages": lives}, **flags) as session:
        run = drain(session)
    assert run.read_status()["stage"]["number"] == 2
    more = [{"kwargs": {"num_agents": 1}, "until": {"steps": 5}}, {"kwargs": {"num_agents": 2}}]
    with (
        pytest.raises(
            ConfigError, match=r"stage 1 \(num_agents=1\): it has the agents \('worker_0', 'guest_0'\)"
        ),
        begin(tmp_path, env, curriculum={"stages": more}, **flags),
    ):
        pass
