/* The workbench of a layer: a reader changes a number, and the layer's own derivation runs again.

The mathematics is the document that the build wrote into the page; the explorer's engine runs it. The
page already shows the first numbers, so nothing runs before the reader asks for something. */

import { Pass } from "../explorer/engine.js";
import { why } from "../explorer/terms.js";

const PIXELS = 70; // a drag of so many pixels moves a number by the scale of its array
const LIMIT = 20;

for (const bench of document.querySelectorAll(".wb")) start(bench);

function start(bench) {
  const data = JSON.parse(bench.querySelector("script").textContent);
  lightUp();
  if (!data.document) return;
  const pass = new Pass(data.document);
  const scope = pass.get("");
  const first = new Map(data.movable.map((name) => [name, scope.find(name).copy()]));
  const given = new Map([...first].map(([name, tensor]) => [name, tensor.copy()]));
  const arrays = [...document.querySelectorAll(".wb-array")].map(viewOf);
  const checks = [...document.querySelectorAll("[data-check]")];
  const blank = { symbol: data.blank[0], k: data.blank[1], hidden: true };

  for (const array of arrays) {
    const numbers = given.get(array.symbol);
    if (numbers && bench.contains(array.element)) movable(array, numbers.data, change);
  }
  const reset = document.createElement("button");
  Object.assign(reset, { type: "button", className: "wb-reset", textContent: "Start again" });
  reset.addEventListener("click", () => {
    for (const [name, tensor] of first) given.get(name).data.set(tensor.data);
    run();
  });
  bench.querySelector(".wb-help").after(reset);
  let current = null; // the pass that the page shows, once it was needed
  for (const array of arrays) {
    for (const [k, cell] of array.cells) if (isHidden(blank, array, k)) hide(cell);
  }
  predict(blank, () => ({ pass: (current ??= computed()), run: show }));

  function change(symbol, k, value) {
    const kept = Math.round(Math.max(-LIMIT, Math.min(LIMIT, value)) * 100) / 100;
    given.get(symbol).data[k] = kept;
    run();
  }

  function run() {
    current = computed();
    show();
  }

  function computed() {
    const parameters = data.document.scopes[""].params;
    const replaced = [...given].filter(([name]) => name in parameters);
    const next = new Pass(data.document, {
      given: Object.fromEntries(replaced.map(([name, tensor]) => [parameters[name], tensor])),
    });
    const own = next.get("");
    for (const name of Object.values(data.document.scopes[""].receives).flat()) {
      own.values.set(name, given.get(name) ?? scope.find(name));
    }
    own.run("forward");
    own.run("backward");
    return next;
  }

  function show() {
    const own = current.get("");
    for (const array of arrays) draw(array, own.find(array.symbol), blank);
    for (const check of checks) {
      const worst = Math.max(...own.find(check.dataset.check).data.map(Math.abs));
      const holds = worst <= Number(check.dataset.tolerance);
      check.classList.toggle("wb-wrong", !holds);
      check.querySelector("output").textContent = holds
        ? "True for these numbers."
        : `Off by ${worst.toPrecision(2)}.`;
    }
  }
}

// An array in the page, and its cells by place.
function viewOf(element) {
  const cells = [...element.querySelectorAll(".wb-cell")];
  return {
    element,
    symbol: element.dataset.sym,
    shape: element.dataset.shape.split(",").filter(Boolean).map(Number),
    scale: Number(element.dataset.scale),
    cells: cells.map((cell) => [Number(cell.dataset.k), cell]),
  };
}

function isHidden(blank, { symbol }, k) {
  return blank.hidden && blank.symbol === symbol && blank.k === k;
}

function hide(cell) {
  cell.style.setProperty("--v", 0);
  cell.classList.add("wb-hidden");
  cell.textContent = "?";
}

function draw(array, tensor, blank) {
  if (!tensor?.data) return;
  for (const [k, cell] of array.cells) {
    if (isHidden(blank, array, k)) continue;
    const value = tensor.data[k];
    const part = Number.isFinite(value) ? Math.max(-1, Math.min(1, value / array.scale)) : 0;
    cell.style.setProperty("--v", part);
    cell.classList.remove("wb-hidden");
    cell.textContent = written(value);
    if (cell.hasAttribute("aria-valuenow")) cell.setAttribute("aria-valuenow", value);
  }
}

// A number in at most two decimals, as the build writes it.
export function written(value) {
  if (Number.isNaN(value)) return "nan";
  if (!Number.isFinite(value)) return value > 0 ? "∞" : "−∞";
  const text = String(Number(value.toFixed(2)) + 0);
  return text.replace("-", "−");
}

// --- changing numbers ------------------------------------------------------------------------------

// One cell of the array is in the order of Tab, and the arrows go from one to the next.
function movable(array, numbers, change) {
  array.element.classList.add("wb-movable");
  const valueOf = (cell) => Number(cell.getAttribute("aria-valuenow"));
  array.cells.forEach(([k, cell], i) => {
    const place = placeOf(array.shape, k).join(", ");
    const said = {
      role: "slider",
      tabindex: i === 0 ? 0 : -1,
      "aria-label": `${array.symbol}[${place}]`,
      "aria-orientation": "vertical",
      "aria-valuemin": -LIMIT,
      "aria-valuemax": LIMIT,
      "aria-valuenow": numbers[k],
    };
    for (const [name, value] of Object.entries(said)) cell.setAttribute(name, value);
    cell.addEventListener("keydown", (event) => {
      const step = event.shiftKey ? 1 : 0.1;
      const by = { ArrowUp: step, ArrowDown: -step, PageUp: 1, PageDown: -1 }[event.key];
      const to = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
      if (by === undefined && to === undefined) return;
      event.preventDefault();
      if (by !== undefined) change(array.symbol, k, valueOf(cell) + by);
      else array.cells[i + to]?.[1].focus();
    });
    cell.addEventListener("focus", () => {
      for (const [, other] of array.cells) other.setAttribute("tabindex", other === cell ? 0 : -1);
    });
    let from = null;
    cell.addEventListener("pointerdown", (event) => {
      if (event.button !== 0) return;
      from = { y: event.clientY, value: valueOf(cell) };
      cell.setPointerCapture(event.pointerId);
      cell.focus({ preventScroll: true });
      event.preventDefault();
    });
    cell.addEventListener("pointermove", (event) => {
      if (!from) return;
      const moved = ((from.y - event.clientY) / PIXELS) * array.scale;
      change(array.symbol, k, from.value + moved);
    });
    const stop = () => {
      from = null;
    };
    cell.addEventListener("pointerup", stop);
    cell.addEventListener("pointercancel", stop);
  });
}

function placeOf(shape, k) {
  let rest = k;
  const place = [];
  for (const n of shape.toReversed()) {
    place.unshift(rest % n);
    rest = Math.floor(rest / n);
  }
  return place;
}

// --- predicting a number ---------------------------------------------------------------------------

function predict(blank, now) {
  const form = document.querySelector(".wb-blank");
  form.hidden = false;
  const [input, , reveal] = form.elements;
  const answer = form.querySelector("[aria-live]");
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    const { pass } = now();
    const value = pass.get("").find(blank.symbol).data[blank.k];
    const guess = Number(input.value.replace(",", ".").replace("−", "-"));
    if (input.value.trim() === "" || Number.isNaN(guess)) answer.textContent = "Type a number.";
    else if (Math.abs(guess - value) <= 0.051) tell(`Right: it is ${written(value)}.`);
    else answer.textContent = "Not yet. Try again, or look at the sum.";
  });
  reveal.addEventListener("click", () => {
    const { pass } = now();
    tell(`It is ${written(pass.get("").find(blank.symbol).data[blank.k])}.`);
  });

  function tell(words) {
    const { pass, run } = now();
    const tensor = pass.get("").find(blank.symbol);
    const found = why(pass, { path: "", symbol: blank.symbol, cell: tensor.cell(blank.k) });
    const list = document.createElement("ul");
    for (const term of found.terms.slice(0, 8)) {
      const item = document.createElement("li");
      item.textContent = termOf(term);
      list.append(item);
    }
    answer.replaceChildren(words, list);
    blank.hidden = false;
    run();
  }
}

// A term in words: its value, and the numbers that it is made of.
function termOf({ value, text, factors }) {
  const numbers = factors.map(
    (factor) => `${factor.symbol}[${factor.cell.join(", ")}] = ${written(factor.value)}`,
  );
  return `${written(value)}${text ? ` = ${text}` : ""}, from ${numbers.join(" and ")}`;
}

// --- what belongs together -------------------------------------------------------------------------

// Pointing at a step lights up its arrays; pointing at an array lights up its symbol everywhere.
function lightUp() {
  const lit = (names) => {
    for (const element of document.querySelectorAll("[data-sym]")) {
      element.classList.toggle("wb-lit", names.includes(element.dataset.sym));
    }
  };
  const point = (element, names) => {
    element.addEventListener("pointerenter", () => lit(names));
    element.addEventListener("focusin", () => lit(names));
    element.addEventListener("pointerleave", () => lit([]));
    element.addEventListener("focusout", () => lit([]));
  };
  for (const step of document.querySelectorAll("[data-reads]")) {
    point(step, step.dataset.reads.split(" "));
  }
  for (const array of document.querySelectorAll(".wb .wb-array")) point(array, [array.dataset.sym]);
}
