// Groups of runs, and the queue of jobs.
import { count, make, number, put } from "./lib.js";

const SHOWN = 6; // groups and jobs before "Show all"
const STATES = ["done", "running", "starting", "queued", "stopped", "failed"];
const RUNNING = new Set(["running", "starting"]);
const byId = (id) => document.getElementById(id);
let groups = [];
let groupOfRun = new Map();
const all = { groups: false, jobs: false };

export const groupOf = (run) => groupOfRun.get(run) || null;

const countsOf = (jobs) => STATES.map((state) => [state, jobs.filter((job) => job.state === state).length]).filter(([, number]) => number);
const showCounts = (counts) => counts.map(([state, number]) => `${count(number)} ${state}`).join(", ");

export function showGroups(news) {
  groups = [...news].sort((a, b) => (b.created || 0) - (a.created || 0));
  groupOfRun = new Map(groups.flatMap((group) => group.runs.map((run) => [run, group.name])));
  drawGroups();
}

function drawGroups() {
  const box = byId("groups");
  box.hidden = !groups.length;
  const shown = all.groups ? groups : groups.slice(0, SHOWN);
  box.querySelector(".cards").replaceChildren(...shown.map(card));
  put(box.querySelector("h2 span"), count(groups.length));
  offerAll(box.querySelector("button.more"), "groups", groups.length, drawGroups);
}

// A button that shows the rest.
function offerAll(button, kind, number, redraw) {
  button.hidden = all[kind] || number <= SHOWN;
  put(button, `Show all ${count(number)}`);
  button.onclick = () => {
    all[kind] = true;
    redraw();
  };
}

function card(group) {
  const counts = countsOf(group.jobs);
  const result = group.problem || resultOf(group);
  return make(
    "article", { class: "group" },
    make("a", { href: `/compare?${new URLSearchParams([["group", group.name]])}` }, group.name),
    make("span", { class: `badge ${group.problem ? "failed" : ""}` }, group.kind || "group"),
    make("p", { class: group.problem ? "bad" : "result" }, result),
    counts.length ? bar(counts, group.jobs.length) : null,
    make("small", {}, counts.length ? showCounts(counts) : `${count(group.runs.length)} runs`),
  );
}

// Runs of one variant have a mean; several variants are compared on the group's page.
function resultOf(group) {
  const variants = new Set(group.jobs.map((job) => job.variant));
  if (group.kind === "sweep") return typeof group.best_score === "number" ? `best ${number(group.best_score)}` : "no result yet";
  if (variants.size > 1) return `${count(variants.size)} variants`;
  if (typeof group.low === "number") return `IQM of the return ${number(group.iqm)} (95 %: ${number(group.low)} to ${number(group.high)})`;
  const values = group.values || [];
  if (!values.length) return "no result yet";
  return values.length < 5 ? `return ${values.map(number).join(", ")}` : `mean return ${number(group.mean)}`;
}

// Jobs that have started but have no run yet.
export const countStarting = (rows) => groups.flatMap((group) => group.jobs).filter((job) => RUNNING.has(job.state) && !rows.has(job.run)).length;

function bar(counts, whole) {
  const parts = counts.map(([state, number]) => {
    const part = make("i", { class: `part ${state}` });
    part.style.flexGrow = number / whole;
    return part;
  });
  return make("div", { class: "parts", role: "img", "aria-label": showCounts(counts) }, ...parts);
}

// Running jobs, waiting jobs in the order of their start, and failed jobs.
export function showQueue(rows) {
  const box = byId("queue");
  const jobs = groups.flatMap((group) => group.jobs.map((job) => ({ ...job, group: group.name })));
  const live = jobs.filter((job) => RUNNING.has(job.state) || job.state === "queued");
  const rank = (job) => (RUNNING.has(job.state) ? 0 : 1);
  const waiting = live.sort((a, b) => rank(a) - rank(b) || (rank(a) ? b.priority - a.priority : 0));
  const withWork = new Set(live.map((job) => job.group));
  const failed = jobs.filter((job) => job.state === "failed" && withWork.has(job.group));
  const listed = [...waiting, ...failed];
  box.hidden = !live.length;
  if (!live.length) return;
  put(box.querySelector("h2 span"), showCounts(countsOf(listed)));
  const shown = all.jobs ? listed : listed.slice(0, SHOWN);
  const text = JSON.stringify([shown, shown.map((job) => rows.get(job.run)?.step)]);
  offerAll(box.querySelector("button.more"), "jobs", listed.length, () => showQueue(rows));
  if (box.dataset.text === text) return; // a link that has the focus stays
  box.dataset.text = text;
  box.querySelector("tbody").replaceChildren(...shown.map((job) => line(job, rows.get(job.run))));
}

function line(job, row) {
  const tries = job.attempts > 1 ? `try ${job.attempts}` : null;
  const waits = job.waits_for ? `waits for ${job.waits_for}` : null;
  const priority = job.priority ? `priority ${job.priority}` : null;
  const why = [waits, priority, tries, job.cause].filter(Boolean).join("; ");
  const name = job.run ? make("a", { href: `/run/${encodeURIComponent(job.run)}` }, job.name) : job.name;
  const done = row?.total ? `${Math.floor((100 * (row.step || 0)) / row.total)} %` : "";
  return make(
    "tr", {},
    make("td", {}, name, make("br"), make("small", {}, job.group)),
    make("td", {}, make("span", { class: `badge ${job.state}` }, job.state)),
    make("td", { class: "n", "data-label": "Done" }, done),
    make("td", { class: "n", "data-label": "Cores" }, job.cores ? count(job.cores) : ""),
    make("td", { class: "why" }, why),
  );
}
