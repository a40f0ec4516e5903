// The Run page: four answers, live charts, and panels that the server renders.
import { showAnswers } from "./answers.js";
import { Board, wireControls } from "./chart.js";
import { follow, get, put } from "./lib.js";
import { showCharts } from "./run-charts.js";
import { run, view } from "./run-data.js";

const byId = (id) => document.getElementById(id);
const name = byId("run").dataset.name;
const api = `/api/run/${encodeURIComponent(name)}`;
const MAX_ROWS = 5000; // in the page; beyond it the run is sampled again
let queue = Promise.resolve();

const board = new Board(name, (zoom) => {
  byId("unzoom").hidden = zoom === null;
  refine(zoom);
});

function show() {
  const there = run.columns.step.length > 0;
  byId("empty").hidden = there;
  put(byId("empty"), run.status.state === "failed" ? "No rows: the run failed before its first update." : `No rows yet: the first one follows the first update. The run is ${run.status.state || "unknown"}.`);
  put(byId("sampled"), run.isSample && !run.detail ? "a sample of a long run; zoom in for every row" : "");
  for (const id of ["episodes", "learning-metrics", "machine-use"]) byId(id).hidden = !there; // no headings over nothing
  showAnswers();
  if (!there) return;
  view.byTime = board.byTime;
  showCharts(board);
  filter();
}

// Shows the charts whose names have all words of the search.
function filter() {
  const words = byId("search").value.toLowerCase().split(/\s+/).filter(Boolean);
  for (const figure of document.querySelectorAll("figure.chart")) figure.hidden = figure.isFolded || !words.every((word) => figure.dataset.search.includes(word));
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
  const [document_, docs] = await Promise.all([get(api), view.docs.length ? view.docs : get("/api/metrics")]);
  view.docs = docs;
  const { columns, status, end, is_sample: isSample } = document_;
  Object.assign(run, { columns: { step: [], ...columns }, status, end, isSample, detail: null });
  setContext(document_);
  show();
}

// The data of the charts that are not rows; a new run does not have them yet.
function setContext({ evals, baselines, best, main_outcome: main, stages }) {
  Object.assign(run, { evals, baselines, best, main, stages });
}

// Every row of the zoomed range of a long run.
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
  const { panels, ...context } = await get(`${api}/panels`);
  setContext(context);
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

// Values that templates do not have: addresses of videos and runs, and the main outcome.
function wire() {
  for (const video of document.querySelectorAll("[data-video]:not([src])")) video.src = `${api}/video/${encodeURIComponent(video.dataset.video)}`;
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

byId("search").addEventListener("input", filter);
wireControls(board, (value) => { view.weight = value; }, show);
document.addEventListener("click", ({ target }) => {
  const place = target.closest?.("a[href^='#']")?.getAttribute("href").slice(1);
  if (place) byId(place)?.closest("details")?.setAttribute("open", ""); // unfold it
});
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
