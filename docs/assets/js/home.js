/* The picture of the home page: a step of training that plays, and where each cell of dW came from.

   The build wrote the arrays of a real step into the page (website/home.py). While the reader
   points at a cell of dW, or has the keyboard on it, the wave stands still. */

import { make, shown } from "../explorer/dom.js";

const SVG = "http://www.w3.org/2000/svg";
const TERMS = 3;
const CALM = 2000; // milliseconds in which the page can finish, and the reader can look

const figure = document.querySelector(".pd-home");
const part = (name) => figure.querySelector(`.step-${name}`);
const { arrays, stages, ring } = JSON.parse(figure.querySelector("script").textContent);
const [lanes, said, table, button] = ["lanes", "said", "terms", "play"].map(part);
const timed = [...figure.querySelectorAll("[data-at]")];
const phases = [...part("phases").children];
const lines = [...part("source").querySelectorAll("[data-line]")];
const threads = document.createElementNS(SVG, "svg");
const last = stages.length - 1;
const stageOf = (name) => stages.findIndex((stage) => stage.name === name);

const still = matchMedia("(prefers-reduced-motion: reduce)").matches;
const state = {
  stage: last,
  left: last,
  playing: !still,
  held: false,
  seen: true,
  marked: null,
  timer: 0,
};
let [layer, i, j] = ring; // the cell that is explained: dW of this layer, row i, column j

// --- names and numbers --------------------------------------------------------------------------

const pretty = (name) => name.replace(/\d/, (digit) => "₁₂₃"[digit - 1]);
const place = (...index) => `[${index.join(", ")}]`;
const fixed = (value) => value.toFixed(4).replace("-", "−");
const tile = (name) => lanes.querySelector(`[data-name="${name}"]`);
const cells = (name) => [...tile(name).querySelector(".step-cells").children];
const at = (name, row, column) => cells(name)[row * arrays[name][0].length + column];

/** The terms of the explained cell, largest first: one for each sample. */
function terms() {
  const dY = arrays[`dY${layer}`];
  return arrays[`X${layer}`]
    .map((row, n) => ({ n, x: row[i], slope: dY[n][j], value: row[i] * dY[n][j] }))
    .sort((a, b) => Math.abs(b.value) - Math.abs(a.value));
}

// --- the explanation ----------------------------------------------------------------------------

function explain() {
  const found = terms();
  const sum = arrays[`dW${layer}`][i][j];
  const share = Math.abs(found[0].value) / found.reduce((all, t) => all + Math.abs(t.value), 0);
  const [W, change] = [arrays[`W${layer}`][i][j], arrays[`step${layer}`][i][j]];
  const weight = `${pretty(`W${layer}`)}${place(i, j)}`;
  said.replaceChildren(
    make("strong", {}, `d${weight} = ${fixed(sum)}`),
    `. It is a sum of ${found.length} terms, one for each sample. The largest, from sample ` +
      `${found[0].n}, has ${Math.round(100 * share)} % of their total size. `,
    `If ${weight} grows by 0.01, the loss ${sum > 0 ? "grows" : "falls"} by about ` +
      `${shown(Math.abs(sum) / 100, 3)}. So the step moves it ${change > 0 ? "up" : "down"}, ` +
      `from ${fixed(W)} to ${fixed(W + change)}.`,
  );
  const rest = found.slice(TERMS).reduce((all, t) => all + t.value, 0);
  const most = Math.abs(found[0].value);
  table.replaceChildren(
    row("th", [
      "sample",
      `${pretty(`X${layer}`)}[n, ${i}] × ${pretty(`dY${layer}`)}[n, ${j}]`,
      "",
      "term",
    ]),
    ...found
      .slice(0, TERMS)
      .map(({ n, x, slope, value }) =>
        row("td", [
          String(n),
          `${shown(x, 3)} × ${shown(slope, 3)}`,
          bar(value, most),
          fixed(value),
        ]),
      ),
    row("td", [`${found.length - TERMS} more`, "", bar(rest, most), fixed(rest)]),
  );
}

const row = (tag, contents) => make("tr", {}, ...contents.map((content) => make(tag, {}, content)));

function bar(value, most) {
  const width = Math.min(100, (100 * Math.abs(value)) / most);
  return make("i", { class: value < 0 ? "n" : "p", style: `width:${width.toFixed(1)}%` });
}

// --- the columns and threads of the explained cell ----------------------------------------------

function mark() {
  const lit = state.held || state.stage >= stageOf(`dW${layer}`);
  const marked = lit && [layer, i, j].join();
  if (marked === state.marked) return;
  state.marked = marked;
  for (const element of lanes.querySelectorAll(".step-lit")) element.classList.remove("step-lit");
  for (const element of lanes.querySelectorAll(".step-tile"))
    element.classList.toggle(
      "step-marked",
      lit && element.dataset.name.match(/^(X|dY)(.)/)?.[2] === `${layer}`,
    );
  threads.replaceChildren();
  if (!lit) return;
  const target = at(`dW${layer}`, i, j);
  target.classList.add("step-lit");
  const columns = [
    [`X${layer}`, i],
    [`dY${layer}`, j],
  ];
  for (const [name, column] of columns)
    for (let n = 0; n < arrays[name].length; n++) at(name, n, column).classList.add("step-lit");
  const found = terms();
  const most = Math.abs(found[0].value);
  for (const { n, value } of found.slice(0, TERMS))
    for (const [name, column] of columns)
      threads.append(thread(at(name, n, column), target, value, Math.abs(value) / most));
}

function thread(from, to, value, share) {
  const box = lanes.getBoundingClientRect();
  const [[x0, y0], [x1, y1]] = [from, to].map((cell) => {
    const { left, top, width, height } = cell.getBoundingClientRect();
    return [left + width / 2 - box.left, top + height / 2 - box.top];
  });
  const middle = (x0 + x1) / 2;
  const path = document.createElementNS(SVG, "path");
  path.setAttribute("class", value < 0 ? "n" : "p");
  path.setAttribute("stroke-width", (1 + 3 * share).toFixed(1));
  path.setAttribute("d", `M${x0} ${y0}C${middle} ${y0} ${middle} ${y1} ${x1} ${y1}`);
  return path;
}

// --- the wave -----------------------------------------------------------------------------------

function show(stage) {
  state.stage = stage;
  figure.dataset.stage = stage;
  for (const element of timed) {
    const when = Number(element.dataset.at);
    element.classList.toggle("step-later", when > stage);
    element.classList.toggle("step-now", when === stage && !state.held && stage < last);
  }
  const { name, phase } = stages[stage];
  phases.forEach((element, k) => element.classList.toggle("step-current", k === phase));
  figure.classList.toggle("step-moved", stage >= stageOf("update"));
  const line = state.held || stage === last ? "dW" : name.slice(0, 2);
  for (const element of lines) element.classList.toggle("step-lit", element.dataset.line === line);
  mark();
}

function go() {
  clearTimeout(state.timer);
  if (!state.playing || state.held || !state.seen) return;
  state.timer = setTimeout(() => {
    show(state.stage === last ? 0 : state.stage + 1);
    go();
  }, stages[state.stage].ms);
}

function play(playing) {
  state.playing = playing;
  button.textContent = playing ? "Pause" : "Play";
  go();
}

/** Explain a cell of dW, and stop the wave. */
function hold(cell) {
  const { name } = cell.closest(".step-tile").dataset;
  const k = cells(name).indexOf(cell);
  const width = arrays[name][0].length;
  [layer, i, j] = [Number(name[2]), Math.floor(k / width), k % width];
  if (!state.held) state.left = state.stage;
  state.held = true;
  figure.classList.add("step-held");
  explain();
  show(last);
  go();
  const hidden = cell.getBoundingClientRect().bottom + 12 - part("why").getBoundingClientRect().top;
  if (hidden > 0 && getComputedStyle(part("why")).position === "sticky") scrollBy(0, hidden);
}

const focused = () => document.activeElement?.closest(".step-live-cells button");

/** Let the wave go on, unless the keyboard is still on a cell. */
function release() {
  if (focused()) {
    hold(focused());
    return;
  }
  if (!state.held) return;
  state.held = false;
  figure.classList.remove("step-held");
  show(state.left);
  go();
}

// --- the reader ---------------------------------------------------------------------------------

const ARROWS = { ArrowLeft: [0, -1], ArrowRight: [0, 1], ArrowUp: [-1, 0], ArrowDown: [1, 0] };

function key(event) {
  const move = ARROWS[event.key];
  if (!move) return;
  event.preventDefault();
  const dW = arrays[`dW${layer}`];
  const next = at(`dW${layer}`, clamp(i + move[0], dW.length), clamp(j + move[1], dW[0].length));
  for (const cell of next.parentElement.children) cell.tabIndex = cell === next ? 0 : -1;
  next.focus();
}

const clamp = (value, length) => Math.max(0, Math.min(length - 1, value));

for (const group of lanes.querySelectorAll(".step-live-cells")) {
  group.addEventListener("pointerover", ({ target, pointerType }) => {
    if (pointerType === "mouse" && target.matches("button")) hold(target);
  });
  group.addEventListener("pointerleave", ({ pointerType }) => {
    if (pointerType === "mouse") release();
  });
  group.addEventListener("click", ({ target }) => target.focus()); // Safari does not by itself
  group.addEventListener("focusin", ({ target }) => hold(target));
  group.addEventListener("focusout", () => setTimeout(release));
  group.addEventListener("keydown", key);
}
lanes.addEventListener("pointerover", ({ target }) => {
  const { name } = target.closest(".step-tile")?.dataset ?? {};
  if (!name || target.title || !target.matches(".step-cells > *")) return;
  const k = cells(name).indexOf(target);
  const width = arrays[name][0].length;
  const index = [Math.floor(k / width), k % width];
  target.title = `${pretty(name)}${place(...index)} = ${shown(arrays[name][index[0]][index[1]], 3)}`;
});
document.addEventListener("keydown", ({ key: pressed }) => {
  if (pressed !== "Escape" || !state.held) return;
  focused()?.blur();
  release();
});
button.addEventListener("click", () => play(!state.playing));
new IntersectionObserver(([entry]) => {
  state.seen = entry.isIntersecting;
  go();
}).observe(lanes);
new ResizeObserver(() => {
  state.marked = null;
  mark();
}).observe(lanes);

threads.setAttribute("class", "step-threads");
threads.setAttribute("aria-hidden", "true");
lanes.append(threads);
button.hidden = false;
explain();
said.setAttribute("aria-live", "polite"); // from now on: only what the reader chooses is read out
setTimeout(() => play(state.playing), CALM);
