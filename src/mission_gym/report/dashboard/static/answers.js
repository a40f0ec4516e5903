// Four answers: is it learning, is it winning, what is the bottleneck, when is it done; and alarms.
import { ago, count, duration, make, number, own, put, rate, stateOf } from "./lib.js";
import { listDiagnostics } from "./run-charts.js";
import { describe, isIll, lastOf, nameOf, run } from "./run-data.js";

const byId = (id) => document.getElementById(id);

export function showAnswers() {
  const status = run.status;
  const { name: state, alive } = stateOf(status);
  const badge = byId("state");
  badge.className = `badge ${state}`;
  put(badge, alive && state !== "silent" ? status.phase || state : state);
  badge.title = `heartbeat ${ago(status.heartbeat)}`;
  put(byId("cause"), [state === "failed" ? null : (status.cause || "").split("\n")[0], alive ? `heartbeat ${ago(status.heartbeat)}` : null].filter(Boolean).join("; ") || "\u00a0");
  const share = status.total ? Math.min(1, (status.step || 0) / status.total) : 0;
  byId("progress").setAttribute("aria-valuenow", Math.round(100 * share));
  byId("progress").firstElementChild.value = share;
  const failed = state === "failed";
  byId("failure").hidden = !failed;
  byId("answers").hidden = byId("alarms").hidden = failed;
  answerLearning();
  answerWinning();
  showAlarms();
  const verdict = status.verdict;
  put(byId("bound"), verdict?.bound || (alive ? "not measured yet" : "not measured"));
  put(byId("bound-why"), verdict ? [verdict.evidence, verdict.advice?.[0]].filter(Boolean).join("; ") : alive ? "measured during training" : "the run ended before it was measured");
  const pace = `${count(status.now_fps ?? status.fps)} steps/s, predicted ${count(status.predicted_fps)}`;
  put(byId("eta"), alive ? (typeof status.eta_s === "number" ? `in ${duration(status.eta_s)}` : "unknown yet") : state === "done" ? "it is done" : `it is ${state}`);
  const stage = status.stage ? `stage ${count(status.stage.number)} of ${count(status.stage.of)}, ${status.stage.name}; ` : "";
  put(byId("eta-why"), `${count(status.step)} of ${count(status.total)} steps; ${stage}${pace}`);
}

function answerLearning() {
  const values = (run.columns["rollout/ep_rew_mean"] || []).filter((each) => typeof each === "number");
  const [big, why] = [byId("learning"), byId("learning-why")];
  big.className = "big";
  if (values.length < 5) {
    put(big, "too early to say");
    put(why, "needs at least five rows");
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
  const found = key && own(last?.outcomes || {}, key);
  if (found) {
    put(big, `${key} ${rate(found.rate)}`);
    put(why, `${rate(found.low)} to ${rate(found.high)} in ${count(last.episodes)} held-out episodes at step ${count(last.step)}`);
  } else if (key) {
    put(big, `${key} ${rate(own(run.status.outcomes || {}, key))}`);
    put(why, "of the last 100 episodes of training; no evaluation yet");
  } else if (last) {
    put(big, `return ${number(last.return_mean)}`);
    const bounds = typeof last.return_low === "number" ? `${number(last.return_low)} to ${number(last.return_high)}` : "no interval";
    put(why, `${bounds} in ${count(last.episodes)} held-out episodes at step ${count(last.step)}; no outcomes are reported`);
  } else {
    put(big, "not evaluated yet");
    put(why, "the environment has reported no outcomes");
  }
}

// Alarms: metrics outside their healthy range, and lost episodes.
function showAlarms() {
  const ill = listDiagnostics().filter((key) => isIll(describe(key), lastOf(run.columns[key])));
  const alarms = ill.map((key) => [`#chart-${key}`, nameOf(key), describe(key).bad]);
  const lost = run.status.env_failures;
  if (lost) alarms.push(["#panel-failures", `${count(lost)} episodes lost`, "An environment raised, hung or died."]);
  const box = byId("alarms");
  const text = JSON.stringify(alarms);
  if (box.dataset.text === text) return;
  box.dataset.text = text;
  box.replaceChildren(
    make("span", {}, alarms.length ? "Look at" : "Every metric is in its healthy range."),
    ...alarms.map(([place, words, why]) => make("a", { href: place, title: why, class: "badge failed" }, words)),
  );
}
