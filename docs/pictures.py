"""Draws the pictures of docs/missions/capture.md into docs/images: one moment of each level."""

from __future__ import annotations

from pathlib import Path

from PIL import Image

from mission_gym.missions.capture.env import CaptureEnv

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


if __name__ == "__main__":
    for level, (seed, commands) in MOMENTS.items():
        draw(level, seed, commands).quantize(256).save(IMAGES / f"capture-{level}.png", optimize=True)
