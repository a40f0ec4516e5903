// Shared by all pages: elements made of plain text, number formats, requests, and the live stream.

export function make(tag, attributes = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (name === "class") element.className = value;
    else if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (value !== null && value !== false) element.setAttribute(name, value === true ? "" : value);
  }
  element.append(...children.filter((child) => child !== null));
  return element;
}

const SVG = "http://www.w3.org/2000/svg";

export function draw(tag, attributes = {}, ...children) {
  const element = document.createElementNS(SVG, tag);
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  element.append(...children);
  return element;
}

export const MISSING = "n/a";
const isNumber = (value) => typeof value === "number" && Number.isFinite(value);

export function count(value) {
  return isNumber(value) ? Math.round(value).toLocaleString("en-US") : MISSING;
}

// Four digits, also of small numbers: 2.5e-4.
function digits(value) {
  const rounded = Number(value.toPrecision(4));
  return rounded && Math.abs(rounded) < 1e-3 ? rounded.toExponential() : String(rounded);
}

export function number(value) {
  if (!isNumber(value)) return MISSING;
  return Math.abs(value) >= 1000 ? count(value) : digits(value);
}

export function short(value) {
  if (!isNumber(value)) return MISSING;
  for (const [size, letter] of [[1e9, "G"], [1e6, "M"], [1e3, "k"]]) {
    if (Math.abs(value) >= size) return `${Number((value / size).toPrecision(4))}${letter}`;
  }
  return digits(value);
}

export function bytes(value) {
  if (!isNumber(value)) return MISSING;
  const [size, unit] = [[1e9, "GB"], [1e6, "MB"], [1e3, "kB"], [1, "B"]].find(([size]) => Math.abs(value) >= size) || [1, "B"];
  return `${Number((value / size).toPrecision(3))} ${unit}`;
}

export function rate(value) {
  return isNumber(value) ? `${(100 * value).toFixed(0)} %` : MISSING;
}

export function duration(seconds) {
  if (!isNumber(seconds)) return MISSING;
  const whole = Math.max(0, Math.round(seconds));
  const [hours, minutes, rest] = [Math.floor(whole / 3600), Math.floor(whole / 60) % 60, whole % 60];
  const pad = (value) => String(value).padStart(2, "0");
  return hours ? `${hours}:${pad(minutes)}:${pad(rest)}` : `${minutes}:${pad(rest)}`;
}

export function ago(unix) {
  if (!isNumber(unix)) return MISSING;
  const seconds = Math.max(0, Date.now() / 1000 - unix);
  for (const [size, word] of [[86400, "d"], [3600, "h"], [60, "min"]]) {
    if (seconds >= size) return `${Math.floor(seconds / size)} ${word} ago`;
  }
  return `${Math.floor(seconds)} s ago`;
}

// A value by a name that comes from a run; names of an object's methods are ignored.
export const own = (values, name) => (Object.hasOwn(values, name) ? values[name] : undefined);

export const SILENT_S = 30; // without a heartbeat of a live run

export function stateOf(row) {
  const alive = row.state === "running" || row.state === "starting";
  const silent = alive && isNumber(row.heartbeat) && Date.now() / 1000 - row.heartbeat > SILENT_S;
  return { name: silent ? "silent" : row.state || MISSING, alive };
}

// What a run does now: its phase while it is alive, with the episodes of an evaluation, else its state.
export function wordsOf(row) {
  const { name, alive } = stateOf(row);
  if (name === "silent") return `silent, ${ago(row.heartbeat)}`;
  if (!alive || !row.phase) return name;
  return isNumber(row.phase_total) ? `${row.phase} ${count(row.phase_done)}/${count(row.phase_total)}` : row.phase;
}

const STALLED_S = 20; // without a step, as in store/rundir.py

// Seconds without a step, if they are many; null otherwise.
export function stallOf(row) {
  const seconds = Date.now() / 1000 - row.moved_at;
  return stateOf(row).alive && isNumber(row.moved_at) && seconds > STALLED_S ? seconds : null;
}

export function put(element, text) {
  if (element.textContent !== text) element.textContent = text;
}

export async function get(path) {
  const response = await fetch(path);
  if (!response.ok) {
    const page = new DOMParser().parseFromString(await response.text(), "text/html");
    throw new Error(page.querySelector(".message p")?.textContent || `the server answered ${response.status}`);
  }
  return response.json();
}

// Follow a stream of events. A hidden page closes its connection, since browsers allow six at once.
export function follow(address, handlers) {
  const light = document.getElementById("link");
  let source = null;
  let timer = 0;
  let wait = 500;
  const show = (state, words) => {
    light.className = `link ${state}`;
    put(light, words);
  };
  const open = () => {
    clearTimeout(timer);
    if (source || document.hidden) return;
    source = new EventSource(address());
    source.onopen = () => {
      wait = 500;
      show("on", "live");
    };
    source.onerror = () => {
      close();
      show("off", "connection lost");
      timer = setTimeout(open, wait);
      wait = Math.min(2 * wait, 5000);
    };
    for (const [name, handle] of Object.entries(handlers)) {
      source.addEventListener(name, (event) => handle(JSON.parse(event.data)));
    }
  };
  const close = () => {
    source?.close();
    source = null;
  };
  document.addEventListener("visibilitychange", () => {
    if (document.hidden) {
      close();
      show("", "paused");
    } else open();
  });
  addEventListener("pagehide", close);
  open();
  return { restart: () => { close(); open(); } };
}

document.addEventListener("click", async (event) => {
  const button = event.target.closest?.("button.copy");
  if (!button) return;
  try {
    await navigator.clipboard.writeText(button.dataset.copy);
    put(button, "Copied");
  } catch {
    getSelection().selectAllChildren(button.previousElementSibling);
    put(button, "Press Ctrl-C");
  }
  setTimeout(() => put(button, "Copy"), 1500);
});
