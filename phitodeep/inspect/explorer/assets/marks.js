// Which cells of which arrays are marked for one cell: its own with a ring, those of its terms.

import { Tensor } from "./tensor.js";
import { moved, why } from "./terms.js";

const MARKED = 4000; // terms
const STRONG = 5;

export const keyOf = ({ path, symbol, t = null }) => `${path}|${symbol}|${t}`;

// The marks by array, for Tile.mark; `pointed` is a cell that also gets a ring.
export function marksOf(pass, ref, pointed = null) {
  const marks = new Map();
  const of = (cell) => {
    const key = keyOf(cell);
    if (!marks.has(key)) marks.set(key, { ring: null, strong: [], weak: [] });
    return marks.get(key);
  };
  const tensor = pass.get(ref.path).find(ref.symbol, ref.t ?? null);
  if (ref.update) {
    for (const symbol of [ref.symbol, `d${ref.symbol}`, `Δ${ref.symbol}`])
      of({ ...ref, symbol, t: null }).ring = ref.cell;
    return marks;
  }
  if (tensor instanceof Tensor) {
    why(pass, ref)
      .terms.filter(({ value }) => value !== 0)
      .slice(0, MARKED)
      .forEach((term, k) => {
        for (const factor of term.factors) {
          for (let next = factor; next; next = moved(pass, next))
            of(next)[k < STRONG ? "strong" : "weak"].push(next.cell);
        }
      });
  }
  of(ref).ring = ref.cell;
  for (let next = pointed; next; next = moved(pass, next)) of(next).ring = next.cell;
  return marks;
}
