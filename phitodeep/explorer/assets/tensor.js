// Arrays of numbers, sums of products as einsum writes them, and the arrays of a document.

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
    const cell = [];
    for (let axis = this.shape.length - 1; axis >= 0; axis--) {
      cell.unshift(place % this.shape[axis]);
      place = Math.floor(place / this.shape[axis]);
    }
    return cell;
  }

  copy() {
    return new Tensor(this.shape, this.data.slice());
  }
}

export const product = (numbers) => numbers.reduce((a, b) => a * b, 1);
export const scalar = (value) => new Tensor([], Float64Array.of(value));

export function strides(shape) {
  const found = new Array(shape.length);
  let step = 1;
  for (let axis = shape.length - 1; axis >= 0; axis--) {
    found[axis] = step;
    step *= shape[axis];
  }
  return found;
}

// --- the arrays of a document --------------------------------------------------------------------

const KINDS = { f4: Float32Array, u1: Uint8Array, u2: Uint16Array, i1: Int8Array, i4: Int32Array };

export function decoded(text, kind) {
  const bytes = Uint8Array.from(atob(text), (c) => c.charCodeAt(0));
  return new KINDS[kind](bytes.buffer);
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

// A thumbnail of an array that is too large for the document, and its largest numbers.
export class Reduced {
  constructor({ shape, n, thumb, top, histogram }) {
    Object.assign(this, { shape, size: n, top, histogram });
    const data = Float64Array.from(decoded(thumb.data, "i1"), (v) => (v * thumb.scale) / 127);
    this.thumb = new Tensor(thumb.shape, data);
  }
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

// Calls back for each cell in order, with its number and its place for each of several strides.
export function visit(shape, steps, call) {
  const size = product(shape);
  const cell = new Array(shape.length).fill(0);
  const at = steps.map(() => 0);
  for (let i = 0; i < size; i++) {
    call(i, at);
    for (let axis = shape.length - 1; axis >= 0; axis--) {
      const last = ++cell[axis] === shape[axis];
      if (last) cell[axis] = 0;
      const move = last ? 1 - shape[axis] : 1;
      for (let k = 0; k < at.length; k++) at[k] += move * steps[k][axis];
      if (!last) break;
    }
  }
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

// The sum of products over the letters that `out` does not have; "1" in `out` is an axis of size 1.
export function einsum(letters, out, tensors) {
  const { sizes, steps } = indexing(letters, tensors);
  const kept = [...out].filter((letter) => letter !== "1");
  const along = Object.keys(sizes).filter((letter) => !kept.includes(letter));
  const result = new Tensor([...out].map((letter) => (letter === "1" ? 1 : sizes[letter])));
  const lengths = along.map((letter) => sizes[letter]);
  const moves = steps.map((own) => along.map((letter) => own[letter] ?? 0));
  const [A, B] = tensors.map((tensor) => tensor.data);
  const sum = B ? summer(A, B, lengths, ...moves) : summer(A, ONE, lengths, moves[0], ZERO);
  visit(
    kept.map((letter) => sizes[letter]),
    steps.map((own) => kept.map((letter) => own[letter] ?? 0)),
    (i, [a, b]) => {
      result.data[i] = sum(a, b ?? 0, 0);
    },
  );
  return result;
}

const ONE = Float64Array.of(1);
const ZERO = new Array(16).fill(0);

// A function that sums products of A and B from two places on, one loop for each summed letter.
function summer(A, B, lengths, a, b) {
  const last = lengths.length - 1;
  if (last < 0) return (i, j) => A[i] * B[j];
  return function sum(i, j, level) {
    const [n, di, dj] = [lengths[level], a[level], b[level]];
    let total = 0;
    if (level === last) {
      for (let k = 0; k < n; k++) total += A[i + k * di] * B[j + k * dj];
    } else {
      for (let k = 0; k < n; k++) total += sum(i + k * di, j + k * dj, level + 1);
    }
    return total;
  };
}

export function largest([letters], out, [tensor]) {
  const { sizes, steps } = indexing([letters], [tensor]);
  const kept = [...out].filter((letter) => letter !== "1");
  const along = Object.keys(sizes).filter((letter) => !kept.includes(letter));
  const result = new Tensor([...out].map((letter) => (letter === "1" ? 1 : sizes[letter])));
  const [own] = steps;
  const lengths = along.map((letter) => sizes[letter]);
  visit(kept.map((l) => sizes[l]), [kept.map((l) => own[l])], (i, [start]) => {
    let top = -Infinity;
    visit(lengths, [along.map((l) => own[l])], (_, [at]) => {
      const value = tensor.data[start + at];
      if (value > top || Number.isNaN(value)) top = value;
    });
    result.data[i] = top;
  });
  return result;
}
