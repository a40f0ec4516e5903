"""Every value that packages exchange, with its shapes.

B = rows of a batch (environments, or all their agents), T = steps of a rollout, S = columns of a block, E =
ended rows, K = numbers that the policy stores per action, M = entries of an action mask. An observation is
always a tuple of leaf arrays in the order of `EnvSpec.leaves`; Dict and Tuple exist only in adapters.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Literal, NamedTuple, Self

import numpy as np
import numpy.typing as npt

from mission_gym.actions import ActionSpec

Array = npt.NDArray[Any]
Leaves = tuple[Array, ...]
# For leaves that are stored as frames [M, ...], each once: the frames of every observation, int64 [N, k],
# oldest first. None for other leaves [N, ...]. Empty if no leaf has frames.
FrameIndex = tuple[Array | None, ...]
LeafKind = Literal["vector", "image", "categories", "binary", "text", "sequence"]
TEXT_COLUMNS = 255  # of hashed counts: a column number fits in a byte; 0 is padding


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
    low: tuple[float, ...] = ()  # the value that is scaled to 0; flat, or one for all; empty: not scaled
    high: tuple[float, ...] = ()  # the value that is scaled to 1
    open_ended: bool = False  # ids of a grid: larger ones count as the last of `nvec`
    shrink: int = 1  # side of the squares of pixels that are stored as their mean
    max_elements: int = 0  # of a sequence
    parts: tuple[LeafSpec, ...] = ()  # of an element of a sequence
    frames: int = 1  # stacked along the first axis; blocks and replays store each once

    @property
    def size_bytes(self) -> int:
        return int(np.prod(self.shape, dtype=np.int64)) * np.dtype(self.dtype).itemsize

    @property
    def stored_shape(self) -> tuple[int, ...]:
        """The shape that a step adds to a block: of stacked frames, the newest."""
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
        """Whether it becomes flat features; other leaves have their own layers."""
        return self.kind not in ("image", "sequence")

    @property
    def is_converted(self) -> bool:
        """Whether it is stored in another form than the environment's."""
        return self.kind in ("text", "sequence") or self.shrink > 1

    @property
    def num_features(self) -> int:
        """Its number of flat features."""
        if not self.is_flat:
            return 0
        if self.kind == "text":
            return TEXT_COLUMNS
        return sum(self.nvec) if self.kind == "categories" else int(np.prod(self.shape, dtype=np.int64))

    @property
    def num_element_features(self) -> int:
        """Features of an element of a sequence; the last one marks that it exists."""
        return sum(part.num_features for part in self.parts) + 1

    @property
    def encoded_bytes(self) -> int:
        """Memory of its network inputs; frames are stored once, with their index."""
        if self.kind == "sequence":
            return 4 * self.max_elements * self.num_element_features
        if self.is_flat:
            return 4 * self.num_features
        is_real = bool(self.high) or np.dtype(self.dtype).kind == "f"
        size = int(np.prod(self.stored_shape, dtype=np.int64)) * (4 if is_real else 1)
        return size + 8 * self.frames if self.frames > 1 else size

    @property
    def record(self) -> np.dtype[Any]:
        """The layout of a sequence's bytes: its true length, and each part of its first elements."""
        parts = [(f"{i}", part.dtype, (self.max_elements, *part.shape)) for i, part in enumerate(self.parts)]
        return np.dtype([("length", np.int32), *parts])


@dataclass(frozen=True, slots=True)
class EnvSpec:
    """The description of an environment that all other packages use."""

    env_id: str
    leaves: tuple[LeafSpec, ...]
    action: ActionSpec
    observation_space: Any  # gymnasium.Space, for adapters
    action_space: Any
    mask_source: str = ""  # "" none, "info", "method", or "obs:KEY" (that key is then not a leaf)
    mask_nvec: tuple[int, ...] = ()  # of the environment's masks, if the action's categories are joined
    outcomes: tuple[str, ...] = ()  # declared by the environment in metadata["outcomes"]
    main_outcome: str | None = None  # metadata["main_outcome"]: the win
    max_episode_steps: int | None = None
    trusted: bool = False  # may run in the learner's process
    bare: bool = False  # `make_vec`: arrays of any size and dtype, and nothing is read from the infos
    agents: tuple[str, ...] = ()  # their names, if there are several; each has these spaces and its own row
    coroutines: Literal["none", "offered", "only"] = "none"  # whether its steps are coroutines
    target: tuple[str, str] | None = field(default=None, compare=False)  # `describe_target()`, when probed
    conversions: str = field(default="", compare=False)  # of the first observation's dtypes, as text

    @property
    def declares_waiting(self) -> bool:
        """Whether the environment declares that its steps wait for something else."""
        return self.coroutines != "none" or self.target is not None

    @property
    def num_agents(self) -> int:
        """Rows of one environment."""
        return len(self.agents) or 1

    @property
    def sees_images(self) -> bool:
        """Whether an observation has images."""
        return any(leaf.kind == "image" for leaf in self.leaves)

    @property
    def step_shape(self) -> tuple[int, ...]:
        """The shape of one environment's actions per step: [A, ...] with several agents."""
        return (len(self.agents), *self.action.shape) if self.agents else self.action.shape

    @property
    def mask_size(self) -> int:
        """M: entries of an action mask, 0 without masks."""
        return sum(self.action.nvec) if self.mask_source else 0

    @property
    def mask_key(self) -> str | None:
        """The observation key that is the mask, and so not a leaf; None without one."""
        return self.mask_source.removeprefix("obs:") if self.mask_source.startswith("obs:") else None

    @property
    def signature(self) -> str:
        """A hash of the layout that a policy must fit: leaves, action and mask. How frames are stored does
        not matter."""
        leaves = [asdict(replace(leaf, frames=1)) for leaf in self.leaves]
        layout = [leaves, asdict(self.action), self.mask_source]
        return hashlib.sha256(json.dumps(layout, sort_keys=True).encode()).hexdigest()[:16]


class Episode(NamedTuple):
    """A finished episode. Return statistics exclude failed ones."""

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
    """The result of a vector's step. One auto-reset rule: a row that ended already shows the first
    observation of the next episode; `final_obs` holds the last one.

    `valid` is False for reset rows of next-step vector environments, for a transition lost in a failure, and
    for an absent agent: its weight is 0 in every loss and statistic. The row of an agent that ended shows
    zeros until its environment resets. The next call may reuse the arrays: copy them to keep them.
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
    infos: dict[int, dict[str, Any]] = field(default_factory=dict)  # by row, if requested
    final_infos: dict[int, dict[str, Any]] = field(default_factory=dict)


class ActOut(NamedTuple):
    """An action in stored form, its log-probability, and the policy's memory after it. Acting computes no
    values."""

    action: Array  # [B, K]
    log_prob: Array  # float32 [B]
    state: Leaves = ()  # each [B, ...]; empty without memory


@dataclass(frozen=True, slots=True)
class Weights:
    """The arrays that a policy acts with, by name, the normaliser's included.

    version: the number of updates. exploration: the probability of a random action.
    """

    version: int
    arrays: dict[str, Array]
    exploration: float = 0.0

    def pack(self) -> dict[str, Array]:
        """The arrays with the exploration among them, for a checkpoint."""
        return self.arrays | {_EXPLORATION: np.array(self.exploration)}

    @classmethod
    def unpack(cls, version: int, arrays: dict[str, Array]) -> Weights:
        """The inverse of `pack`."""
        rest = {name: array for name, array in arrays.items() if name != _EXPLORATION}
        return cls(version, rest, float(arrays[_EXPLORATION]))


_EXPLORATION = "exploration"


class Final(NamedTuple):
    """A truncated transition (t, column) of a block, which needs the value of its final observation."""

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
    """A rollout [T, S]. Columns that are acted for and stepped together form a segment.

    `filled` counts the steps of each column that hold data; the columns of a segment share a count. Later
    steps are undefined.
    """

    obs: Leaves  # each [T + leaf.frames, S, *leaf.stored_shape]; see `rollout.frames`
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
    state: Leaves = ()  # the policy's memory before step 0, each [S, ...]; empty without memory
    finals: list[Final] = field(default_factory=list)  # in order of (t, s)
    episodes: list[Episode] = field(default_factory=list)

    @property
    def num_steps(self) -> int:
        return int(self.reward.shape[0])

    @property
    def num_filled(self) -> int:
        """Transitions in the block."""
        return int(np.add.reduce(self.filled))

    @property
    def is_full(self) -> bool:
        return self.num_filled == self.reward.size

    @property
    def num_columns(self) -> int:
        return int(self.reward.shape[1])


@dataclass(slots=True)
class UpdateStats:
    """The report of one `learner.update`. `metrics` uses SB3's names (`train/approx_kl`, ...)."""

    gradient_steps: int
    metrics: dict[str, float]


@dataclass(frozen=True, slots=True)
class Fact:
    """A chosen number of a plan, and the reason in one sentence."""

    name: str
    value: str
    reason: str = ""


@dataclass(frozen=True, slots=True)
class Plan:
    """The plan of a run: sizes, counts, memory; printed before the start and stored."""

    facts: tuple[Fact, ...]
    memory_bytes: int
    predicted_fps: float | None = None
    notes: tuple[str, ...] = ()  # adaptations and fallbacks


class Span(NamedTuple):
    """A period of one role's time; start and end in seconds of `time.perf_counter`."""

    role: str
    phase: str
    start: float
    end: float


@dataclass(slots=True)
class Phases:
    """The counts of phase clocks: seconds by (role, phase), and the spans of coarse phases.

    A coarse phase (`collect`, `update`) has spans and includes the fine phases of its role, which are only
    summed.
    """

    seconds: dict[tuple[str, str], float] = field(default_factory=dict)
    spans: list[Span] = field(default_factory=list)

    def __or__(self, other: Phases) -> Phases:
        """The sum of both: seconds of equal phases are added."""
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
    num_cut: int | None = None  # sequences of the block that were cut; None without sequences
