// Where a number comes from: the terms of a cell, and the paths from a weight to the loss.
//
// A cell is { path, symbol, cell, t }: a scope, a symbol, indices, and the round of a loop or null.

import { Tensor, indexing, product } from "./tensor.js";
import { addends, evaluated, factors, symbolsIn, taken, written } from "./expression.js";
import { memory, stepOf } from "./engine.js";

// The cell of an operand that broadcasting puts into a cell of a result.
function under(tensor, cell) {
  const last = cell.slice(cell.length - tensor.shape.length);
  return tensor.shape.map((n, axis) => (n === 1 ? 0 : last[axis]));
}

// The number in a cell; NaN if it is not known.
export function valueOf(pass, { path, symbol, cell, t = null }) {
  const tensor = pass.get(path)?.find(symbol, t);
  return tensor instanceof Tensor ? tensor.at(cell) : NaN;
}

// A cell of what a loop computed, as a cell of the round that computed it.
function inRound(pass, { path, symbol, cell, t = null }) {
  const inLoop = t === null && cell.length > 1 && pass.get(path)?.series.has(symbol);
  return inLoop
    ? { path, symbol, cell: [cell[0], ...cell.slice(2)], t: cell[1] }
    : { path, symbol, cell, t };
}

// Whether the step computed its symbol here, and no hook and no recording replaces it.
function computes(scope, step, symbol) {
  return Boolean(step) && !("value" in step) && !scope.returned.has(symbol);
}

// The terms of a cell, largest first: { total, terms, reasons, step, kind }. A term has its value,
// the values `at` of the summed indices, its factors (cells with values), and the text of an
// expression.
export function why(pass, ref) {
  const scope = pass.get(ref.path);
  const step = stepOf(scope, ref.symbol);
  const total = valueOf(pass, ref);
  const known =
    computes(scope, step, ref.symbol) && scope.find(ref.symbol, ref.t) instanceof Tensor;
  const { terms, reasons = [] } = known
    ? termsOf(pass, scope, step, inRound(pass, ref))
    : { terms: [] };
  terms.sort((a, b) => Math.abs(b.value) - Math.abs(a.value));
  return { total, terms, step, reasons, kind: step?.kind ?? "given" };
}

function termsOf(pass, scope, step, ref) {
  if (step.kind === "let") return parts(scope, step, ref);
  if (step.kind === "sum") return { terms: summed(scope, step, ref) };
  if (step.kind === "max") return { terms: [winner(scope, step, ref)] };
  const from = moved(pass, ref);
  if (!from) return { terms: [{ value: 0, at: {}, factors: [] }] }; // an arrangement put a 0 here
  const value = valueOf(pass, from);
  const at = from.t === null ? {} : { t: from.t };
  return { terms: [{ value, at, factors: [{ ...from, value }] }] };
}

// The terms of a sum, in the order of its letters.
function summed(scope, step, { path, cell, t = null }) {
  const tensors = step.reads.map((name) => scope.read(name, t));
  if (!tensors.every((tensor) => tensor instanceof Tensor)) return [];
  const { sizes } = indexing(step.letters, tensors);
  const fixed = Object.fromEntries([...step.out].map((letter, k) => [letter, cell[k]]));
  const along = Object.keys(sizes).filter((letter) => !(letter in fixed));
  const grid = new Tensor(along.map((letter) => sizes[letter]));
  return Array.from(grid.data, (_, i) => {
    const place = grid.cell(i);
    const at = Object.fromEntries(along.map((letter, k) => [letter, place[k]]));
    const made = step.reads.map((symbol, k) => {
      const there = [...step.letters[k]].map((letter) => at[letter] ?? fixed[letter]);
      const round = own(scope, symbol, t);
      return { path, symbol, cell: there, t: round, value: tensors[k].at(there) };
    });
    return { value: product(made.map((f) => f.value)), at, factors: made };
  });
}

// The largest of the elements that a Max compares: the first of equal ones, and NaN before all.
function winner(scope, step, ref) {
  const found = summed(scope, step, ref);
  const size = ({ value }) => (Number.isNaN(value) ? Infinity : value);
  const best = found.reduce((a, b) => (size(b) > size(a) ? b : a));
  return found.find(({ value }) => Number.isNaN(value)) ?? best;
}

function parts(scope, step, { path, cell, t = null }) {
  const cells = new Map(
    step.reads.map((symbol) => {
      const tensor = scope.read(symbol, t);
      const place = under(tensor, cell);
      return [
        symbol,
        { path, symbol, cell: place, t: own(scope, symbol, t), value: tensor.at(place) },
      ];
    }),
  );
  const numberOf = (symbol) => cells.get(symbol).value;
  const reasons = [];
  const tree = taken(step.tree, numberOf, reasons);
  const terms = addends(tree).map(([sign, part]) => ({
    value: sign * evaluated(part, numberOf),
    at: {},
    sign,
    text: (sign < 0 ? "−" : "") + written(part, sign < 0 ? 4 : 0),
    plain: factors(part).every(([power, factor]) => power === 1 && typeof factor === "string"),
    factors: symbolsIn(part).map((name) => cells.get(name)),
  }));
  return {
    terms,
    reasons: reasons.map(({ holds, condition }) => {
      const numbers = symbolsIn(condition).map((name) => ({ name, value: numberOf(name) }));
      return { holds, text: written(condition), numbers };
    }),
  };
}

// --- cells that only move --------------------------------------------------------------------------

// The cell that this one is a copy of, or null: through arrangements, loops, joins and layers.
export function moved(pass, ref) {
  const { path, symbol, cell, t } = inRound(pass, ref);
  const scope = pass.get(path);
  const step = stepOf(scope, symbol);
  if (!step) return entering(pass, ref);
  if (!computes(scope, step, symbol) || !(scope.read(symbol, t) instanceof Tensor)) return null;
  if (t !== (ref.t ?? null)) return { path, symbol, cell, t };
  switch (step.kind) {
    case "arrange": {
      const { shape, cells } = scope.origin(step, t);
      const from = cells[new Tensor(shape, cells).place(cell)];
      const tensor = scope.read(step.of, t);
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
        const n = scope.read(name, t)?.shape.at(-1);
        const there = [...cell.slice(0, -1), k];
        if (k < n) return { path, symbol: name, cell: there, t: own(scope, name, t) };
        k -= n;
      }
      return null;
    }
    case "through":
      return { path: step.path, symbol: step.result, cell, t: null };
    default:
      return null;
  }
}

// What a layer receives is what the layer around it hands over; the loss receives the model's Y.
function entering(pass, { path, symbol, cell }) {
  const inside = path !== "" && path !== "loss";
  if (inside && symbol in pass.get(path).data.values) return null;
  const from = memory(pass.doc, "handed over", pass.doc.scopes, handedOver).get(
    `${path} ${symbol}`,
  );
  return from ? { ...from, cell, t: null } : null;
}

// The symbol elsewhere that each value that a layer or a loss receives is.
function handedOver(scopes) {
  const found = new Map();
  const hand = (path, symbols, to, direction) =>
    scopes[to].receives[direction].forEach((symbol, k) =>
      found.set(`${to} ${symbol}`, { path, symbol: symbols[k] }),
    );
  if (scopes.loss) {
    hand("", scopes[""].returns.forward, "loss", "forward");
    hand("loss", scopes.loss.returns.backward, "", "backward");
  }
  for (const [path, { forward, backward }] of Object.entries(scopes)) {
    for (const step of [...forward, ...backward]) {
      if (step.kind !== "through") continue;
      hand(path, step.reads, step.path, step.back ? "backward" : "forward");
    }
  }
  return found;
}

// The round in which a symbol is read: none if it is not of a loop.
function own(scope, symbol, t) {
  return scope.series.has(symbol) ? t : null;
}

// The first cell on the way back that was computed, or that was there from the start.
export function source(pass, ref) {
  let first = ref;
  for (let next = ref; next; next = moved(pass, next)) first = next;
  return first;
}

// --- slopes ----------------------------------------------------------------------------------------

// The symbols of a backward pass that are gradients: what follows from what it receives.
export function gradients(pass, scope) {
  return memory(pass.doc, `gradients ${scope.path}`, scope.data.backward, (backward) => {
    const found = new Set(scope.data.receives.backward);
    const steps = backward.flatMap((step) => step.body ?? [step]);
    for (let size = 0; size !== found.size;) {
      size = found.size;
      for (const step of steps)
        if (step.reads.some((name) => found.has(name))) found.add(step.symbol);
    }
    return found;
  });
}

// The gradients that a gradient is computed from, each with its slope: what one adds to the other.
// The product of slope and value, summed over all of them, is the value of the cell.
export function slopes(pass, ref) {
  const scope = pass.get(ref.path);
  const linear = gradients(pass, scope);
  if (!linear.has(ref.symbol)) return [];
  const from = moved(pass, ref);
  if (from) return [{ ref: from, slope: 1, others: [] }];
  const step = stepOf(scope, ref.symbol, "backward");
  if (!computes(scope, step, ref.symbol)) return [];
  if (!(scope.find(ref.symbol, ref.t) instanceof Tensor)) return [];
  if (step.kind === "sum") {
    return summed(scope, step, ref).flatMap(({ factors: made }) => {
      const k = made.findIndex((factor) => linear.has(factor.symbol));
      if (k < 0) return [];
      const others = made.filter((_, i) => i !== k);
      return [{ ref: made[k], slope: product(others.map((f) => f.value)), others }];
    });
  }
  return step.kind === "let" ? elementSlopes(scope, step, ref, linear) : [];
}

// An expression is linear in its gradients: the slope of one is the value with it 1 and others 0.
function elementSlopes(scope, step, { path, cell, t = null }, linear) {
  const names = step.reads.filter((name) => linear.has(name) && inArithmetic(step.tree, name));
  const numbers = new Map();
  const cells = new Map();
  for (const symbol of step.reads) {
    const tensor = scope.read(symbol, t);
    const place = under(tensor, cell);
    cells.set(symbol, {
      path,
      symbol,
      cell: place,
      t: own(scope, symbol, t),
      value: tensor.at(place),
    });
    numbers.set(symbol, names.includes(symbol) ? 0 : tensor.at(place));
  }
  return names.map((name) => {
    const slope = evaluated(step.tree, (symbol) => (symbol === name ? 1 : numbers.get(symbol)));
    const others = [...cells.values()].filter(({ symbol }) => !names.includes(symbol));
    return { ref: cells.get(name), slope, others };
  });
}

// Whether a symbol counts in an expression, and does not only decide a choice.
function inArithmetic(tree, name) {
  if (tree === name) return true;
  if (!Array.isArray(tree)) return false;
  return tree.slice(tree[0] === "where" ? 2 : 1).some((part) => inArithmetic(part, name));
}

// The strongest paths from the cell of a gradient to the loss. Each is a list of the cells of
// gradients that it goes through, with slopes; its value is the product of the slopes times the
// gradient at its end. Only the strongest `width` paths are followed on; `rest` is what the others
// add to the total.
export function paths(pass, ref, count = 5, width = 400) {
  const total = valueOf(pass, ref);
  let open = [{ ref, slope: 1, trail: [{ ref, slope: 1 }], value: total }];
  const done = [];
  while (open.length) {
    const next = [];
    for (const way of open) {
      const onward = slopes(pass, way.ref);
      if (!onward.length) done.push(way);
      for (const { ref: to, slope } of onward) {
        const value = way.slope * slope * valueOf(pass, to);
        if (value !== 0) next.push({ ref: to, slope: way.slope * slope, value, step: slope, way });
      }
    }
    open = strongest(next, width).map(({ way, step, ...made }) => ({
      ...made,
      trail: [...way.trail, { ref: made.ref, slope: step }],
    }));
  }
  const found = strongest(done, count);
  const rest = total - found.reduce((sum, way) => sum + way.value, 0);
  return { total, paths: found, rest };
}

function strongest(ways, count) {
  return ways.sort((a, b) => Math.abs(b.value) - Math.abs(a.value)).slice(0, count);
}

// What a layer did locally: the slope of each cell of what arrives at it, its dY, or of other
// gradients, in a cell; one array for each. It goes back through the cells in the reverse order in
// which they were computed, so that all slopes of a cell are known when its turn comes. Null if what
// arrives is not known.
export function local(pass, ref, from = pass.get(ref.path).data.receives.backward) {
  const arriving = from.map((symbol) => pass.get(ref.path).find(symbol));
  if (!arriving.every((tensor) => tensor instanceof Tensor)) return null;
  const found = arriving.map(({ shape }) => new Tensor(shape));
  const open = new Map(); // by time: the cells of one array, by place, with their slopes
  const push = (cell, slope) => {
    const to = inRound(pass, cell);
    const end = to.path === ref.path ? found[from.indexOf(to.symbol)] : null;
    if (end) end.data[end.place(to.cell)] += slope;
    else {
      const time = pass.get(to.path).when(to.symbol, to.t);
      const cells = open.get(time) ?? open.set(time, new Map()).get(time);
      const key = `${to.path}.${to.symbol}[${to.cell}]`;
      cells.set(key, { ref: to, slope: slope + (cells.get(key)?.slope ?? 0) });
    }
  };
  push(ref, 1);
  while (open.size) {
    const time = Math.max(...open.keys());
    const cells = open.get(time);
    open.delete(time);
    for (const { ref: cell, slope } of cells.values()) {
      for (const next of slopes(pass, cell))
        if (next.slope !== 0) push(next.ref, slope * next.slope);
    }
  }
  return found;
}
