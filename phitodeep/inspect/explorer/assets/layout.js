// How the axes of an array become rows and columns of cells, and where each cell is drawn.

import { Reduced, product } from "./tensor.js";

const SIDE = 64; // cells of a block along each axis; beyond it, the largest of several is shown
const GAP = 4; // pixels between blocks
const BLOCKS = { across: 12, down: 8 }; // at most

// Which axes run inside a block, which ones number the blocks from top to bottom, and which across.
function axesOf(shape, { parameter = false, images = false } = {}) {
  const rank = shape.length;
  const every = shape.map((_, axis) => axis);
  if (rank < 3) return { inside: every, down: [], across: [] };
  if (parameter) return { inside: [0, 1], down: every.slice(2, -1), across: [rank - 1] };
  if (rank === 3) return { inside: [1, 2], down: [], across: [0] };
  if (images && rank === 4) return { inside: [1, 2], down: [0], across: [3] };
  if (images && rank === 6) return { inside: [3, 4], down: [0, 1], across: [2, 5] };
  return { inside: [rank - 2, rank - 1], down: every.slice(0, -3), across: [rank - 3] };
}

// The picture of a tensor in a box of pixels: where each cell is drawn.
export class Layout {
  constructor(tensor, hints, box, centre = null) {
    const flat = tensor instanceof Reduced ? tensor.thumb : tensor;
    Object.assign(this, { tensor: flat, reduced: tensor instanceof Reduced });
    this.axes = axesOf(flat.shape, hints);
    const { inside, down, across } = this.axes;
    const lengths = (axes) => axes.map((axis) => flat.shape[axis]);
    const [columns, rows] = [...lengths(inside)].reverse().concat([1, 1]);
    Object.assign(this, { rows, columns });
    this.each = { row: Math.ceil(rows / SIDE), column: Math.ceil(columns / SIDE) };
    this.shownRows = Math.ceil(rows / this.each.row);
    this.shownColumns = Math.ceil(columns / this.each.column);
    const least = 2; // pixels of a cell
    const fit = (space, cells) => Math.max(1, Math.floor((space + GAP) / (cells * least + GAP)));
    this.blocks = { down: product(lengths(down)), across: product(lengths(across)) };
    this.visible = {
      down: Math.min(this.blocks.down, BLOCKS.down, fit(box.height, this.shownRows)),
      across: Math.min(this.blocks.across, BLOCKS.across, fit(box.width, this.shownColumns)),
    };
    this.first = { down: 0, across: 0 };
    if (centre) this.centreOn(centre);
    const room = (space, blocks, cells) => (space - (blocks - 1) * GAP) / (blocks * cells);
    this.measure(
      Math.min(box.cell, room(box.width, this.visible.across, this.shownColumns)),
      Math.min(box.cell, room(box.height, this.visible.down, this.shownRows)),
    );
    this.width = this.visible.across * this.step.x - GAP;
    this.height = this.visible.down * this.step.y - GAP;
    this.scale = flat.data.reduce(
      (top, v) => (Number.isFinite(v) ? Math.max(top, Math.abs(v)) : top),
      0,
    );
  }

  // The size of a cell: a square, but stretched up to three times where squares would be tiny, if
  // the block is not a square itself, as images are.
  measure(wide, tall) {
    const least = Math.min(wide, tall);
    const most = this.rows === this.columns ? least : Math.max(least, Math.min(12, 3 * least));
    const whole = (size) => (size >= 3 ? Math.floor(size) : Math.max(1, size));
    this.wide = whole(Math.min(wide, most));
    this.tall = whole(Math.min(tall, most));
    this.least = Math.min(this.wide, this.tall);
    this.step = { x: this.shownColumns * this.wide + GAP, y: this.shownRows * this.tall + GAP }; // of blocks
  }

  // Let the block of a cell be visible.
  centreOn(cell) {
    const { down, across } = this.blockOf(cell);
    for (const [side, k] of Object.entries({ down, across })) {
      const last = this.blocks[side] - this.visible[side];
      this.first[side] = Math.max(0, Math.min(last, k - Math.floor(this.visible[side] / 2)));
      if (k < this.visible[side]) this.first[side] = 0;
    }
  }

  blockOf(cell) {
    const number = (axes) => axes.reduce((n, axis) => n * this.tensor.shape[axis] + cell[axis], 0);
    return { down: number(this.axes.down), across: number(this.axes.across) };
  }

  // The cell in a row and a column of a block.
  cellOf(down, across, row, column) {
    const cell = new Array(this.tensor.shape.length).fill(0);
    const spread = (axes, number) => {
      let n = number;
      for (const axis of [...axes].reverse()) {
        cell[axis] = n % this.tensor.shape[axis];
        n = Math.floor(n / this.tensor.shape[axis]);
      }
    };
    spread(this.axes.down, down);
    spread(this.axes.across, across);
    const { inside } = this.axes;
    if (inside.length) cell[inside.at(-1)] = column;
    if (inside.length > 1) cell[inside[0]] = row;
    return cell;
  }

  // The cell with the largest number among those that are drawn as one.
  strongest(down, across, row, column) {
    let best = null;
    let top = -1;
    const { row: tall, column: wide } = this.each;
    for (let r = row * tall; r < Math.min(this.rows, (row + 1) * tall); r++) {
      for (let c = column * wide; c < Math.min(this.columns, (column + 1) * wide); c++) {
        const cell = this.cellOf(down, across, r, c);
        const value = Math.abs(this.tensor.at(cell));
        if (!(value <= top)) [best, top] = [cell, Number.isNaN(value) ? Infinity : value];
      }
    }
    return best;
  }

  // Calls back for each drawn cell with its place in pixels and its tensor cell.
  each_(call) {
    for (let down = 0; down < this.visible.down; down++) {
      for (let across = 0; across < this.visible.across; across++) {
        const [x0, y0] = [across * this.step.x, down * this.step.y];
        for (let r = 0; r < this.shownRows; r++) {
          for (let c = 0; c < this.shownColumns; c++) {
            const cell = this.strongest(this.first.down + down, this.first.across + across, r, c);
            call(x0 + c * this.wide, y0 + r * this.tall, cell);
          }
        }
      }
    }
  }

  // The pixels of a cell, or null if its block is not visible.
  boxOf(cell) {
    const block = this.blockOf(cell);
    const [down, across] = [block.down - this.first.down, block.across - this.first.across];
    if (down < 0 || across < 0 || down >= this.visible.down || across >= this.visible.across)
      return null;
    const { inside } = this.axes;
    const column = inside.length ? Math.floor(cell[inside.at(-1)] / this.each.column) : 0;
    const row = inside.length > 1 ? Math.floor(cell[inside[0]] / this.each.row) : 0;
    return {
      x: across * this.step.x + column * this.wide,
      y: down * this.step.y + row * this.tall,
    };
  }

  // The cell under a pixel, or null between blocks.
  cellAt(x, y) {
    const [across, down] = [Math.floor(x / this.step.x), Math.floor(y / this.step.y)];
    const column = Math.floor((x - across * this.step.x) / this.wide);
    const row = Math.floor((y - down * this.step.y) / this.tall);
    const outside = [across, down, row, column].some((k) => k < 0);
    if (outside || column >= this.shownColumns || row >= this.shownRows) return null;
    if (across >= this.visible.across || down >= this.visible.down) return null;
    return this.strongest(this.first.down + down, this.first.across + across, row, column);
  }

  // What is left out: how many numbers are drawn, of how many.
  get drawn() {
    return this.visible.down * this.visible.across * this.shownRows * this.shownColumns;
  }
}
