// The Run page: four answers, charts that grow as rows come, and panels that the server renders.
import { Board, colorOf, smooth, wireControls } from "./chart.js";
import { ago, count, draw, duration, follow, get, make, number, put, rate, stateOf } from "./lib.js";

const byId = (id) => document.getElementById(id);
const name = byId("run").dataset.name;
const api = `/api/run/${encodeURIComponent(name)}`;
const MAX_ROWS = 5000; // in the page; above it the run is sampled anew
const RATE_POINTS = 60;
const LEFT_OUT = new Set(["train/n_updates", "train/gradient_steps", "train/lag_gradient_steps"]);
const run = { baselines: {}, columns: { step: [] }, status: {}, evals: [], stages: [], main: null, end: 0, timeline: {}, detail: null, isSample: false };
let docs = [];
let weight = 0;
let queue = Promise.resolve();

const board = new Board((zoom) => {
  byId("unzoom").hidden = zoom === null;
  refine(zoom);
});
const charts = new Map();

// The columns on show: those of the whole run, or of the range that was zoomed into.
const shown = () => run.detail || run.columns;
const column = (key) => shown()[key] || [];
const across = () => (board.byTime ? column("time/time_elapsed") : column("step"));
const keysOf = (prefix) => Object.keys(run.columns).filter((key) => key.startsWith(prefix)).sort();
const lastOf = (values) => {
  for (let index = values.length - 1; index >= 0; index--) if (values[index] !== null && values[index] !== undefined) return values[index];
  return null;
};

function describe(key) {
  return docs.find((doc) => doc.name === key) || docs.find((doc) => doc.name.includes("*") && key.startsWith(doc.name.split("*")[0]) && key.endsWith(doc.name.split("*")[1]));
}

function chart(id, options) {
  if (!charts.has(id)) charts.set(id, board.add(options));
  return charts.get(id);
}

function timeOf(step) {
  const [steps, times] = [run.columns.step, run.columns["time/time_elapsed"] || []];
  const index = steps.findIndex((each) => each >= step);
  return times[index < 0 ? times.length - 1 : index] ?? null;
}

function marksOf(pickMark) {
  const marks = [];
  for (const result of run.evals) {
    const x = board.byTime ? timeOf(result.step) : result.step;
    for (const mark of pickMark(result)) if (x !== null && typeof mark.y === "number") marks.push({ x, ...mark });
  }
  return marks;
}

function levelsOf(pick) {
  const levels = Object.entries(run.baselines).map(([label, result]) => ({ label, value: pick(result) }));
  return levels.filter((level) => typeof level.value === "number");
}

// Where the stages of a curriculum begin: upright lines with their names.
function beginnings() {
  const [steps, stages] = [run.columns.step, run.columns["curriculum/stage"] || []];
  const begun = [];
  let before = null;
  stages.forEach((stage, index) => {
    if (stage === null || stage === before) return;
    const step = steps[index] - (run.columns["curriculum/stage_steps"]?.[index] ?? 0);
    const x = board.byTime ? timeOf(step) : step;
    if (x !== null) begun.push({ x, label: run.stages[stage - 1] ?? `stage ${stage}` });
    before = stage;
  });
  return begun;
}

function line(key, label, index, more = {}) {
  return { label, values: smooth(column(key), weight), color: colorOf(index), ...more };
}

function showMain() {
  const into = byId("charts");
  chart("return", { into, title: "Return", wide: true }).set({
    x: across(),
    series: [line("rollout/ep_rew_mean", "training, last 100 episodes", 0)],
    marks: marksOf((result) => [{ y: result.return_mean, low: result.return_low, high: result.return_high, label: "evaluation, 95 %", color: colorOf(1) }]),
    levels: levelsOf((result) => result.return_mean),
    beginnings: beginnings(),
  });
  const outcomes = keysOf("outcome/").sort((a, b) => (b === `outcome/${run.main}`) - (a === `outcome/${run.main}`));
  if (outcomes.length) {
    chart("outcomes", { into, title: "Outcomes", wide: true, percent: true }).set({
      x: across(),
      series: outcomes.map((key, index) => line(key, key.slice(8), index)),
      marks: marksOf((result) => outcomes.slice(0, 1).map((key) => {
        const found = (result.outcomes || {})[key.slice(8)] || {};
        return { y: found.rate, low: found.low, high: found.high, label: `${key.slice(8)} in evaluations`, color: colorOf(0) };
      })),
      levels: levelsOf((result) => result.outcomes?.[outcomes[0].slice(8)]?.rate),
      beginnings: beginnings(),
    });
  }
  chart("speed", { into, title: "Steps per second", unit: "/s" }).set(rates());
  const terms = keysOf("reward_share/");
  if (terms.length) {
    chart("shares", { into, title: "What the reward is made of", percent: true, about: describe("reward_share/x")?.bad || "" }).set({
      x: across(), stacked: true, series: terms.map((key, index) => line(key, key.slice(13), index)),
    });
  }
  chart("length", { into, title: "Episode length" }).set({ x: across(), series: [line("rollout/ep_len_mean", "steps", 2)], beginnings: beginnings() });
  const own = keysOf("episode/");
  byId("episode").parentElement.hidden = !own.length;
  for (const key of own) {
    const title = key.slice(8).replaceAll("_", " ");
    chart(key, { into: byId("episode"), title }).set({ x: across(), series: [line(key, title, 2)] });
  }
}

function rates() {
  const [steps, times] = [column("step"), column("time/time_elapsed")];
  const every = Math.max(1, Math.floor(steps.length / RATE_POINTS));
  const [x, values] = [[], []];
  for (let index = every; index < steps.length; index += every) {
    const seconds = times[index] - times[index - every];
    if (!(seconds > 0)) continue;
    x.push(board.byTime ? times[index] : steps[index]);
    values.push((steps[index] - steps[index - every]) / seconds);
  }
  const predicted = run.status.predicted_fps;
  const levels = typeof predicted === "number" ? [{ label: `predicted ${count(predicted)}`, value: predicted }] : [];
  return { x, series: [{ label: "achieved", values, color: colorOf(0) }], levels, fromZero: true };
}

function showDiagnostics() {
  const into = byId("diagnostics");
  const order = docs.map((doc) => doc.name);
  const keys = [...keysOf("train/"), ...keysOf("curriculum/"), ...keysOf("rollout/").filter((key) => !key.startsWith("rollout/ep_"))].filter((key) => !LEFT_OUT.has(key));
  const rank = (key) => (order.indexOf(key) + order.length + 1) % (order.length + 1);
  for (const key of keys.sort((a, b) => rank(a) - rank(b))) {
    const doc = describe(key) || { text: "", bad: "", healthy: null };
    const last = lastOf(run.columns[key]);
    const [low, high] = doc.healthy || [null, null];
    const isOutside = (value) => typeof value === "number" && ((low !== null && value < low) || (high !== null && value > high));
    const isIll = isOutside(last);
    const made = chart(key, { into, title: key.replace(/^(train|rollout|curriculum)\//, "").replaceAll("_", " "), about: doc.text || " " });
    made.set({ x: across(), series: [line(key, key, 0)], healthy: column(key).some(isOutside) ? doc.healthy : null });
    put(made.about, isIll ? `Outside of its healthy range. ${doc.bad}` : doc.text);
    made.about.title = doc.bad;
    made.about.classList.toggle("alarm", isIll);
  }
}

function showMachine() {
  const into = byId("machine");
  const wall = column("phase/wall_s");
  if (wall.length) {
    const phases = [["collect", "collecting", 0], ["learn", "learning", 1], ["evaluate", "evaluating", 2], ["save", "saving", 3], ["record", "recording", 7]];
    chart("phases", { into, title: "Share of the time", percent: true, about: "Above 100 % where collecting and learning overlap." }).set({
      x: across(), stacked: true,
      series: phases.map(([key, label, index]) => ({
        label, color: colorOf(index), values: smooth(column(`phase/${key}_s`).map((spent, row) => (wall[row] > 0 ? spent / wall[row] : null)), weight),
      })),
    });
  }
  const groups = [
    ["CPU of the machine", true, [["machine/cpu", "mean"], ["machine/cpu_max", "largest"]]],
    ["CPU by phase", true, [["machine/cpu_collect", "collecting"], ["machine/cpu_update", "learning"], ["machine/cpu_evaluate", "evaluating"], ["machine/cpu_save", "saving"]]],
    ["Cores of this run", false, [["machine/own_cores", "mean"], ["machine/own_cores_max", "largest"]]],
    ["Memory of this run, bytes", false, [["machine/memory_bytes", "mean"], ["machine/memory_bytes_max", "largest"]]],
    ["Memory of the machine in use", true, [["machine/memory_use", "mean"], ["machine/memory_use_max", "largest"]]],
    ["GPU use by phase", true, [["machine/gpu_use", "all"], ["machine/gpu_use_collect", "collecting"], ["machine/gpu_use_update", "learning"], ["machine/gpu_use_evaluate", "evaluating"]]],
    ["GPU memory, bytes", false, [["machine/gpu_memory_bytes", "in use"]]],
    ["GPU power, W", false, [["machine/gpu_power_w", "W"]]],
    ["GPU temperature, C", false, [["machine/gpu_temperature_c", "C"]]],
    ["Policy lag, updates", false, [["train/lag", "updates"]]],
  ];
  for (const [title, percent, lines] of groups) {
    const there = lines.filter(([key]) => run.columns[key]);
    if (!there.length) continue;
    const about = there.map(([key]) => describe(key)?.text).find(Boolean) || " ";
    chart(title, { into, title, percent, about }).set({
      x: across(), fromZero: true, series: there.map(([key, label], index) => line(key, label, index)),
    });
  }
  showTimeline();
}

// What each role did in the last updates, and how busy each core was.
function showTimeline() {
  const { spans, updates, cores } = run.timeline;
  const text = JSON.stringify(spans || null);
  const box = byId("timeline");
  if (!Array.isArray(spans) || !spans.length || box.dataset.text === text) return;
  box.dataset.text = text;
  const roles = ["collector", "learner", "main"];
  const [left, width, lane] = [84, 1200, 26];
  const whole = Math.max(...spans.map((span) => span[3])) || 1;
  const title = `Updates ${count(updates?.[0])} to ${count(updates?.[1])}, ${whole.toFixed(2)} s`;
  const height = 34 + roles.length * (lane + 6) + 26;
  const picture = draw("svg", { class: "lanes", viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": `Timeline. ${title}` });
  const label = draw("text", { x: 12, y: 21 });
  label.textContent = title;
  picture.append(label);
  roles.forEach((role, index) => {
    const y = 34 + index * (lane + 6);
    const words = draw("text", { x: 12, y: y + 17 });
    words.textContent = role;
    picture.append(words, draw("rect", { class: "p-idle", x: left, y, width: width - left - 12, height: lane, rx: 4 }));
    for (const [owner, phase, start, end] of spans) {
      if (owner !== role || !/^[a-z]+$/.test(phase)) continue;
      const x = left + (start / whole) * (width - left - 12);
      const bar = draw("rect", { class: `p-${phase}`, x: x.toFixed(1), y, width: Math.max(1, ((end - start) / whole) * (width - left - 12)).toFixed(1), height: lane });
      const tip = draw("title");
      tip.textContent = `${phase} ${(1000 * (end - start)).toFixed(1)} ms`;
      bar.append(tip);
      picture.append(bar);
    }
  });
  const keys = draw("text", { x: 12, y: height - 9 });
  const busy = (cores || []).filter((each) => typeof each === "number").map((each, index) => `core ${index} ${rate(each)}`);
  keys.textContent = busy.length ? `busy over the last seconds: ${busy.join(", ")}` : "";
  picture.append(keys);
  box.replaceChildren(picture);
}

function showAnswers() {
  const status = run.status;
  const { name: state, alive } = stateOf(status);
  const badge = byId("state");
  badge.className = `badge ${state}`;
  put(badge, alive && state !== "silent" ? status.phase || state : state);
  badge.title = `heartbeat ${ago(status.heartbeat)}`;
  put(byId("cause"), [(status.cause || "").split("\n")[0], alive ? `heartbeat ${ago(status.heartbeat)}` : null].filter(Boolean).join("; ") || "\u00a0");
  const share = status.total ? Math.min(1, (status.step || 0) / status.total) : 0;
  byId("progress").setAttribute("aria-valuenow", Math.round(100 * share));
  byId("progress").firstElementChild.value = share;
  answerLearning();
  answerWinning();
  const verdict = status.verdict;
  put(byId("bound"), verdict?.bound || "not known yet");
  put(byId("bound-why"), verdict ? [verdict.evidence, verdict.advice?.[0]].filter(Boolean).join("; ") : "it is measured while it trains");
  const pace = `${count(status.now_fps ?? status.fps)} steps/s, predicted ${count(status.predicted_fps)}`;
  put(byId("eta"), alive ? (typeof status.eta_s === "number" ? `in ${duration(status.eta_s)}` : "not known yet") : state === "done" ? "it is done" : `it is ${state}`);
  const stage = status.stage ? `stage ${count(status.stage.number)} of ${count(status.stage.of)}, ${status.stage.name}; ` : "";
  put(byId("eta-why"), `${count(status.step)} of ${count(status.total)} steps; ${stage}${pace}`);
}

function answerLearning() {
  const values = (run.columns["rollout/ep_rew_mean"] || []).filter((each) => typeof each === "number");
  const [big, why] = [byId("learning"), byId("learning-why")];
  big.className = "big";
  if (values.length < 5) {
    put(big, "too early to say");
    put(why, "it shows after some rows");
    return;
  }
  const part = Math.max(1, Math.floor(values.length / 5));
  const mean = (list) => list.reduce((sum, each) => sum + each, 0) / list.length;
  const [first, before, last] = [mean(values.slice(0, part)), mean(values.slice(-2 * part, -part)), mean(values.slice(-part))];
  const spread = Math.max(...values) - Math.min(...values) || 1;
  const gain = (last - before) / spread;
  const word = gain > 0.03 ? "yes, rising" : gain < -0.08 ? "falling" : (last - first) / spread > 0.15 ? "level, after a rise" : "not yet";
  big.classList.add(gain > 0.03 ? "up" : gain < -0.08 ? "down" : word === "not yet" ? "flat" : "level");
  put(big, word);
  put(why, `return ${number(values.at(-1))} now, ${number(values[0])} at first, ${number(Math.max(...values))} at best`);
}

function answerWinning() {
  const [big, why] = [byId("winning"), byId("winning-why")];
  const key = run.main || Object.keys(run.status.outcomes || {})[0];
  const last = run.evals.at(-1);
  if (key && last?.outcomes?.[key]) {
    const found = last.outcomes[key];
    put(big, `${key} ${rate(found.rate)}`);
    put(why, `${rate(found.low)} to ${rate(found.high)} in ${count(last.episodes)} held-out episodes at step ${count(last.step)}`);
  } else if (key) {
    put(big, `${key} ${rate(run.status.outcomes?.[key])}`);
    put(why, "of the last 100 episodes of training; no evaluation yet");
  } else if (last) {
    put(big, `return ${number(last.return_mean)}`);
    put(why, `${number(last.return_low)} to ${number(last.return_high)} in ${count(last.episodes)} held-out episodes at step ${count(last.step)}; it tells no outcomes`);
  } else {
    put(big, "not evaluated yet");
    put(why, "the environment tells no outcomes so far");
  }
}

function show() {
  const there = run.columns.step.length > 0;
  byId("empty").hidden = there;
  put(byId("empty"), `No rows yet: the first comes after the first update. The run is ${run.status.state || "not there"}.`);
  put(byId("sampled"), run.isSample && !run.detail ? "a sample of a long run; zoom in for every row" : "");
  showAnswers();
  if (!there) return;
  showMain();
  showDiagnostics();
  showMachine();
}

function append(columns) {
  const before = run.columns.step.length;
  const steps = columns.step || [];
  if (steps.length && before && steps[0] <= run.columns.step[before - 1]) return load();
  for (const key of Object.keys(columns)) run.columns[key] ??= Array(before).fill(null);
  for (const [key, values] of Object.entries(run.columns)) values.push(...(columns[key] || Array(steps.length).fill(null)));
  if (run.columns.step.length > MAX_ROWS) return load();
  return show();
}

async function load() {
  const [document_, metrics] = await Promise.all([get(api), docs.length ? docs : get("/api/metrics")]);
  docs = metrics;
  const { columns, status, end, is_sample: isSample } = document_;
  Object.assign(run, { columns: { step: [], ...columns }, status, end, isSample, detail: null });
  takeBeside(document_);
  show();
}

// What charts show beside the rows, which an early look does not find yet.
function takeBeside({ evals, baselines, main_outcome: main, stages, timeline }) {
  Object.assign(run, { evals, baselines, main, stages, timeline });
}

// Every row of the range that a long run was zoomed into.
async function refine(zoom) {
  if (!run.isSample || board.byTime || zoom === null) {
    if (run.detail) {
      run.detail = null;
      show();
    }
    return;
  }
  const [low, high] = zoom.map((each) => Math.max(0, Math.round(each)));
  const { columns } = await get(`${api}/rows?low=${low}&high=${high}`);
  if (board.zoom !== zoom || !(columns.step || []).length) return;
  run.detail = columns;
  show();
}

async function refresh() {
  const { panels, ...beside } = await get(`${api}/panels`);
  takeBeside(beside);
  for (const [id, html] of Object.entries(panels)) {
    const panel = byId(`panel-${id}`);
    if (panel.source === html) continue;
    const top = panel.scrollTop;
    panel.source = html;
    panel.innerHTML = html; // escaped by the server's templates, and no script in it could run
    panel.scrollTop = top;
  }
  wire();
  show();
}

// What templates can't know: addresses of films and runs, which outcome is the good one.
function wire() {
  for (const film of document.querySelectorAll("[data-film]:not([src])")) film.src = `${api}/film/${encodeURIComponent(film.dataset.film)}`;
  for (const link of document.querySelectorAll("a[data-run]:not([href])")) link.href = `/run/${encodeURIComponent(link.dataset.run)}`;
  for (const badge of document.querySelectorAll("[data-outcome]")) badge.classList.toggle("good", badge.dataset.outcome === run.main);
}

const inOrder = (work) => {
  queue = queue.then(work).catch((error) => {
    byId("empty").hidden = false;
    put(byId("empty"), error.message);
  });
  return queue;
};

wireControls(board, (value) => { weight = value; }, show);
byId("unzoom").addEventListener("click", () => board.setZoom(null, null));
await inOrder(load);
wire();
const stream = follow(() => `/events/${encodeURIComponent(name)}?offset=${run.end}`, {
  rows: (news) => inOrder(async () => {
    if (news.end <= run.end) return;
    run.end = news.end;
    await append(news.columns);
  }),
  status: (status) => inOrder(() => {
    run.status = status;
    show();
  }),
  panels: () => inOrder(refresh),
  reset: () => inOrder(async () => {
    await load();
    stream.restart();
  }),
  gone: () => inOrder(() => {
    throw new Error("This run is no longer in the folder.");
  }),
});
setInterval(() => document.hidden || showAnswers(), 5000);
