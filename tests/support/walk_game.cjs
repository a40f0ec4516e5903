// A game in JavaScript, with everything that a game may have: node walk_game.cjs FOLDER_OF_THE_CLIENT
const bridge = require(require("node:path").join(process.argv[2], "mission-gym-bridge.cjs"));
const { box, dictOf, discrete, multiBinary, text } = bridge;

class Walk {
  constructor({ length = 8 }) {
    this.length = length;
  }

  reset(seed, options) {
    const random = bridge.makeRandom(seed);
    this.at = Math.floor(random() * 5) - 2 + (options?.ahead ?? 0);
    this.time = 0;
    return this.look();
  }

  async step(action) {
    this.at += action.go ? 1 : -1;
    this.time += 1;
    const home = this.at >= this.length;
    return { ...this.look(), reward: home ? 1 : -0.25, terminated: home, truncated: !home && this.time >= 30 };
  }

  look() {
    console.log("this is not a message");
    const obs = { place: [this.at / this.length, this.time / 30], sign: this.at < -6 ? "wall" : "", big: [this.time, 0] };
    return { obs, info: { action_mask: { go: [1, 1], lamps: null }, secret: () => 1, seen: [1] } };
  }

  render() {
    return { width: 2, height: 1, pixels: [0, 0, 0, 255, 255, 255] };
  }

  getState() {
    return { at: this.at, time: this.time };
  }

  setState(state) {
    Object.assign(this, state);
  }
}

bridge.serve({
  observationSpace: dictOf({ place: box([2], "float32", -8, 8), sign: text(8), big: box([2], "int64", 0, 100) }),
  actionSpace: dictOf({ go: discrete(2), lamps: multiBinary(3) }),
  makeGame: (kwargs) => new Walk(kwargs),
  metadata: { outcomes: [] },
});
