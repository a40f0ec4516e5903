// The shown run: its columns, evaluations and status, the metric tables, and the view settings.
import { colorOf, orderOutcomes, smooth } from "./chart.js";
import { own } from "./lib.js";

export const run = { baselines: {}, best: null, columns: { step: [] }, status: {}, evals: [], stages: [], main: null, end: 0, detail: null, isSample: false };
export const view = { docs: [], weight: 0, byTime: false };

// The shown columns: those of the whole run, or of the zoomed range.
export const column = (key) => (run.detail || run.columns)[key] || [];
export const across = () => column(view.byTime ? "time/time_elapsed" : "step");
export const keysOf = (prefix) => Object.keys(run.columns).filter((key) => key.startsWith(prefix)).sort();

export function lastOf(values) {
  for (let index = values.length - 1; index >= 0; index--) if (values[index] !== null && values[index] !== undefined) return values[index];
  return null;
}

export function describe(key) {
  const fits = ({ name }) => {
    const [head, tail] = name.split("*");
    return tail === undefined ? name === key : key.startsWith(head) && key.endsWith(tail);
  };
  return view.docs.find((doc) => doc.name === key) || view.docs.find(fits);
}

// Whether a value is outside the healthy range of its metric.
export function isIll(doc, value) {
  const [low, high] = doc?.healthy || [null, null];
  return typeof value === "number" && ((low !== null && value < low) || (high !== null && value > high));
}

// The name of a metric in words: `ep_len_mean` is the episode length mean.
const WORDS = { approx: "approximate", env: "environment", ep: "episode", fps: "steps/s", grad: "gradient", kl: "KL", len: "length", rew: "return" };
export const nameOf = (key) => key.slice(key.indexOf("/") + 1).replaceAll("/", ": ").split("_").map((word) => own(WORDS, word) ?? word).join(" ");

// The outcomes in the declared order, the main one first, then others by name.
export function outcomesOf() {
  const seen = keysOf("outcome/").map((key) => key.slice(8));
  return orderOutcomes([...Object.keys(run.status.outcomes || {}), ...seen], run.main);
}

export function line(key, label, index, more = {}) {
  return { label, values: smooth(column(key), view.weight), color: colorOf(index), ...more };
}

function timeOf(step) {
  const [steps, times] = [run.columns.step, run.columns["time/time_elapsed"] || []];
  const index = steps.findIndex((each) => each >= step);
  return times[index < 0 ? times.length - 1 : index] ?? null;
}

export function marksOf(pickMarks) {
  const marks = [];
  for (const result of run.evals) {
    const x = view.byTime ? timeOf(result.step) : result.step;
    for (const mark of pickMarks(result)) if (x !== null && typeof mark.y === "number") marks.push({ x, ...mark });
  }
  return marks;
}

// The beginnings of curriculum stages: vertical lines with their names.
export function beginnings() {
  const [steps, stages] = [run.columns.step, run.columns["curriculum/stage"] || []];
  const begun = [];
  let before = null;
  stages.forEach((stage, index) => {
    if (stage === null || stage === before) return;
    const step = steps[index] - (run.columns["curriculum/stage_steps"]?.[index] ?? 0);
    const x = view.byTime ? timeOf(step) : step;
    if (x !== null) begun.push({ x, label: run.stages[stage - 1] ?? `stage ${stage}` });
    before = stage;
  });
  return begun;
}

export function levelsOf(pick) {
  const levels = Object.entries(run.baselines).map(([label, result]) => ({ label, value: pick(result) }));
  return levels.filter((level) => typeof level.value === "number");
}
