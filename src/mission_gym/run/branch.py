"""A child run from a checkpoint, with changes.

The child continues with the parent's weights, normalizer, optimizer and counters, so schedules continue by
absolute step. Its environments start new episodes, with seeds that the parent has not played.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from mission_gym.config.layers import Resolved
from mission_gym.config.rules import apply_rules
from mission_gym.data import Array
from mission_gym.errors import ConfigError, UsageError
from mission_gym.learner.blocks import with_prefix
from mission_gym.learner.contract import Learner
from mission_gym.plan.cache import size_paths
from mission_gym.run.build import algorithm_of
from mission_gym.run.config import read_own_config, resolve
from mission_gym.run.environment import (
    Environment,
    check_importable,
    may_step_here,
    open_environment,
    permit_contacts,
    permit_files,
    permit_names,
)
from mission_gym.run.recorder import Listener
from mission_gym.run.selection import EVAL_FREQ, is_automatic
from mission_gym.run.session import Session
from mission_gym.run.settle import Prepared, drop_vector_form, follow_backend, set_num_agents, settle
from mission_gym.run.snapshot import count_episodes, learned_steps, learner_arrays, read_run_state
from mission_gym.run.stages import EnvSource, pick_common, read_files
from mission_gym.run.start import begin
from mission_gym.store.checkpoints import Checkpoint, load_checkpoint
from mission_gym.store.resolve import RunRef, checkpoint_for
from mission_gym.store.rundir import Lineage, pin, read_lineage
from mission_gym.store.trusted import find_data_folders

_ENV_PATHS = ("env.env_id", "env.env_kwargs", "env.wrap")
# The effect of a change on the learned policy; other fields only affect later steps.
_EFFECTS = {
    "env.env_id": "the environment is another one; values are wrong at first",
    "env.env_kwargs": "the environment changes; values are wrong at first",
    "env.wrap": "the environment changes; values are wrong at first",
    "env.curriculum": "a new curriculum starts with its first stage",
    "evaluation.eval_stage": "scores are for another task than the parent's",
    "env.max_sequence": "the policy reads more or fewer elements of a sequence",
    "policy.normalize_returns": "values stay the same; their errors get another scale",
    "policy.log_std_init": "not used: the standard deviation comes from the checkpoint",
    "run.timesteps": "schedules now end at this total",
    "run.seed": "random streams change from this step on",
}


@contextmanager
def branch_run(
    ref: RunRef,
    flags: Mapping[str, Any],
    listener: Listener,
    *,
    sets: Sequence[str] = (),
    config_file: Path | None = None,
    preset: str | None = None,
    via: Path | None = None,
    source: EnvSource = None,
    from_python: bool = False,
) -> Iterator[Session]:
    """A child run, locked and ready to train. ConfigError, by field, if the weights do not fit. via and
    from_python: see `resolve`."""
    info = checkpoint_for(ref)
    checkpoint = load_checkpoint(info.path)
    parent, notes = read_own_config(ref.run, checkpoint)
    parent = read_run_state(checkpoint).apply_settings(parent)
    step = learned_steps(checkpoint)
    algo = flags.get("algo", parent.config.run.algo)
    if algo != parent.config.run.algo:
        raise UsageError(
            f"algo={algo}: the weights of run {ref.run.name} are those of {parent.config.run.algo}, and no"
            " other algorithm can use them; start a new run [--algo]"
        )
    resolved = resolve(
        None,
        flags,
        sets=sets,
        config_file=config_file,
        preset=preset,
        base=_reopen(parent),
        from_python=from_python,
        via=via,
    )
    for path, value in _inherit(ref, parent, resolved).items():
        resolved = resolved.with_values({path: value}, resolved.sources[path])
    _refuse_changes(ref, parent, resolved, step)
    resolved, adapted = drop_vector_form(resolved)
    given = {f"{section}.{name}" for name in flags for section in ("env", "policy", "run", "vector")}
    given |= {text.partition("=")[0].strip() for text in sets}
    environment = _open(ref, parent, resolved, set() if via else given, step, source)
    resolved, replaced = follow_backend(resolved, environment)
    resolved, more = settle(set_num_agents(resolved, environment.spec), environment, step)
    notes += [*adapted, *replaced, *more, *explain_changes(parent, resolved)]
    notes.append(f"branches from {ref.run.name} at step {step}; environments start new episodes")
    notes += algorithm_of(resolved.config).notes_on_branch(resolved.settled)
    with begin(
        Prepared(environment.with_backend(resolved.settled), resolved, notes),
        listener,
        source=source,
        parentage=Lineage("", ref.run.name, str(ref.run.path), info.step),
        start=step,
        inspect=partial(check_weights_fit, checkpoint, parent, resolved),
    ) as session:
        pin(ref.run, info.step, session.run.name)
        same_stages = parent.config.env.curriculum == resolved.config.env.curriculum
        load_parent(checkpoint, session, same_stages=same_stages)
        yield session


def _refuse_changes(ref: RunRef, parent: Resolved, child: Resolved, step: int) -> None:
    """Raise UsageError for changes that a branch can't make."""
    if child.config.vector.n_envs == "auto":
        raise UsageError(
            "n_envs=auto is for new runs; a branch keeps its parent's or gets a number [--n-envs]"
        )
    for name in child.config.algorithm.open_names():
        raise UsageError(
            f"{name}=auto is for new runs; a branch keeps its parent's or gets a number"
            f" [{child.sources[f'{child.config.run.algo}.{name}']}]"
        )
    keys = [set(each.config.policy.critic_keys) for each in (parent, child)]
    if keys[0] != keys[1]:
        before, after = (", ".join(sorted(each)) or "none" for each in keys)
        raise UsageError(
            f"critic_keys: {before} -> {after}: the actor of run {ref.run.name} has fixed inputs; start a new"
            f" run [{child.sources['policy.critic_keys']}]"
        )
    if child.config.run.timesteps <= step:
        raise UsageError(
            f"timesteps={child.config.run.timesteps} is not above step {step}, where the branch starts;"
            " give a larger total [--timesteps]"
        )


def _open(
    ref: RunRef, parent: Resolved, child: Resolved, typed: set[str], step: int, source: EnvSource
) -> Environment:
    """Open the child's environment, with the parent's copies of files that were not given again."""
    config = apply_rules(child, step)[0].config  # refuses before anything is built
    check_importable(ref.run, config, source)
    folder = read_lineage(ref.run).folder
    runs = [ref.run.path, *find_data_folders(child.files | parent.files)]
    permit_contacts(config, typed.__contains__, runs)
    files = _choose_files(ref, parent, child)
    permit_files(config, typed.__contains__, runs, files)
    calls = permit_names(config, typed.__contains__, runs=runs, folder=folder)
    kwargs = config.env.env_kwargs | pick_common(files)
    in_child = not may_step_here(config, typed.__contains__, calls)
    opened = open_environment(
        config, kwargs, source, calls=calls, files=files, is_new=True, in_child=in_child
    )
    return opened.with_readings(ref.run)


def _reopen(parent: Resolved) -> Resolved:
    """The parent's config as the lowest layer, with `auto` for values that were chosen automatically, so that
    they follow changes. Sizes that a plan chose stay, so that learning continues as before."""
    sizes = size_paths(parent.config)
    chosen = {
        path: "auto"
        for path, source in parent.sources.items()
        if source.partition(":")[0] in ("auto", "plan") and path not in sizes
    }
    inherited = {path: parent.config.value(path) for path in parent.sources if path not in chosen}
    return parent.with_values(inherited, "parent").with_values(chosen, "default")


def _inherit(ref: RunRef, parent: Resolved, child: Resolved) -> dict[str, Any]:
    """Keyword arguments that were not given again stay; a child without a name gets its parent's."""
    before, after = parent.config.env, child.config.env
    stages = after.curriculum.stages if after.curriculum and after.curriculum != before.curriculum else ()
    staged = {key for stage in stages for key in stage.kwargs}  # a new curriculum sets them
    given = after.env_kwargs if after.env_kwargs != before.env_kwargs else {}
    kwargs = {key: value for key, value in before.env_kwargs.items() if key not in staged} | given
    name = child.config.run.run_name
    if name == parent.config.run.run_name:
        name = f"{re.sub(r'-[0-9]{8}-[0-9]{6}(-[0-9]+)?$', '', ref.run.name)}-branch"
    return {"env.env_kwargs": kwargs, "run.run_name": name}


def _choose_files(ref: RunRef, parent: Resolved, child: Resolved) -> dict[str, str]:
    """The parent's copies of files that were not given again, by their names in env-files.json."""
    ours, theirs = (each.config.env for each in (child, parent))
    if ours.env_id != theirs.env_id:
        return {}
    copies = read_files(ref.run)
    kept = {key for key in pick_common(copies) if ours.env_kwargs.get(key) == theirs.env_kwargs.get(key)}
    if ours.curriculum == theirs.curriculum:
        kept |= copies.keys() - pick_common(copies).keys()
    return {key: copy for key, copy in copies.items() if key in kept}


def load_parent(checkpoint: Checkpoint, session: Session, *, same_stages: bool) -> None:
    """Load the parent's learner, and start with episodes that the parent has not played; with the same
    stages, at the parent's position in the curriculum."""
    learner = session.learner
    learner.load_from_parent(learner_arrays(checkpoint))
    stages = read_run_state(checkpoint).curriculum if same_stages else None
    session.begin_at(learner.step, episode_offset=count_episodes(checkpoint), stages=stages)


def check_weights_fit(checkpoint: Checkpoint, parent: Resolved, resolved: Resolved, learner: Learner) -> None:
    """Raise ConfigError with the changed fields and the arrays that do not fit the child's network."""
    wanted, stored = _pick_networks(learner.arrays()), _pick_networks(learner_arrays(checkpoint))
    problems = []
    for name in sorted(wanted.keys() | stored.keys()):
        ours, theirs = wanted.get(name), stored.get(name)
        if ours is None or theirs is None:
            problems.append(
                f"{name}: {'only in the checkpoint' if ours is None else 'not in the checkpoint'}"
            )
        elif ours.shape != theirs.shape:
            problems.append(f"{name}: {list(theirs.shape)} in the checkpoint, {list(ours.shape)} now")
    if problems:
        sections = ("policy.", f"{resolved.config.run.algo}.")
        changed = [
            f"{path}: {parent.config.value(path)} -> {resolved.config.value(path)}"
            for path in parent.sources
            if (path in _ENV_PATHS or path.startswith(sections))
            and parent.config.value(path) != resolved.config.value(path)
        ] or ["the environment's spaces changed"]
        raise ConfigError(["the weights do not fit the branch:", *changed, *problems])


def _pick_networks(arrays: dict[str, Array]) -> dict[str, Array]:
    """The parameters and statistics among a learner's arrays."""
    return with_prefix(arrays, "policy/") | with_prefix(arrays, "training/")


def explain_changes(parent: Resolved, child: Resolved) -> list[str]:
    """One line per changed field: before, after, and the effect on the learned policy."""
    algorithm = child.config.algorithm
    effects = _EFFECTS | {f"{child.config.run.algo}.{name}": text for name, text in algorithm.EFFECTS.items()}
    lines = []
    for path in [path for path in child.sources if path in parent.sources]:
        before, after = parent.config.value(path), child.config.value(path)
        if path == EVAL_FREQ and is_automatic(child):
            continue  # it may rise again when the environment is timed; the plan shows it
        if before != after:
            effect = f" ({effects[path]})" if path in effects else ""
            lines.append(f"{path}: {before} -> {after}{effect}")
    return lines
