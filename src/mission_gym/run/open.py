"""Opens a checkpoint of a run to play it: config, environment and policy; evaluation and `predict`."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from mission_gym.check.devices import device_memory
from mission_gym.config.curriculum import find_stage
from mission_gym.config.schema import Settled
from mission_gym.data import Array, EnvSpec, Leaves, Weights
from mission_gym.env.leaves import ObsReader
from mission_gym.env.masks import MaskLayout
from mission_gym.env.spaces import make_action_decoder
from mission_gym.errors import UsageError, describe
from mission_gym.intervals import LEVEL, compare_means
from mission_gym.plan.setups import device_exists
from mission_gym.policy.sampling import draw_noise
from mission_gym.rollout.collector import ActingPolicy
from mission_gym.rollout.play import Expect, expect_unseen
from mission_gym.run.build import algorithm_of, make_loaded_policy, one_blas_thread
from mission_gym.run.config import read_own_config
from mission_gym.run.environment import Environment, open_run_environment
from mission_gym.run.evaluation import EvalResult, Evaluator, Suite, policy_actor
from mission_gym.run.snapshot import checkpoint_errors
from mission_gym.run.stages import EnvSource
from mission_gym.store.checkpoints import Checkpoint, load_checkpoint
from mission_gym.store.evals import read_evals, write_eval
from mission_gym.store.resolve import RunRef, checkpoint_for
from mission_gym.store.rundir import RunDir
from mission_gym.streams import generator

_SUITE: Suite = "report"  # the seeds that are played
_GAP = 0.05  # between greedy and sampled play; a larger one raises a warning


@dataclass(frozen=True, slots=True)
class OpenRun:
    """A checkpoint of a run, with everything needed to play it."""

    run: RunDir
    step: int
    config: Settled
    environment: Environment
    policy: ActingPolicy
    notes: tuple[str, ...] = ()  # differences from the run or its config.yaml
    on_other_stage: bool = False  # not that of the run's own evaluations

    @property
    def stage(self) -> tuple[int, str] | None:
        """The number, from 1, and the name of the stage that is played; None without a curriculum."""
        curriculum = self.config.env.curriculum
        if curriculum is None:
            return None
        at = find_stage(curriculum, self.config.evaluation.eval_stage, "--eval-stage")
        return at + 1, curriculum.labels[at]


def open_run(ref: RunRef, source: EnvSource = None, *, eval_stage: str | None = None) -> OpenRun:
    """Open a checkpoint with the run's copies of its files. eval_stage: replaces the run's own."""
    checkpoint: Checkpoint = load_checkpoint(checkpoint_for(ref).path)
    damaged: list[str] = []
    if ref.step in (None, "best"):  # a damaged evaluation may change the best checkpoint
        read_evals(ref.run, damaged.append)
    resolved, edits = read_own_config(ref.run, checkpoint)
    on_other_stage = False
    if eval_stage is not None:
        curriculum, own = resolved.config.env.curriculum, resolved.config.evaluation.eval_stage
        if curriculum is None:
            raise UsageError(f"run {ref.run.name} has no curriculum; remove the stage [--eval-stage]")
        on_other_stage = find_stage(curriculum, eval_stage, "--eval-stage") != curriculum.find(own)
        resolved = resolved.with_values({"evaluation.eval_stage": eval_stage}, "flag --eval-stage")
    config, moved = _find_device(resolved.settled)
    environment = open_run_environment(ref.run, config, source)
    with checkpoint_errors(checkpoint):
        weights = Weights.unpack(int(checkpoint.meta["update"]), checkpoint.policy)
        policy = make_loaded_policy(config, environment.spec, weights, acting=True)
    notes = (*damaged, *edits, *moved)
    return OpenRun(ref.run, checkpoint.step, config, environment, policy, notes, on_other_stage)


def _find_device(config: Settled) -> tuple[Settled, tuple[str, ...]]:
    """The config with the CPU if the run's device is not available, and a note."""
    compute = config.compute
    if compute.acting == "numpy" or device_exists(compute.device):
        return config, ()
    note = f"the run used {compute.device}, which is not available; its policy acts on the CPU"
    return config.model_copy(update={"compute": compute.model_copy(update={"device": "cpu"})}), (note,)


def evaluate_run(
    opened: OpenRun, num_episodes: int, *, explore: bool = False, expect: Expect = expect_unseen
) -> tuple[dict[str, Any], list[str]]:
    """Play the report suite greedily and with sampled actions; returns the document of `eval --json` for the
    wanted mode, and warnings. expect: shows the progress of each mode."""
    if num_episodes < 1:
        raise UsageError(f"episodes={num_episodes} is not a positive count [--episodes]")
    actor = policy_actor(opened.policy, opened.environment.spec)
    with (
        Evaluator(opened.environment, _SUITE, num_episodes) as evaluator,
        one_blas_thread(),
        device_memory(opened.config, acting=True),
    ):
        main, other = (
            evaluator.play_all(
                actor, explore=mode, see=expect(f"{'sampled' if mode else 'greedy'} play", num_episodes)
            )
            for mode in (explore, not explore)
        )
    document = {"run": opened.run.name, "step": opened.step} | main.document()
    document |= {"stage": opened.stage[1]} if opened.stage else {}
    document["other_mode"] = other.document()
    warnings = evaluator.notes
    if not algorithm_of(opened.config).sampled_play_is_worse:
        warnings += _warn_about_gap(main, other)
    return document, warnings


def keep_result(opened: OpenRun, document: dict[str, Any]) -> None:
    """Store the document of `evaluate_run` in the run's `eval/`; DiskError."""
    name: str = f"{_SUITE}-sampled" if document["mode"] == "sampled" else _SUITE
    if opened.on_other_stage and opened.stage:
        name = f"{name}-stage{opened.stage[0]}"
    write_eval(opened.run, opened.step, name, document)


def _warn_about_gap(main: EvalResult, other: EvalResult) -> list[str]:
    """Warn if greedy and sampled play differ a lot: the trained behaviour is only one of them."""
    both = (other, main) if main.mode == "sampled" else (main, other)
    name = main.main_outcome
    if name is None:
        means = [result.return_mean for result in both]
        values, least = [result.returns for result in both], _GAP * max(map(abs, means))
        text = f"5 % of the return: {means[0]:.4g} greedy, {means[1]:.4g} sampled"
    else:
        means = [result.outcomes[name]["rate"] for result in both]
        values, least = [_list_successes(result, name) for result in both], _GAP
        text = f"5 points: {name} {100 * means[0]:.0f} % greedy, {100 * means[1]:.0f} % sampled"
    if abs(means[0] - means[1]) <= least:
        return []
    p_value = compare_means(*values)
    is_noise = p_value is None or p_value >= LEVEL
    return [] if is_noise else [f"greedy and sampled play differ by over {text}"]


def _list_successes(result: EvalResult, name: str) -> tuple[float, ...]:
    """1 for each episode with the outcome, 0 for the others."""
    count = round(result.outcomes[name]["rate"] * result.episodes)
    return (1.0,) * count + (0.0,) * (result.episodes - count)


class LoadedPolicy:
    """A trained policy: `predict(obs, deterministic=True) -> (action, state)`, as in SB3."""

    def __init__(self, opened: OpenRun) -> None:
        self.spec: EnvSpec = opened.environment.spec
        self.step = opened.step
        self.observation_space = self.spec.observation_space
        self.action_space = self.spec.action_space
        self._policy, self._config, self._run = opened.policy, opened.config, opened.run
        # The caller need not have the inputs of the critic.
        hidden = algorithm_of(opened.config).layout(opened.config, self.spec).critic_leaves
        self._reader = ObsReader(self.spec, hidden)
        self._hidden = [leaf.name in hidden for leaf in self.spec.leaves]
        self._lay_out = MaskLayout(self.spec)
        self._form = make_action_decoder(self.spec.action_space)
        self._rng = generator("predict")

    def __repr__(self) -> str:
        algo, env_id = self._config.run.algo, self._config.env.env_id
        return f"LoadedPolicy({str(self._run.path)!r}, step={self.step}, algo={algo!r}, env={env_id!r})"

    def predict(
        self,
        observation: Any,
        state: Any = None,
        episode_start: Any = None,
        deterministic: bool = True,
        mask: Any = None,
    ) -> tuple[Any, Any]:
        """The action for one observation or a batch of them, and the policy's state for the next call.

        state: None at the start of episodes. episode_start: bool [B], where new episodes start. A policy
        without memory returns the state unchanged.
        """
        leaves, single = self._read(observation)
        self._check(leaves)
        mask = self._mask(observation, mask, () if single else (len(leaves[0]),))
        noise = None if deterministic else draw_noise(self.spec.action, self._rng, 1, len(leaves[0]))[0]
        inputs = self._arrange(leaves)
        initial = self._policy.initial_state(len(leaves[0]))
        memory = initial if state is None or not initial else state
        if episode_start is not None:
            begun = np.asarray(episode_start, bool).reshape(-1)
            memory = tuple(
                np.where(begun.reshape(-1, *[1] * (array.ndim - 1)), first, array)
                for array, first in zip(memory, initial, strict=True)
            )
        with device_memory(self._config, acting=True):
            out = self._policy.act(inputs, mask, noise, memory)
        action: Any = self.spec.action.to_env(out.action)
        if single:
            action = action[0]
        return (action if self._form is None else self._form(action)), out.state or state

    def _read(self, observation: Any) -> tuple[Leaves, bool]:
        """The leaves of one observation or of a batch, each [B, ...], and whether it is one."""
        reader = self._reader
        try:
            if reader.is_single(observation):
                return tuple(np.asarray(leaf)[None] for leaf in reader.read(observation)), True
            return tuple(np.asarray(leaf) for leaf in reader.read_batch(observation)), False
        except KeyError as error:
            keys = ", ".join(leaf.name for leaf in reader.leaves)
            raise UsageError(
                f"the observation has no key {error.args[0]!r}; the policy was trained on {keys}"
            ) from error
        except (TypeError, ValueError, IndexError) as error:
            raise UsageError(
                f"the observation does not fit {self.observation_space} ({describe(error)}); pass one, or a"
                " batch as Gymnasium's vectors return it"
            ) from error

    def _check(self, leaves: Leaves) -> None:
        for leaf, spec in zip(leaves, self._reader.leaves, strict=True):
            if leaf.shape[1:] != spec.shape:
                raise UsageError(
                    f"observation {spec.name or 'array'} has shape {leaf.shape[1:]}; the policy was trained"
                    f" on {spec.shape}"
                )

    def _arrange(self, leaves: Leaves) -> Leaves:
        """The leaves in order and with their dtypes; those of the critic are empty."""
        given, empty = iter(leaves), np.empty((len(leaves[0]), 0))
        return tuple(
            empty if hidden else next(given).astype(spec.dtype, copy=False)
            for spec, hidden in zip(self.spec.leaves, self._hidden, strict=True)
        )

    def _mask(self, observation: Any, given: Any, batch: tuple[int, ...]) -> Array | None:
        """The masks [B, M]; batch: () for a single observation, else (B,)."""
        if not self.spec.mask_source:
            return None
        if given is None and self.spec.mask_key is not None:
            given = observation.get(self.spec.mask_key)
        if given is None:
            raise UsageError("this policy was trained with action masks; pass mask= to predict")
        mask, shape = self._lay_out(given, batch), (*(batch or (1,)), self.spec.mask_size)
        if mask.size != math.prod(shape):
            raise UsageError(
                f"mask= has shape {np.shape(mask)}, expected {self._lay_out.expected} per observation"
            )
        return mask.astype(bool).reshape(shape)
