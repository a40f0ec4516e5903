"""generals.io of the package generals-bots as a game of Mission Gym: conquer the general of a bot.

docs/games.md has the commands. It runs in its own Python, next to mission_gym_bridge.py, which
`mission-gym bridge --client python` writes.
"""

import numpy as np
from generals.agents import ExpanderAgent, RandomAgent
from generals.core.action import Action, compute_valid_move_mask
from generals.core.game import Game
from generals.core.grid import GridFactory
from mission_gym_bridge import box, discrete, serve

BOTS = {"random": RandomAgent, "expander": ExpanderAgent}
NUM_PLANES = 9
COLORS = {"free": (200, 200, 200), "rock": (20, 20, 20), "me": (0, 130, 255)}
COLORS["bot"] = (255, 107, 108)


class Generals:
    """One player against a bot on a square map. An action is a cell and a direction; the last one waits;
    the mask allows moves of cells that are the player's and have an army to send."""

    def __init__(
        self, size=8, opponent="random", max_steps=200, mountains=0.1, land_reward=0.02, render_mode=None
    ):
        if opponent not in BOTS:
            raise ValueError(f"opponent={opponent!r} is not a bot; use one of {', '.join(BOTS)}")
        self.size, self.max_episode_steps, self.land_reward = size, max_steps, land_reward
        self.bot = BOTS[opponent]()
        shape = (size, size)
        self.maps = GridFactory(
            min_grid_dims=shape, max_grid_dims=shape, mountain_density=mountains, city_density=0.0
        )
        outcomes = ["victory", "eliminated", "timeout"]
        self.metadata = {"outcomes": outcomes, "main_outcome": "victory", "render_fps": 6}
        self.observation_space = box((NUM_PLANES * size * size + 5,), "float32", -1.0, 2.0)
        self.action_space = discrete(size * size * 4 + 1)

    def reset(self, *, seed=None, options=None):
        self.random = np.random.default_rng(seed)
        self.maps.set_rng(self.random)
        self.game = Game(self.maps.generate(), ["me", "bot"])
        self.seen = {name: self.game.agent_observation(name) for name in self.game.agents}
        self.lead = 0
        return self.look(), {"action_mask": self.mask()}

    def step(self, action):
        move = Action(True)
        if action < self.action_space["n"] - 1:
            row, col, direction = np.unravel_index(action, (self.size, self.size, 4))
            move = Action(False, row, col, direction)
        # The bots draw from the generator that all games of a process share.
        np.random.seed(self.random.integers(2**32))
        self.seen, infos = self.game.step({"me": move, "bot": self.bot.act(self.seen["bot"])})
        lead = int(infos["me"]["land"]) - int(infos["bot"]["land"])
        over, late = self.game.is_done(), self.game.time >= self.max_episode_steps
        won = self.game.winner == "me"
        reward = (1.0 if won else -1.0) if over else self.land_reward * (lead - self.lead)
        self.lead = lead
        info = {"action_mask": self.mask()}
        if over or late:
            info["outcome"] = "timeout" if not over else "victory" if won else "eliminated"
            info["episode_metrics"] = {"lead": lead}
        return self.look(), reward, over, late and not over, info

    def look(self):
        """What the player sees, as planes of the map, and what both have."""
        seen = self.seen["me"]
        armies = np.log1p(seen.armies) / 5.0
        planes = [
            armies * seen.owned_cells, armies * seen.opponent_cells, seen.owned_cells, seen.opponent_cells,
            seen.neutral_cells, seen.mountains, seen.fog_cells, seen.structures_in_fog, seen.generals,
        ]  # fmt: skip
        names = ("owned_land_count", "opponent_land_count", "owned_army_count", "opponent_army_count")
        counts = np.log1p([seen[name] for name in names]) / 5.0
        beside = [*counts, self.game.time / self.max_episode_steps]
        return np.concatenate([np.stack(planes).astype(np.float32).ravel(), np.array(beside, np.float32)])

    def mask(self):
        return np.append(compute_valid_move_mask(self.seen["me"]).ravel(), True)

    def render(self):
        """The whole map, without the fog; brighter where armies are larger."""
        channels = self.game.channels
        frame = np.empty((self.size, self.size, 3))
        frame[:] = COLORS["free"]
        frame[channels.mountains] = COLORS["rock"]
        for name in ("me", "bot"):
            own = channels.ownership[name]
            strength = 0.4 + 0.6 * np.minimum(channels.armies[own] / 20.0, 1.0)
            frame[own] = np.outer(strength, COLORS[name])
        frame[channels.generals] = frame[channels.generals] * 0.5 + 127.0
        return np.kron(frame, np.ones((24, 24, 1))).astype(np.uint8)


if __name__ == "__main__":
    serve(Generals)
