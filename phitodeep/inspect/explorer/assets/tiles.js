// An array as coloured cells: its picture, and pointing at it.

import { Layout } from "./layout.js";
import { count, make, shapeOf, shown, symbol } from "./dom.js";

const EDGE = 3; // pixels around a picture, for the frames of cells at its edge

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
    if (!this.small) this.drawNumbers(context);
  }

  // The number of each block, such as that of its sample, where there is room.
  drawNumbers(context) {
    const { layout } = this;
    const { visible, first, step, axes } = layout;
    const several = layout.blocks.down * layout.blocks.across > 1;
    if (!several || Math.min(step.x, step.y) < 34) return;
    context.font = "10px system-ui, sans-serif";
    context.textAlign = "left";
    context.textBaseline = "top";
    for (let down = 0; down < visible.down; down++) {
      for (let across = 0; across < visible.across; across++) {
        const cell = layout.cellOf(first.down + down, first.across + across, 0, 0);
        const text = [...axes.down, ...axes.across].map((axis) => cell[axis]).join(",");
        const [x, y] = [across * step.x, down * step.y];
        context.globalAlpha = 0.8;
        context.fillStyle = this.ink.paper;
        context.fillRect(x, y, context.measureText(text).width + 4, 12);
        context.globalAlpha = 1;
        context.fillStyle = this.ink.ink;
        context.fillText(text, x + 2, y + 1);
      }
    }
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
    const [first] = [this.marks.ring, ...this.marks.strong].filter(Boolean);
    if (first && !this.layout.boxOf(first)) this.show(this.tensor, this.ink, first);
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
