"""An algorithm's profile: what its runs begin from where nothing else chose a value, on every device."""

from __future__ import annotations

from mission_gym.config.layers import Resolved


def choose_profile(resolved: Resolved) -> Resolved:
    """Fill the values that are still defaults from the algorithm's profile.

    Sections that algorithms share have one default each, and not every algorithm learns best with it. What is
    learned does not depend on the device: its rows of the presets are for those who ask for them.
    """
    algo = resolved.config.run.algo
    chosen = {
        path: value
        for path, value in resolved.config.algorithm.PROFILE.items()
        if resolved.sources[path] == "default"
    }
    return resolved.with_values(chosen, f"profile of {algo}: measured, see its page") if chosen else resolved
