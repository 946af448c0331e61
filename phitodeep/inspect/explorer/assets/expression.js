// Elementwise expressions, which the document has as nested lists: ["+", ["*", "r", "C"], 1].

import { Tensor, broadcast, stretched, visit } from "./tensor.js";

const CALLS = {
  "+": (a, b) => a + b,
  "-": (a, b) => a - b,
  "*": (a, b) => a * b,
  "/": (a, b) => a / b,
  "**": (a, b) => a ** b,
  "%": (a, b) => a - b * Math.floor(a / b),
  and: (a, b) => Number(a && b),
  or: (a, b) => Number(a || b),
  xor: (a, b) => Number(!a !== !b),
  neg: (a) => -a,
  plus: (a) => a,
  trunc: Math.trunc,
  not: (a) => Number(!a),
  "<": (a, b) => Number(a < b),
  "<=": (a, b) => Number(a <= b),
  ">": (a, b) => Number(a > b),
  ">=": (a, b) => Number(a >= b),
  "==": (a, b) => Number(a === b),
  "!=": (a, b) => Number(a !== b),
  abs: Math.abs,
  sqrt: Math.sqrt,
  exp: Math.exp,
  exp2: (a) => 2 ** a,
  expm1: Math.expm1,
  log: Math.log,
  log1p: Math.log1p,
  sin: Math.sin,
  cos: Math.cos,
  tan: Math.tan,
  tanh: Math.tanh,
  sinh: Math.sinh,
  cosh: Math.cosh,
  arctan: Math.atan,
  sign: Math.sign,
  floor: Math.floor,
  ceil: Math.ceil,
  round: (a) => (Math.abs(a % 1) === 0.5 ? 2 * Math.round(a / 2) : Math.round(a)), // to even
  sigmoid: (a) => 1 / (1 + Math.exp(-a)),
  softplus: (a) => Math.max(a, 0) + Math.log1p(Math.exp(-Math.abs(a))),
  square: (a) => a * a,
  signbit: (a) => Number(a < 0 || Object.is(a, -0)),
  minimum: Math.min,
  maximum: Math.max,
  clip: (a, low, high) => Math.min(Math.max(a, low), high),
  where: (condition, yes, no) => (condition ? yes : no),
  logaddexp: (a, b) => {
    const top = Math.max(a, b);
    return top === -Infinity ? top : top + Math.log1p(Math.exp(-Math.abs(a - b)));
  },
  erf,
};

// 2 / sqrt(pi) times the integral of exp(-t^2): its power series, and 1 minus the continued
// fraction of the rest beyond 3 (Abramowitz and Stegun 7.1.6 and 7.1.14).
function erf(x) {
  const size = Math.abs(x);
  if (size > 6) return Math.sign(x);
  if (size > 3) {
    let rest = 0;
    for (let k = 60; k > 0; k--) rest = k / 2 / (size + rest);
    return Math.sign(x) * (1 - Math.exp(-x * x) / (Math.sqrt(Math.PI) * (size + rest)));
  }
  let term = x;
  let total = x;
  for (let k = 1; Math.abs(term) > 1e-17 * Math.abs(total); k++) {
    term *= (2 * x * x) / (2 * k + 1);
    total += term;
  }
  return Number.isNaN(x) ? x : (2 / Math.sqrt(Math.PI)) * Math.exp(-x * x) * total;
}

export function symbolsIn(tree) {
  if (typeof tree === "string") return [tree];
  if (typeof tree === "number" || tree[0] === "number") return [];
  return [...new Set(tree.slice(1).flatMap(symbolsIn))];
}

// The value of an expression, given a function from a symbol to its number.
export function evaluated(tree, numberOf) {
  if (typeof tree === "number") return tree;
  if (typeof tree === "string") return numberOf(tree);
  if (tree[0] === "number") return Number(tree[1]);
  return CALLS[tree[0]](...tree.slice(1).map((part) => evaluated(part, numberOf)));
}

// The value for all cells, given the arrays of its symbols, by name, which broadcast.
export function elementwise(tree, tensors) {
  const all = [...tensors.values()];
  const result = new Tensor(broadcast(all.map((tensor) => tensor.shape)));
  let at;
  const reads = [...tensors].map(([name, { data }], k) => [name, () => data[at[k]]]);
  const read = closure(tree, new Map(reads));
  const ways = all.map((tensor) => stretched(tensor, result.shape));
  visit(result.shape, ways, (i, places) => {
    at = places;
    result.data[i] = read();
  });
  return result;
}

// A function without arguments for each part of an expression.
function closure(tree, reads) {
  if (typeof tree === "string") return reads.get(tree);
  if (typeof tree === "number" || tree[0] === "number") {
    const value = evaluated(tree);
    return () => value;
  }
  const call = CALLS[tree[0]];
  const [a, b, c] = tree.slice(1).map((part) => closure(part, reads));
  if (tree[0] === "where") return () => (a() ? b() : c());
  if (c) return () => call(a(), b(), c());
  return b ? () => call(a(), b()) : () => call(a());
}

// --- its terms -------------------------------------------------------------------------------------

// The branch that these numbers take of each choice, and why.
export function taken(tree, numberOf, reasons = []) {
  if (!Array.isArray(tree) || tree[0] === "number") return tree;
  if (tree[0] !== "where") {
    return [tree[0], ...tree.slice(1).map((part) => taken(part, numberOf, reasons))];
  }
  const [, condition, yes, no] = tree;
  const holds = evaluated(condition, numberOf);
  reasons.push({ holds: Boolean(holds), condition });
  return taken(holds ? yes : no, numberOf, reasons);
}

// The terms of an expression with their signs; a product with a sum is multiplied out.
export function addends(tree, sign = 1) {
  if (!Array.isArray(tree)) return [[sign, tree]];
  const [call, a, b] = tree;
  if (call === "+" || call === "-") {
    return [...addends(a, sign), ...addends(b, call === "+" ? sign : -sign)];
  }
  if (call === "neg") return addends(a, -sign);
  if (call === "*" || call === "/") {
    const rights = call === "/" ? [[1, b]] : addends(b);
    return addends(a, sign).flatMap(([s, one]) =>
      rights.map(([r, other]) => [s * r, [call, one, other]]),
    );
  }
  return [[sign, tree]];
}

// The factors of a product, as [power, tree]: 1 for a factor and -1 for a divisor.
export function factors(tree, power = 1) {
  if (Array.isArray(tree) && tree[0] === "*") {
    return [...factors(tree[1], power), ...factors(tree[2], power)];
  }
  if (Array.isArray(tree) && tree[0] === "/") {
    return [...factors(tree[1], power), ...factors(tree[2], -power)];
  }
  return [[power, tree]];
}

const BINDING = { "+": 2, "-": 2, "*": 4, "/": 4, "**": 8, neg: 3 };
const SIGNS = { "*": " · ", "**": "^", "<=": " ≤ ", ">=": " ≥ ", "==": " = ", "!=": " ≠ " };

// An expression as plain text, for a term of a cell.
export function written(tree, above = 0) {
  if (typeof tree === "number") return String(tree);
  if (typeof tree === "string") return tree;
  const [call, a, b] = tree;
  if (call === "number") return a === "Infinity" ? "∞" : String(Number(Number(a).toPrecision(4)));
  const binding = BINDING[call] ?? (tree.length === 3 && /\W|and|or/.test(call) ? 1 : 9);
  let text;
  if (call === "neg") text = `−${written(a, 4)}`;
  else if (call === "plus") return written(a, above);
  else if (binding < 9) {
    const sign = SIGNS[call] ?? ` ${call === "-" ? "−" : call} `;
    const closer = call === "-" || call === "/" || call === "**";
    text = `${written(a, call === "**" ? 9 : binding)}${sign}${written(b, binding + closer)}`;
  } else {
    text = `${call}(${tree
      .slice(1)
      .map((part) => written(part))
      .join(", ")})`;
  }
  return binding < above ? `(${text})` : text;
}
