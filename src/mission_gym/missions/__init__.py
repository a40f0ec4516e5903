"""The built-in environments. Importing this room registers their ids and loads nothing heavy."""

import gymnasium

CAPTURE_ID = "mission_gym/Capture-v0"

if CAPTURE_ID not in gymnasium.registry:
    gymnasium.register(
        CAPTURE_ID,
        entry_point="mission_gym.missions.capture.env:CaptureEnv",
        vector_entry_point="mission_gym.missions.capture.vector_env:CaptureVectorEnv",
    )
