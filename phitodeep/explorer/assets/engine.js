// Runs the steps of a document: the same step of training, or one with another weight.

import { Reduced, Tensor, einsum, largest, origins, product, unpacked } from "./tensor.js";
import { elementwise } from "./expression.js";

// A pass through all steps.
//   given    parameters that replace those of the document, by key
//   sample   the only sample whose share of the loss counts
export class Pass {
  constructor(doc, { given = {}, sample = null } = {}) {
    Object.assign(this, { doc, given, sample });
    this.scopes = new Map();
    for (const [path, scope] of Object.entries(doc.scopes)) {
      this.scopes.set(path, new Scope(this, path, scope));
    }
  }

  get(path) {
    return this.scopes.get(path);
  }

  forward() {
    const Y = this.get("").run("forward", null);
    this.get("loss").run("forward", Y);
    return this;
  }

  run() {
    this.forward();
    this.get("loss").run("backward", null);
    this.get("").run("backward", this.get("loss").find("dP"));
    return this;
  }

  get loss() {
    return this.get("loss").find("L")?.data[0] ?? NaN;
  }

  parameter(key) {
    return this.given[key] ?? memory(this.doc, `parameter ${key}`, this.doc.parameters[key]);
  }
}

// What is made from a document once: its arrays, by key.
const memories = new WeakMap();

export function memory(doc, key, packed, make = unpacked) {
  if (!memories.has(doc)) memories.set(doc, new Map());
  const known = memories.get(doc);
  if (!known.has(key)) known.set(key, make(packed));
  return known.get(key);
}

// The symbols of one layer, or of the loss. In a loop, a symbol has a value for each t.
export class Scope {
  constructor(pass, path, data) {
    Object.assign(this, { pass, path, data });
    this.values = new Map();
    this.series = new Map();
    this.t = null;
    this.before = null; // the previous t of the loop
    for (const [name, key] of Object.entries(data.params)) this.values.set(name, pass.parameter(key));
    for (const [name, value] of Object.entries(data.values)) {
      this.values.set(name, memory(pass.doc, `${path} ${name}`, value));
    }
  }

  // The value of a symbol as seen in round t, or null if there is none.
  find(symbol, t = this.t) {
    const rounds = this.series.get(symbol);
    if (!rounds) return this.values.get(symbol) ?? null;
    if (t !== null) return rounds[t] ?? null;
    if (!this.values.has(symbol)) this.values.set(symbol, stacked(rounds));
    return this.values.get(symbol);
  }

  set(symbol, value) {
    if (this.t === null) this.values.set(symbol, value);
    else {
      if (!this.series.has(symbol)) this.series.set(symbol, []);
      this.series.get(symbol)[this.t] = value;
      this.values.delete(symbol);
    }
  }

  run(direction, given) {
    const [input, output] = direction === "forward" ? ["X", "Y"] : ["dY", "dX"];
    const name = this.path === "loss" ? "P" : input;
    if (given && !(name in this.data.values)) this.values.set(name, given);
    this.perform(this.data[direction]);
    return this.find(output);
  }

  perform(steps) {
    for (const step of steps) {
      if (step.kind !== "loop") {
        this.set(step.symbol, this.result(step));
        continue;
      }
      this.before = null;
      for (const t of this.times(step)) {
        this.t = t;
        this.perform(step.body);
        this.before = t;
      }
      this.t = this.before = null;
    }
  }

  times(loop) {
    const T = this.find(loop.of, null).shape[1];
    const times = Array.from({ length: T }, (_, t) => t);
    return loop.reverse ? times.reverse() : times;
  }

  result(step) {
    const inner = step.kind === "through" ? this.through(step) : null;
    const value = "value" in step ? this.stored(step) : inner ?? this.computed(step);
    return this.shared(step.symbol, value);
  }

  through(step) {
    const direction = step.back ? "backward" : "forward";
    return this.pass.get(step.path).run(direction, this.find(step.of));
  }

  // A value that the document has; in a loop, of round t.
  stored(step) {
    const value = memory(this.pass.doc, `${this.path} ${step.symbol}`, step.value);
    return this.t === null || value instanceof Reduced ? value : sliced(value, this.t);
  }

  computed(step) {
    const operands = step.reads.map((name) => this.find(name));
    if (step.kind === "arrange") return arranged(this.find(step.of), this.origin(step));
    if (operands.some((value) => !(value instanceof Tensor) && step.kind !== "carry")) return null;
    if (step.kind === "let") {
      return elementwise(step.tree, Object.fromEntries(step.reads.map((n, k) => [n, operands[k]])));
    }
    if (step.kind === "sum") return einsum(step.letters, step.out, operands);
    if (step.kind === "max") return largest(step.letters, step.out, operands);
    if (step.kind === "join") return joined(operands);
    if (step.kind === "carry") {
      return this.before === null ? this.find(step.start, null) : this.find(step.of, this.before);
    }
    return null;
  }

  // Where the cells of an arranged array come from, as an array with its shape.
  origin(step, t = this.t) {
    const [first, ...more] = step.from;
    const from = more.length ? step.from[this.times(this.loopOf(step)).indexOf(t)] : first;
    const known = memory(this.pass.doc, "origins", null, () => new Map());
    if (!known.has(from)) known.set(from, { shape: from.shape, cells: origins(from) });
    return known.get(from);
  }

  // With one sample, only its share of the loss counts.
  shared(symbol, value) {
    const { sample, doc } = this.pass;
    const counts = this.path === "loss" && (symbol === "counted" || /^d(P|_each)$/.test(symbol));
    if (sample === null || !counts || !(value instanceof Tensor)) return value;
    const share = new Tensor(value.shape);
    const size = value.size / doc.samples;
    const [from, to] = [sample * size, (sample + 1) * size];
    share.data.set(value.data.subarray(from, to), from);
    return share;
  }

  loopOf(step) {
    return [...this.data.forward, ...this.data.backward].find((s) => s.body?.includes(step));
  }

  // The round of the loop before round t, or null for the first one.
  previous(step, t) {
    const times = this.times(this.loopOf(step));
    return times[times.indexOf(t) - 1] ?? null;
  }
}

function arranged(tensor, { shape, cells }) {
  if (!(tensor instanceof Tensor)) return null;
  const result = new Tensor(shape);
  for (let i = 0; i < cells.length; i++) result.data[i] = cells[i] < 0 ? 0 : tensor.data[cells[i]];
  return result;
}

function joined(tensors) {
  const width = tensors.reduce((sum, tensor) => sum + tensor.shape.at(-1), 0);
  const result = new Tensor([...tensors[0].shape.slice(0, -1), width]);
  let start = 0;
  for (const tensor of tensors) {
    const n = tensor.shape.at(-1);
    for (let i = 0; i < tensor.size; i++) {
      result.data[Math.floor(i / n) * width + start + (i % n)] = tensor.data[i];
    }
    start += n;
  }
  return result;
}

// The values of all rounds (N, T, ...) of a symbol (N, ...).
function stacked(rounds) {
  const [N, ...rest] = rounds[0].shape;
  const size = product(rest);
  const result = new Tensor([N, rounds.length, ...rest]);
  rounds.forEach((tensor, t) => {
    for (let n = 0; n < N; n++) {
      const row = tensor.data.subarray(n * size, (n + 1) * size);
      result.data.set(row, (n * rounds.length + t) * size);
    }
  });
  return result;
}

function sliced(tensor, t) {
  const [N, T, ...rest] = tensor.shape;
  const size = product(rest);
  const result = new Tensor([N, ...rest]);
  for (let n = 0; n < N; n++) {
    result.data.set(tensor.data.subarray((n * T + t) * size, (n * T + t + 1) * size), n * size);
  }
  return result;
}

// A symbol, and the step that computes it, if one does.
export function stepOf(scope, symbol, direction) {
  for (const side of direction ? [direction] : ["forward", "backward"]) {
    for (const step of scope.data[side]) {
      if (step.symbol === symbol) return step;
      const inner = step.body?.find((s) => s.symbol === symbol);
      if (inner) return inner;
    }
  }
  return null;
}
