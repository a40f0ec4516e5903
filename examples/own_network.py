"""A custom network for a Dict observation: a shop that sees its stock and the day of the week.

mission-gym train own_network:Shop --network own_network:ShopNet --timesteps 20k
"""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
import torch
from gymnasium import spaces
from torch import Tensor, nn


class Shop(gym.Env[Any, Any]):
    """Every day, order 0 to 4 pieces of each of three products. Demand is twice as high on day 6."""

    metadata = {"outcomes": ["profit", "loss"], "main_outcome": "profit"}  # noqa: RUF012

    def __init__(self) -> None:
        self.observation_space = spaces.Dict(
            {"stock": spaces.Box(0.0, 20.0, (3,), np.float32), "day": spaces.Discrete(7)}
        )
        self.action_space = spaces.MultiDiscrete([5, 5, 5])

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.day, self.total = 0, 0.0
        self.stock = self.np_random.integers(0, 10, 3).astype(np.float32)
        return self._observe(), {}

    def step(self, action: Any) -> Any:
        self.stock = np.minimum(self.stock + action, 20.0).astype(np.float32)
        sold = np.minimum(self.stock, self.np_random.poisson(4.0 if self.day % 7 == 6 else 2.0, 3))
        self.stock -= sold.astype(np.float32)
        reward = float(3.0 * sold.sum() - action.sum() - 0.2 * self.stock.sum())
        self.day, self.total = self.day + 1, self.total + reward
        is_over = self.day == 28
        info = {"outcome": "profit" if self.total > 0 else "loss"} if is_over else {}
        return self._observe(), reward, False, is_over, info

    def _observe(self) -> dict[str, Any]:
        return {"stock": self.stock.copy(), "day": self.day % 7}


class ShopNet(nn.Module):
    """Features [N, 64]. spec: the PolicySpec, whose `leaves` are the parts of an observation."""

    def __init__(self, spec: Any) -> None:
        super().__init__()
        width = {leaf.name: leaf.num_features for leaf in spec.leaves}  # a category of 7 has 7 features
        self.stock = nn.Sequential(nn.Linear(width["stock"], 32), nn.Tanh())
        self.day = nn.Linear(width["day"], 8, bias=False)  # an embedding, because `day` is one-hot
        self.join = nn.Sequential(nn.Linear(32 + 8, 64), nn.Tanh())

    def forward(self, obs: dict[str, Tensor]) -> Tensor:
        return self.join(torch.cat([self.stock(obs["stock"]), self.day(obs["day"])], dim=1))
