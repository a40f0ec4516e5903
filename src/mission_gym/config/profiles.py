"""Device profiles: the rows `gpu` and `cpu` of the presets, for values that nothing else chose."""

from __future__ import annotations

from mission_gym.config.layers import Resolved, read_presets, values_for

_REASONS = {"gpu": "wide batches keep a device busy", "cpu": "small networks and batches suit a processor"}


def choose_profile(resolved: Resolved) -> Resolved:
    """The profile of the learner's device, for algorithms that begin from it."""
    if not resolved.config.algorithm.BEGINS_FROM_PROFILE:
        return resolved
    device = resolved.config.compute.device
    return with_profile(resolved, "cpu" if device == "auto" else device)


def with_profile(resolved: Resolved, device: str) -> Resolved:
    """Fill the values that are still defaults from the device's row for the chosen algorithm."""
    name = "cpu" if device == "cpu" else "gpu"
    algo = resolved.config.run.algo
    values = values_for(read_presets()[name], algo, resolved.schema) or {}
    sections = (f"{algo}.", "vector.", "policy.")
    paths = {path.split(".")[1]: path for path in resolved.sources if path.startswith(sections)}
    chosen = {
        paths[field]: value for field, value in values.items() if resolved.sources[paths[field]] == "default"
    }
    return resolved.with_values(chosen, f"profile {name}: {_REASONS[name]}")
