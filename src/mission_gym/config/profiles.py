"""An algorithm's profiles: what its runs begin from where nothing else chose a value, on every device."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from mission_gym.config.layers import Resolved


def choose_profile(resolved: Resolved) -> Resolved:
    """Fill the values that are still defaults from the algorithm's profile.

    Sections that algorithms share have one default each, and not every algorithm learns best with it. What is
    learned does not depend on the device: its rows of the presets are for those who ask for them.
    """
    return _fill(resolved, resolved.config.algorithm.PROFILE, "profile of {}")


def apply_image_profile(resolved: Resolved, *, sees_images: bool) -> Resolved:
    """Where convolutions read the environment, fill them from the algorithm's profile for pictures."""
    if not sees_images:
        return resolved
    return _fill(resolved, resolved.config.algorithm.IMAGE_PROFILE, "profile of {} for pictures")


def _fill(resolved: Resolved, profile: Mapping[str, Any], name: str) -> Resolved:
    chosen = {path: value for path, value in profile.items() if resolved.sources[path] == "default"}
    source = f"{name.format(resolved.config.run.algo)}: measured, see its page"
    return resolved.with_values(chosen, source) if chosen else resolved
