"use strict";
/* The game's side of Mission Gym's bridge, protocol version 1, in one file. Copy it next to your game.
 *
 * It needs only Node 18; `require` and `import` both work.
 *
 *   const { box, discrete, serve } = require("./mission-gym-bridge.cjs");
 *
 *   serve({
 *     observationSpace: box([4], "float32"),
 *     actionSpace: discrete(2),
 *     makeGame: (kwargs) => new Game(kwargs),
 *   });
 *
 * A game has reset(seed, options), which returns { obs, info }, and step(action), which returns
 * { obs, reward, terminated, truncated, info }; both may be async. Optional: getState(), setState(state), and
 * render(), which returns { width, height, pixels } with three bytes per pixel. obs is a number, a string, an
 * array or a typed array; for dictOf an object, for tupleOf an array. Output of the game goes to stderr.
 */

const net = require("node:net");

const VERSION = 1;
const DEPTH = 64;

const box = (shape, dtype = "float32", low = -Infinity, high = Infinity) => ({ type: "box", shape, dtype, low, high });
const discrete = (n, start = 0) => ({ type: "discrete", n, start });
const multiDiscrete = (nvec) => ({ type: "multi_discrete", nvec });
const multiBinary = (n) => ({ type: "multi_binary", n });
const text = (maxLength) => ({ type: "text", max_length: maxLength });
const dictOf = (spaces) => ({ type: "dict", spaces });
const tupleOf = (...spaces) => ({ type: "tuple", spaces });

/** Random numbers in [0, 1) from a seed, for games whose episodes can be repeated. */
function makeRandom(seed) {
  let state = Math.imul((seed ?? 0) ^ 0x5bd1e995, 0x9e3779b1) | 0 || 1;
  const next = () => {
    state ^= state << 13;
    state ^= state >>> 17;
    state ^= state << 5;
    return (state >>> 0) / 4294967296;
  };
  for (let i = 0; i < 8; i += 1) next(); // similar seeds must not start alike
  return next;
}

/** Answer messages until the other side is gone. */
async function serve({ observationSpace, actionSpace, makeGame, maxGames = 64, maxEpisodeSteps = null, metadata = {} }) {
  const [input, write] = openLink();
  const games = new Games({ observationSpace, actionSpace, makeGame, maxGames, maxEpisodeSteps, metadata });
  let rest = Buffer.alloc(0);
  for await (const chunk of input) {
    rest = rest.length ? Buffer.concat([rest, chunk]) : chunk;
    while (rest.length >= 4 && rest.length >= 4 + rest.readUInt32LE(0)) {
      const end = 4 + rest.readUInt32LE(0);
      let reply;
      try {
        reply = pack(await games.answer(unpack(rest.subarray(4, end))));
      } catch (error) { // the other side reports it, and ends this process
        console.error(error);
        reply = pack({ error: String(error) });
      }
      rest = rest.subarray(end);
      const head = Buffer.alloc(4);
      head.writeUInt32LE(reply.length);
      write(Buffer.concat([head, reply]));
    }
  }
  process.exit(0);
}

class Games {
  constructor(setup) {
    this.setup = setup;
    this.games = new Map();
  }

  async answer(message) {
    const methods = { hello: "hello", reset: "reset", step: "step", render: "render", get_state: "getState", set_state: "setState" };
    const method = methods[message.type];
    if (method === undefined) return { error: `unknown message type ${message.type}` };
    return this[method](message);
  }

  async hello(message) {
    if (message.version !== VERSION) {
      return { version: VERSION, error: `this game speaks version ${VERSION} of the protocol, not ${message.version}` };
    }
    this.kwargs = message.kwargs ?? {};
    const game = await this.game(0);
    const { observationSpace, actionSpace, maxGames, maxEpisodeSteps, metadata } = this.setup;
    return {
      version: VERSION,
      name: game.constructor?.name ?? "Game",
      observation_space: observationSpace,
      action_space: actionSpace,
      max_games: maxGames,
      state: typeof game.getState === "function" && typeof game.setState === "function",
      render: typeof game.render === "function",
      max_episode_steps: maxEpisodeSteps,
      metadata,
    };
  }

  async game(number) {
    if (!this.games.has(number)) this.games.set(number, await this.setup.makeGame(this.kwargs));
    return this.games.get(number);
  }

  async reset({ games, seeds, options }) {
    const rows = new Rows(this.setup.observationSpace, games.length, false);
    for (const [row, number] of games.entries()) {
      await rows.fill(row, async () => (await this.game(number)).reset(seeds?.[row] ?? null, options?.[row] ?? null));
    }
    return rows.answer();
  }

  async step({ games, actions }) {
    const given = readActions(this.setup.actionSpace, actions, games.length);
    const rows = new Rows(this.setup.observationSpace, games.length, true);
    for (const [row, number] of games.entries()) await rows.fill(row, () => this.games.get(number).step(given[row]));
    return rows.answer();
  }

  async render({ game }) {
    const { width, height, pixels } = await this.games.get(game).render();
    return { shape: [height, width, 3], pixels: Buffer.from(pixels) };
  }

  async getState({ games }) {
    const states = [];
    for (const number of games) states.push(await this.games.get(number).getState());
    return { states };
  }

  async setState({ games, states }) {
    for (const [row, number] of games.entries()) await (await this.game(number)).setState(states[row]);
    return {};
  }
}

/** An answer for several games, one row per game; a game that throws has its error instead. */
class Rows {
  constructor(space, count, steps) {
    this.space = space;
    this.leaves = leavesOf(space);
    this.obs = this.leaves.map((leaf) => (leaf.type === "text" ? Array(count).fill("") : makeColumn(leaf, count)));
    this.info = Array(count).fill(null);
    this.errors = Array(count).fill(null);
    this.reward = steps ? new Float64Array(count) : null;
    this.terminated = Buffer.alloc(count);
    this.truncated = Buffer.alloc(count);
  }

  async fill(row, play) {
    try {
      const played = play();
      this.write(row, typeof played?.then === "function" ? await played : played);
    } catch (error) {
      console.error(error);
      this.errors[row] = String(error);
    }
  }

  write(row, { obs, reward = 0, terminated = false, truncated = false, info = null }) {
    const values = flatten(this.space, obs);
    for (const [i, leaf] of this.leaves.entries()) {
      if (leaf.type === "text") {
        this.obs[i][row] = values[i];
        continue;
      }
      const size = sizeOf(leaf);
      const given = typeof values[i] === "object" ? Array.from(values[i].flat?.(Infinity) ?? values[i]) : [values[i]];
      if (given.length !== size) throw new Error(`an observation has ${given.length} numbers, but its space has ${size}`);
      this.obs[i].set(leaf.dtype === "int64" ? given.map((x) => BigInt(x)) : given, row * size);
    }
    const plain = Object.entries(info ?? {}).filter(([, each]) => isPlain(each));
    if (plain.length) this.info[row] = Object.fromEntries(plain);
    if (info?.action_mask) this.info[row].action_mask = packMask(info.action_mask);
    if (this.reward) this.reward[row] = reward;
    this.terminated[row] = terminated ? 1 : 0;
    this.truncated[row] = truncated ? 1 : 0;
  }

  answer() {
    const reply = { obs: this.obs.map((column) => (Array.isArray(column) ? column : toBytes(column))) };
    if (this.reward) Object.assign(reply, { reward: toBytes(this.reward), terminated: this.terminated, truncated: this.truncated });
    if (this.info.some((info) => info !== null)) reply.info = this.info;
    if (this.errors.some((error) => error !== null)) reply.errors = this.errors;
    return reply;
  }
}

const ARRAYS = {
  float32: Float32Array, float64: Float64Array, uint8: Uint8Array, int8: Int8Array, int16: Int16Array,
  uint16: Uint16Array, int32: Int32Array, uint32: Uint32Array, int64: BigInt64Array, bool: Uint8Array,
};

const toBytes = (array) => Buffer.from(array.buffer, array.byteOffset, array.byteLength);
const makeColumn = (leaf, count) => new (arrayOf(leaf))(count * sizeOf(leaf));

function packMask(mask) {
  const isPart = (each) => each === null || typeof each === "object";
  if (Array.isArray(mask) && mask.some(isPart)) return mask.map((each) => each && packMask(each));
  if (Array.isArray(mask) || ArrayBuffer.isView(mask)) return Buffer.from(Array.from(mask, (x) => (x ? 1 : 0)));
  return Object.fromEntries(Object.entries(mask).map(([key, each]) => [key, each && packMask(each)]));
}

function arrayOf(leaf) {
  if (leaf.type === "box") return ARRAYS[leaf.dtype];
  return leaf.type === "multi_binary" ? Int8Array : Int32Array;
}

function sizeOf(leaf) {
  if (leaf.type === "box") return leaf.shape.reduce((product, n) => product * n, 1);
  if (leaf.type === "discrete") return 1;
  return leaf.type === "multi_discrete" ? leaf.nvec.length : leaf.n;
}

/** The spaces without parts, in the order of messages; those of dictOf by name. */
function leavesOf(space) {
  if (space.type === "dict") return namesOf(space).flatMap((key) => leavesOf(space.spaces[key]));
  return space.type === "tuple" ? space.spaces.flatMap(leavesOf) : [space];
}

const namesOf = (space) => Object.keys(space.spaces).sort();

function flatten(space, value) {
  if (space.type === "dict") return namesOf(space).flatMap((key) => flatten(space.spaces[key], value[key]));
  if (space.type === "tuple") return space.spaces.flatMap((each, i) => flatten(each, value[i]));
  return [value];
}

function nest(space, values) {
  if (space.type === "dict") return Object.fromEntries(namesOf(space).map((key) => [key, nest(space.spaces[key], values)]));
  if (space.type === "tuple") return space.spaces.map((each) => nest(each, values));
  return values.shift();
}

/** The action of each game: a number for discrete, else a typed array, in the object or array of its space. */
function readActions(space, columns, count) {
  const read = leavesOf(space).map((leaf, i) => {
    const bytes = Uint8Array.from(columns[i]); // a copy, which is aligned
    const [array, size] = [new (arrayOf(leaf))(bytes.buffer), sizeOf(leaf)];
    return (row) => (leaf.type === "discrete" ? array[row] : array.slice(row * size, (row + 1) * size));
  });
  return Array.from({ length: count }, (_, row) => nest(space, read.map((leaf) => leaf(row))));
}

function openLink() {
  const path = process.env.MISSION_GYM_SOCKET;
  if (path) {
    const link = net.connect(path);
    return [link, (data) => link.write(data)];
  }
  const write = process.stdout.write.bind(process.stdout);
  process.stdout.on("error", () => process.exit(0)); // the other side is gone
  process.stdout.write = process.stderr.write.bind(process.stderr); // output of the game
  return [process.stdin, write];
}

/** MessagePack of null, booleans, numbers, strings, bytes, arrays and objects. */
function pack(value) {
  const parts = [];
  packInto(parts, value, 0);
  return Buffer.concat(parts);
}

/** Drops values of an info that can't be sent. */
function isPlain(value) {
  try {
    pack(value);
    return true;
  } catch {
    return false;
  }
}

function packInto(parts, value, depth) {
  if (depth > DEPTH) throw new Error(`a value is nested deeper than ${DEPTH} levels`);
  if (value === null || value === undefined) parts.push(Buffer.of(0xc0));
  else if (typeof value === "boolean") parts.push(Buffer.of(value ? 0xc3 : 0xc2));
  else if (typeof value === "number" || typeof value === "bigint") parts.push(packNumber(value));
  else if (typeof value === "string") {
    const data = Buffer.from(value);
    parts.push(head(data.length, 0xa0, 32, 0xd9, true), data);
  } else if (ArrayBuffer.isView(value)) {
    const data = toBytes(value);
    parts.push(head(data.length, 0, 0, 0xc4, true), data);
  } else if (Array.isArray(value)) {
    parts.push(head(value.length, 0x90, 16, 0xdb, false));
    for (const each of value) packInto(parts, each, depth + 1);
  } else if (typeof value === "object") {
    const entries = Object.entries(value);
    parts.push(head(entries.length, 0x80, 16, 0xdd, false));
    for (const [key, each] of entries) {
      packInto(parts, key, depth + 1);
      packInto(parts, each, depth + 1);
    }
  } else throw new Error(`a ${typeof value} can't be sent`);
}

function packNumber(value) {
  if (Number.isInteger(value) && value >= -32 && value < 128 && !Object.is(value, -0)) return Buffer.of(value & 0xff);
  const whole = typeof value === "bigint" || (Number.isSafeInteger(value) && !Object.is(value, -0));
  const data = Buffer.alloc(9);
  data[0] = whole ? 0xd3 : 0xcb;
  if (whole) data.writeBigInt64BE(BigInt(value), 1);
  else data.writeDoubleBE(value, 1);
  return data;
}

/** Encodes the head of a string, bytes, an array or an object. small: it has a form with one byte for the size. */
function head(size, short, below, code, small) {
  if (size < below) return Buffer.of(short | size);
  if (small && size < 256) return Buffer.of(code, size);
  const data = Buffer.alloc(size < 65536 ? 3 : 5);
  data[0] = code + (size < 65536 ? 1 : 2);
  if (size < 65536) data.writeUInt16BE(size, 1);
  else data.writeUInt32BE(size, 1);
  return data;
}

/** Decodes the result of pack. Integers beyond 2^53 lose their last digits. */
function unpack(data) {
  const [value, end] = unpackAt(data, 0, 0);
  if (end !== data.length) throw new Error(`not MessagePack: ${data.length - end} bytes follow the value`);
  return value;
}

const NUMBERS = {
  0xca: ["readFloatBE", 4], 0xcb: ["readDoubleBE", 8], 0xcc: ["readUInt8", 1], 0xcd: ["readUInt16BE", 2],
  0xce: ["readUInt32BE", 4], 0xcf: ["readBigUInt64BE", 8], 0xd0: ["readInt8", 1], 0xd1: ["readInt16BE", 2],
  0xd2: ["readInt32BE", 4], 0xd3: ["readBigInt64BE", 8],
};
const SIZED = {
  0xc4: ["bytes", 1], 0xc5: ["bytes", 2], 0xc6: ["bytes", 4], 0xd9: ["string", 1], 0xda: ["string", 2],
  0xdb: ["string", 4], 0xdc: ["array", 2], 0xdd: ["array", 4], 0xde: ["map", 2], 0xdf: ["map", 4],
};

function unpackAt(data, start, depth) {
  if (depth > DEPTH || start >= data.length) throw new Error("not MessagePack");
  const code = data[start];
  let at = start + 1;
  if (code < 0x80) return [code, at];
  if (code >= 0xe0) return [code - 256, at];
  if (code === 0xc0) return [null, at];
  if (code === 0xc2 || code === 0xc3) return [code === 0xc3, at];
  if (NUMBERS[code]) return [Number(data[NUMBERS[code][0]](at)), at + NUMBERS[code][1]];
  let [kind, size] = ["string", code & 31];
  if (code < 0x90) [kind, size] = ["map", code & 15];
  else if (code < 0xa0) [kind, size] = ["array", code & 15];
  else if (code >= 0xc0) {
    if (!SIZED[code]) throw new Error(`not MessagePack: byte 0x${code.toString(16)}`);
    [kind, size] = [SIZED[code][0], data.readUIntBE(at, SIZED[code][1])];
    at += SIZED[code][1];
  }
  if (size > data.length - at) throw new Error("not MessagePack: it ends in the middle of a value");
  if (kind === "bytes") return [data.subarray(at, at + size), at + size];
  if (kind === "string") return [data.toString("utf8", at, at + size), at + size];
  const values = [];
  for (let i = 0; i < (kind === "map" ? 2 * size : size); i += 1) {
    const [value, end] = unpackAt(data, at, depth + 1);
    values.push(value);
    at = end;
  }
  if (kind === "array") return [values, at];
  const entries = values.flatMap((key, i) => (i % 2 ? [] : [[String(key), values[i + 1]]]));
  return [Object.fromEntries(entries), at];
}

module.exports = { box, dictOf, discrete, makeRandom, multiBinary, multiDiscrete, pack, packMask, serve, text, tupleOf, unpack };
