"""Our vectors as a VecEnv of Stable-Baselines3, so that SB3 trains on our workers (extra `sb3`).

    model = stable_baselines3.PPO("MlpPolicy", mg.vector.SB3VecEnv("CartPole-v1", 16))

Importing this module imports SB3, and with it torch; no other module of this package does.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
from stable_baselines3.common.vec_env import VecEnv

from mission_gym.data import Array, StepBatch
from mission_gym.env.factory import Factory
from mission_gym.env.spaces import make_action_encoder, make_unflattener
from mission_gym.vector.gym_vector import take_final
from mission_gym.vector.make_vec import make_vec

Indices = int | Iterable[int] | None


class SB3VecEnv(VecEnv):
    """Same-step auto-reset with `terminal_observation` and `TimeLimit.truncated` in the infos, as in SB3.

    env and options are those of `make_vec`; the default backend is `workers`.
    """

    def __init__(
        self,
        env: str | Factory | Sequence[Factory],
        num_envs: int | None = None,
        *,
        backend: str = "workers",
        **options: Any,
    ) -> None:
        options = {"autoreset_mode": "same_step"} | options
        gym_vector: Any = make_vec(env, num_envs, backend=backend, **options)
        self._vec = gym_vector.inner
        self._gym_vector = gym_vector
        space = gym_vector.single_observation_space
        self._unflatten = make_unflattener(space)
        self._to_row = make_action_encoder(gym_vector.single_action_space)
        super().__init__(gym_vector.num_envs, space, gym_vector.single_action_space)

    def reset(self) -> Any:
        seeds = list(self._seeds)
        batch = self._vec.reset(seeds=seeds, options=[each or None for each in self._options])
        self.reset_infos = [batch.infos.get(row, {}) for row in range(self.num_envs)]
        self._reset_seeds()
        self._reset_options()
        return self._show(batch)

    def step_async(self, actions: Array) -> None:
        is_composite = bool(self._vec.spec.action.parts)
        rows = np.array([self._to_row(action) for action in actions]) if is_composite else np.asarray(actions)
        self._vec.send(rows)

    def step_wait(self) -> Any:
        batch = self._vec.recv()
        infos: list[dict[str, Any]] = [dict(batch.infos.get(row, {})) for row in range(self.num_envs)]
        for index, row in enumerate(batch.ended.tolist()):
            self.reset_infos[row] = infos[row]
            infos[row] = dict(batch.final_infos.get(row, {}))
            leaves = take_final(batch, self._vec.spec.leaves, index)
            infos[row]["terminal_observation"] = self._unflatten(leaves)
        done = batch.terminated | batch.truncated
        for row in range(self.num_envs):
            infos[row]["TimeLimit.truncated"] = bool(batch.truncated[row] and not batch.terminated[row])
        return self._show(batch), batch.reward.astype(np.float32), done, infos

    @property
    def envs(self) -> list[Any]:
        """The environments themselves, if they run in this process (`backend="serial"`)."""
        return list(self._gym_vector.envs)

    def close(self) -> None:
        self._gym_vector.close()

    def get_attr(self, attr_name: str, indices: Indices = None) -> list[Any]:
        return list(self._vec.call(attr_name, env_ids=self._ids(indices)))

    def set_attr(self, attr_name: str, value: Any, indices: Indices = None) -> None:
        ids = self._ids(indices)
        self._vec.set_attr(attr_name, [value] * len(ids), ids)

    def env_method(
        self, method_name: str, *method_args: Any, indices: Indices = None, **kwargs: Any
    ) -> list[Any]:
        return list(self._vec.call(method_name, method_args, kwargs, self._ids(indices)))

    def env_is_wrapped(self, wrapper_class: type[Any], indices: Indices = None) -> list[bool]:
        name = f"{wrapper_class.__module__}.{wrapper_class.__qualname__}"
        layers = self._vec.layers()
        return [name in layers[env_id] for env_id in self._ids(indices)]

    def get_images(self) -> Sequence[Any]:
        return list(self._vec.call("render"))

    def _ids(self, indices: Indices) -> list[int]:
        return [range(self.num_envs)[index] for index in self._get_indices(indices)]  # -1 is the last

    def _show(self, batch: StepBatch) -> Any:
        return self._unflatten(tuple(leaf.copy() for leaf in batch.obs))
