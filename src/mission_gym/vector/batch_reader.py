"""What a vector environment gives, checked and brought into our form: leaves, masks, columns, final ones."""

from __future__ import annotations

from typing import Any

import numpy as np

from mission_gym.data import Array, EnvSpec, Leaves
from mission_gym.env.contract import explain_vector_reward
from mission_gym.env.masks import MaskLayout
from mission_gym.env.observations import ObsReader
from mission_gym.env.probe import MASK_KEY
from mission_gym.env.spaces import mask_parts
from mission_gym.errors import EnvContractError


class BatchReader:
    """Reads batches of `num_envs` rows as the spec declares them; EnvContractError for what does not fit."""

    def __init__(self, spec: EnvSpec, num_envs: int) -> None:
        self.spec = spec
        self.num_envs = num_envs
        self._mask_in_obs = spec.mask_key is not None
        self._reader = ObsReader(spec)
        self._mask_parts = mask_parts(spec.action)
        self._lay_out = MaskLayout(spec)

    def leaves(self, obs: Any) -> Leaves:
        """The observations of all rows, each leaf [B, *leaf.shape]."""
        return self._check_leaves(self._reader.read_batch(obs), self.num_envs)

    def _check_leaves(self, leaves: tuple[Any, ...], count: int) -> Leaves:
        """Return leaves [count, *leaf.shape] in the dtypes of the spec."""
        checked = []
        for leaf, spec in zip(leaves, self.spec.leaves, strict=True):
            got = np.asarray(leaf)
            expected = (count, *spec.shape)
            if got.shape != expected or not np.can_cast(got.dtype, spec.dtype, "same_kind"):
                raise EnvContractError(
                    f"observation {spec.name!r} of the batch has shape {got.shape} and dtype {got.dtype}, "
                    f"expected shape {expected} and dtype {spec.dtype} [{self.spec.env_id}]"
                )
            checked.append(got.astype(spec.dtype, copy=False))
        return tuple(checked)

    def masks(self, obs: Any, infos: dict[str, Any], lenient: Array) -> Array | None:
        """Return masks [B, M]; rows that are `lenient` (nothing is played from them) may have none."""
        if not self.spec.mask_source:
            return None
        shape = (self.num_envs, self.spec.mask_size)
        raw = obs[MASK_KEY] if self._mask_in_obs else infos.get(MASK_KEY)
        mask = np.zeros(shape, np.bool_) if raw is None else self._lay_out(raw, (self.num_envs,))
        if mask.shape != shape or mask.dtype.kind not in "biu":
            raise EnvContractError(
                f"the action masks of the batch have shape {mask.shape} and dtype {mask.dtype}, "
                f"expected {self._lay_out.expected} for each of {self.num_envs} rows [{self.spec.env_id}]"
            )
        legal = self._find_legal(mask)
        wrong = np.flatnonzero(~legal & ~lenient)
        if wrong.size:
            raise EnvContractError(
                f"rows {wrong.tolist()} of the batch have no legal action; every part of the action needs "
                f'one in infos["action_mask"], or the episode must end [{self.spec.env_id}]'
            )
        return mask.astype(np.bool_) | ~legal[:, None]

    def _find_legal(self, mask: Array) -> Array:
        """Which rows [B] leave something to choose in every part."""
        legal: Array = np.logical_or.reduceat(mask, self._mask_parts, axis=1).all(axis=1)  # type: ignore[assignment]
        return legal

    def column(self, name: str, values: Any, dtype: type[np.generic]) -> Array:
        """One number or flag for each row [B]."""
        column = np.asarray(values)
        if name == "reward" and column.ndim == 2 and column.shape[1] > 1:
            raise EnvContractError(
                f"the reward of each row is {explain_vector_reward(column.shape[1])} [{self.spec.env_id}]"
            )
        if column.shape != (self.num_envs,) or column.dtype.kind not in "biuf":
            raise EnvContractError(
                f"{name} of the batch has shape {column.shape} and dtype {column.dtype}, expected "
                f"({self.num_envs},) [{self.spec.env_id}]"
            )
        return column.astype(dtype)

    def read_shown(self, obs: Any, infos: dict[str, Any], ended: Array) -> tuple[Leaves, Array | None]:
        """The last observations and masks of the rows that ended, where those rows still show them."""
        mask = self.masks(obs, infos, np.ones(self.num_envs, np.bool_))
        return tuple(leaf[ended] for leaf in self.leaves(obs)), None if mask is None else mask[ended]

    def read_final(
        self, infos: dict[str, Any], last: dict[str, Any], ended: Array
    ) -> tuple[Leaves, Array | None]:
        """The same, where the rows show the next episode already. last: the infos of the last steps."""
        final = infos.get("final_obs")
        if final is None:
            raise EnvContractError(
                f'rows {ended.tolist()} ended without infos["final_obs"]; a same-step vector must give '
                f"the last observations there [{self.spec.env_id}]"
            )
        if isinstance(final, np.ndarray) and final.dtype == object:
            rows = [final[row] for row in ended]
            parts = zip(*(self._reader.read(row) for row in rows), strict=True)
            leaves = self._check_leaves(tuple(np.stack(part) for part in parts), len(ended))
            mask_rows = (
                np.stack([self._lay_out(row[MASK_KEY]) for row in rows]) if self._mask_in_obs else None
            )
        else:
            leaves = tuple(leaf[ended] for leaf in self.leaves(final))
            mask_rows = self._lay_out(final[MASK_KEY], (self.num_envs,))[ended] if self._mask_in_obs else None
        if not self.spec.mask_source:
            return leaves, None
        if mask_rows is None:
            given = last.get(MASK_KEY)
            shape = (len(ended), self.spec.mask_size)
            mask_rows = np.ones(shape) if given is None else self._lay_out(given, (self.num_envs,))[ended]
        # A last observation may leave nothing to do; a bootstrap from it then goes by all actions.
        return leaves, mask_rows.astype(np.bool_) | ~self._find_legal(mask_rows)[:, None]
