// The charts of the Run page: results, diagnostics, and the use of the machine.
import { colorOf, outcomeColor, smooth } from "./chart.js";
import { count, number, own, put } from "./lib.js";
import { across, beginnings, column, describe, isIll, keysOf, lastOf, levelsOf, line, marksOf, nameOf, outcomesOf, run, view } from "./run-data.js";

const RATE_POINTS = 60;
const PHASES = [["collect", "collecting"], ["update", "learning"], ["evaluate", "evaluating"], ["save", "saving"]];
const byId = (id) => document.getElementById(id);
const charts = new Map();

export function showCharts(board) {
  const chart = (id, options) => {
    if (!charts.has(id)) charts.set(id, board.add(options));
    return charts.get(id);
  };
  showMain(chart);
  showEpisodes(chart);
  showDiagnostics(chart);
  showMachine(chart);
}

function showMain(chart) {
  const into = byId("charts");
  chart("return", { into, title: "Return", wide: true, key: "rollout/ep_rew_mean" }).set({
    x: across(),
    series: [line("rollout/ep_rew_mean", "training, last 100 episodes", 0)],
    marks: marksOf((result) => [{ y: result.return_mean, low: result.return_low, high: result.return_high, label: "evaluation, 95 %", color: colorOf(1) }]),
    levels: levelsOf((result) => result.return_mean),
    beginnings: beginnings(),
  });
  chart("speed", { into, title: "Steps per second", unit: "/s" }).set(rates());
  const outcomes = outcomesOf().filter((name) => run.columns[`outcome/${name}`]);
  if (outcomes.length) {
    const main = outcomes[0];
    // An outcome that is not declared has no value while it does not occur.
    const occurs = outcomes.map((name) => column(`outcome/${name}`)).reduce((some, each) => each.map((value, row) => value !== null || Boolean(some[row])), []);
    const rates = (name) => smooth(column(`outcome/${name}`).map((value, row) => value ?? (occurs[row] ? 0 : null)), view.weight);
    chart("outcomes", { into, title: "Outcomes", wide: true, percent: true }).set({
      x: across(),
      series: outcomes.map((name, index) => ({ label: name, values: rates(name), color: outcomeColor(index, run.main) })),
      marks: marksOf((result) => {
        const found = own(result.outcomes || {}, main) || {};
        return [{ y: found.rate, low: found.low, high: found.high, label: `${main} in evaluations`, color: outcomeColor(0, run.main) }];
      }),
      levels: levelsOf((result) => own(result.outcomes || {}, main)?.rate),
      beginnings: beginnings(),
    });
  }
  const terms = keysOf("reward_share/");
  if (terms.length) {
    chart("shares", { into, title: "Shares of the reward", percent: true, about: describe("reward_share/x")?.bad || "" }).set({
      x: across(), stacked: true, series: terms.map((key, index) => line(key, key.slice(13), index)),
    });
  }
}

// The rate between rows, at some tens of points, and the prediction of the plan.
function rates() {
  const [steps, times] = [column("step"), column("time/time_elapsed")];
  const every = Math.max(1, Math.floor(steps.length / RATE_POINTS));
  const [x, values] = [[], []];
  for (let index = every; index < steps.length; index += every) {
    const seconds = times[index] - times[index - every];
    if (!(seconds > 0)) continue;
    x.push(view.byTime ? times[index] : steps[index]);
    values.push((steps[index] - steps[index - every]) / seconds);
  }
  const predicted = run.status.predicted_fps;
  const levels = typeof predicted === "number" ? [{ label: `predicted ${count(predicted)}`, value: predicted }] : [];
  return { x, series: [{ label: "achieved", values, color: colorOf(0) }], levels, fromZero: true };
}

function showEpisodes(chart) {
  const into = byId("episode");
  chart("length", { into, title: "Length, steps", key: "rollout/ep_len_mean" }).set({ x: across(), series: [line("rollout/ep_len_mean", "steps", 2)], beginnings: beginnings() });
  const kinds = new Set(keysOf("agents/").map((key) => key.split("/")[1]));
  for (const kind of kinds) {
    const head = `agents/${kind}/outcome/`;
    const names = outcomesOf().filter((name) => run.columns[head + name]);
    if (!names.length) continue;
    chart(head, { into, title: `${kind}: outcomes`, percent: true, key: head }).set({ x: across(), series: names.map((name, index) => ({ ...line(head + name, name, 0), color: outcomeColor(index, run.main) })) });
  }
  for (const key of [...keysOf("episode/"), ...keysOf("agents/").filter((each) => each.split("/")[2] !== "outcome")]) {
    chart(key, { into, title: nameOf(key), key }).set({ x: across(), series: [line(key, nameOf(key), 2)] });
  }
}

// The diagnostics in the order of the metric tables, then metrics that are in no table.
export function listDiagnostics() {
  const order = view.docs.map((doc) => doc.name);
  const rank = (key) => (order.indexOf(key) + order.length + 1) % (order.length + 1);
  const keys = [...keysOf("train/"), ...keysOf("curriculum/"), ...keysOf("rollout/").filter((key) => !key.startsWith("rollout/ep_"))];
  return keys.filter((key) => chartsOf(key).includes("run")).sort((a, b) => rank(a) - rank(b));
}

// The parts of the page that the metric tables give a metric to.
const chartsOf = (key) => describe(key)?.charts ?? ["run"];

// The value of a metric that never changes; null if it does.
function constantOf(key) {
  const values = (run.columns[key] || []).filter((value) => value !== null);
  return values.length > 1 && values.every((value) => value === values[0]) ? values[0] : null;
}

function showDiagnostics(chart) {
  const constants = [];
  for (const key of listDiagnostics()) {
    const doc = describe(key) || { text: "", bad: "", healthy: null };
    const ill = isIll(doc, lastOf(run.columns[key]));
    const constant = ill ? null : constantOf(key);
    if (constant !== null) {
      constants.push(`${nameOf(key)} ${number(constant)}`);
      if (charts.has(key)) charts.get(key).figure.isFolded = true;
      continue;
    }
    const made = chart(key, { into: byId("diagnostics"), title: nameOf(key), about: doc.text || " ", key });
    made.figure.id = `chart-${key}`;
    made.figure.isFolded = false;
    made.set({ x: across(), series: [line(key, nameOf(key), 0)], healthy: column(key).some((value) => isIll(doc, value)) ? doc.healthy : null });
    put(made.about, ill ? `Outside its healthy range. ${doc.bad}` : doc.text);
    made.about.title = [doc.text, doc.bad].filter(Boolean).join(" ");
    made.about.classList.toggle("alarm", ill);
  }
  put(byId("constants"), constants.length ? `Constant: ${constants.join(", ")}` : "");
  byId("constants").hidden = !constants.length;
}

function showMachine(chart) {
  const into = byId("machine");
  showShares(chart, into);
  const byPhase = (key, label = "all") => [[key, label], ...PHASES.map(([phase, words]) => [`${key}_${phase}`, words])];
  const groups = [
    ["CPU of the machine", { percent: true }, [["machine/cpu", "mean"], ["machine/cpu_max", "largest"]]],
    ["CPU by phase", { percent: true }, byPhase("machine/cpu").slice(1)],
    ["Cores of this run", {}, [["machine/own_cores", "mean"], ["machine/own_cores_max", "largest"]]],
    ["Memory of this run", { unit: "bytes" }, [["machine/memory_bytes", "mean"], ["machine/memory_bytes_max", "largest"]]],
    ["Memory in use on the machine", { percent: true }, [["machine/memory_use", "mean"], ["machine/memory_use_max", "largest"]]],
    ["GPU use by phase", { percent: true }, byPhase("machine/gpu_use")],
    ["GPU memory by phase", { unit: "bytes" }, byPhase("machine/gpu_memory_bytes")],
    ["GPU power by phase", { unit: " W" }, byPhase("machine/gpu_power_w")],
    ["GPU temperature by phase", { unit: " °C" }, byPhase("machine/gpu_temperature_c")],
    ...Object.keys(run.columns).filter((key) => chartsOf(key).includes("machine")).map((key) => [`${nameOf(key)}, ${describe(key).unit}`, {}, [[key, nameOf(key)]]]),
  ];
  for (const [title, options, lines] of groups) {
    const there = lines.filter(([key]) => run.columns[key]);
    if (!there.length || (there.length === 1 && constantOf(there[0][0]) !== null)) continue;
    const about = there.map(([key]) => describe(key)?.text).find(Boolean) || " ";
    chart(title, { into, title, about, ...options }).set({
      x: across(), fromZero: true, series: there.map(([key, label], index) => line(key, label, index)),
    });
  }
}

function showShares(chart, into) {
  const wall = column("phase/wall_s");
  if (!wall.length) return;
  const phases = [["collect", "collecting", 0], ["learn", "learning", 1], ["evaluate", "evaluating", 2], ["save", "saving", 3], ["record", "recording", 7]];
  const share = (key) => column(`phase/${key}_s`).map((spent, row) => (wall[row] > 0 ? spent / wall[row] : null));
  chart("phases", { into, title: "Share of the time", percent: true, about: "Above 100 % if collecting and learning overlap." }).set({
    x: across(), stacked: true,
    series: phases.map(([key, label, index]) => ({ label, color: colorOf(index), values: smooth(share(key), view.weight) })),
  });
}
