// The Runs page: a live table with a filter, an order, a lineage tree and a selection.
import { countStarting, groupOf, showGroups, showQueue } from "./groups.js";
import { MISSING, ago, count, draw, duration, follow, get, make, number, own, put, rate, stallOf, stateOf, wordsOf } from "./lib.js";

const PAGE = 200; // rows shown at once
const byId = (id) => document.getElementById(id);
const rows = new Map();
const chosen = new Set();
const state = { sort: "created", down: true, filter: "", only: "", limit: PAGE, tree: false, version: 0, problem: "" };

const outcomeOf = (row) => {
  const rates = row.outcomes || {};
  const name = own(rates, row.main) === undefined ? Object.keys(rates)[0] : row.main;
  return name === undefined ? null : [name, rates[name]];
};
const COLUMNS = [
  { key: "pick", title: "", cell: pick },
  { key: "name", title: "Run", value: (row) => row.name, cell: named },
  { key: "state", title: "State", value: (row) => row.state || "", cell: stated },
  { key: "step", title: "Steps", number: true, value: (row) => row.step, cell: stepped },
  { key: "return", title: "Return", number: true, value: (row) => row.return_mean, cell: (row) => [number(row.return_mean)] },
  { key: "best", title: "Best", number: true, value: (row) => row.best_rate ?? row.best_return, cell: best },
  { key: "spark", title: "", cell: (row) => [spark(row.spark)] },
  { key: "outcome", title: "Outcome", number: true, value: (row) => outcomeOf(row)?.[1] ?? null, cell: won },
  { key: "fps", title: "Steps/s", number: true, value: (row) => row.fps, cell: (row) => [count(stateOf(row).alive ? row.now_fps ?? row.fps : row.train_fps ?? row.fps)] },
  { key: "eta", title: "Time left", number: true, value: (row) => row.eta_s, cell: (row) => [stateOf(row).alive ? duration(row.eta_s) : ""] },
  { key: "created", title: "Started", number: true, value: (row) => row.created, cell: (row) => [ago(row.created)] },
];

function pick(row) {
  const box = make("input", { type: "checkbox", "aria-label": `Compare ${row.name}`, onchange: () => choose(row.name, box.checked) });
  box.checked = chosen.has(row.name);
  return [box];
}

function named(row, depth) {
  const [, stem, stamp] = row.name.match(/^(.*?)(-\d{8}-\d{6}(?:-\d+)?)?$/); // the time of the start is in a column, too
  const link = make("a", { href: `/run/${encodeURIComponent(row.name)}`, title: row.name }, stem || row.name, stem && stamp ? make("small", { class: "stamp" }, stamp) : "");
  const branch = depth ? `${"\u00a0".repeat(4 * depth - 3)}\u2514 ` : "";
  const group = groupOf(row.name);
  const about = [row.env, row.algo, group && `group ${group}`, row.parent && !depth && `branch of ${row.parent}`];
  return [branch, link, make("br"), make("small", {}, about.filter(Boolean).join(", "))];
}

function stated(row) {
  const { name, alive } = stateOf(row);
  const title = [row.cause, alive ? `heartbeat ${ago(row.heartbeat)}` : null].filter(Boolean).join("; ");
  const still = stallOf(row);
  const words = still === null || name === "silent" ? wordsOf(row) : `no step for ${duration(still)}`;
  return [make("span", { class: `badge ${still === null ? name : "silent"}`, title }, words)];
}

function stepped(row) {
  const share = row.total ? Math.min(1, (row.step || 0) / row.total) : 0;
  const { name } = stateOf(row);
  const about = `${rate(share)} of ${count(row.total)} steps`;
  return [count(row.step), make("progress", { class: name, max: 1, value: name === "done" ? 1 : share, "aria-label": about, title: about })];
}

function won(row) {
  const outcome = outcomeOf(row);
  return outcome ? [rate(outcome[1]), " ", make("br"), make("small", {}, outcome[0])] : [""];
}

// The best evaluation: the rate of its main outcome, else its return.
function best(row) {
  if (typeof row.best_rate === "number") return [rate(row.best_rate), " ", make("br"), make("small", {}, `at ${count(row.best_step)}`)];
  return typeof row.best_return === "number" ? [number(row.best_return), " ", make("br"), make("small", {}, `at ${count(row.best_step)}`)] : [""];
}

export function spark(values) {
  const [width, height] = [92, 26];
  const image = draw("svg", { width, height, viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": "return over the run" });
  const points = (values || []).map((value, index) => [index, value]).filter(([, value]) => typeof value === "number");
  if (points.length < 2) return image;
  const all = points.map(([, value]) => value);
  const [low, high] = [Math.min(...all), Math.max(...all)];
  const place = ([index, value]) => [
    3 + (index / (values.length - 1)) * (width - 8),
    high > low ? height - 4 - ((value - low) / (high - low)) * (height - 8) : height / 2,
  ].map((each) => each.toFixed(1));
  const placed = points.map(place);
  image.append(draw("polyline", { class: "spark", points: placed.map((each) => each.join(",")).join(" ") }));
  const [x, y] = placed.at(-1);
  image.append(draw("circle", { class: "sparkdot", cx: x, cy: y, r: 2.2 }));
  return image;
}

function choose(name, yes) {
  if (yes) chosen.add(name);
  else chosen.delete(name);
  const link = byId("compare");
  link.href = `/compare?${new URLSearchParams([...chosen].map((each) => ["run", each]))}`;
  link.setAttribute("aria-disabled", chosen.size < 2);
  put(link, chosen.size ? `Compare ${chosen.size}` : "Compare");
}

function ordered() {
  const words = state.filter.toLowerCase().split(/\s+/).filter(Boolean);
  const fits = (row) => {
    if (state.only && stateOf(row).name !== state.only) return false;
    const text = [row.name, row.env, row.algo, row.state, row.parent, groupOf(row.name)].join(" ").toLowerCase();
    return words.every((word) => text.includes(word));
  };
  const column = COLUMNS.find((each) => each.key === state.sort);
  const sign = state.down ? -1 : 1;
  const compare = (one, other) => {
    const [a, b] = [column.value(one), column.value(other)];
    if (a === null || a === undefined || b === null || b === undefined) return (a ?? null) === (b ?? null) ? 0 : (a ?? null) === null ? 1 : -1;
    return sign * (typeof a === "string" ? a.localeCompare(b, "en", { numeric: true }) : a - b);
  };
  const found = [...rows.values()].filter(fits).sort(compare);
  return state.tree ? grow(found) : found.map((row) => [row, 0]);
}

// Children below their parents, each level in the chosen order.
function grow(found) {
  const names = new Set(found.map((row) => row.name));
  const children = new Map();
  for (const row of found) {
    const parent = names.has(row.parent) && row.parent !== row.name ? row.parent : null;
    children.set(parent, [...(children.get(parent) || []), row]);
  }
  const list = [];
  const seen = new Set();
  const visit = (parent, depth) => {
    for (const row of children.get(parent) || []) {
      if (seen.has(row.name)) continue;
      seen.add(row.name);
      list.push([row, depth]);
      visit(row.name, depth + 1);
    }
  };
  visit(null, 0);
  return [...list, ...found.filter((row) => !seen.has(row.name)).map((row) => [row, 0])];
}

const lines = new Map(); // name -> its element and its values

function showTable() {
  const list = ordered();
  const shown = list.slice(0, state.limit);
  const body = document.querySelector("#runs tbody");
  let at = body.firstElementChild;
  const kept = new Set();
  for (const [row, depth] of shown) {
    kept.add(row.name);
    let line = lines.get(row.name);
    if (!line) lines.set(row.name, (line = { element: make("tr"), row: null, depth: 0, tick: 0 }));
    const tick = stateOf(row).alive ? Math.floor(Date.now() / 1000) : Math.floor(Date.now() / 60000);
    if (line.row !== row || line.depth !== depth || line.tick !== tick) {
      fill(line.element, row, depth);
      Object.assign(line, { row, depth, tick });
    }
    if (line.element === at) at = at.nextElementSibling;
    else body.insertBefore(line.element, at);
  }
  for (const [name, line] of lines) {
    if (!kept.has(name)) {
      line.element.remove();
      lines.delete(name);
    }
  }
  const more = byId("more");
  more.hidden = list.length <= state.limit;
  put(more, `Show ${Math.min(PAGE, list.length - state.limit)} more of ${count(list.length)}`);
  const empty = byId("empty");
  empty.hidden = list.length > 0 || state.version === 0;
  document.querySelector("#runs").hidden = !empty.hidden;
  const none = state.problem || "No runs yet. `mission-gym train CartPole-v1` makes one; this page shows it automatically.";
  put(empty, rows.size ? "No run matches the filter." : none);
}

// The cell with the focus is not replaced, so that no click or key is lost.
function fill(element, row, depth) {
  COLUMNS.forEach((column, index) => {
    const old = element.children[index];
    if (old?.contains(document.activeElement)) return;
    const cell = make("td", { class: `of-${column.key}${column.number ? " n" : ""}` }, ...column.cell(row, depth));
    if (["step", "return", "best", "outcome", "fps", "eta", "created"].includes(column.key)) cell.dataset.label = column.title;
    if (old) old.replaceWith(cell);
    else element.append(cell);
  });
}

function showTiles() {
  const counts = new Map();
  for (const row of rows.values()) counts.set(stateOf(row).name, (counts.get(stateOf(row).name) || 0) + 1);
  const alive = [...rows.values()].filter((row) => stateOf(row).alive);
  const pace = alive.reduce((sum, row) => sum + (row.now_fps ?? row.fps ?? 0), 0);
  const starting = countStarting(rows);
  const failed = counts.get("failed") || 0;
  const tiles = [["runs", count(rows.size)], ["running", count(alive.length + starting)], ["steps/s", alive.length ? count(pace) : "0"], ["failed", count(failed)]];
  const box = byId("tiles");
  tiles.forEach(([title, value], index) => {
    if (!box.children[index]) box.append(make("div", { class: "tile" }, make("b"), make("span", {}, title)));
    put(box.children[index].firstChild, value);
    box.children[index].classList.toggle("alert", title === "failed" && failed > 0);
  });
  const names = ["", ...[...counts.keys()].sort()];
  const chips = byId("states");
  if (chips.dataset.names !== names.join()) {
    chips.dataset.names = names.join();
    chips.replaceChildren(
      ...names.map((name) => make("button", { "data-state": name, onclick: () => { state.only = name; state.limit = PAGE; show(); } }, name || "all")),
    );
  }
  for (const chip of chips.children) chip.setAttribute("aria-pressed", chip.dataset.state === state.only);
}

function show() {
  showTiles();
  showTable();
}

function take(news) {
  state.version = news.version;
  state.problem = news.problem;
  for (const row of news.rows) rows.set(row.name, row);
  if (news.names) {
    const names = new Set(news.names);
    for (const name of rows.keys()) if (!names.has(name)) rows.delete(name);
  }
  if (news.groups) {
    showGroups(news.groups);
    lines.forEach((line) => { line.row = null; }); // rows contain the names of groups
  }
  showQueue(rows);
  show();
}

function showHead() {
  document.querySelector("#runs thead tr").replaceChildren(
    ...COLUMNS.map((column) => {
      const cell = make("th", { class: column.number ? "n" : "", scope: "col" });
      if (column.value) {
        const isSorted = state.sort === column.key;
        if (isSorted) cell.setAttribute("aria-sort", state.down ? "descending" : "ascending");
        const arrow = isSorted ? (state.down ? " \u2193" : " \u2191") : "";
        cell.append(make("button", { onclick: () => sortBy(column.key) }, column.title + arrow));
      } else cell.append(make("span", { class: "hidden" }, column.key === "pick" ? "Compare" : "Curve"));
      return cell;
    }),
  );
}

function sortBy(key) {
  state.down = state.sort === key ? !state.down : key !== "name";
  state.sort = key;
  const focus = document.activeElement?.closest?.("th")?.cellIndex;
  showHead();
  if (focus !== undefined) document.querySelectorAll("#runs thead th")[focus].querySelector("button")?.focus();
  show();
}

byId("filter").addEventListener("input", (event) => {
  state.filter = event.target.value;
  state.limit = PAGE;
  show();
});
byId("tree").addEventListener("change", (event) => {
  state.tree = event.target.checked;
  show();
});
byId("more").addEventListener("click", () => {
  state.limit += PAGE;
  show();
});
showHead();
try {
  take(await get("/api/runs"));
} catch (error) {
  put(byId("empty"), error.message);
  byId("empty").hidden = false;
}
follow(() => `/events?since=${state.version}`, { runs: take });
setInterval(() => document.hidden || show(), 5000); // ages of heartbeats
