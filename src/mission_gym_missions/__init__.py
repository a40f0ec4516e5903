"""The built-in missions. Importing the package registers their ids and loads nothing heavy.

capture, placement, territory: compiled games with a single and a batched form. explore: web sites over HTTP.
env: the two forms. simulator: rows of games and threads. rng: random numbers. panel: images.
"""

import gymnasium

CAPTURE_ID = "mission_gym/Capture-v0"
PLACEMENT_ID = "mission_gym/Placement-v0"
EXPLORE_ID = "mission_gym/Explore-v0"
TERRITORY_ID = "mission_gym/Territory-v0"

for _id, _name in ((CAPTURE_ID, "capture"), (PLACEMENT_ID, "placement"), (TERRITORY_ID, "territory")):
    if _id not in gymnasium.registry:
        gymnasium.register(
            _id,
            entry_point=f"mission_gym_missions.{_name}.env:{_name.capitalize()}Env",
            vector_entry_point=f"mission_gym_missions.{_name}.env:{_name.capitalize()}VectorEnv",
        )

if EXPLORE_ID not in gymnasium.registry:  # it waits for a site, so a batched form would gain nothing
    gymnasium.register(EXPLORE_ID, entry_point="mission_gym_missions.explore.env:ExploreEnv")
