// An array as coloured cells: how its axes become rows and columns, and the picture itself.

import { Reduced, product } from "./tensor.js";
import { count, make, shapeOf, shown, symbol } from "./dom.js";

const EDGE = 3; // pixels around a picture, for the frames of cells at its edge
const SIDE = 64; // cells of a block along each axis; beyond it, the largest of several is shown
const GAP = 4; // pixels between blocks
const BLOCKS = { across: 12, down: 8 }; // blocks

// Which axes run inside a block, which ones number the blocks from top to bottom, and which across.
export function axesOf(shape, { parameter = false, images = false } = {}) {
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

// --- the picture -----------------------------------------------------------------------------------

// A figure of one array, with a caption. `listen` receives (what, cell) for "hover", "choose" and
// "leave"; the figure has one place in the order of Tab, and the arrow keys move between its cells.
export class Tile {
  constructor({ ref, name, words = "", box, hints, listen, small = false }) {
    Object.assign(this, { ref, name, box, hints, listen, small });
    this.marks = { ring: null, strong: [], weak: [] };
    this.cursor = null;
    this.canvas = make("canvas", {
      tabindex: "0",
      role: "img",
      pointermove: (event) => event.pointerType !== "touch" && this.point(event, "hover"),
      pointerleave: (event) => event.pointerType !== "touch" && this.listen("leave", null),
      pointerdown: (event) => (this.tapped = event.pointerType === "touch"),
      click: (event) => this.point(event, this.tapped ? "tap" : "choose"),
      focus: () => this.focused(),
      blur: () => this.listen("leave", null),
      keydown: (event) => this.key(event),
    });
    this.caption = make("figcaption");
    this.words = words;
    this.element = make(
      "figure",
      { class: "tile", "data-array": ref.symbol },
      this.caption,
      this.canvas,
    );
  }

  // Draw an array; the block of `centre` is visible.
  show(tensor, ink, centre = null) {
    this.tensor = tensor;
    this.layout = new Layout(tensor, this.hints, this.box, this.marks.ring ?? centre);
    const { layout } = this;
    this.ink = ink;
    this.canvas.style.width = `${layout.width + 2 * EDGE}px`;
    this.canvas.style.height = `${layout.height + 2 * EDGE}px`;
    this.plain = make("canvas"); // the cells without marks
    this.drawCells(this.scaled(this.plain));
    this.scaled(this.canvas);
    this.drawMarks();
    this.captioned();
    return this;
  }

  // Give a canvas the pixels that the screen has for the picture.
  scaled(canvas) {
    const scale = window.devicePixelRatio || 1;
    canvas.width = Math.ceil((this.layout.width + 2 * EDGE) * scale);
    canvas.height = Math.ceil((this.layout.height + 2 * EDGE) * scale);
    const context = canvas.getContext("2d");
    context.setTransform(scale, 0, 0, scale, EDGE * scale, EDGE * scale);
    return context;
  }

  captioned() {
    const { tensor, layout } = this;
    const left = layout.reduced || layout.drawn < tensor.size;
    const note = left ? `shown ${count(layout.drawn)} of ${count(tensor.size)}` : "";
    const size = make("span", { class: "shape" }, shapeOf(tensor));
    const about = this.words ? [make("span", { class: "role" }, this.words)] : [];
    if (note && !this.small) about.unshift(make("span", { class: "note" }, note));
    this.caption.replaceChildren(symbol(this.name), " ", size, ...about);
    const range = `largest size ${shown(layout.scale)}`;
    this.canvas.setAttribute(
      "aria-label",
      `${this.name}, ${shapeOf(tensor)}, ${range}${note ? `, ${note}` : ""}`,
    );
  }

  drawCells(context) {
    const { layout } = this;
    layout.each_((x, y, cell) => this.drawCell(context, x, y, layout.tensor.at(cell)));
  }

  drawCell(context, x, y, value) {
    const { wide, tall, least, scale } = this.layout;
    const inset = least >= 5 ? 1 : 0;
    context.fillStyle = this.ink.of(value, scale);
    context.fillRect(x, y, wide - inset, tall - inset);
    if (least >= 11) this.drawText(context, x, y, value);
  }

  // The sign, or the number where there is room: colour is never the only difference.
  drawText(context, x, y, value) {
    const { wide, tall, least: size, scale } = this.layout;
    const part = Math.abs(value) / (scale || 1);
    const middle = [x + (wide - 1) / 2, y + (tall - 1) / 2 + 0.5];
    context.textAlign = "center";
    context.textBaseline = "middle";
    context.fillStyle = part > 0.55 ? this.ink.paper : this.ink.ink;
    const text = shown(value, 2);
    context.font = "12px system-ui, sans-serif";
    const height = Math.min(12, (12 * (wide - 6)) / context.measureText(text).width);
    if (size >= 34 && height >= 8) {
      context.font = `${height}px system-ui, sans-serif`;
      context.fillText(text, ...middle);
    } else if (part > 0.04) {
      context.font = `${Math.min(14, size * 0.75)}px system-ui, sans-serif`;
      context.globalAlpha = 0.75;
      context.fillText(value < 0 ? "−" : "+", ...middle);
      context.globalAlpha = 1;
    }
  }

  // Mark cells: one with a ring, those of strong terms with a frame, and those of weak ones lightly.
  mark(marks) {
    const before = this.marks;
    this.marks = { ring: null, strong: [], weak: [], ...marks };
    if (!this.layout) return;
    if (this.marks.ring && !this.layout.boxOf(this.marks.ring)) this.show(this.tensor, this.ink);
    else if (before !== this.marks) this.drawMarks();
  }

  drawMarks() {
    const context = this.canvas.getContext("2d");
    const scale = window.devicePixelRatio || 1;
    const [across, down] = [this.plain.width / scale, this.plain.height / scale];
    context.clearRect(-EDGE, -EDGE, across, down);
    context.drawImage(this.plain, -EDGE, -EDGE, across, down);
    const { least: size, wide, tall } = this.layout;
    const marked = [...this.marks.weak, ...this.marks.strong];
    if (marked.length) this.fade(context, marked);
    const frame = (cell, width) => {
      const box = this.layout.boxOf(cell);
      if (!box) return;
      const grow = size < 6 ? 2 : 0;
      for (const [colour, more] of [
        [this.ink.paper, 2],
        [this.ink.ink, 0],
      ]) {
        context.strokeStyle = colour;
        context.lineWidth = width + more;
        context.strokeRect(box.x - grow, box.y - grow, wide - 1 + 2 * grow, tall - 1 + 2 * grow);
      }
    };
    for (const cell of this.marks.strong) frame(cell, size < 6 ? 1 : 1.5);
    if (this.marks.ring) frame(this.marks.ring, size < 6 ? 1.5 : 2.5);
    if (this.cursor && document.activeElement === this.canvas) frame(this.cursor, 2.5);
  }

  // Let everything else step back.
  fade(context, cells) {
    const { layout } = this;
    context.fillStyle = this.ink.paper;
    context.globalAlpha = 0.6;
    context.fillRect(0, 0, layout.width, layout.height);
    context.globalAlpha = 1;
    for (const cell of cells) {
      const box = layout.boxOf(cell);
      if (box) this.drawCell(context, box.x, box.y, layout.tensor.at(cell));
    }
  }

  // --- pointing --------------------------------------------------------------------------------

  point(event, what) {
    if (!this.layout) return;
    const box = this.canvas.getBoundingClientRect();
    const [x, y] = [event.clientX - box.left - EDGE, event.clientY - box.top - EDGE];
    const cell = this.layout.cellAt(x, y);
    if (cell) this.tell(what, cell); // between blocks, the last cell stays
  }

  tell(what, cell) {
    this.cursor = cell;
    this.listen(what, cell, this.layout.reduced);
  }

  focused() {
    if (!this.canvas.matches(":focus-visible")) return;
    this.tell("hover", this.cursor ?? this.start());
    this.drawMarks();
  }

  // The cell where moving begins.
  start() {
    const { first } = this.layout;
    return this.marks.ring ?? this.layout.strongest(first.down, first.across, 0, 0);
  }

  key(event) {
    const moves = { ArrowLeft: [0, -1], ArrowRight: [0, 1], ArrowUp: [-1, 0], ArrowDown: [1, 0] };
    if (event.ctrlKey || event.metaKey || event.altKey || !this.layout) return;
    this.cursor ??= this.start();
    if (event.key in moves) {
      this.tell("hover", this.neighbour(this.cursor, ...moves[event.key]));
      this.drawMarks();
    } else if (event.key === "Enter") this.tell("choose", this.cursor);
    else if (event.key === "t") this.tell("table", this.cursor);
    else if (event.key === "Escape") this.canvas.blur();
    else return;
    event.preventDefault();
    event.stopPropagation();
  }

  // The next drawn cell in a direction, or the same one at the edge.
  neighbour(cell, down, across) {
    const { layout } = this;
    const { shownRows, shownColumns, blocks, each } = layout;
    const { inside } = layout.axes;
    const block = layout.blockOf(cell);
    const row = inside.length > 1 ? Math.floor(cell[inside[0]] / each.row) : 0;
    const column = inside.length ? Math.floor(cell[inside.at(-1)] / each.column) : 0;
    const y = block.down * shownRows + row + down;
    const x = block.across * shownColumns + column + across;
    if (x < 0 || y < 0 || x >= blocks.across * shownColumns || y >= blocks.down * shownRows)
      return cell;
    const [to, left] = [Math.floor(y / shownRows), Math.floor(x / shownColumns)];
    return layout.strongest(to, left, y % shownRows, x % shownColumns);
  }
}
