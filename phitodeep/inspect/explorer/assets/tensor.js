// Arrays of numbers, sums of products as einsum writes them, and the arrays of a document.

// The cell of a place in an array of this shape.
export function cellOf(shape, place) {
  const cell = new Array(shape.length);
  let rest = place;
  for (let axis = shape.length - 1; axis >= 0; axis--) {
    cell[axis] = rest % shape[axis];
    rest = Math.floor(rest / shape[axis]);
  }
  return cell;
}

export const product = (numbers) => numbers.reduce((a, b) => a * b, 1);

export class Tensor {
  constructor(shape, data) {
    this.shape = shape;
    this.data = data ?? new Float64Array(product(shape));
  }

  get size() {
    return this.data.length;
  }

  // The place in `data` of a cell.
  place(cell) {
    return cell.reduce((at, k, axis) => at * this.shape[axis] + k, 0);
  }

  at(cell) {
    return this.data[this.place(cell)];
  }

  // The cell of a place in `data`.
  cell(place) {
    return cellOf(this.shape, place);
  }

  copy() {
    return new Tensor(this.shape, this.data.slice());
  }
}

export const scalar = (value) => new Tensor([], Float64Array.of(value));

function strides(shape) {
  const found = new Array(shape.length);
  let step = 1;
  for (let axis = shape.length - 1; axis >= 0; axis--) {
    found[axis] = step;
    step *= shape[axis];
  }
  return found;
}

// --- the arrays of a document --------------------------------------------------------------------

const KINDS = {
  f8: Float64Array,
  f4: Float32Array,
  u1: Uint8Array,
  u2: Uint16Array,
  i1: Int8Array,
  i4: Int32Array,
};

function decoded(text, kind) {
  const letters = atob(text);
  const bytes = new Uint8Array(letters.length);
  for (let i = 0; i < bytes.length; i++) bytes[i] = letters.charCodeAt(i);
  return new KINDS[kind](bytes.buffer);
}

const MISSING = -128; // in a thumbnail: a number that is not finite

// A thumbnail of an array that is too large for the document, and its largest numbers: pairs of a
// place and a value.
export class Reduced {
  constructor({ shape, n, thumb, top, histogram }) {
    Object.assign(this, { shape, size: n, histogram });
    this.top = top.map(([place, value]) => [place, Number(value)]);
    const data = Float64Array.from(decoded(thumb.data, "i1"), (v) =>
      v === MISSING ? NaN : (v / 127) * thumb.scale,
    );
    this.thumb = new Tensor(thumb.shape, data);
  }
}

// An array of the document: a Tensor, or what is left of a large one.
export function unpacked(packed) {
  if (typeof packed !== "object") return scalar(Number(packed));
  if ("n" in packed) return new Reduced(packed);
  if ("all" in packed) {
    const found = new Tensor(packed.shape);
    found.data.fill(Number(packed.all));
    return found;
  }
  return new Tensor(packed.shape, Float64Array.from(decoded(packed.data, packed.as)));
}

// --- arrangements ----------------------------------------------------------------------------------

// For each cell of an arranged array: the place in the original that it comes from, or -1 for a 0.
export function origins({ shape, start, strides: steps, each, cells }) {
  const found = new Int32Array(product(shape));
  if (steps) {
    visit(shape, [steps], (i, [at]) => {
      found[i] = start + at;
    });
    return found;
  }
  const first = decoded(cells.data, cells.as);
  for (let i = 0; i < found.length; i++) {
    const from = first[i % first.length] - 1;
    found[i] = from < 0 ? -1 : from + (each ?? 0) * Math.floor(i / first.length);
  }
  return found;
}

// The same axes in fewer and longer loops, outermost first: without those of size 1, and with two
// as one where every array goes through both as through one. An axis has its `size`, and `steps`:
// how far each array moves along it.
function merged(axes) {
  const found = [];
  for (const axis of axes) {
    if (axis.size === 1) continue;
    const outer = found.at(-1);
    if (outer?.steps.every((step, k) => step === axis.size * axis.steps[k])) {
      found[found.length - 1] = { size: outer.size * axis.size, steps: axis.steps };
    } else found.push(axis);
  }
  return found;
}

// Calls back for each cell in order, with its number and its place for each of several strides.
export function visit(shape, ways, call) {
  const axes = merged(shape.map((size, k) => ({ size, steps: ways.map((own) => own[k]) })));
  const at = ways.map(() => 0);
  let number = 0;
  const walk = (level) => {
    if (level === axes.length) {
      call(number++, at);
      return;
    }
    const { size, steps } = axes[level];
    for (let n = 0; n < size; n++) {
      walk(level + 1);
      for (let k = 0; k < at.length; k++) at[k] += steps[k];
    }
    for (let k = 0; k < at.length; k++) at[k] -= size * steps[k];
  };
  walk(0);
}

// The strides of an array as broadcasting stretches it to a shape.
export function stretched(tensor, shape) {
  const own = strides(tensor.shape);
  const before = shape.length - tensor.shape.length;
  return shape.map((_, axis) => {
    const k = axis - before;
    return k < 0 || tensor.shape[k] === 1 ? 0 : own[k];
  });
}

export function broadcast(shapes) {
  const rank = Math.max(0, ...shapes.map((s) => s.length));
  return Array.from({ length: rank }, (_, axis) =>
    shapes.reduce((size, s) => {
      const n = s[axis - rank + s.length] ?? 1;
      return n === 1 ? size : n;
    }, 1),
  );
}

// --- sums ------------------------------------------------------------------------------------------

// How the letters of a sum run: sizes by letter, and the strides of each operand by letter.
export function indexing(letters, tensors) {
  const sizes = {};
  const steps = tensors.map((tensor, k) => {
    const found = {};
    const own = strides(tensor.shape);
    [...letters[k]].forEach((letter, axis) => {
      sizes[letter] = tensor.shape[axis];
      found[letter] = (found[letter] ?? 0) + own[axis];
    });
    return found;
  });
  return { sizes, steps };
}

// An array of zeros for the letters of a result, and its strides by letter.
function indexed(out, sizes) {
  const result = new Tensor([...out].map((letter) => sizes[letter] ?? 1));
  const own = strides(result.shape);
  return [result, Object.fromEntries([...out].map((letter, axis) => [letter, own[axis]]))];
}

const ONE = Float64Array.of(1);

// The sum of products over the letters that `out` does not have; "1" in `out` is an axis of size 1.
export function einsum(letters, out, tensors) {
  if (tensors.length > 2) return einsum(...paired(letters, out, tensors));
  const { sizes, steps: each } = indexing(letters, tensors);
  const [result, own] = indexed(out, sizes);
  const [left, right = {}] = each;
  const axes = Object.entries(sizes).map(([letter, size]) => ({
    size,
    steps: [left, right, own].map((by) => by[letter] ?? 0),
  }));
  const jump = ({ steps }) => steps.reduce((a, b) => a + b);
  axes.sort((a, b) => jump(b) - jump(a)); // neighbours in memory in the innermost loop
  add(merged(axes), 0, tensors[0].data, 0, tensors[1]?.data ?? ONE, 0, result.data, 0);
  return result;
}

// The same sum with the first two of its tensors multiplied.
function paired([first, second, ...others], out, [A, B, ...rest]) {
  const later = out + others.join("");
  const both = [...new Set(first + second)].filter((letter) => later.includes(letter)).join("");
  return [[both, ...others], out, [einsum([first, second], both, [A, B]), ...rest]];
}

// Adds the products of A and B to R, from a place in each on, in the loops from a level on.
function add(loops, level, A, a, B, b, R, r) {
  if (level === loops.length) {
    R[r] += A[a] * B[b];
    return;
  }
  const { size, steps } = loops[level];
  const da = steps[0];
  const db = steps[1];
  const dr = steps[2];
  if (level < loops.length - 1) {
    for (let k = 0; k < size; k++)
      add(loops, level + 1, A, a + k * da, B, b + k * db, R, r + k * dr);
  } else if (dr === 0) {
    let total = 0;
    for (let k = 0; k < size; k++) total += A[a + k * da] * B[b + k * db];
    R[r] += total;
  } else {
    for (let k = 0; k < size; k++) R[r + k * dr] += A[a + k * da] * B[b + k * db];
  }
}

// The largest elements along the letters that `out` does not have; NaN is larger than all numbers.
export function largest(letters, out, [tensor]) {
  const { sizes, steps } = indexing(letters, [tensor]);
  const [result, own] = indexed(out, sizes);
  const [A, R] = [tensor.data, result.data.fill(-Infinity)];
  const ways = [steps[0], own].map((by) => Object.keys(sizes).map((letter) => by[letter] ?? 0));
  visit(Object.values(sizes), ways, (_, [a, r]) => {
    if (A[a] > R[r] || Number.isNaN(A[a])) R[r] = A[a];
  });
  return result;
}
