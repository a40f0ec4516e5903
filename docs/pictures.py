"""Draws the missions' pictures of docs/missions into docs/images: one moment of each level, and a plan."""

from __future__ import annotations

from pathlib import Path

from PIL import Image

from mission_gym_missions.capture.env import CaptureEnv
from mission_gym_missions.placement.env import PlacementEnv
from mission_gym_missions.territory.env import TerritoryEnv

IMAGES = Path(__file__).parent / "images"
MOMENTS = {"easy": (3, 50), "normal": (11, 62), "hard": (5, 60)}  # seed, commands of the holder


def draw(level: str, seed: int, commands: int) -> Image.Image:
    """The level after so many commands of the scripted holder."""
    env = CaptureEnv(level, render_mode="rgb_array")
    try:
        obs, info = env.reset(seed=seed)
        env.render()  # from here on the units leave trails
        for _ in range(commands):
            obs, _, ended, _, info = env.step(env.baselines["holder"](obs, info))
            if ended:
                break
        return Image.fromarray(env.render())
    finally:
        env.close()


def draw_plan(seed: int) -> Image.Image:
    """A city with its best plan."""
    env = PlacementEnv(render_mode="rgb_array")
    obs, info = env.reset(seed=seed)
    ended = False
    while not ended:
        obs, _, ended, _, info = env.step(env.baselines["exact"](obs, info))
    return Image.fromarray(env.render())


def draw_war(seed: int, steps: int) -> Image.Image:
    """A game after so many steps of the scripted conqueror."""
    env = TerritoryEnv(size=128, num_bots=10, render_mode="rgb_array")
    obs, info = env.reset(seed=seed)
    for _ in range(steps):
        obs, _, _, _, info = env.step(env.baselines["conqueror"](obs, info))
    return Image.fromarray(env.render())


if __name__ == "__main__":
    for level, (seed, commands) in MOMENTS.items():
        draw(level, seed, commands).quantize(256).save(IMAGES / f"capture-{level}.png", optimize=True)
    draw_plan(seed=3).quantize(256).save(IMAGES / "placement.png", optimize=True)
    draw_war(seed=2, steps=110).quantize(256).save(IMAGES / "territory.png", optimize=True)
