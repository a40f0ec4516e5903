"""What both forms of a policy are built from."""

from __future__ import annotations

from dataclasses import dataclass

from mission_gym.data import ActionSpec, LeafSpec


@dataclass(frozen=True, slots=True)
class QSpec:
    """What is its own in a network of action values: streams and noise."""

    dueling: bool = False
    noisy_sigma: float | None = None  # None: plain layers, and epsilon explores


@dataclass(frozen=True, slots=True)
class PolicySpec:
    """The shape of a policy: its inputs, its action and its network."""

    leaves: tuple[LeafSpec, ...]
    action: ActionSpec
    network_arch: tuple[int, ...] = (64, 64)
    activation: str = "tanh"
    network: str | None = None  # module:callable of the user's own
    normalize_obs: bool = True
    log_std_init: float = 0.0
    q: QSpec | None = None  # action values instead of actor and critic

    @property
    def has_images(self) -> bool:
        return any(leaf.kind == "image" for leaf in self.leaves)

    @property
    def is_mlp(self) -> bool:
        """Whether the NumPy form exists: no images and no network of the user's own."""
        return self.network is None and not self.has_images
