"use strict";
/* The territory mission as a game behind Mission Gym's bridge: `bridge:node engine.cjs`, with size, num_bots and
 * rules_file as --env-kwargs. `node engine.cjs --rate SECONDS SIZE BOTS` prints its steps per second without a bridge.
 */

const fs = require("node:fs");
const path = require("node:path");
const { box, dictOf, discrete, serve } = require("../../mission_gym/bridge/clients/mission-gym-bridge.cjs");
const { ACTIONS, Game, NUMBERS, OUTCOMES, PLANES, TERMS, VIEW, readRules } = require("./game.cjs");

class Territory {
  constructor({ size, num_bots: numBots, rules_file: file }) {
    const rules = readRules(fs.readFileSync(file ?? path.join(__dirname, "rules.yaml"), "utf8"));
    this.game = new Game({ size, num_bots: numBots, rules });
    this.seed = null;
  }

  reset(seed) {
    if (seed !== null) [this.seed, this.episode] = [seed, 0];
    else if (this.seed === null) [this.seed, this.episode] = [Math.floor(Math.random() * 2 ** 31), 0];
    else this.episode += 1;
    this.begin();
    return this.show({ outcome: null, reward_terms: {} });
  }

  begin() {
    this.actions = [];
    this.game.begin([this.seed >>> 0, Math.floor(this.seed / 4294967296)], this.episode);
  }

  step(action) {
    this.actions.push(action);
    const terms = this.game.step(action);
    const { outcome } = this.game;
    const info = { outcome, reward_terms: terms };
    if (outcome !== null) info.episode_metrics = this.game.metrics();
    const reward = TERMS.reduce((sum, name) => sum + terms[name], 0);
    return { ...this.show(info), reward, terminated: outcome !== null, truncated: false };
  }

  show(info) {
    return { obs: this.game.look(), info: { ...info, action_mask: this.game.mask() } };
  }

  /** The values that determine a game. */
  getState() {
    return { seed: this.seed, episode: this.episode, actions: this.actions };
  }

  setState({ seed, episode, actions }) {
    Object.assign(this, { seed, episode });
    this.begin();
    for (const action of actions) this.step(action);
  }
}

/** Steps per second of this process alone, with observations and masks, cycling through the legal actions. */
function measureRate(seconds, size, numBots) {
  const game = new Territory({ size, num_bots: numBots });
  const begun = performance.now();
  let [steps, spent, ended, seed] = [0, 0, true, 0];
  let shown;
  while (spent < seconds * 1000) {
    if (ended) shown = game.reset((seed += 1));
    const legal = [...shown.info.action_mask.keys()].filter((action) => shown.info.action_mask[action]);
    shown = game.step(legal[steps % legal.length]);
    ended = shown.terminated;
    steps += 1;
    spent = performance.now() - begun;
  }
  return (1000 * steps) / spent;
}

if (process.argv[2] === "--rate") console.log(measureRate(...process.argv.slice(3).map(Number)));
else {
  serve({
    observationSpace: dictOf({ map: box([PLANES, VIEW, VIEW], "uint8", 0, 255), numbers: box([NUMBERS], "float32", 0, 1) }),
    actionSpace: discrete(ACTIONS),
    makeGame: (kwargs) => new Territory(kwargs),
    metadata: { outcomes: OUTCOMES, main_outcome: OUTCOMES[0], render_fps: 12 },
  });
}
