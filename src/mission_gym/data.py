"""Every value that crosses a border between rooms, with its shapes.

B = rows of a batch (environments, or the agents of each), T = steps of a rollout, S = columns of a block,
E = ended rows, K = numbers the policy stores per action, M = entries of an action mask. An observation is
always a tuple of leaf arrays in `EnvSpec.leaves` order; Dict and Tuple exist only in adapters.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Literal, NamedTuple, Self

import numpy as np
import numpy.typing as npt

from mission_gym.actions import MAX_CATEGORIES as MAX_CATEGORIES
from mission_gym.actions import ActionKind as ActionKind
from mission_gym.actions import ActionSpec as ActionSpec

Array = npt.NDArray[Any]
Leaves = tuple[Array, ...]
# Of leaves that come as frames [M, ...], each there once: which of them observations show, int64 [N, k], the
# oldest first; None of leaves [N, ...]. Empty: there are no frames.
FrameIndex = tuple[Array | None, ...]
LeafKind = Literal["vector", "image", "categories", "binary", "text", "sequence"]
TEXT_COLUMNS = 255  # of hashed counts: a column fits in a byte, beside 0 for none


@dataclass(frozen=True, slots=True)
class LeafSpec:
    """One array of an observation, as it is stored.

    kind: `vector` real numbers (normalised), `image` what convolutions read (bytes divided by 255, zeros and
    ones, scaled real numbers, or the ids of `nvec` for each channel), `categories` integers (one-hot of
    `nvec` after subtracting `start`), `binary` zeros and ones, `text` columns of hashed counts, `sequence`
    elements packed into bytes (`record`).
    """

    name: str  # path in the observation: "" for a plain one, "camera", "pose.0"
    shape: tuple[int, ...]
    dtype: str
    kind: LeafKind
    nvec: tuple[int, ...] = ()
    start: tuple[int, ...] = ()
    channels_last: bool = False
    low: tuple[float, ...] = ()  # what becomes 0, flat or one for all, where numbers are scaled by bounds
    high: tuple[float, ...] = ()  # what becomes 1
    open_ended: bool = False  # ids of a grid: those beyond `nvec` count as its last
    shrink: int = 1  # so many pixels of a side are stored as their mean
    max_elements: int = 0  # of a sequence
    parts: tuple[LeafSpec, ...] = ()  # of an element of a sequence
    frames: int = 1  # stacked along its first axis; blocks and replays hold each of them once

    @property
    def size_bytes(self) -> int:
        return int(np.prod(self.shape, dtype=np.int64)) * np.dtype(self.dtype).itemsize

    @property
    def stored_shape(self) -> tuple[int, ...]:
        """Of what a step adds to a block: of stacked frames the newest."""
        return self.shape[1:] if self.frames > 1 else self.shape

    @property
    def frame(self) -> LeafSpec:
        """One of its frames, as a stack of one."""
        return replace(
            self,
            shape=(1, *self.shape[1:]),
            frames=1,
            nvec=self.nvec[: len(self.nvec) // self.frames],
            start=self.start[: len(self.start) // self.frames],
            low=self.low if len(self.low) == 1 else self.low[: len(self.low) // self.frames],
            high=self.high if len(self.high) == 1 else self.high[: len(self.high) // self.frames],
        )

    @property
    def is_flat(self) -> bool:
        """Whether it is columns of a row of flat features; other leaves have a network of their own."""
        return self.kind not in ("image", "sequence")

    @property
    def is_converted(self) -> bool:
        """Whether it is stored in another form than the environment gives it."""
        return self.kind in ("text", "sequence") or self.shrink > 1

    @property
    def num_features(self) -> int:
        """Columns that it takes in a row of flat features."""
        if not self.is_flat:
            return 0
        if self.kind == "text":
            return TEXT_COLUMNS
        return sum(self.nvec) if self.kind == "categories" else int(np.prod(self.shape, dtype=np.int64))

    @property
    def num_element_features(self) -> int:
        """Columns of an element of a sequence; the last one tells that it is there."""
        return sum(part.num_features for part in self.parts) + 1

    @property
    def encoded_bytes(self) -> int:
        """Memory of its network inputs; frames are there once, with their places."""
        if self.kind == "sequence":
            return 4 * self.max_elements * self.num_element_features
        if self.is_flat:
            return 4 * self.num_features
        is_real = bool(self.high) or np.dtype(self.dtype).kind == "f"
        size = int(np.prod(self.stored_shape, dtype=np.int64)) * (4 if is_real else 1)
        return size + 8 * self.frames if self.frames > 1 else size

    @property
    def record(self) -> np.dtype[Any]:
        """What the bytes of a sequence are: its true length, and each part of its first elements."""
        parts = [(f"{i}", part.dtype, (self.max_elements, *part.shape)) for i, part in enumerate(self.parts)]
        return np.dtype([("length", np.int32), *parts])

    def describe(self) -> dict[str, Any]:
        """Its fields, those that older versions do not know only where they say something; but for how it is
        held, which a policy need not fit."""
        fields = asdict(self)
        del fields["frames"]
        return {name: value for name, value in fields.items() if name not in _LATER or value != _LATER[name]}


# Fields that came later and their defaults: a leaf that does not use them has the signature it always had.
_LATER = {"low": (), "high": (), "open_ended": False, "shrink": 1, "max_elements": 0, "parts": ()}


# What a signature holds of every action, empty or not: runs of old versions have theirs.
_SIGNED = ("kind", "shape", "dtype", "nvec", "start", "low", "high")


@dataclass(frozen=True, slots=True)
class EnvSpec:
    """What the rest of the product knows about an environment."""

    env_id: str
    leaves: tuple[LeafSpec, ...]
    action: ActionSpec
    observation_space: Any  # gymnasium.Space, for adapters
    action_space: Any
    mask_source: str = ""  # "" none, "info", "method", or "obs:KEY" (that key is then not a leaf)
    mask_nvec: tuple[
        int, ...
    ] = ()  # of the environment's own masks, where the action's categories are joined
    outcomes: tuple[str, ...] = ()  # declared by the environment in metadata["outcomes"]
    main_outcome: str | None = None  # metadata["main_outcome"]: what counts as a win
    max_episode_steps: int | None = None
    trusted: bool = False  # may run in the learner's process
    bare: bool = False  # `make_vec`: arrays of any size and dtype, and nothing is read from the infos
    agents: tuple[str, ...] = ()  # of an environment of several: each has these spaces, and a row of its own
    coroutines: Literal["none", "offered", "only"] = "none"  # whether its steps are some
    target: tuple[str, str] | None = field(default=None, compare=False)  # `describe_target()`, when looked at

    @property
    def num_agents(self) -> int:
        """Rows of one environment."""
        return len(self.agents) or 1

    @property
    def sees_images(self) -> bool:
        """Whether convolutions read some of its observations."""
        return any(leaf.kind == "image" for leaf in self.leaves)

    @property
    def step_shape(self) -> tuple[int, ...]:
        """The actions of one environment's step: [A, ...] where it has agents."""
        return (len(self.agents), *self.action.shape) if self.agents else self.action.shape

    @property
    def mask_size(self) -> int:
        """M: entries of an action mask, 0 if the environment gives none."""
        return sum(self.action.nvec) if self.mask_source else 0

    @property
    def mask_key(self) -> str | None:
        """The key of an observation that is the mask and not a leaf, None if there is none."""
        return self.mask_source.removeprefix("obs:") if self.mask_source.startswith("obs:") else None

    @property
    def signature(self) -> str:
        """A hash of what a policy must fit: leaves, action and mask layout."""
        action = {name: value for name, value in asdict(self.action).items() if value or name in _SIGNED}
        shape = [[leaf.describe() for leaf in self.leaves], action, self.mask_source]
        return hashlib.sha256(json.dumps(shape, sort_keys=True).encode()).hexdigest()[:16]


class Episode(NamedTuple):
    """A finished episode. `failed` ones are left out of return statistics."""

    env_id: int
    number: int
    seed: int
    ret: float
    length: int
    outcome: str | None
    terminated: bool
    metrics: dict[str, float]
    failed: bool = False
    stage: int = 0  # of the curriculum


@dataclass(slots=True)
class StepBatch:
    """What a vector gives back. One auto-reset rule: the row that ended already shows the next
    episode's first observation; `final_obs` keeps the last one.

    `valid` is False for reset rows of next-step vector environments, for a transition lost in a failure and
    for an agent that is not there: weight 0 in every loss and statistic. The row of an agent that ended shows
    zeros until its environment begins anew. Arrays may be reused by the next call: copy to keep.
    """

    env_ids: Array  # int64 [B]: environment * num_agents + agent
    obs: Leaves  # each [B, *leaf.shape]
    reward: Array  # float64 [B]
    terminated: Array  # bool [B]
    truncated: Array  # bool [B]
    valid: Array  # bool [B]
    mask: Array | None  # bool [B, M]
    ended: Array  # int64 [E], positions in this batch
    final_obs: Leaves  # each [E, *leaf.shape]
    final_mask: Array | None  # bool [E, M]
    episodes: list[Episode] = field(default_factory=list)
    infos: dict[int, dict[str, Any]] = field(default_factory=dict)  # by row; only where asked for
    final_infos: dict[int, dict[str, Any]] = field(default_factory=dict)


class ActOut(NamedTuple):
    """An action in stored form, the log-probability with which it was drawn, and the policy's state after it.
    No values: acting computes none."""

    action: Array  # [B, K]
    log_prob: Array  # float32 [B]
    state: Leaves = ()  # each [B, ...]; empty where a policy has no memory


@dataclass(slots=True)
class Weights:
    """A policy's arrays by name, normaliser included. `version` counts updates."""

    version: int
    arrays: dict[str, Array]


class Final(NamedTuple):
    """The last observation of an episode that was truncated at (t, column) of a block; the value of the
    transition bootstraps from it."""

    t: int
    column: int
    obs: Leaves  # each [*leaf.shape]
    mask: Array | None  # bool [M]
    state: Leaves = ()  # the policy's memory before this observation; its initial state if a worker was lost


def ends_episode(terminated: Array, truncated: Array, valid: Array) -> Array:
    """Which transitions are the last of their episode: a policy's memory is reset after them. All bool."""
    ended: Array = terminated | truncated | ~valid
    return ended


@dataclass(slots=True)
class Block:
    """A rollout [T, S]. Columns that are acted for and stepped together are a segment.

    `filled` counts the rows of T that hold data, column by column; those of a segment share a count. What
    lies behind it is undefined.
    """

    obs: Leaves  # each [T + leaf.frames, S, *leaf.stored_shape]; `rollout.frames` says what is shown
    mask: Array | None  # bool [T + 1, S, M]
    action: Array  # [T, S, K]
    log_prob: Array  # float32 [T, S]
    reward: Array  # float32 [T, S]
    terminated: Array  # bool [T, S]
    truncated: Array  # bool [T, S]
    valid: Array  # bool [T, S]
    env_ids: Array  # int64 [S]; the columns of an environment's agents share it
    version: Array  # int64 [S], behaviour policy
    filled: Array  # int64 [S]
    state: Leaves = ()  # the policy's before row 0, each [S, ...]; empty where it has no memory
    finals: list[Final] = field(default_factory=list)  # in order of (t, s)
    episodes: list[Episode] = field(default_factory=list)

    @property
    def num_steps(self) -> int:
        return int(self.reward.shape[0])

    @property
    def num_filled(self) -> int:
        """Transitions that it holds."""
        return int(np.add.reduce(self.filled))

    @property
    def is_full(self) -> bool:
        return self.num_filled == self.reward.size

    @property
    def num_columns(self) -> int:
        return int(self.reward.shape[1])


@dataclass(slots=True)
class UpdateStats:
    """What one `learner.update` did. `metrics` uses SB3's names (`train/approx_kl`, ...)."""

    gradient_steps: int
    metrics: dict[str, float]


@dataclass(frozen=True, slots=True)
class Fact:
    """A chosen number of a plan and the one sentence that says why."""

    name: str
    value: str
    reason: str = ""


@dataclass(frozen=True, slots=True)
class Plan:
    """How a run will be made: sizes, counts, memory; printed before the start and stored."""

    facts: tuple[Fact, ...]
    memory_bytes: int
    predicted_fps: float | None = None
    notes: tuple[str, ...] = ()  # adaptations and fallbacks, said aloud


class Span(NamedTuple):
    """A stretch of one role's time; start and end in seconds of `time.perf_counter`."""

    role: str
    phase: str
    start: float
    end: float


@dataclass(slots=True)
class Phases:
    """What clocks have counted: seconds by (role, phase), and the spans behind the coarse ones.

    A coarse phase (`collect`, `update`) has spans and includes the fine ones of its role, which are sums.
    """

    seconds: dict[tuple[str, str], float] = field(default_factory=dict)
    spans: list[Span] = field(default_factory=list)

    def __or__(self, other: Phases) -> Phases:
        """Both together: seconds of the same phase of the same role are added."""
        both = Phases(dict(self.seconds), list(self.spans))
        both |= other
        return both

    def __ior__(self, other: Phases) -> Self:
        for key, more in other.seconds.items():
            self.seconds[key] = self.seconds.get(key, 0.0) + more
        self.spans += other.spans
        return self


@dataclass(slots=True)
class Progress:
    """One update of the training loop."""

    step: int
    update: int
    gradient_steps: int
    metrics: dict[str, float]
    episodes: list[Episode]
    phases: Phases
    num_cut: int | None = None  # sequences of the block that were cut; None if it has none
