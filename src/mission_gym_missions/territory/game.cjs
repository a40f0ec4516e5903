"use strict";
/* The rules of the territory mission in JavaScript, after docs/missions/territory.md: equal seeds and actions give
 * the states, observations and rewards of the compiled simulator. It has no dependencies, in Node or in a page.
 */

const Territory = (() => {
  const STEP = 0x9e3779b1;
  const [COARSE, FINE, BLOCKS, PLACES, NATURES, WHIMS] = [0, 1, 2, 3, 4, 5];
  const [WATER, ROCK] = [254, 255];
  const [SQUARES, FRAME] = [32, 2];
  const VIEW = SQUARES + 2 * FRAME;
  const PLANES = 5;
  const NUMBERS = 22;
  const ACTIONS = 13;
  const INTENSITIES = [1, 2, 4];
  const CHARACTERS = ["settler", "raider", "turtle", "opportunist"];
  const TERMS = ["land", "conquest", "victory", "eliminated", "rank", "time"];
  const OUTCOMES = ["victory", "eliminated", "timeout"];
  const quotient = (a, b) => Math.floor(a / b); // exact below 2^53

  function mix(value) {
    value ^= value >>> 16;
    value = Math.imul(value, 0x85ebca6b);
    value ^= value >>> 13;
    value = Math.imul(value, 0xc2b2ae35);
    return (value ^ (value >>> 16)) >>> 0;
  }

  /** Reads the subset of YAML used by rules.yaml: nested maps, numbers, comments. */
  function readRules(text) {
    const levels = [{ indent: -1, map: {} }];
    for (const line of text.split("\n")) {
      const [, space, name, value] = /^( *)(\w+):\s*([^#]*?)\s*(?:#.*)?$/.exec(line) ?? [];
      if (name === undefined) continue;
      while (levels.at(-1).indent >= space.length) levels.pop();
      if (value === "") levels.push({ indent: space.length, map: (levels.at(-1).map[name] = {}) });
      else levels.at(-1).map[name] = Number(value);
    }
    return levels[0].map;
  }

  class Game {
    constructor({ size = 64, num_bots: numBots = 5, rules }) {
      Object.assign(this, { size, numBots, rules, width: size + 2, maxSteps: quotient(rules.max_steps * size, 64) });
      this.offsets = [-this.width, 1, this.width, -1];
      this.cells = new Uint8Array(this.width * this.width);
      this.after = new Uint8Array(this.cells.length);
      this.characters = CHARACTERS.map((name) => rules.characters[name]);
    }

    /** Begins an episode. A seed of 63 bits is given as its low 32 bits and the rest. */
    begin([low, high], episode) {
      this.stream = mix((mix((mix(low) ^ high) >>> 0) + Math.imul(episode, STEP)) >>> 0);
      Object.assign(this, { time: 0, outcome: null, conquered: 0, lost: 0, eliminations: 0, attacks: 0 });
      this.layTerrain();
      this.settle();
      this.placeAgent();
      this.land = [];
      this.eachCell((x, y) => this.cells[this.at(x, y)] < WATER && this.land.push(this.at(x, y)));
      this.nations = Array.from({ length: this.numBots + 2 }, (_, p) => ({
        land: p ? 9 : 0, troops: p ? this.rules.start_troops : 0, density: 0, direction: -1, share: 0, paid: 0, taken: 0,
        lost: 0, character: this.draw(NATURES, p) % CHARACTERS.length,
        fronts: this.offsets.map(() => ({ targets: 0, neutrals: 0, neutralCost: 0, enemyCost: 0 })),
      }));
      this.survey();
    }

    /** Returns everything that changes, for `load`. It shares the nations with the game, so copy it. */
    save() {
      const { cells, nations, time, outcome, conquered, lost, eliminations, attacks } = this;
      return { cells, nations, time, outcome, conquered, lost, eliminations, attacks };
    }

    load(saved) {
      Object.assign(this, saved);
    }

    draw(purpose, counter) {
      const stream = mix((this.stream + Math.imul(purpose + 1, STEP)) >>> 0);
      return mix((stream + Math.imul(counter, STEP)) >>> 0);
    }

    at(x, y) {
      return (y + 1) * this.width + x + 1;
    }

    eachCell(visit) {
      for (let y = 0; y < this.size; y += 1) for (let x = 0; x < this.size; x += 1) visit(x, y);
    }

    noise(purpose, x, y, spacing) {
      const [column, row, right, down] = [quotient(x, spacing), quotient(y, spacing), x % spacing, y % spacing];
      let total = 0;
      for (let dy = 0; dy < 2; dy += 1) {
        for (let dx = 0; dx < 2; dx += 1) {
          const weight = (dx ? right : spacing - right) * (dy ? down : spacing - down);
          total += weight * (this.draw(purpose, (row + dy) * 64 + column + dx) & 255);
        }
      }
      return quotient(total, spacing * spacing);
    }

    layTerrain() {
      this.cells.fill(ROCK);
      this.eachCell((x, y) => {
        let kind = 0;
        if (this.noise(COARSE, x, y, 16) < this.rules.water_below) kind = WATER;
        else if (this.noise(FINE, x, y, 8) > this.rules.rock_above) kind = ROCK;
        this.cells[this.at(x, y)] = kind;
      });
    }

    settle() {
      const { size, cells } = this;
      const across = Math.ceil(Math.sqrt(this.numBots + 1));
      const blocks = Array.from({ length: across * across }, (_, k) => k);
      for (let p = 1; p <= this.numBots + 1; p += 1) {
        const chosen = p - 1 + (this.draw(BLOCKS, p) % (blocks.length - p + 1));
        [blocks[p - 1], blocks[chosen]] = [blocks[chosen], blocks[p - 1]];
        const [column, row] = [blocks[p - 1] % across, quotient(blocks[p - 1], across)];
        const [left, top] = [quotient(column * size, across), quotient(row * size, across)];
        const [wide, high] = [quotient((column + 1) * size, across) - left, quotient((row + 1) * size, across) - top];
        let best = { count: -1 };
        for (let k = 0; k < 8; k += 1) {
          const chance = this.draw(PLACES, p * 8 + k);
          const [x, y] = [left + 1 + ((chance & 0xffff) % (wide - 2)), top + 1 + ((chance >>> 16) % (high - 2))];
          const count = this.countLand(x, y);
          if (count > best.count) best = { count, x, y };
        }
        for (let dy = -1; dy < 2; dy += 1) for (let dx = -1; dx < 2; dx += 1) cells[this.at(best.x + dx, best.y + dy)] = p;
      }
    }

    countLand(x, y) {
      let count = 0;
      for (let row = Math.max(y - 4, 0); row < Math.min(y + 5, this.size); row += 1) {
        for (let column = Math.max(x - 4, 0); column < Math.min(x + 5, this.size); column += 1) {
          if (this.cells[this.at(column, row)] < WATER) count += 1;
        }
      }
      return count;
    }

    /** Swaps the agent with the first nation that can reach the most land; that land is the total. */
    placeAgent() {
      const { cells } = this;
      const marked = new Set();
      let chosen = 1;
      this.total = 0;
      for (let p = 1; p <= this.numBots + 1; p += 1) {
        const count = this.reach(p, marked);
        if (count > this.total) [this.total, chosen] = [count, p];
      }
      this.cells = cells.map((cell) => (cell === 1 ? chosen : cell === chosen ? 1 : cell));
    }

    /** Marks the land that a nation can reach if nobody stops it; returns how much was not marked before. */
    reach(p, marked) {
      const { cells, offsets } = this;
      const found = [];
      const mark = (cell) => {
        if (cells[cell] >= WATER || marked.has(cell)) return;
        marked.add(cell);
        found.push(cell);
      };
      cells.forEach((owner, cell) => owner === p && mark(cell));
      for (const cell of found) {
        for (const offset of offsets) {
          let [target, crossed] = [cell + offset, 0];
          while (cells[target] === WATER && crossed < this.rules.ferry_cells) {
            target += offset;
            crossed += 1;
          }
          mark(target);
        }
      }
      return found.length;
    }

    /** Calls visit(p, direction, crossed) for each nation that can attack a cell. */
    eachAttacker(target, visit) {
      const { cells, offsets } = this;
      const owner = cells[target];
      for (let direction = 0; direction < 4; direction += 1) {
        let [source, crossed] = [target - offsets[direction], 0];
        while (cells[source] === WATER && crossed < this.rules.ferry_cells) {
          source -= offsets[direction];
          crossed += 1;
        }
        const p = cells[source];
        if (p !== 0 && p < WATER && p !== owner) visit(p, direction, crossed);
      }
    }

    costOf(owner, crossed) {
      const { rules } = this;
      const cost = rules.ferry_cost * crossed;
      if (owner === 0) return cost + rules.neutral_cost;
      return cost + rules.enemy_cost + rules.density_cost * this.nations[owner].density;
    }

    capOf(nation) {
      return this.rules.cap + this.rules.land_cap * nation.land;
    }

    shareOf(nation, direction, intensity) {
      const { targets } = nation.fronts[direction];
      return targets === 0 ? 0 : quotient(quotient(nation.troops * INTENSITIES[intensity], 8), targets);
    }

    survey() {
      for (const nation of this.nations) {
        nation.density = nation.land > 0 ? quotient(nation.troops, nation.land) : 0;
        for (const front of nation.fronts) front.targets = front.neutrals = front.neutralCost = front.enemyCost = 0;
      }
      for (const target of this.land) {
        const owner = this.cells[target];
        this.eachAttacker(target, (p, direction, crossed) => {
          const [front, cost] = [this.nations[p].fronts[direction], this.costOf(owner, crossed)];
          const kind = owner === 0 ? "neutralCost" : "enemyCost";
          front.targets += 1;
          if (owner === 0) front.neutrals += 1;
          if (front[kind] === 0 || cost < front[kind]) front[kind] = cost;
        });
      }
    }

    /** Returns a bot's [direction, intensity]; direction -1 waits. */
    decide(p) {
      const [nation, chance] = [this.nations[p], this.draw(WHIMS, this.time * 256 + p)];
      const traits = this.characters[nation.character];
      if (nation.land === 0 || (chance >>> 2) % 8 >= traits.pace) return [-1, 0];
      for (const kind of traits.enemy_first ? ["enemy", "neutral"] : ["neutral", "enemy"]) {
        let [best, most] = [-1, 0];
        const [intensity, margin] = [traits[`${kind}_intensity`], kind === "enemy" ? traits.margin : 16];
        if (16 * nation.troops < traits[`${kind}_reserve`] * this.capOf(nation)) continue;
        for (let k = 0; k < 4; k += 1) {
          const direction = (chance + k) % 4;
          const front = nation.fronts[direction];
          const count = kind === "enemy" ? front.targets - front.neutrals : front.neutrals;
          const cost = kind === "enemy" ? front.enemyCost : front.neutralCost;
          if (count > most && 16 * this.shareOf(nation, direction, intensity) >= margin * cost) [best, most] = [direction, count];
        }
        if (best >= 0) return [best, intensity];
      }
      return [-1, 0];
    }

    /** Executes one action and returns the terms of the reward. */
    step(action) {
      const agent = this.nations[1];
      const [land, conquered] = [agent.land, this.conquered];
      for (const [p, nation] of this.nations.entries()) {
        let order = [-1, 0];
        if (p > 1) order = this.decide(p);
        else if (p === 1 && action > 0) order = [quotient(action - 1, 3), (action - 1) % 3];
        nation.order = order;
      }
      for (const nation of this.nations) {
        const [direction, intensity] = nation.order;
        const share = direction < 0 ? 0 : this.shareOf(nation, direction, intensity);
        Object.assign(nation, { direction, share, paid: 0, taken: 0, lost: 0 });
      }
      if (agent.share > 0) this.attacks += 1;
      this.fight();
      this.grow();
      this.time += 1;
      this.outcome = this.judge();
      this.survey();
      const [weights, total] = [this.rules.terms, this.total];
      const behind = (this.numBots + 1 - this.rank()) / this.numBots;
      return {
        land: weights.land * ((agent.land - land) / total),
        conquest: weights.conquest * ((this.conquered - conquered) / total),
        victory: this.outcome === "victory" ? weights.victory : 0,
        eliminated: this.outcome === "eliminated" ? weights.eliminated : 0,
        rank: this.outcome === "timeout" ? weights.rank * behind : 0,
        time: weights.time,
      };
    }

    fight() {
      const { cells, after, nations } = this;
      after.set(cells);
      for (const target of this.land) {
        const owner = cells[target];
        let [winner, price, strongest] = [0, 0, 0];
        this.eachAttacker(target, (p, direction, crossed) => {
          if (nations[p].direction !== direction) return;
          const [share, cost] = [nations[p].share, this.costOf(owner, crossed)];
          if (share < cost) nations[p].paid += quotient(share, 2);
          else if (share > strongest) [winner, price, strongest] = [p, cost + quotient(share - cost, 2), share];
        });
        if (winner === 0) continue;
        after[target] = winner;
        nations[winner].paid += price;
        nations[winner].taken += 1;
        nations[owner].lost += 1;
        if (winner === 1 && owner !== 0) this.conquered += 1;
        if (owner === 1) this.lost += 1;
      }
      [this.cells, this.after] = [after, cells];
    }

    grow() {
      const { rules } = this;
      for (const [p, nation] of this.nations.entries()) {
        if (p === 0 || nation.land === 0) continue;
        nation.land += nation.taken - nation.lost;
        if (nation.land === 0) {
          nation.troops = 0;
          if (p !== 1) this.eliminations += 1;
          continue;
        }
        let troops = Math.max(nation.troops - nation.paid - nation.density * nation.lost, 0);
        const cap = this.capOf(nation);
        if (troops < cap) {
          const income = rules.income + quotient(rules.land_income * nation.land, 8);
          troops += quotient(income * (cap - troops), cap);
        } else troops -= quotient(troops - cap, 8);
        nation.troops = troops;
      }
    }

    bots() {
      return this.nations.slice(2);
    }

    rank() {
      return 1 + this.bots().filter((nation) => nation.land > this.nations[1].land).length;
    }

    alive() {
      return this.bots().filter((nation) => nation.land > 0).length;
    }

    judge() {
      const { land } = this.nations[1];
      if (land === 0) return "eliminated";
      if (100 * land >= this.rules.victory_percent * this.total || this.alive() === 0) return "victory";
      return this.time >= this.maxSteps ? "timeout" : null;
    }

    /** Returns the observation: { map, numbers }. */
    look() {
      return { map: this.pool(), numbers: this.count() };
    }

    /** Returns the means over squares of cells, with a frame of rock. */
    pool() {
      const [side, mine] = [this.size / SQUARES, this.nations[1].density];
      const sums = new Float64Array(PLANES * VIEW * VIEW);
      sums.fill(255 * side * side, 4 * VIEW * VIEW);
      const add = (plane, index, value) => (sums[plane * VIEW * VIEW + index] += value);
      this.eachCell((x, y) => {
        const cell = this.cells[this.at(x, y)];
        const index = (FRAME + quotient(y, side)) * VIEW + FRAME + quotient(x, side);
        if (x % side === 0 && y % side === 0) sums[4 * VIEW * VIEW + index] = 0;
        if (cell === 0) add(2, index, 255);
        else if (cell === WATER) add(4, index, 128);
        else if (cell === ROCK) add(4, index, 255);
        else {
          const { density } = this.nations[cell];
          add(3, index, Math.min(8 * density, 255));
          if (cell === 1) add(0, index, 255);
          else add(1, index, 1 + quotient(254 * (density + 1), density + mine + 2));
        }
      });
      return Uint8Array.from(sums, (sum) => quotient(sum, side * side));
    }

    count() {
      const [numbers, agent, total] = [new Float32Array(NUMBERS), this.nations[1], this.total];
      const largest = Math.max(...this.bots().map((nation) => nation.land));
      numbers.set([
        agent.land / total, Math.min(agent.troops / this.capOf(agent), 1), (this.rank() - 1) / this.numBots,
        this.time / this.maxSteps, this.alive() / this.numBots, Math.min(largest / total, 1),
      ]);
      for (const [direction, front] of agent.fronts.entries()) {
        const share = this.shareOf(agent, direction, 2);
        numbers.set([
          Math.min(front.targets / this.size, 1), front.neutrals / Math.max(front.targets, 1),
          front.neutralCost > 0 ? share / (share + front.neutralCost) : 0,
          front.enemyCost > 0 ? share / (share + front.enemyCost) : 0,
        ], 6 + 4 * direction);
      }
      return numbers;
    }

    /** Returns the legal actions: waiting, and attacks that can take a cell. */
    mask() {
      const mask = new Uint8Array(ACTIONS);
      mask[0] = 1;
      for (const [direction, front] of this.nations[1].fronts.entries()) {
        const costs = [front.neutralCost, front.enemyCost].filter((cost) => cost > 0);
        for (let intensity = 0; intensity < 3; intensity += 1) {
          const pays = costs.length > 0 && this.shareOf(this.nations[1], direction, intensity) >= Math.min(...costs);
          mask[1 + 3 * direction + intensity] = pays ? 1 : 0;
        }
      }
      return mask;
    }

    metrics() {
      const agent = this.nations[1];
      const { eliminations, conquered, lost, attacks } = this;
      return {
        rank: this.rank(), land_share: agent.land / this.total, troops: agent.troops, bots_alive: this.alive(),
        eliminations, conquered, lost, attacks,
      };
    }
  }

  return { ACTIONS, CHARACTERS, Game, NUMBERS, OUTCOMES, PLANES, ROCK, TERMS, VIEW, WATER, readRules };
})();

if (typeof module !== "undefined") module.exports = Territory;
