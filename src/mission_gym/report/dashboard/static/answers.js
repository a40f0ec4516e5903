// Four answers: is it learning, is it winning, what is the bottleneck, when is it done; and alarms.
import { ago, count, duration, make, number, own, put, rate, short, stallOf, stateOf, wordsOf } from "./lib.js";
import { listDiagnostics } from "./run-charts.js";
import { describe, isIll, lastOf, nameOf, run } from "./run-data.js";

const WON = 0.9; // of the main outcome: nothing is left to learn
const byId = (id) => document.getElementById(id);

export function showAnswers() {
  const status = run.status;
  const { name: state, alive } = stateOf(status);
  const badge = byId("state");
  badge.className = `badge ${state}`;
  put(badge, wordsOf(status));
  badge.title = `heartbeat ${ago(status.heartbeat)}`;
  put(byId("cause"), [alive ? null : state === "failed" ? null : causeOf(status), alive ? `heartbeat ${ago(status.heartbeat)}` : null].filter(Boolean).join("; ") || "\u00a0");
  const share = status.total ? Math.min(1, (status.step || 0) / status.total) : 0;
  const filled = state === "done" ? 1 : share; // a goal may end a run early
  byId("progress").setAttribute("aria-valuenow", Math.round(100 * filled));
  byId("progress").className = `progress ${state}`;
  byId("progress").firstElementChild.value = filled;
  const failed = state === "failed";
  byId("failure").hidden = !failed;
  byId("answers").hidden = byId("alarms").hidden = failed;
  ["Is it learning?", "Is it winning?", "What is the bottleneck?", "When is it done?"].forEach((now, index) => {
    const then = ["Did it learn?", "Did it win?", "What was the bottleneck?", "How did it end?"][index];
    put(byId("answers").querySelectorAll("h2")[index], alive ? now : then);
  });
  answerLearning(alive);
  answerWinning(alive);
  showAlarms();
  const verdict = status.verdict;
  answer("bound", verdict?.bound || (alive ? "not measured yet" : "not measured"), "", verdict ? verdict.evidence.split("; ")[0] : alive ? "measured during training" : "the run ended before it was measured");
  if (stallOf(status) !== null && status.phase === "collecting") answer("bound", "an environment", "down", "a call of an environment has not returned");
  byId("bound-why").title = verdict ? [verdict.evidence, ...(verdict.advice || [])].join("\n") : "";
  byId("bound-more").hidden = !verdict?.advice?.length;
  answerEnd(status, state, alive, share);
}

const SIGNALS = { SIGINT: "stopped by Ctrl-C", SIGTERM: "stopped by SIGTERM" };
const causeOf = (status) => own(SIGNALS, status.cause || "") ?? (status.cause || "").split("\n")[0];

function answer(id, big, tone, why) {
  byId(id).className = `big ${tone}`;
  put(byId(id), big);
  put(byId(`${id}-why`), why);
}

const mean = (list) => list.reduce((sum, each) => sum + each, 0) / list.length;

// The course of a curve: rising, level, falling or flat, and where it changed; null for fewer than five values.
export function judgeCurve(steps, values) {
  const at = values.flatMap((value, index) => (typeof value === "number" ? [index] : []));
  if (at.length < 5) return null;
  const ys = at.map((index) => values[index]);
  const part = Math.max(1, Math.floor(ys.length / 5));
  const few = Math.max(1, Math.min(3, Math.floor(ys.length / 20)));
  const [first, before, last] = [mean(ys.slice(0, few)), mean(ys.slice(-2 * part, -part)), mean(ys.slice(-part))];
  const [low, high] = [Math.min(...ys), Math.max(...ys)];
  const spread = high - low;
  const found = { first: ys[0], now: ys.at(-1), best: high, rise: ys.at(-1) - ys[0], since: steps[at[ys.indexOf(high)]] };
  if (spread <= 0.02 * Math.max(Math.abs(low), Math.abs(high))) return { ...found, course: "flat" };
  if ((last - before) / spread > 0.03 && last - first > 0.05 * spread) return { ...found, course: "rising" };
  if ((high - last) / spread > 0.25) return { ...found, course: last - first > 0.15 * spread || first > last ? "falling" : "flat" };
  if (last - first <= 0.15 * spread) return { ...found, course: "flat" };
  let start = ys.length - 1; // of the level part
  while (start > 0 && Math.abs(ys[start - 1] - last) <= 0.1 * spread) start -= 1;
  return { ...found, course: "level", since: steps[at[start]] };
}

function answerLearning(alive) {
  const found = judgeCurve(run.columns.step, run.columns["rollout/ep_rew_mean"] || []);
  if (!found) {
    answer("learning", alive ? "too early to say" : "too short to say", "", "needs at least five rows with finished episodes");
    return;
  }
  const { course, since, rise } = found;
  const key = run.main;
  const wins = key ? lastOf(run.columns[`outcome/${key}`] || []) : null;
  const solved = course === "flat" && wins >= WON;
  const words = {
    rising: alive ? "yes, rising" : "yes, still rising", level: alive ? "yes, now level" : "yes, it converged",
    falling: alive ? "falling" : "it fell back", flat: alive ? "not yet" : "no",
  };
  const tones = { rising: "up", level: "up", falling: "down", flat: solved ? "" : "flat" };
  const changes = { level: `level since step ${short(since)}, after a rise of ${number(rise)}; `, falling: `best at step ${short(since)}; `, flat: solved ? `${key} ${rate(wins)} from the start; ` : "", rising: "" };
  answer("learning", solved ? "nothing left to learn" : words[course], tones[course], `${changes[course]}return ${number(found.now)} now, ${number(found.first)} at first, ${number(found.best)} at best`);
}

function answerWinning(alive) {
  const status = run.status;
  const key = run.main || Object.keys(status.outcomes || {})[0]; // others may be good or bad
  const result = alive || !run.best ? run.evals.at(-1) : run.best;
  const found = key && own(result?.outcomes || {}, key);
  const lucky = result?.chosen_from > 1 && !result.confirmed ? `, the highest of ${count(result.chosen_from)} evaluations and so too high on average` : "";
  const held = result && `in ${count(result.confirmed || result.episodes)} held-out episodes at step ${count(result.step)}${lucky}`;
  if (found) {
    answer("winning", `${key} ${rate(found.rate)}`, "", [`95 %: ${rate(found.low)} to ${rate(found.high)} ${held}`, ...listBaselines((each) => own(each.outcomes || {}, key)?.rate, rate)].join("; "));
  } else if (key) {
    const now = own(status.outcomes || {}, key) ?? lastOf(run.columns[`outcome/${key}`] || []);
    answer("winning", `${key} ${rate(now)}`, "", `of the last 100 episodes of training; no evaluation ${alive ? "yet" : "was made"}`);
  } else if (result) {
    const bounds = typeof result.return_low === "number" ? `95 %: ${number(result.return_low)} to ${number(result.return_high)}` : "no interval";
    answer("winning", `return ${number(result.return_mean)}`, "", [`${bounds} ${held}`, ...listBaselines((each) => each.return_mean, number)].join("; "));
  } else {
    answer("winning", alive ? "not evaluated yet" : "not evaluated", "", "the environment declares no outcomes; the return of an evaluation would be here");
  }
}

const listBaselines = (pick, show) => Object.entries(run.baselines).filter(([, each]) => typeof pick(each) === "number").map(([name, each]) => `${name} ${show(pick(each))}`);

function answerEnd(status, state, alive, share) {
  const steps = `${count(status.step)} of ${count(status.total)} steps`;
  const stage = status.stage ? `stage ${count(status.stage.number)} of ${count(status.stage.of)}, ${status.stage.name}` : null;
  const train = status.train_fps ?? status.fps;
  if (!alive) {
    const spent = lastOf(run.columns["time/time_elapsed"] || []);
    const pace = typeof train === "number" ? `${count(train)} steps/s of training, predicted ${count(status.predicted_fps)}` : null;
    const goal = (status.cause || "").startsWith("goal reached");
    const why = [goal ? status.cause.split("\n")[0].replace("goal reached: ", "") : null, `${steps}${typeof spent === "number" ? ` in ${duration(spent)}` : ""}`, goal && share < 1 ? `${rate(share)} of the budget` : null, stage, pace];
    const big = goal ? "goal reached" : state === "done" ? "all steps made" : causeOf(status) || state;
    answer("eta", big, state === "done" ? "up" : "flat", why.filter(Boolean).join("; "));
    return;
  }
  const phase = typeof status.phase_total === "number" ? `${status.phase}: ${count(status.phase_done)} of ${count(status.phase_total)} episodes${typeof status.phase_eta_s === "number" ? `, ${duration(status.phase_eta_s)} left` : ""}` : null;
  const still = stallOf(status);
  if (state === "silent") answer("eta", "no sign of life", "down", `the last heartbeat came ${ago(status.heartbeat)}: the process is paused, or its machine is unreachable`);
  else if (still !== null) {
    const why = status.phase === "collecting" ? "an environment may hang; --env-timeout ends such a call" : `${status.phase || "the phase"} for ${duration(Date.now() / 1000 - status.phase_since)}`;
    answer("eta", `no step for ${duration(still)}`, status.phase === "collecting" ? "down" : "flat", [phase, why, steps].filter(Boolean).join("; "));
  } else {
    const pace = `${count(status.now_fps ?? status.fps)} steps/s now, predicted ${count(status.predicted_fps)}`;
    answer("eta", typeof status.eta_s === "number" ? `in ${duration(status.eta_s)}` : "unknown yet", "", [phase, steps, stage, pace].filter(Boolean).join("; "));
  }
}

// Alarms: metrics outside their healthy range, and lost episodes.
function showAlarms() {
  const ill = listDiagnostics().filter((key) => isIll(describe(key), lastOf(run.columns[key])));
  const alarms = ill.map((key) => [`#chart-${key}`, nameOf(key), describe(key).bad]);
  const lost = run.status.env_failures;
  if (lost) alarms.push(["#panel-failures", `${count(lost)} episodes lost`, "An environment raised, hung or died."]);
  const box = byId("alarms");
  const text = JSON.stringify([alarms, run.columns.step.length > 0]);
  if (box.dataset.text === text) return;
  box.dataset.text = text;
  const healthy = run.columns.step.length ? "Every metric is in its healthy range." : "\u00a0";
  box.replaceChildren(
    make("span", {}, alarms.length ? "Look at" : healthy),
    ...alarms.map(([place, words, why]) => make("a", { href: place, title: why, class: "badge failed" }, words)),
  );
}
