"""Alarms on invented rows: when they are due, and that each is said once."""

import json

import pytest

from mission_gym.algorithms import load_algorithm
from mission_gym.run.alarms import (
    NUM_EVALUATIONS,
    NUM_ROWS,
    AlarmWatch,
    judge_evaluations,
    judge_metric,
    judge_shares,
)
from mission_gym.store.metrics import read_metrics


def shares(*columns):
    return [dict(zip(("shaping", "win"), column, strict=True)) for column in columns]


def evaluation(mean, rate):
    return {"return_mean": mean, "return_low": mean - 1, "return_high": mean + 1, "rate": rate}


@pytest.mark.parametrize(
    ("rows", "term"),
    [
        (shares(*[(0.96, 0.04)] * NUM_ROWS), "shaping"),
        (shares(*[(0.01, 0.99)] * NUM_ROWS), "win"),
        (shares(*[(0.96, 0.04)] * (NUM_ROWS - 1)), None),
        (shares((0.95, 0.05), *[(0.96, 0.04)] * (NUM_ROWS - 1)), None),
        (shares(*[(0.96, 0.04), (0.04, 0.96)] * NUM_ROWS)[:NUM_ROWS], None),
        ([{"only": 1.0}] * NUM_ROWS, None),
        ([{}] * NUM_ROWS, None),
    ],
)
def test_one_term_that_makes_everything(rows, term):
    message = judge_shares(rows)
    assert (
        (message is None) if term is None else message.startswith(f"the reward term '{term}' accounts for 9")
    )


@pytest.mark.parametrize(
    ("means", "rates", "due"),
    [
        ((1, 2, 4, 6), (0.2, 0.2, 0.1, 0.2), True),
        ((1, 2, 4, 6), (0.2, 0.2, 0.3, 0.2), False),  # it rose in between
        ((1, 2, 2.5, 2.9), (0.2, 0.2, 0.2, 0.2), False),  # the intervals touch
        ((1, 2, 4, 6), (1.0, 1.0, 1.0, 1.0), False),
        ((1, 2, 6), (0.2, 0.2, 0.2), False),
    ],
)
def test_a_return_that_rises_alone(means, rates, due):
    results = [evaluation(mean, rate) for mean, rate in zip(means, rates, strict=True)]
    message = judge_evaluations(results, "won")
    assert (message is not None) == due
    if due:
        assert "the return rose from 1 to 6, but won did not (20 % -> 20 %)" in message


@pytest.mark.parametrize(
    ("mean", "rate", "high", "due"),
    [
        (51, 0.0, 0.17, True),
        (51, 0.3, 0.52, False),  # the interval touches
        (15, 0.0, 0.17, False),  # the return did not rise
        (51, 0.4, None, True),  # all episodes ended equally
        (51, 0.9, 0.95, False),
    ],
)
def test_an_outcome_that_falls_while_the_return_rises(mean, rate, high, due):
    """An exploit that was learned before the first evaluation."""
    watch = AlarmWatch("won")
    assert not watch.see_row(32, {"rollout/ep_rew_mean": 0.0, "outcome/won": 1.0}, num_episodes=1)
    assert not watch.see_row(64, {"rollout/ep_rew_mean": 15.0, "outcome/won": 0.6}, num_episodes=60)
    assert not watch.see_row(128, {"rollout/ep_rew_mean": 40.0, "outcome/won": 0.1}, num_episodes=100)
    resumed = AlarmWatch("won")
    resumed.load_state(json.loads(json.dumps(watch.state())))
    result = evaluation(mean, rate) | {"outcomes": {"won": {"rate": rate, "high": high}}}
    texts = [alarm.message for alarm in resumed.see_evaluation(result)]
    text = f"from 15 in the first episodes to {mean}, but won fell from 60 % to {100 * rate:.0f} %: the rew"
    assert [text in each for each in texts] == [True] * due
    assert not resumed.see_evaluation(result)  # once


def test_the_first_episodes_of_a_curriculum_are_easier():
    watch = AlarmWatch("won")
    watch.see_row(
        64, {"rollout/ep_rew_mean": 15.0, "outcome/won": 0.9, "curriculum/stage": 1}, num_episodes=60
    )
    result = evaluation(51, 0.0) | {"outcomes": {"won": {"rate": 0.0, "high": 0.2}}}
    assert not watch.see_evaluation(result)


def see(watch, count, first=0):
    said = []
    for number in range(first, first + count):
        row = {"reward_share/shaping": 0.99, "reward_share/win": 0.01, "rollout/ep_rew_mean": number}
        result = evaluation(10 * number, 0.5) | {"outcomes": {"won": {"rate": 0.5}}}
        said += watch.see_row(number, row) + watch.see_evaluation(result)
    assert not any(alarm.is_timed for alarm in said)
    return said


def test_each_alarm_is_said_once():
    assert len(see(AlarmWatch("won"), 20)) == 2


@pytest.mark.parametrize(
    ("algo", "name", "text"),
    [
        (
            "ppo",
            "train/skipped_updates",
            "2 updates were skipped so far because their gradient was not finite",
        ),
        ("dqn", "train/skipped_steps", "2 gradient steps were skipped so far because they were not finite"),
    ],
)
def test_an_alarm_that_a_metric_table_declares_is_raised_once(algo, name, text):
    watch = AlarmWatch(None, (*read_metrics(), *load_algorithm(algo).metrics))
    rows = [{name: 0.0}, {}, {name: 2.0}, {name: 3.0}]
    (alarm,) = [alarm for step, row in enumerate(rows) for alarm in watch.see_row(step, row)]
    assert alarm.message.startswith(text)
    assert not alarm.is_timed


@pytest.mark.parametrize("algo", ["ppo", "dqn"])
def test_declared_alarms_name_values_of_their_row(algo):
    metrics = (*read_metrics(), *load_algorithm(algo).metrics)
    row = {metric.name: 1e6 for metric in metrics}
    texts = [judge_metric(row, metric) for metric in metrics if metric.alarm]
    assert len(texts) == 2
    assert all(texts)


def test_without_a_main_outcome_only_the_terms_are_watched():
    assert len(see(AlarmWatch(None), 20)) == 1


def test_a_resumed_watch_says_what_a_straight_one_says():
    straight, whole = AlarmWatch("won"), []
    for number in range(12):
        stored = json.loads(json.dumps(straight.state()))
        resumed = AlarmWatch("won")
        resumed.load_state(stored)
        new = see(straight, 1, number)
        assert see(resumed, 1, number) == new
        whole += new
    assert len(whole) == 2
    assert NUM_EVALUATIONS < 12
