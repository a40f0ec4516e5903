"""The rules of the territory mission in plain Python, after docs/missions/territory.md: the reference.

`bench territory` compares its speed with the compiled simulator's, and tests compare their states.
"""

from __future__ import annotations

from typing import Any

from mission_gym_missions.territory.rules import TerritoryMission

BITS, STEP = 0xFFFFFFFF, 0x9E3779B1
COARSE, FINE, BLOCKS, PLACES, NATURES, WHIMS = range(6)
WATER, ROCK = 254, 255
OUTCOMES = ("victory", "eliminated", "timeout")


def mix(value: int) -> int:
    value ^= value >> 16
    value = value * 0x85EBCA6B & BITS
    value ^= value >> 13
    value = value * 0xC2B2AE35 & BITS
    return value ^ value >> 16


class Nation:
    """A nation's land and troops, and its action in this step."""

    def __init__(self, troops: int, character: dict[str, int]) -> None:
        self.land, self.troops, self.character = 9, troops, character
        self.direction, self.share = -1, 0
        self.density = self.paid = self.taken = self.lost = 0
        self.fronts: list[Front] = []


class Front:
    """The cells that a nation can attack in a direction."""

    def __init__(self) -> None:
        self.targets = self.neutrals = self.neutral_cost = self.enemy_cost = 0


class PlainGame:
    """One game; the map is a list with a border of rock."""

    def __init__(self, mission: TerritoryMission) -> None:
        self.size, self.num_bots = mission.size, mission.num_bots
        self.rules: dict[str, Any] = mission.rules.model_dump()
        self.max_steps = mission.max_steps
        self.width = self.size + 2
        self.offsets = (-self.width, 1, self.width, -1)

    def reset(self, seed: int, episode: int = 0) -> None:
        """Begin an episode."""
        self.stream = mix((mix(mix(seed & BITS) ^ seed >> 32) + episode * STEP) & BITS)
        self.step_number = 0
        self.outcome: str | None = None
        self.conquered = self.lost = self.eliminations = self.attacks = 0
        self.lay_terrain()
        self.settle()
        self.place_agent()
        self.land = [
            row * self.width + column
            for row in range(1, self.size + 1)
            for column in range(1, self.size + 1)
            if self.cells[row * self.width + column] < WATER
        ]
        kinds = list(self.rules["characters"].values())
        self.nations = [
            Nation(self.rules["start_troops"], kinds[self.draw(NATURES, p) % len(kinds)])
            for p in range(self.num_bots + 2)
        ]
        self.nations[0].land = self.nations[0].troops = 0  # neutral
        self.survey()

    def draw(self, purpose: int, counter: int) -> int:
        return mix((mix((self.stream + (purpose + 1) * STEP) & BITS) + counter * STEP) & BITS)

    def noise(self, purpose: int, x: int, y: int, spacing: int) -> int:
        total = 0
        for dy, down in enumerate((spacing - y % spacing, y % spacing)):
            for dx, right in enumerate((spacing - x % spacing, x % spacing)):
                knot = (y // spacing + dy) * 64 + x // spacing + dx
                total += right * down * (self.draw(purpose, knot) & 255)
        return total // (spacing * spacing)

    def lay_terrain(self) -> None:
        self.cells = [ROCK] * (self.width * self.width)
        for y in range(self.size):
            for x in range(self.size):
                kind = 0
                if self.noise(COARSE, x, y, 16) < self.rules["water_below"]:
                    kind = WATER
                elif self.noise(FINE, x, y, 8) > self.rules["rock_above"]:
                    kind = ROCK
                self.cells[self.at(x, y)] = kind

    def at(self, x: int, y: int) -> int:
        return (y + 1) * self.width + x + 1

    def settle(self) -> None:
        across = next(k for k in range(1, 99) if k * k > self.num_bots)
        blocks = list(range(across * across))
        for p in range(1, self.num_bots + 2):
            chosen = p - 1 + self.draw(BLOCKS, p) % (len(blocks) - p + 1)
            blocks[p - 1], blocks[chosen] = blocks[chosen], blocks[p - 1]
            row, column = divmod(blocks[p - 1], across)
            left, top = column * self.size // across, row * self.size // across
            width, height = (column + 1) * self.size // across - left, (row + 1) * self.size // across - top
            spots = []
            for k in range(8):
                chance = self.draw(PLACES, p * 8 + k)
                spots.append(
                    (left + 1 + (chance & 0xFFFF) % (width - 2), top + 1 + (chance >> 16) % (height - 2))
                )
            x, y = max(spots, key=lambda spot: self.count_land(*spot))
            for dy in (-1, 0, 1):
                for dx in (-1, 0, 1):
                    self.cells[self.at(x + dx, y + dy)] = p

    def count_land(self, x: int, y: int) -> int:
        rows = range(max(y - 4, 0), min(y + 5, self.size))
        columns = range(max(x - 4, 0), min(x + 5, self.size))
        return sum(self.cells[self.at(column, row)] < WATER for row in rows for column in columns)

    def place_agent(self) -> None:
        marked: set[int] = set()
        counts = [self.reach(p, marked) for p in range(1, self.num_bots + 2)]
        self.total = max(counts)
        chosen = 1 + counts.index(self.total)
        swap = {1: chosen, chosen: 1}
        self.cells = [swap.get(cell, cell) for cell in self.cells]

    def reach(self, p: int, marked: set[int]) -> int:
        """Mark the land that a nation can reach if nobody stops it; return how much was not marked before."""
        before, ahead = len(marked), [cell for cell, owner in enumerate(self.cells) if owner == p]
        while ahead:
            cell = ahead.pop()
            if cell in marked or self.cells[cell] >= WATER:
                continue
            marked.add(cell)
            for offset in self.offsets:
                target, crossed = cell + offset, 0
                while self.cells[target] == WATER and crossed < self.rules["ferry_cells"]:
                    target += offset
                    crossed += 1
                ahead.append(target)
        return len(marked) - before

    def find_attacker(self, target: int, offset: int) -> tuple[int, int]:
        cells, source, crossed = self.cells, target - offset, 0
        while cells[source] == WATER and crossed < self.rules["ferry_cells"]:
            source -= offset
            crossed += 1
        owner = cells[source]
        return (0, crossed) if owner >= WATER or owner == cells[target] else (owner, crossed)

    def find_cost(self, owner: int, crossed: int) -> int:
        rules = self.rules
        cost: int = rules["ferry_cost"] * crossed
        if owner == 0:
            return cost + int(rules["neutral_cost"])
        return cost + int(rules["enemy_cost"] + rules["density_cost"] * self.nations[owner].density)

    def survey(self) -> None:
        for nation in self.nations:
            nation.density = nation.troops // nation.land if nation.land else 0
            nation.fronts = [Front() for _ in self.offsets]
        for target in self.land:
            owner = self.cells[target]
            for direction, offset in enumerate(self.offsets):
                p, crossed = self.find_attacker(target, offset)
                if p == 0:
                    continue
                front, cost = self.nations[p].fronts[direction], self.find_cost(owner, crossed)
                front.targets += 1
                if owner == 0:
                    front.neutrals += 1
                    front.neutral_cost = min(front.neutral_cost or cost, cost)
                else:
                    front.enemy_cost = min(front.enemy_cost or cost, cost)

    def find_share(self, nation: Nation, direction: int, intensity: int) -> int:
        targets = nation.fronts[direction].targets
        return nation.troops * (1, 2, 4)[intensity] // 8 // targets if targets else 0

    def find_cap(self, nation: Nation) -> int:
        return int(self.rules["cap"] + self.rules["land_cap"] * nation.land)

    def decide(self, p: int) -> tuple[int, int]:
        """Return direction and intensity of a bot's attack; -1 waits."""
        nation, chance = self.nations[p], self.draw(WHIMS, self.step_number * 256 + p)
        traits = nation.character
        if nation.land == 0 or (chance >> 2) % 8 >= traits["pace"]:
            return -1, 0
        for kind in ("enemy", "neutral") if traits["enemy_first"] else ("neutral", "enemy"):
            best, most, intensity = -1, 0, traits[f"{kind}_intensity"]
            if 16 * nation.troops < traits[f"{kind}_reserve"] * self.find_cap(nation):
                continue
            for k in range(4):
                direction = (chance + k) % 4
                front = nation.fronts[direction]
                count = front.neutrals if kind == "neutral" else front.targets - front.neutrals
                cost = front.neutral_cost if kind == "neutral" else front.enemy_cost
                margin = 16 if kind == "neutral" else traits["margin"]
                if count > most and 16 * self.find_share(nation, direction, intensity) >= margin * cost:
                    best, most = direction, count
            if best >= 0:
                return best, intensity
        return -1, 0

    def step(self, action: int) -> float:
        """Execute one action and return the reward."""
        agent = self.nations[1]
        before, conquered = agent.land, self.conquered
        orders = [(-1, 0), divmod(action - 1, 3) if action else (-1, 0)]
        orders += [self.decide(p) for p in range(2, self.num_bots + 2)]
        for nation, (direction, intensity) in zip(self.nations, orders, strict=True):
            nation.direction = direction
            nation.share = self.find_share(nation, direction, intensity) if direction >= 0 else 0
            nation.paid = nation.taken = nation.lost = 0
        self.attacks += agent.share > 0
        self.fight()
        self.grow()
        self.step_number += 1
        self.outcome = self.judge()
        self.survey()
        terms = self.rules["terms"]
        reward = 0.0
        reward += terms["land"] * ((agent.land - before) / self.total)
        reward += terms["conquest"] * ((self.conquered - conquered) / self.total)
        reward += terms["victory"] if self.outcome == "victory" else 0.0
        reward += terms["eliminated"] if self.outcome == "eliminated" else 0.0
        behind = (self.num_bots + 1 - self.rank()) / self.num_bots
        reward += terms["rank"] * behind if self.outcome == "timeout" else 0.0
        return float(reward + terms["time"])

    def fight(self) -> None:
        nations, after = self.nations, list(self.cells)
        for target in self.land:
            owner = self.cells[target]
            winner = price = strongest = 0
            for direction, offset in enumerate(self.offsets):
                p, crossed = self.find_attacker(target, offset)
                if p == 0 or nations[p].direction != direction:
                    continue
                share, cost = nations[p].share, self.find_cost(owner, crossed)
                if share < cost:
                    nations[p].paid += share // 2
                elif share > strongest:
                    winner, price, strongest = p, cost + (share - cost) // 2, share
            if winner:
                after[target] = winner
                nations[winner].paid += price
                nations[winner].taken += 1
                nations[owner].lost += 1
                self.conquered += winner == 1 and owner != 0
                self.lost += owner == 1
        self.cells = after

    def grow(self) -> None:
        rules = self.rules
        for p, nation in enumerate(self.nations):
            if p == 0 or nation.land == 0:
                continue
            nation.land += nation.taken - nation.lost
            if nation.land == 0:
                nation.troops = 0
                self.eliminations += p != 1
                continue
            troops = max(nation.troops - nation.paid - nation.density * nation.lost, 0)
            cap = self.find_cap(nation)
            if troops < cap:
                income = rules["income"] + rules["land_income"] * nation.land // 8
                troops += income * (cap - troops) // cap
            else:
                troops -= (troops - cap) // 8
            nation.troops = troops

    def rank(self) -> int:
        return 1 + sum(nation.land > self.nations[1].land for nation in self.nations[2:])

    def judge(self) -> str | None:
        land = self.nations[1].land
        if land == 0:
            return "eliminated"
        is_last = not any(nation.land for nation in self.nations[2:])
        if 100 * land >= self.rules["victory_percent"] * self.total or is_last:
            return "victory"
        return "timeout" if self.step_number >= self.max_steps else None
