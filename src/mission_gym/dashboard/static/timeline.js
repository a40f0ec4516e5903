// What each role did in the last updates, and how busy each core was.
import { count, draw, make, rate } from "./lib.js";

const ROLES = ["collector", "learner", "main"];
const [LEFT, WIDTH, LANE, GAP, TOP] = [84, 1200, 26, 6, 34];

export function showTimeline(box, { spans, updates }) {
  const text = JSON.stringify(spans || null);
  if (!Array.isArray(spans) || !spans.length || box.dataset.text === text) return;
  box.dataset.text = text;
  const whole = Math.max(...spans.map((span) => span[3])) || 1;
  const title = `Updates ${count(updates?.[0])} to ${count(updates?.[1])}, ${whole.toFixed(2)} s`;
  const height = TOP + ROLES.length * (LANE + GAP) + 8;
  const picture = draw("svg", { class: "lanes", viewBox: `0 0 ${WIDTH} ${height}`, role: "img", "aria-label": `Timeline. ${title}` });
  picture.append(write(title, 12, 21));
  const seen = new Set();
  ROLES.forEach((role, index) => {
    const y = TOP + index * (LANE + GAP);
    const room = WIDTH - LEFT - 12;
    picture.append(write(role, 12, y + 17), draw("rect", { class: "p-idle", x: LEFT, y, width: room, height: LANE, rx: 4 }));
    for (const [owner, phase, start, end] of spans) {
      if (owner !== role || !/^[a-z]+$/.test(phase)) continue;
      seen.add(phase);
      const bar = draw("rect", { class: `p-${phase}`, x: (LEFT + (start / whole) * room).toFixed(1), y, width: Math.max(1, ((end - start) / whole) * room).toFixed(1), height: LANE });
      const tip = draw("title");
      tip.textContent = `${phase} ${(1000 * (end - start)).toFixed(1)} ms`;
      bar.append(tip);
      picture.append(bar);
    }
  });
  const keys = [...seen].map((phase) => make("li", {}, make("i", { class: `dot p-${phase}` }), phase));
  box.replaceChildren(picture, make("ul", { class: "legend keys", "aria-label": "Phases" }, ...keys));
}

function write(text, x, y) {
  const words = draw("text", { x, y });
  words.textContent = text;
  return words;
}

export function showCores(box, cores) {
  const busy = (Array.isArray(cores) ? cores : []).filter((each) => typeof each === "number");
  box.hidden = !busy.length;
  const text = JSON.stringify(busy);
  if (!busy.length || box.dataset.text === text) return;
  box.dataset.text = text;
  const bars = busy.map((share, core) => make(
    "li", {}, make("span", {}, `core ${core}`),
    make("progress", { max: 1, value: Math.min(1, share), "aria-label": `core ${core} is busy ${rate(share)} of the time` }),
    make("b", {}, rate(share)),
  ));
  box.replaceChildren(make("h3", {}, "CPU per core, last seconds before the timeline"), make("ul", {}, ...bars));
}
