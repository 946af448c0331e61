// Where a number comes from: the terms of a cell, and the paths from a weight to the loss.
//
// A cell is { path, symbol, cell, t }: a scope, a symbol, indices, and the round of a loop or null.

import { Tensor, indexing, product } from "./tensor.js";
import { addends, evaluated, factors, symbolsIn, taken, written } from "./expression.js";
import { stepOf } from "./engine.js";

// The number of an operand that broadcasting puts into a cell of a result.
function under(tensor, cell) {
  const own = cell.slice(cell.length - tensor.shape.length);
  return tensor.shape.map((n, axis) => (n === 1 ? 0 : own[axis]));
}

export function valueOf(pass, { path, symbol, cell, t = null }) {
  return pass.get(path).find(symbol, t).at(cell);
}

// The terms of a cell, largest first: { total, terms, reasons, words }. A term has its value, the
// values `at` of the summed indices, its factors (cells with values), and the text of an expression.
export function why(pass, ref) {
  const scope = pass.get(ref.path);
  const step = stepOf(scope, ref.symbol);
  const terms = step && !("value" in step) ? termsOf(pass, scope, step, ref) : [];
  terms.sort((a, b) => Math.abs(b.value) - Math.abs(a.value));
  const total = valueOf(pass, ref);
  return { total, terms, step, reasons: terms.reasons ?? [], kind: step?.kind ?? "given" };
}

function termsOf(pass, scope, step, ref) {
  if (step.kind === "sum") return summed(scope, step, ref);
  if (step.kind === "max") return [winner(scope, step, ref)];
  if (step.kind === "let") return parts(scope, step, ref);
  const from = moved(pass, ref);
  if (!from) return [];
  const value = valueOf(pass, from);
  return [{ value, at: {}, factors: [{ ...from, value }] }];
}

function summed(scope, step, { path, cell, t = null }) {
  const tensors = step.reads.map((name) => scope.find(name, t));
  if (!tensors.every((tensor) => tensor instanceof Tensor)) return [];
  const { sizes } = indexing(step.letters, tensors);
  const fixed = Object.fromEntries([...step.out].map((letter, k) => [letter, cell[k]]));
  const along = Object.keys(sizes).filter((letter) => letter === "1" || !(letter in fixed));
  const lengths = along.map((letter) => sizes[letter]);
  const found = [];
  for (let i = 0; i < product(lengths); i++) {
    const at = {};
    let rest = i;
    for (let k = along.length - 1; k >= 0; k--) {
      at[along[k]] = rest % lengths[k];
      rest = Math.floor(rest / lengths[k]);
    }
    const made = step.reads.map((symbol, k) => {
      const place = [...step.letters[k]].map((letter) => at[letter] ?? fixed[letter]);
      return { path, symbol, cell: place, t, value: tensors[k].at(place) };
    });
    found.push({ value: product(made.map((f) => f.value)), at, factors: made });
  }
  return found;
}

function winner(scope, step, { path, cell, t = null }) {
  const [symbol] = step.reads;
  const tensor = scope.find(symbol, t);
  const fixed = Object.fromEntries([...step.out].map((letter, k) => [letter, cell[k]]));
  let best = null;
  for (let i = 0; i < tensor.size; i++) {
    const place = tensor.cell(i);
    const inside = [...step.letters[0]].every((l, k) => !(l in fixed) || place[k] === fixed[l]);
    if (inside && (!best || tensor.data[i] > best.value)) {
      best = { path, symbol, cell: place, t, value: tensor.data[i] };
    }
  }
  const letters = [...step.letters[0]].filter((l) => !(l in fixed));
  const at = Object.fromEntries(letters.map((l) => [l, best.cell[step.letters[0].indexOf(l)]]));
  return { value: best.value, at, factors: [best] };
}

function parts(scope, step, { path, cell, t = null }) {
  const cells = Object.fromEntries(
    step.reads.map((symbol) => {
      const tensor = scope.find(symbol, t);
      const place = under(tensor, cell);
      return [symbol, { path, symbol, cell: place, t, value: tensor.at(place) }];
    }),
  );
  const numberOf = (symbol) => (symbol === "t" ? t : cells[symbol].value);
  const reasons = [];
  const tree = taken(step.tree, numberOf, reasons);
  const found = addends(tree).map(([sign, part]) => ({
    value: sign * evaluated(part, numberOf),
    at: {},
    sign,
    text: (sign < 0 ? "−" : "") + written(part, sign < 0 ? 4 : 0),
    plain: factors(part).every(([power, factor]) => power === 1 && typeof factor === "string"),
    factors: symbolsIn(part).filter((name) => name !== "t").map((name) => cells[name]),
  }));
  found.reasons = reasons.map(({ holds, condition }) => {
    const names = symbolsIn(condition);
    const numbers = names.map((name) => ({ name, value: numberOf(name) }));
    return { holds, text: written(condition), numbers };
  });
  return found;
}

// --- cells that only move --------------------------------------------------------------------------

// The cell that this one is a copy of, or null: through arrangements, loops, joins and layers.
export function moved(pass, ref) {
  const { path, symbol, cell, t = null } = ref;
  const scope = pass.get(path);
  const step = stepOf(scope, symbol);
  if (step && "value" in step) return null;
  if (step && step.kind !== "loop" && t === null && scope.series.has(symbol)) {
    return { path, symbol, cell: [cell[0], ...cell.slice(2)], t: cell[1] }; // one round of a loop
  }
  switch (step?.kind) {
    case "arrange": {
      const { shape, cells } = scope.origin(step, t);
      const from = cells[new Tensor(shape, cells).place(cell)];
      const tensor = scope.find(step.of, t);
      if (from < 0 || !(tensor instanceof Tensor)) return null;
      return { path, symbol: step.of, cell: tensor.cell(from), t: own(scope, step.of, t) };
    }
    case "carry": {
      const before = scope.previous(step, t);
      if (before === null) return { path, symbol: step.start, cell, t: null };
      return { path, symbol: step.of, cell, t: before };
    }
    case "join": {
      let k = cell.at(-1);
      for (const name of step.reads) {
        const n = scope.find(name, t).shape.at(-1);
        if (k < n) return { path, symbol: name, cell: [...cell.slice(0, -1), k], t };
        k -= n;
      }
      return null;
    }
    case "through":
      return { path: step.path, symbol: step.back ? "dX" : "Y", cell, t: null };
    default:
      return step ? null : entering(pass, ref);
  }
}

// What a layer receives is what the layer around it hands over; the loss receives the model's Y.
function entering(pass, { path, symbol, cell }) {
  if (path === "loss" && symbol === "P") return { path: "", symbol: "Y", cell, t: null };
  if (path === "" && symbol === "dY") return { path: "loss", symbol: "dP", cell, t: null };
  if (symbol !== "X" && symbol !== "dY") return null;
  if (symbol in pass.get(path).data.values) return null;
  const side = symbol === "X" ? "forward" : "backward";
  for (const [outer, scope] of pass.scopes) {
    const step = scope.data[side].find((s) => s.kind === "through" && s.path === path);
    if (step) return { path: outer, symbol: step.of, cell, t: null };
  }
  return null;
}

function own(scope, symbol, t) {
  return scope.series.has(symbol) ? t : null;
}

// The first cell on the way back that was computed, or that was there from the start.
export function source(pass, ref) {
  for (let next = ref; next; next = moved(pass, next)) ref = next;
  return ref;
}

// --- slopes ----------------------------------------------------------------------------------------

// The symbols of a backward pass that are gradients: what follows from dY, or from the loss.
function gradients(scope) {
  if (scope.gradients) return scope.gradients;
  const found = new Set(scope.path === "loss" ? ["d_each"] : ["dY"]);
  const steps = scope.data.backward.flatMap((s) => (s.kind === "loop" ? s.body : [s]));
  for (let size = 0; size !== found.size; ) {
    size = found.size;
    for (const step of steps) if (step.reads.some((n) => found.has(n))) found.add(step.symbol);
  }
  scope.gradients = found;
  return found;
}

// The gradients that a gradient is computed from, each with its slope: what one adds to the other.
// The product of slope and value, summed over all of them, is the value of the cell.
export function slopes(pass, ref) {
  const from = moved(pass, ref);
  if (from) return [{ ref: from, slope: 1 }];
  const scope = pass.get(ref.path);
  const step = stepOf(scope, ref.symbol, "backward");
  if (!step || "value" in step || ref.path === "loss") return [];
  const linear = gradients(scope);
  if (step.kind === "sum") {
    return summed(scope, step, ref).flatMap(({ factors: made }) => {
      const k = made.findIndex((f) => linear.has(f.symbol));
      const others = made.filter((_, i) => i !== k).map((f) => f.value);
      return k < 0 ? [] : [{ ref: made[k], slope: product(others), others: made.filter((_, i) => i !== k) }];
    });
  }
  if (step.kind !== "let") return [];
  const { cell, path, t = null } = ref;
  const read = (name) => {
    const tensor = scope.find(name, t);
    return { path, symbol: name, cell: under(tensor, cell), t: own(scope, name, t) };
  };
  const names = step.reads.filter((name) => linear.has(name));
  const at = (one) =>
    evaluated(step.tree, (n) => {
      if (n === "t") return t;
      return linear.has(n) && inArithmetic(step.tree, n) ? Number(n === one) : valueOf(pass, read(n));
    });
  return names.filter((n) => inArithmetic(step.tree, n)).map((n) => ({ ref: read(n), slope: at(n) }));
}

// Whether a symbol counts in an expression, and does not only decide a choice.
function inArithmetic(tree, name) {
  if (tree === name) return true;
  if (!Array.isArray(tree)) return false;
  return tree.slice(tree[0] === "where" ? 2 : 1).some((part) => inArithmetic(part, name));
}

// The strongest paths from the cell of a gradient to the loss. Each is a list of the cells of
// gradients that it goes through, with slopes; its value is the product of the slopes times dP.
export function paths(pass, ref, count = 5, width = 400) {
  let open = [{ ref, slope: 1, trail: [{ ref, slope: 1 }], value: valueOf(pass, ref) }];
  const done = [];
  while (open.length) {
    const next = [];
    for (const way of open) {
      const onward = slopes(pass, way.ref);
      if (!onward.length) done.push(way);
      for (const { ref: to, slope } of onward) {
        if (slope === 0) continue;
        const value = way.slope * slope * valueOf(pass, to);
        next.push({ ref: to, slope: way.slope * slope, trail: [...way.trail, { ref: to, slope }], value });
      }
    }
    next.sort((a, b) => Math.abs(b.value) - Math.abs(a.value));
    open = next.slice(0, width);
  }
  done.sort((a, b) => Math.abs(b.value) - Math.abs(a.value));
  const found = done.slice(0, count);
  const total = valueOf(pass, ref);
  const rest = total - found.reduce((sum, way) => sum + way.value, 0);
  return { total, paths: found, rest };
}

// What a layer did locally: the slope of each cell of dY in a cell of dX, as an array like dY.
export function local(pass, { path, symbol, cell, t = null }) {
  const arriving = pass.get(path).find("dY");
  const found = new Tensor(arriving.shape);
  const open = new Map([[keyOf({ symbol, cell, t }), { ref: { path, symbol, cell, t }, slope: 1 }]]);
  const order = orderOf(pass.get(path));
  while (open.size) {
    const [key, { ref, slope }] = latest(open, order);
    open.delete(key);
    if (ref.path !== path) continue;
    if (ref.symbol === "dY") {
      found.data[found.place(ref.cell)] += slope;
      continue;
    }
    for (const next of slopes(pass, ref)) {
      const k = keyOf(next.ref);
      const before = open.get(k)?.slope ?? 0;
      open.set(k, { ref: next.ref, slope: before + slope * next.slope });
    }
  }
  return found;
}

const keyOf = ({ symbol, cell, t }) => `${symbol}[${cell}]${t ?? ""}`;

// The place of each symbol of a backward pass in the order in which it runs.
function orderOf(scope) {
  const found = new Map([["dY", -1]]);
  let n = 0;
  for (const step of scope.data.backward) {
    const body = step.kind === "loop" ? step.body : [step];
    const times = step.kind === "loop" ? scope.times(step) : [null];
    for (const t of times) for (const s of body) found.set(`${s.symbol} ${t ?? ""}`.trim(), n++);
    for (const s of body) found.set(s.symbol, n);
  }
  return (ref) => found.get(`${ref.symbol} ${ref.t ?? ""}`.trim()) ?? -1;
}

function latest(open, order) {
  let best = null;
  for (const entry of open) if (!best || order(entry[1].ref) > order(best[1].ref)) best = entry;
  return best;
}

