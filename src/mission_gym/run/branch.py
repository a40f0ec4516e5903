"""A child run from a checkpoint, with changes: what fits is carried over, what does not is explained.

Carried over: weights, normaliser, optimizer, counters (so schedules go on by absolute step). The
environments start new episodes, with seeds that the parent has not played.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from mission_gym.config.layers import Resolved
from mission_gym.config.rules import apply_rules
from mission_gym.env.resume import unpack_states
from mission_gym.errors import ConfigError, UsageError
from mission_gym.learner.contract import Learner
from mission_gym.plan.wishes import size_paths
from mission_gym.ray.run import connect
from mission_gym.run.assemble import algorithm_of, settle
from mission_gym.run.config import resolve
from mission_gym.run.curriculum import KEY
from mission_gym.run.env_files import read_as_told, read_files
from mission_gym.run.environment import leave_vector_form, note_agents, open_environment, permit_names
from mission_gym.run.exactness import read_own_config
from mission_gym.run.recorder import Listener
from mission_gym.run.session import Session
from mission_gym.run.snapshot import learned_steps, learner_arrays
from mission_gym.run.stages import EnvSource, pick_common
from mission_gym.run.start import begin
from mission_gym.store.checkpoints import Checkpoint, load_checkpoint
from mission_gym.store.lineage import Lineage, pin, read_lineage
from mission_gym.store.resolve import RunRef, checkpoint_for

_ENV_PATHS = ("env.env_id", "env.env_kwargs", "env.wrap")
# What a change means for what was learned so far; paths not named here only change what comes.
_EFFECTS = {
    "env.env_id": "the policy meets another environment; its values are wrong at first",
    "env.env_kwargs": "the policy meets a changed environment; its values are wrong at first",
    "env.wrap": "the policy meets a changed environment; its values are wrong at first",
    "env.curriculum": "a new one begins with its first stage",
    "evaluation.eval_stage": "scores are of another task than the parent's",
    "env.max_sequence": "the policy sees more or fewer elements of a sequence",
    "policy.normalize_returns": "values stay as they are; their errors weigh by another scale",
    "policy.log_std_init": "not used: the deviation comes from the checkpoint",
    "run.timesteps": "schedules now fall over this total",
    "run.seed": "random streams change from here on",
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
) -> Iterator[Session]:
    """A child run, locked and ready to train. ConfigError, by field, if the weights do not fit. via: see
    `resolve`."""
    info = checkpoint_for(ref)
    checkpoint = load_checkpoint(info.path)
    parent, told = read_own_config(ref.run, checkpoint)
    step = learned_steps(checkpoint)
    algo = flags.get("algo", parent.config.run.algo)
    if algo != parent.config.run.algo:
        raise UsageError(
            f"algo={algo}: the weights of run {ref.run.name} are those of {parent.config.run.algo}, and no"
            " other algorithm can go on with them; start a new run [--algo]"
        )
    wanted = resolve(
        None, flags, sets=sets, config_file=config_file, preset=preset, base=_reopen(parent), via=via
    )
    wanted = wanted.with_values(_inherit(ref, parent, wanted), "parent")
    if wanted.config.value("vector.n_envs") == "auto":
        raise UsageError(
            "n_envs=auto is for new runs; a branch keeps its parent's or gets a number [--n-envs]"
        )
    keys = [set(each.config.policy.critic_keys) for each in (parent, wanted)]
    if keys[0] != keys[1]:
        before, after = (", ".join(sorted(each)) or "none" for each in keys)
        raise UsageError(
            f"critic_keys: {before} -> {after}: the actor of run {ref.run.name} was made for what it saw, and"
            f" can't see more or less; start a new run [{wanted.sources['policy.critic_keys']}]"
        )
    if wanted.config.run.timesteps <= step:
        raise UsageError(
            f"timesteps={wanted.config.run.timesteps} is not above step {step}, where the branch begins;"
            " give a larger total [--timesteps]"
        )
    wanted, adapted = leave_vector_form(wanted)
    told += adapted
    resolved, notes = apply_rules(wanted, step)
    notes = [*told, *notes]
    given = {f"{section}.{name}" for name in flags for section in ("env", "policy")}
    given |= {text.partition("=")[0].strip() for text in sets}
    given = set() if via else given
    folder = read_lineage(ref.run).folder
    calls = permit_names(resolved.config, given.__contains__, run=ref.run.path, folder=folder)
    files = _choose_files(ref, parent, resolved)
    kwargs = resolved.config.env.env_kwargs | pick_common(files)
    opened = open_environment(resolved.config, kwargs, source, calls=calls, files=files, all_stages=True)
    opened = replace(opened, cluster=connect(resolved.config, opened.backend))
    environment = read_as_told(opened, ref.run)
    noted = note_agents(resolved, environment.spec)
    if noted is not resolved:  # another environment than the parent's
        resolved, notes = apply_rules(note_agents(wanted, environment.spec), step)
        notes = [*told, *notes]
    resolved, more = settle(resolved, environment.spec)
    notes += more
    parentage = Lineage("", "", ref.run.name, str(ref.run.path), info.step)
    notes += explain_changes(parent, resolved)
    notes.append(f"branches from {ref.run.name} at step {step}; environments start new episodes")
    notes += algorithm_of(resolved.config).notes_on_branch(resolved.settled)
    with begin(
        resolved, environment, listener, notes, source=source, parentage=parentage, start=step,
        inspect=partial(refuse_misfits, checkpoint, parent, resolved),
    ) as session:  # fmt: skip
        pin(ref.run, info.step, session.run.name)
        same_stages = parent.config.env.curriculum == resolved.config.env.curriculum
        carry_over(checkpoint, session, same_stages=same_stages)
        yield session


def _reopen(parent: Resolved) -> Resolved:
    """The parent's config with `auto` where a value was chosen for it: what it follows from may change."""
    sizes = size_paths(parent.config)  # a plan's too: learning goes on as it was
    chosen = {
        path: "auto"
        for path, source in parent.sources.items()
        if source.partition(":")[0] in ("auto", "plan") and path not in sizes
    }
    return parent.with_values(chosen, "default")


def _inherit(ref: RunRef, parent: Resolved, wanted: Resolved) -> dict[str, Any]:
    """Keywords that were not given again stay; a child without a name is called after its parent."""
    before, after = parent.config.env, wanted.config.env
    stages = after.curriculum.stages if after.curriculum and after.curriculum != before.curriculum else ()
    staged = {key for stage in stages for key in stage.kwargs}  # a new curriculum takes them over
    given = after.env_kwargs if after.env_kwargs != before.env_kwargs else {}
    kwargs = {key: value for key, value in before.env_kwargs.items() if key not in staged} | given
    name = wanted.config.run.run_name
    if name == parent.config.run.run_name:
        name = f"{re.sub(r'-[0-9]{8}-[0-9]{6}(-[0-9]+)?$', '', ref.run.name)}-branch"
    return {"env.env_kwargs": kwargs, "run.run_name": name}


def _choose_files(ref: RunRef, parent: Resolved, child: Resolved) -> dict[str, str]:
    """The parent's own copies of files that were not given anew, by what names them (`run/stages.py`)."""
    ours, theirs = (each.config.env for each in (child, parent))
    if ours.env_id != theirs.env_id:
        return {}
    copies = read_files(ref.run)
    kept = {key for key in pick_common(copies) if ours.env_kwargs.get(key) == theirs.env_kwargs.get(key)}
    if ours.curriculum == theirs.curriculum:
        kept |= copies.keys() - pick_common(copies).keys()
    return {key: copy for key, copy in copies.items() if key in kept}


def carry_over(checkpoint: Checkpoint, session: Session, *, same_stages: bool) -> None:
    """Load the learner of the parent, and begin episodes that it has not played, where it was in the
    curriculum if that is the same."""
    learner = session.learner
    learner.adopt(learner_arrays(checkpoint))
    states = unpack_states(checkpoint.state, checkpoint.state_json["environments"])
    played = max(state.episode for state in states)
    counters = checkpoint.state_json["counters"]["session"]
    session.begin_at(
        learner.step,
        episode_offset=counters["episode_offset"] + played + 1,
        stages=counters.get(KEY) if same_stages else None,
    )


def refuse_misfits(checkpoint: Checkpoint, parent: Resolved, resolved: Resolved, learner: Learner) -> None:
    """Raise ConfigError with the changed fields and the arrays that the child's network can't take."""
    wanted = learner.weights().arrays
    problems = []
    for name in sorted(wanted.keys() | checkpoint.policy.keys()):
        ours, theirs = wanted.get(name), checkpoint.policy.get(name)
        if ours is None or theirs is None:
            problems.append(
                f"{name}: {'only in the checkpoint' if ours is None else 'not in the checkpoint'}"
            )
        elif ours.shape != theirs.shape:
            problems.append(f"{name}: {list(theirs.shape)} in the checkpoint, {list(ours.shape)} now")
    if problems:
        changed = [
            f"{path}: {parent.config.value(path)} -> {resolved.config.value(path)}"
            for path in (*_ENV_PATHS, "policy.network_arch", "policy.network", "policy.normalize_obs")
            if parent.config.value(path) != resolved.config.value(path)
        ] or ["the environment's spaces changed"]
        raise ConfigError(["the weights do not fit the branch:", *changed, *problems])


def explain_changes(parent: Resolved, child: Resolved) -> list[str]:
    """One line per changed field: before, after, and what it means for what was learned."""
    lines = []
    own = {f"{child.config.run.algo}.{name}": text for name, text in child.config.algorithm.EFFECTS.items()}
    for path in [path for path in child.sources if path in parent.sources]:
        before, after = parent.config.value(path), child.config.value(path)
        if before != after:
            effect = (_EFFECTS | own).get(path, "")
            lines.append(f"{path}: {before} -> {after}" + (f" ({effect})" if effect else ""))
    return lines
