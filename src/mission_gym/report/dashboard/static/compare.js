// The Compare page: curves of several runs, or of groups as their interquartile mean with a band.
import { Board, colorOf, smooth, wireControls } from "./chart.js";
import { follow, get, make, own, put } from "./lib.js";
import { nameOf } from "./run-data.js";

const byId = (id) => document.getElementById(id);
const GRID = 200; // points of a pooled curve
const EVERY_MS = 5000; // between two updates of live runs
const state = { docs: [], runs: [], groups: [], known: { rows: [], groups: [] }, data: new Map(), weight: 0, pool: false };
const board = new Board("compare", (zoom) => { byId("unzoom").hidden = zoom === null; });
const charts = new Map();

function chart(id, options) {
  if (!charts.has(id)) charts.set(id, board.add({ into: byId("charts"), ...options }));
  return charts.get(id);
}

const kindOf = (group) => state.known.groups.find((each) => each.name === group)?.kind;
const membersOf = (group) => (state.known.groups.find((each) => each.name === group)?.variants || []).flatMap((variant) => variant.runs);
// The curves: a label, and the runs behind it.
function curves() {
  const singles = state.runs.map((run) => ({ label: run, runs: [run] }));
  // One curve per variant: runs of different settings have no common mean.
  const pools = state.groups.flatMap((name) => {
    const variants = state.known.groups.find((each) => each.name === name)?.variants || [];
    const prefix = state.groups.length > 1 ? `${name}, ` : "";
    return variants.map((variant) => ({ label: variants.length > 1 ? prefix + variant.name : name, runs: variant.runs }));
  });
  if (state.pool && singles.length > 1) return [{ label: `${singles.length} runs`, runs: state.runs }, ...pools];
  return [...singles, ...pools];
}

const compared = () => [...new Set([...state.runs, ...state.groups.flatMap(membersOf)])];

async function load() {
  const wanted = compared();
  await Promise.all(
    wanted.filter((run) => !state.data.has(run)).map(async (run) => {
      try {
        state.data.set(run, await get(`/api/run/${encodeURIComponent(run)}`));
      } catch {
        state.data.set(run, null);
      }
    }),
  );
}

const xOf = (data) => (board.byTime ? data.columns["time/time_elapsed"] : data.columns.step) || [];

// The points of a quantity of a run: [x, y] in order.
function points(run, pick) {
  const data = state.data.get(run);
  return data ? pick(data).filter(([x, y]) => typeof x === "number" && typeof y === "number") : [];
}

const fromColumn = (key) => (data) => {
  const values = smooth(data.columns[key] || [], state.weight);
  return xOf(data).map((x, index) => [x, values[index]]);
};
const fromEvals = (pick) => (data) => data.evals.map((result) => {
  const index = data.columns.step ? data.columns.step.findIndex((step) => step >= result.step) : -1;
  return [board.byTime ? xOf(data)[index] : result.step, pick(result)];
});

function interpolate(list, x) {
  if (!list.length || x < list[0][0] || x > list.at(-1)[0]) return null;
  let [low, high] = [0, list.length - 1];
  while (high - low > 1) {
    const middle = (low + high) >> 1;
    if (list[middle][0] <= x) low = middle;
    else high = middle;
  }
  const [[x0, y0], [x1, y1]] = [list[low], list[high]];
  return x1 > x0 ? y0 + ((x - x0) / (x1 - x0)) * (y1 - y0) : y1;
}

const MIN_IQM = 10; // runs; fewer have a mean and their range

// The mean of the middle half, and the quartiles around it; of few runs the mean and the range.
export function middle(values) {
  if (values.length < MIN_IQM) return { iqm: values.reduce((sum, each) => sum + each, 0) / values.length, low: Math.min(...values), high: Math.max(...values) };
  const sorted = [...values].sort((a, b) => a - b);
  const cut = Math.floor(sorted.length / 4);
  const kept = sorted.slice(cut, sorted.length - cut);
  const quantile = (q) => {
    const at = q * (sorted.length - 1);
    const [below, above] = [sorted[Math.floor(at)], sorted[Math.ceil(at)]];
    return below + (at - Math.floor(at)) * (above - below);
  };
  return { iqm: kept.reduce((sum, each) => sum + each, 0) / kept.length, low: quantile(0.25), high: quantile(0.75) };
}

function showQuantity(id, title, pick, { dots = false, ...more } = {}) {
  const withPoints = (curve) => ({ ...curve, lists: curve.runs.map((run) => points(run, pick)).filter((list) => list.length) });
  const lists = curves().map((curve, index) => ({ ...withPoints(curve), color: colorOf(index) })).filter((curve) => curve.lists.length);
  if (!lists.length) {
    if (charts.has(id)) {
      board.remove(charts.get(id));
      charts.delete(id);
    }
    return;
  }
  const tables = [];
  const series = [];
  const pools = [];
  lists.forEach((curve, index) => {
    const { color } = curve;
    if (curve.lists.length < 2) {
      const [list] = curve.lists;
      tables.push([list.map(([x]) => x), list.map(([, y]) => y)]);
      series.push({ label: curve.label, color, dots });
      return;
    }
    // Over the range that all runs have made: otherwise the curve jumps where one ends.
    const [start, end] = [Math.max(...curve.lists.map((list) => list[0][0])), Math.min(...curve.lists.map((list) => list.at(-1)[0]))];
    const own = [...new Set(curve.lists.flatMap((list) => list.map(([x]) => x)))].sort((a, b) => a - b).filter((x) => x >= start && x <= end);
    const even = () => Array.from({ length: GRID }, (_, step) => start + ((end - start) * step) / (GRID - 1));
    const grid = start > end ? [] : dots || own.length < GRID ? own : even();
    if (!grid.length) return; // no step in common
    const found = grid.map((x) => {
      const values = curve.lists.map((list) => interpolate(list, x)).filter((value) => value !== null);
      return values.length ? middle(values) : { iqm: null, low: null, high: null };
    });
    tables.push([grid, found.map((each) => each.iqm), found.map((each) => each.low), found.map((each) => each.high)]);
    series.push({ label: `${curve.label}, ${curve.lists.length < MIN_IQM ? "mean" : "IQM"} of ${curve.lists.length}`, color, dots });
    pools.push({ index: tables.length - 1, color });
  });
  const joined = uPlot.join(tables);
  const bands = [];
  let at = 1;
  tables.forEach((table, index) => {
    series[index].values = joined[at];
    const pool = pools.find((each) => each.index === index);
    if (pool) bands.push({ low: joined[at + 1], high: joined[at + 2], color: pool.color });
    at += table.length - 1;
  });
  chart(id, { title, ...more }).set({ x: joined[0], series, bands });
}

function show() {
  showChosen();
  const any = curves().length > 0;
  byId("empty").hidden = any;
  if (!any) {
    for (const made of charts.values()) board.remove(made);
    charts.clear();
    return;
  }
  const all = [...state.data.values()].filter(Boolean);
  const keys = new Set(all.flatMap((data) => Object.keys(data.columns)));
  const outcome = all.map((data) => data.main_outcome).find(Boolean);
  showQuantity("return", "Return in training", fromColumn("rollout/ep_rew_mean"), { wide: true });
  showQuantity("eval", "Return in evaluations", fromEvals((result) => result.return_mean), { wide: true, dots: true });
  if (outcome) {
    showQuantity("won", `${outcome} in training`, fromColumn(`outcome/${outcome}`), { percent: true });
    showQuantity("eval-won", `${outcome} in evaluations`, fromEvals((result) => own(result.outcomes || {}, outcome)?.rate), { percent: true, dots: true });
  }
  const ends = all.map((data) => xOf(data).at(-1)).filter((x) => typeof x === "number");
  byId("shortest").hidden = !(Math.min(...ends) < 0.8 * Math.max(...ends));
  byId("shortest").onclick = () => board.setZoom(0, Math.min(...ends));
  for (const { name: key } of state.docs.filter((doc) => doc.charts.includes("compare"))) {
    if (keys.has(key)) showQuantity(key, nameOf(key), fromColumn(key));
  }
}

function showChosen() {
  const entries = [...state.runs.map((name) => ["runs", name]), ...state.groups.map((name) => ["groups", name])];
  const labels = curves().map((curve) => curve.label);
  byId("chosen").replaceChildren(
    ...entries.map(([kind, name]) => {
      const index = Math.max(0, labels.indexOf(name));
      const missing = kind === "runs" && state.data.get(name) === null ? " (not found)" : "";
      return make(
        "li", {}, labels.includes(name) ? make("i", { class: `dot ${colorOf(index).slice(2)}` }) : null,
        kind === "runs" ? make("a", { href: `/run/${encodeURIComponent(name)}` }, name + missing) : `${name} (${kindOf(name) ?? "not found"})`,
        make("button", { "aria-label": `Remove ${name}`, onclick: () => { state[kind] = state[kind].filter((each) => each !== name); update(); } }, "\u00d7"),
      );
    }),
  );
}

async function update() {
  const query = [...state.runs.map((name) => ["run", name]), ...state.groups.map((name) => ["group", name])];
  history.replaceState(null, "", `/compare?${new URLSearchParams(query)}`);
  await load();
  show();
  if (state.groups.length && !byId("differences").childElementCount) put(byId("differences"), "The results are being read.");
  const { html } = state.runs.length > 1 || state.groups.length ? await get(`/api/compare?${new URLSearchParams(query)}`) : { html: "" };
  byId("differences").innerHTML = html; // escaped by the server's templates
}

byId("add").addEventListener("change", (event) => {
  const name = event.target.value.trim();
  const isGroup = state.known.groups.some((group) => group.name === name);
  const isRun = state.known.rows.some((row) => row.name === name);
  const kind = isGroup ? "groups" : "runs";
  if ((isRun || isGroup) && !state[kind].includes(name)) {
    state[kind].push(name);
    event.target.value = "";
    update();
  }
});
byId("unzoom").addEventListener("click", () => board.setZoom(null, null));
byId("pool").addEventListener("change", (event) => {
  state.pool = event.target.checked;
  show();
});
wireControls(board, (value) => { state.weight = value; }, show);
const query = new URLSearchParams(location.search);
state.runs = query.getAll("run");
state.groups = query.getAll("group");
try {
  [state.known, state.docs] = await Promise.all([get("/api/runs"), get("/api/metrics")]);
  byId("names").replaceChildren(...[...state.known.groups, ...state.known.rows].map((each) => make("option", { value: each.name })));
  await update();
} catch (error) {
  byId("empty").hidden = false;
  put(byId("empty"), error.message);
}
const old = new Set(); // runs that changed
follow(() => `/events?since=${state.known.version ?? 0}`, {
  runs: (news) => {
    state.known.version = news.version;
    if (news.groups) state.known.groups = news.groups;
    for (const { name } of news.rows) old.add(name);
  },
});
setInterval(async () => {
  if (document.hidden) return;
  const wanted = compared().filter((run) => old.delete(run));
  old.clear();
  if (!wanted.length) return;
  wanted.forEach((run) => state.data.delete(run));
  await load();
  show();
}, EVERY_MS);
