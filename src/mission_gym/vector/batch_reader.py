"""Checks the arrays of a `gymnasium.vector.VectorEnv` and converts them to the form of its EnvSpec."""

from __future__ import annotations

from typing import Any, NoReturn

import numpy as np

from mission_gym.data import Array, EnvSpec, Leaves
from mission_gym.env.contract import explain_vector_reward, find_misfit, find_wrong_value
from mission_gym.env.leaves import ObsReader
from mission_gym.env.masks import MaskLayout
from mission_gym.env.probe import MASK_KEY
from mission_gym.env.spaces import mask_parts
from mission_gym.errors import EnvContractError
from mission_gym.vector.arrays import ValueWatch


class BatchReader:
    """Checks the arrays of a vector environment and converts them to our form; EnvContractError for what does
    not fit the spec."""

    def __init__(self, spec: EnvSpec, num_envs: int) -> None:
        self.spec = spec
        self.num_envs = num_envs
        self._mask_in_obs = spec.mask_key is not None
        self._reader = ObsReader(spec)
        self._mask_parts = mask_parts(spec.action)
        self._lay_out = MaskLayout(spec)
        self._watch = ValueWatch(spec)

    def leaves(self, obs: Any) -> Leaves:
        """The observations of all rows, each leaf [B, *leaf.shape]."""
        return self._check_leaves(self._reader.read_batch(obs), self.num_envs)

    def _check_leaves(self, leaves: tuple[Any, ...], num_rows: int) -> Leaves:
        """Leaves [num_rows, *leaf.shape] in the dtypes of the spec."""
        checked = []
        for leaf, spec in zip(leaves, self.spec.leaves, strict=True):
            got = np.asarray(leaf)
            if problem := find_misfit(spec, got, (num_rows, *spec.shape)):
                what = f"observation {spec.name!r} of the batch {problem}"
                raise EnvContractError(f"{what} [{self.spec.env_id}]")
            checked.append(got.astype(spec.dtype, copy=False))
        if self._watch.suspects(tuple(checked)):
            for row in range(num_rows):
                for leaf, spec in zip(checked, self.spec.leaves, strict=True):
                    if problem := find_wrong_value(leaf[row], spec):
                        self.refuse(row, problem)
        return tuple(checked)

    def refuse(self, row: int, what: str) -> NoReturn:
        """Raise an EnvContractError about a row."""
        raise EnvContractError(f"row {row} of the batch: {what} [{self.spec.env_id}]")

    def masks(self, obs: Any, infos: dict[str, Any], lenient: Array) -> Array | None:
        """Masks [B, M]. Rows in `lenient`, from which no action is chosen, may have none."""
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
        """Which rows [B] have a legal choice in every part."""
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
        """The final observations and masks of ended rows that still show them."""
        mask = self.masks(obs, infos, np.ones(self.num_envs, np.bool_))
        return tuple(leaf[ended] for leaf in self.leaves(obs)), None if mask is None else mask[ended]

    def read_final(
        self, infos: dict[str, Any], last: dict[str, Any], ended: Array
    ) -> tuple[Leaves, Array | None]:
        """The same for rows that already show their next episode. last: the infos of the last steps."""
        final = infos.get("final_obs")
        if final is None:
            raise EnvContractError(
                f'rows {ended.tolist()} ended without infos["final_obs"]; a same-step vector must put '
                f"the last observations there [{self.spec.env_id}]"
            )
        if isinstance(final, np.ndarray) and final.dtype == object:
            rows = [final[row] for row in ended]
            parts = zip(*(self._reader.read(row) for row in rows), strict=True)
            leaves = self._check_leaves(tuple(np.stack(part) for part in parts), len(ended))
            masks = np.stack([self._lay_out(row[MASK_KEY]) for row in rows]) if self._mask_in_obs else None
        else:
            leaves = tuple(leaf[ended] for leaf in self.leaves(final))
            masks = self._lay_out(final[MASK_KEY], (self.num_envs,))[ended] if self._mask_in_obs else None
        if not self.spec.mask_source:
            return leaves, None
        if masks is None:
            given = last.get(MASK_KEY)
            shape = (len(ended), self.spec.mask_size)
            masks = np.ones(shape) if given is None else self._lay_out(given, (self.num_envs,))[ended]
        # A last observation may leave no legal action; a bootstrap from it then uses all actions.
        return leaves, masks.astype(np.bool_) | ~self._find_legal(masks)[:, None]
