// Runs the steps of a document: the same step of training, or one with another weight.
//
// A value is a Tensor, a Reduced array, or null if the page cannot know it.

import { Reduced, Tensor, einsum, largest, origins, product, scalar, unpacked } from "./tensor.js";
import { elementwise } from "./expression.js";

const FORMAT = "phitodeep.trace";
const VERSION = 2;

// The document itself, if this page can read it.
export function checked(doc) {
  if (doc?.format !== FORMAT) {
    throw new Error(`A document of the explorer has the format "${FORMAT}", and this one has not.`);
  }
  if (doc.version !== VERSION) {
    throw new Error(
      `This page reads version ${VERSION} of the document, and this one has version ` +
        `${doc.version}: save it and the page with the same version of phitodeep.`,
    );
  }
  return doc;
}

// What is made from a document once: its arrays, by key.
const memories = new WeakMap();

export function memory(doc, key, packed, make = unpacked) {
  if (!memories.has(doc)) memories.set(doc, new Map());
  const known = memories.get(doc);
  if (!known.has(key)) known.set(key, make(packed));
  return known.get(key);
}

const WEIGHTS = new Set(["w", "v"]); // of the terms of a loss: by element and by row

// Whether a scope is the loss, or the loss of one of several outputs.
export const isLoss = (path) => path === "loss" || path.startsWith("loss.");

const timed = (symbol, t) => (t === null ? symbol : `${symbol} ${t}`);

// The symbols of one layer, or of the loss. In a loop, a symbol has a value for each t.
class Scope {
  constructor(pass, path, data) {
    Object.assign(this, { pass, path, data });
    this.values = new Map();
    this.series = new Map();
    this.returned = new Map(); // what a hook returned instead of what the layer computed
    this.order = new Map(); // when a symbol was computed, by symbol and t
    this.t = null;
    this.before = null; // the previous t of the loop
    for (const [name, key] of Object.entries(data.params)) {
      this.values.set(name, pass.parameter(key));
    }
    for (const [name, value] of Object.entries(data.values)) {
      if (this.changed(name)) continue;
      this.values.set(name, this.shared(name, memory(pass.doc, `${path} ${name}`, value)));
    }
  }

  // Whether a layer receives another value in this pass than the one that was recorded.
  changed(name) {
    const { nudged, sample } = this.pass;
    const { forward, backward } = this.data.receives;
    if (backward.includes(name)) return nudged || sample !== null;
    return nudged && this.path !== "" && forward.includes(name);
  }

  // Whether what was recorded of a direction is not so in this pass.
  stale(direction) {
    const { nudged, sample } = this.pass;
    return nudged || (sample !== null && (direction === "backward" || isLoss(this.path)));
  }

  // The value of a symbol as seen in round t, or null if there is none: of what a layer returned,
  // as hooks left it.
  find(symbol, t = this.t) {
    return this.returned.get(symbol) ?? this.read(symbol, t);
  }

  // The same for the steps of the layer itself, which go on with what they computed.
  read(symbol, t = this.t) {
    if (symbol === "t" && t !== null) return scalar(t);
    const rounds = this.series.get(symbol);
    if (!rounds) return this.values.get(symbol) ?? null;
    if (t !== null) return rounds[t] ?? null;
    if (!this.values.has(symbol)) this.values.set(symbol, stacked(rounds));
    return this.values.get(symbol);
  }

  set(symbol, value) {
    this.order.set(timed(symbol, this.t), this.pass.clock++);
    if (this.t === null) this.values.set(symbol, value);
    else {
      if (!this.series.has(symbol)) this.series.set(symbol, []);
      this.series.get(symbol)[this.t] = value;
      this.values.delete(symbol);
    }
  }

  // When a symbol was computed: values have the numbers 0, 1, 2, ...
  when(symbol, t) {
    return this.order.get(timed(symbol, t)) ?? -1;
  }

  // Run the steps of a direction, given the values that the layer receives; return those that it
  // returns.
  run(direction, given = []) {
    const { receives, returns, values } = this.data;
    receives[direction].forEach((symbol, k) => {
      if (!(symbol in values)) this.set(symbol, given[k] ?? null);
    });
    this.perform(this.data[direction], direction);
    return returns[direction].map((symbol) => this.find(symbol));
  }

  perform(steps, direction) {
    for (const step of steps) {
      if (step.kind !== "loop") {
        this.set(step.symbol, this.result(step, direction));
        if ("returned" in step && !this.stale(direction)) {
          this.returned.set(step.symbol, memory(this.pass.doc, step, step.returned));
        }
        continue;
      }
      this.before = null;
      for (const t of this.times(step)) {
        this.t = t;
        this.perform(step.body, direction);
        this.before = t;
      }
      this.t = this.before = null;
    }
  }

  // The values of t in a loop, in order.
  times(loop) {
    const T = this.read(loop.of, null)?.shape[1] ?? 0;
    const times = Array.from({ length: T }, (_, t) => t);
    return loop.reverse ? times.reverse() : times;
  }

  result(step, direction) {
    const inner = step.kind === "through" ? this.through(step) : null;
    if ("value" in step) return this.stored(step, direction);
    return inner ?? this.computed(step);
  }

  through(step) {
    const inner = this.pass.get(step.path);
    const given = step.reads.map((name) => this.read(name));
    if (step.runs) inner.run(step.back ? "backward" : "forward", given);
    return inner.find(step.result);
  }

  // A value that the document has; in a loop, of round t.
  stored(step, direction) {
    if (step.recorded && this.stale(direction)) return null;
    const value = memory(this.pass.doc, step, step.value);
    return this.t === null || value instanceof Reduced
      ? this.shared(step.symbol, value)
      : sliced(value, this.t);
  }

  computed(step) {
    if (step.kind === "arrange") return arranged(this.read(step.of), this.origin(step));
    if (step.kind === "carry") {
      const first = this.before === null;
      return first ? this.read(step.start, null) : this.read(step.of, this.before);
    }
    const operands = step.reads.map((name) => this.read(name));
    if (!operands.every((value) => value instanceof Tensor)) return null;
    switch (step.kind) {
      case "let":
        return elementwise(step.tree, new Map(step.reads.map((name, k) => [name, operands[k]])));
      case "sum":
        return einsum(step.letters, step.out, operands);
      case "max":
        return largest(step.letters, step.out, operands);
      case "join":
        return joined(operands);
      default:
        return null;
    }
  }

  // Where the cells of an arranged array come from, as an array with its shape.
  origin(step, t = this.t) {
    const { doc } = this.pass;
    const [first, ...more] = step.from;
    const from = more.length ? step.from[this.times(this.loopOf(step)).indexOf(t)] : first;
    return memory(doc, from, from, () => ({ shape: from.shape, cells: origins(from) }));
  }

  // With one sample, only its terms of the loss count.
  shared(symbol, value) {
    const { sample, doc } = this.pass;
    if (sample === null || !isLoss(this.path) || !WEIGHTS.has(symbol)) return value;
    if (!(value instanceof Tensor)) return null;
    const share = new Tensor(value.shape);
    const size = value.size / doc.samples;
    const [from, to] = [sample * size, (sample + 1) * size];
    share.data.set(value.data.subarray(from, to), from);
    return share;
  }

  loopOf(step) {
    return memory(this.pass.doc, `loops ${this.path}`, null, () => {
      const loops = [...this.data.forward, ...this.data.backward].filter((s) => s.body);
      return new Map(loops.flatMap((loop) => loop.body.map((inner) => [inner, loop])));
    }).get(step);
  }

  // The round of the loop before round t, or null for the first one.
  previous(step, t) {
    const times = this.times(this.loopOf(step));
    return times[times.indexOf(t) - 1] ?? null;
  }
}

// A pass through all steps.
//   given    parameters that replace those of the document, by key
//   sample   the only sample whose share of the loss counts
export class Pass {
  constructor(doc, { given = {}, sample = null } = {}) {
    Object.assign(this, { doc, given, sample });
    this.nudged = Object.keys(given).length > 0;
    this.clock = 0; // counts the values as they are computed
    this.scopes = new Map();
    for (const [path, scope] of Object.entries(doc.scopes)) {
      this.scopes.set(path, new Scope(this, path, scope));
    }
  }

  get(path) {
    return this.scopes.get(path);
  }

  forward() {
    this.get("loss").run("forward", this.get("").run("forward"));
    return this;
  }

  run() {
    this.forward();
    this.get("").run("backward", this.get("loss").run("backward"));
    return this;
  }

  get loss() {
    return this.get("loss").find("L")?.data?.[0] ?? NaN;
  }

  parameter(key) {
    return this.given[key] ?? memory(this.doc, `parameter ${key}`, this.doc.parameters[key]);
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
  const other = rounds.find((value) => !(value instanceof Tensor));
  if (other !== undefined) return other; // unknown, or an array of all rounds that is reduced
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

// The value (N, ...) of round t.
function sliced(tensor, t) {
  const [N, T, ...rest] = tensor.shape;
  const size = product(rest);
  const result = new Tensor([N, ...rest]);
  for (let n = 0; n < N; n++) {
    result.data.set(tensor.data.subarray((n * T + t) * size, (n * T + t + 1) * size), n * size);
  }
  return result;
}

// The step that computes a symbol, if one does; in one direction only, if it is given.
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
