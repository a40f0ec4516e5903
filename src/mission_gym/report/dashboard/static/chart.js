// A chart: lines, stacks and bands over a common x, marks with intervals, dashed levels, vertical lines with
// labels, a healthy range.
//
// All charts of a page share their cursor and their zoom. A zoom stays when points are added.
import { bytes, duration, make, number, put, short } from "./lib.js";

const COLORS = 8;
const MOST_LEGEND_PX = 84;
const NEAR = "400px"; // charts this far outside the window are drawn
const fontSize = () => parseFloat(style("--chart-font")) || 12;
const style = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
export const colorOf = (index) => `--c${index % COLORS}`;

// The same colour for an outcome on every page and in reports: green for the main one, then warm ones.
const OUTCOME_COLORS = [2, 1, 4, 5, 3, 7, 6, 0];
export const outcomeColor = (index, hasMain) => colorOf(OUTCOME_COLORS[(index + (hasMain ? 0 : 1)) % COLORS]);
export const orderOutcomes = (names, main) => [...new Set([main, ...names])].filter((name) => name && (name !== main || names.includes(name)));

export class Board {
  // The charts of one page, and their shared state.
  // name: of the files that are downloaded.
  constructor(name, onZoom = () => {}) {
    this.name = name;
    this.charts = [];
    this.byTime = false;
    this.zoom = null;
    this.onZoom = onZoom;
    this.key = uPlot.sync("board");
    const redraw = () => this.charts.forEach((chart) => chart.rebuild());
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", redraw);
    this.sizes = new ResizeObserver((entries) => {
      for (const entry of entries) entry.target.chart?.fit();
    });
    this.sights = new IntersectionObserver((entries) => {
      for (const entry of entries) entry.target.chart?.see(entry.isIntersecting);
    }, { rootMargin: NEAR });
    addEventListener("beforeprint", () => this.charts.forEach((chart) => chart.see(true)));
  }

  add(options) {
    const chart = new Chart(this, options);
    this.charts.push(chart);
    return chart;
  }

  remove(chart) {
    chart.destroy();
    this.charts = this.charts.filter((each) => each !== chart);
  }

  setZoom(low, high) {
    this.zoom = low === null ? null : [low, high];
    for (const chart of this.charts) chart.applyZoom();
    this.onZoom(this.zoom);
  }

  setAcross(byTime) {
    this.byTime = byTime;
    this.setZoom(null, null);
  }
}

class Chart {
  constructor(board, { into, title, about = "", wide = false, percent = false, unit = "", key = "" }) {
    this.board = board;
    this.isLog = false;
    this.percent = percent;
    this.unit = unit;
    this.title = title;
    this.data = null;
    this.plot = null;
    this.isSeen = false;
    this.isOld = false;
    this.now = make("span");
    this.legend = make("ul", { class: "legend" });
    this.canvas = make("div", { class: "canvas" });
    this.about = make("p", { class: "about" }, about);
    this.figure = make(
      "figure",
      { class: wide ? "chart wide" : "chart", tabindex: "0", role: "img", "aria-label": title },
      make("h3", {}, make("span", { class: "title", title }, title), this.now, this.makeButtons()), this.legend, this.canvas, about ? this.about : null,
    );
    this.figure.dataset.search = `${title} ${key}`.toLowerCase();
    this.figure.chart = this;
    this.figure.addEventListener("keydown", (event) => this.press(event));
    into.append(this.figure);
    board.sizes.observe(this.figure);
    board.sights.observe(this.figure);
  }

  makeButtons() {
    const log = make("button", { class: "tool", "aria-pressed": "false", title: "Logarithmic axis", onclick: () => {
      this.isLog = !this.isLog;
      log.setAttribute("aria-pressed", this.isLog);
      this.rebuild();
      this.showValues(null);
    } }, "log");
    const csv = make("button", { class: "tool", title: "Download the data as CSV", onclick: () => saveText(`${this.board.name}-${this.title}.csv`, this.makeCsv()) }, "CSV");
    return make("span", { class: "tools-of" }, this.percent ? null : log, csv);
  }

  // The lines of the chart by column, then its marks.
  makeCsv() {
    const { x, series, marks = [] } = this.data;
    const across = this.board.byTime ? "seconds" : "step";
    const rows = [[across, ...series.map((each) => each.label)], ...x.map((at, row) => [at, ...series.map((each) => each.values[row])])];
    if (marks.length) rows.push([], [across, "value", "low", "high", "label"], ...marks.map((mark) => [mark.x, mark.y, mark.low, mark.high, mark.label]));
    return rows.map((row) => `${row.map(toCell).join(",")}\r\n`).join("");
  }

  // A chart is drawn when it comes near the window.
  see(isSeen) {
    this.isSeen = isSeen;
    if (isSeen && this.isOld) this.update();
  }

  // data: {x, series: [{label, values, color, dashed, faint}], stacked, marks: [{x, y, low, high, label, color}],
  // levels: [{label, value}], beginnings: [{x, label}], healthy: [low, high], bands: [{low, high, color}]}
  set(data) {
    this.data = data;
    this.isOld = true;
    if (this.isSeen) this.update();
  }

  update() {
    const { data } = this;
    this.isOld = false;
    this.shown = data.stacked ? stack(data.series) : data.series.map((each) => each.values);
    for (const band of data.bands || []) this.shown.push(band.low, band.high);
    if (!this.plot || this.signature() !== this.built) this.rebuild();
    else this.plot.setData([data.x, ...this.shown], this.board.zoom === null);
    if (this.board.zoom !== null) this.applyZoom();
    this.showValues(null);
  }

  signature() {
    const { series, stacked, bands = [] } = this.data;
    return JSON.stringify([series.map((each) => [each.label, each.color, each.dashed]), stacked, bands.length]);
  }

  rebuild() {
    if (!this.data || !this.shown) return;
    this.plot?.destroy();
    const { series, stacked, bands = [] } = this.data;
    const quiet = style("--quiet");
    const line = style("--line");
    const axis = { stroke: quiet, grid: { stroke: line, width: 1 }, ticks: { show: false }, font: `${fontSize()}px system-ui` };
    const lines = series.map((each) => ({
      label: each.label,
      stroke: style(each.color),
      width: each.faint ? 1 : 2,
      dash: each.dashed ? [5, 4] : undefined,
      fill: stacked ? `${style(each.color)}cc` : undefined,
      points: { show: each.dots || ((plot, index) => plot.data[index].filter((value) => value !== null && value !== undefined).length < 2), size: 7 },
      spanGaps: true,
    }));
    const hidden = { stroke: "transparent", points: { show: false }, spanGaps: true };
    const first = lines.length + 1;
    const fills = bands.map((band, index) => ({
      series: [first + 2 * index + 1, first + 2 * index], fill: `${style(band.color)}2e`,
    }));
    const piles = stacked ? series.slice(1).map((_, index) => ({ series: [index + 2, index + 1] })) : [];
    const percent = this.percent;
    this.plot = new uPlot(
      {
        width: Math.max(120, this.canvas.clientWidth),
        height: this.canvas.clientHeight || 200,
        legend: { show: false },
        cursor: { sync: { key: "board", setSeries: false }, drag: { x: true, y: false }, points: { size: 6 }, focus: { prox: 1e3 } },
        scales: { x: { time: false }, y: { distr: this.hasLog() ? 3 : 1, range: (plot, low, high) => this.range(plot, low, high) } },
        axes: [
          { ...axis, values: (plot, ticks) => ticks.map((tick) => (this.board.byTime ? duration(tick) : short(tick))), space: 64, size: 2.5 * fontSize() },
          { ...axis, values: (plot, ticks) => ticks.map((tick) => (percent ? `${Math.round(100 * tick)} %` : this.unit === "bytes" ? bytes(tick) : short(tick) + this.unit)), size: 4.7 * fontSize(), space: 34 },
        ],
        series: [{}, ...lines, ...bands.flatMap(() => [hidden, hidden])],
        bands: [...piles, ...fills],
        hooks: {
          drawAxes: [(plot) => this.paintRange(plot)],
          draw: [(plot) => this.paintMarks(plot)],
          setCursor: [(plot) => this.showValues(plot.cursor.idx)],
          setSelect: [(plot) => this.select(plot)],
          ready: [(plot) => plot.over.addEventListener("dblclick", () => this.board.setZoom(null, null))],
        },
      },
      [this.data.x, ...this.shown],
      this.canvas,
    );
    this.built = this.signature();
    this.canvas.setAttribute("aria-hidden", "true");
    this.applyZoom();
  }

  // A logarithmic axis needs positive values.
  hasLog() {
    return this.isLog && this.shown.every((values) => values.every((value) => value === null || value === undefined || value > 0));
  }

  range(plot, low, high) {
    const { marks = [], levels = [] } = this.data;
    const { min, max } = plot.scales.x;
    for (const mark of marks) {
      if (min !== null && (mark.x < min || mark.x > max)) continue;
      for (const value of [mark.y, mark.low, mark.high]) {
        if (typeof value === "number") [low, high] = [Math.min(low ?? value, value), Math.max(high ?? value, value)];
      }
    }
    for (const { value } of levels) [low, high] = [Math.min(low ?? value, value), Math.max(high ?? value, value)];
    if (this.percent) return [0, Math.max(1, high ?? 1)];
    if (this.hasLog()) return low > 0 ? uPlot.rangeLog(low, high, 10, true) : [0.1, 1];
    if (this.data.stacked || this.data.fromZero) low = Math.min(0, low ?? 0);
    if (low === null || low === undefined) return [0, 1];
    return uPlot.rangeNum(low, high === low ? low + (Math.abs(low) || 1) * 0.1 : high, 0.08, true);
  }

  paintRange(plot) {
    const healthy = this.data.healthy;
    if (!healthy) return;
    const { ctx } = plot;
    const { left, top, width, height } = plot.bbox;
    const place = (value) => Math.min(top + height, Math.max(top, plot.valToPos(value, "y", true)));
    ctx.save();
    ctx.fillStyle = `${style("--bad")}1f`;
    const [low, high] = healthy;
    if (high !== null) ctx.fillRect(left, top, width, place(high) - top);
    if (low !== null) ctx.fillRect(left, place(low), width, top + height - place(low));
    ctx.restore();
  }

  paintMarks(plot) {
    const { ctx } = plot;
    const { left, top, width, height } = plot.bbox;
    const { marks = [], levels = [], beginnings = [] } = this.data;
    const size = devicePixelRatio;
    ctx.save();
    ctx.beginPath();
    ctx.rect(left, top - 4 * size, width + 4 * size, height + 8 * size);
    ctx.clip();
    ctx.textAlign = "left";
    ctx.font = `600 ${0.92 * fontSize() * size}px system-ui`;
    let room = top; // the names of levels go down from the highest, each with its own line
    for (const level of [...levels].sort((one, other) => other.value - one.value)) {
      const y = plot.valToPos(level.value, "y", true);
      ctx.lineWidth = 1.5 * size;
      ctx.strokeStyle = style("--quiet");
      ctx.setLineDash([4 * size, 4 * size]);
      ctx.beginPath();
      ctx.moveTo(left, y);
      ctx.lineTo(left + width, y);
      ctx.stroke();
      ctx.setLineDash([]);
      ctx.textAlign = "right";
      const at = Math.max(y - top < 18 * size ? y + 14 * size : y - 5 * size, room + 14 * size);
      room = at;
      const place = [left + width - 6 * size, Math.min(at, top + height - 3 * size)];
      ctx.lineWidth = 5 * size; // a rim keeps the text readable across lines
      ctx.lineJoin = "round";
      ctx.strokeStyle = style("--card");
      ctx.strokeText(level.label, ...place);
      ctx.fillStyle = style("--quiet");
      ctx.fillText(level.label, ...place);
    }
    let free = left; // where a label has room
    const places = beginnings.map(({ x }) => plot.valToPos(x, "x", true));
    for (const [index, { label }] of beginnings.entries()) {
      const at = places[index];
      ctx.strokeStyle = ctx.fillStyle = style("--quiet");
      ctx.setLineDash([2 * size, 4 * size]);
      ctx.beginPath();
      ctx.moveTo(at, top);
      ctx.lineTo(at, top + height);
      ctx.stroke();
      const from = Math.max(at, left); // labels of earlier beginnings stay at the left edge
      if (from < free || from > left + width || places[index + 1] <= left) continue;
      ctx.fillText(label, from + 4 * size, top + 11 * size);
      free = from + 8 * size + ctx.measureText(label).width;
    }
    ctx.setLineDash([]);
    for (const mark of marks) {
      const [x, y] = [plot.valToPos(mark.x, "x", true), plot.valToPos(mark.y, "y", true)];
      ctx.strokeStyle = style(mark.color);
      ctx.fillStyle = style("--card");
      ctx.lineWidth = 2 * size;
      if (typeof mark.low === "number") {
        ctx.beginPath();
        ctx.moveTo(x, plot.valToPos(mark.low, "y", true));
        ctx.lineTo(x, plot.valToPos(mark.high, "y", true));
        ctx.stroke();
      }
      ctx.beginPath();
      ctx.arc(x, y, 3.5 * size, 0, 2 * Math.PI);
      ctx.fill();
      ctx.stroke();
    }
    ctx.restore();
  }

  // The legend shows the values at the cursor, or the last ones; its entries never move.
  showValues(index) {
    const { x, series, marks = [], levels = [], beginnings = [] } = this.data;
    const at = index ?? x.length - 1;
    const show = (value) => {
      if (typeof value !== "number") return number(value);
      if (this.percent) return `${(100 * value).toFixed(1)} %`;
      return this.unit === "bytes" ? bytes(value) : number(value) + this.unit;
    };
    const last = (values) => {
      for (let i = at; i >= 0; i--) if (values[i] !== null && values[i] !== undefined) return values[i];
      return null;
    };
    const entries = series.map((each) => [each.color, each.label, show(last(each.values))]);
    const labels = new Map();
    for (const mark of marks) {
      if (index === null || index === undefined || mark.x <= x[at]) labels.set(mark.label, mark);
    }
    for (const [label, mark] of labels) {
      const bounds = typeof mark.low === "number" ? ` (${show(mark.low)} to ${show(mark.high)})` : "";
      entries.push([mark.color, label, show(mark.y) + bounds]);
    }
    this.legend.classList.toggle("lone", entries.length < 2);
    while (this.legend.children.length > entries.length) this.legend.lastChild.remove();
    while (this.legend.children.length < entries.length) this.legend.append(make("li", {}, make("i"), make("span"), " ", make("b")));
    entries.forEach(([color, label, text], i) => {
      const [chip, name, value] = this.legend.children[i].children;
      chip.className = `dot ${color.slice(2)}`;
      put(name, label);
      put(value, text);
    });
    // It grows with its lines and never shrinks, so that the charts stay where they are.
    const needed = Math.min(this.legend.scrollHeight, MOST_LEGEND_PX);
    if (needed > (this.legend.offsetHeight || needed)) this.legend.style.minHeight = `${needed}px`;
    const where = x.length ? (this.board.byTime ? duration(x[at]) : `step ${short(x[at])}`) : "";
    const alone = entries.length === 1 ? `${entries[0][2]}` : "";
    put(this.now, index === null || index === undefined ? alone : [alone, where].filter(Boolean).join(" at "));
    if (index === null || index === undefined) {
      const words = [...entries.map((entry) => `${entry[1]} ${entry[2]}`), ...levels.map((level) => `${level.label} ${show(level.value)}`), ...beginnings.map(({ x: from, label }) => `${label} from ${this.board.byTime ? duration(from) : short(from)} on`)];
      this.figure.setAttribute("aria-label", `${this.title}: ${words.join(", ")}. Plus and minus zoom, arrows move, 0 shows all.`);
    }
  }

  select(plot) {
    const { left, width } = plot.select;
    if (width < 4) return;
    this.board.setZoom(plot.posToVal(left, "x"), plot.posToVal(left + width, "x"));
    plot.setSelect({ left: 0, width: 0, top: 0, height: 0 }, false);
  }

  applyZoom() {
    if (!this.plot || !this.data.x.length) return;
    const [min, max] = this.board.zoom || [this.data.x[0], this.data.x.at(-1)];
    if (min === max) return;
    this.plot.setScale("x", { min, max });
  }

  press(event) {
    const whole = [this.data?.x[0], this.data?.x.at(-1)];
    const [low, high] = this.board.zoom || whole;
    const span = high - low;
    const moves = {
      "+": [low + span / 4, high - span / 4], "=": [low + span / 4, high - span / 4],
      "-": [low - span / 2, high + span / 2],
      ArrowLeft: [low - span / 5, high - span / 5], ArrowRight: [low + span / 5, high + span / 5],
      0: [null, null], Escape: [null, null],
    };
    const move = moves[event.key];
    if (!move || !(span > 0) || event.ctrlKey || event.metaKey) return;
    event.preventDefault();
    const covers = move[0] !== null && move[0] <= whole[0] && move[1] >= whole[1];
    this.board.setZoom(...(covers ? [null, null] : move));
  }

  fit() {
    if (!this.plot || !this.canvas.clientWidth) return;
    const size = { width: this.canvas.clientWidth, height: this.canvas.clientHeight };
    if (size.width !== this.plot.width || size.height !== this.plot.height) this.plot.setSize(size);
  }

  destroy() {
    this.plot?.destroy();
    this.board.sizes.unobserve(this.figure);
    this.board.sights.unobserve(this.figure);
    this.figure.remove();
  }
}

// A cell of a CSV file; text can't become a formula.
function toCell(value) {
  if (value === null || value === undefined) return "";
  if (typeof value === "number") return String(value);
  const text = /^[=+\-@\t\r]/.test(value) ? `'${value}` : value;
  return /[",\r\n]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text;
}

function saveText(name, text) {
  const address = URL.createObjectURL(new Blob([text], { type: "text/csv" }));
  make("a", { href: address, download: name.replace(/[^\w.-]+/g, "-") }).click();
  setTimeout(() => URL.revokeObjectURL(address), 1000);
}

function stack(series) {
  const sums = [];
  let below = null;
  for (const each of series) {
    below = each.values.map((value, index) => (value ?? 0) + (below ? below[index] : 0));
    sums.push(below);
  }
  return sums;
}

// An exponential moving average without initial bias; weight 0 returns the values.
export function smooth(values, weight) {
  if (!weight) return values;
  let [mean, power] = [0, 1];
  return values.map((value) => {
    if (value === null || value === undefined) return null;
    mean = weight * mean + (1 - weight) * value;
    power *= weight;
    return mean / (1 - power);
  });
}

// The controls above the charts: the x axis and the smoothing.
export function wireControls(board, setWeight, show) {
  const [byStep, byTime] = ["by-step", "by-time"].map((id) => document.getElementById(id));
  const choose = (isTime) => {
    byStep.setAttribute("aria-pressed", !isTime);
    byTime.setAttribute("aria-pressed", isTime);
    board.setAcross(isTime);
    show();
  };
  byStep.addEventListener("click", () => choose(false));
  byTime.addEventListener("click", () => choose(true));
  document.getElementById("smooth").addEventListener("input", ({ target }) => {
    put(target.nextElementSibling, target.value);
    setWeight(Number(target.value));
    show();
  });
}
