// One array as a picture: a cell for each number. Pointer and keys choose a cell.

import { make, shown, symbol } from "../../explorer/dom.js";
import { signed } from "./colours.js";

export class Tile {
  constructor({ name, about, choose }) {
    Object.assign(this, { name, choose, cell: [0, 0] });
    this.canvas = make("canvas", {
      tabindex: "0",
      role: "img",
      "aria-label": about,
      click: (event) => this.pick(this.at(event)),
      pointermove: (event) => this.tell(this.at(event)),
      keydown: (event) => this.key(event),
    });
    this.mark = make("span", { class: "mark", hidden: true });
    this.element = make(
      "figure",
      { class: "tile" },
      make("figcaption", {}, /^\w+$/.test(name) ? symbol(name) : name),
      make("div", { class: "cells" }, this.canvas, this.mark),
    );
  }

  // Draw the numbers of one array; not a number is marked.
  show({ data, rows, columns }, colours) {
    Object.assign(this, { data, rows, columns });
    const { canvas } = this;
    if (canvas.width !== columns || canvas.height !== rows) {
      Object.assign(canvas, { width: columns, height: rows });
      const cell = Math.max(3, Math.min(12, Math.floor(120 / Math.max(columns, rows))));
      canvas.style.width = `${Math.max(12, columns * cell)}px`;
      canvas.style.height = `${Math.max(12, rows * cell)}px`;
    }
    const context = canvas.getContext("2d");
    const image = context.createImageData(columns, rows);
    let scale = 0;
    for (const v of data) if (Number.isFinite(v)) scale = Math.max(scale, Math.abs(v));
    data.forEach((v, k) => image.data.set([...signed(v, scale, colours), 255], 4 * k));
    context.putImageData(image, 0, 0);
    this.element.classList.toggle(
      "spoilt",
      data.some((v) => !Number.isFinite(v)),
    );
  }

  at(event) {
    const box = this.canvas.getBoundingClientRect();
    const part = (x, from, size, n) =>
      Math.max(0, Math.min(n - 1, Math.floor(((x - from) / size) * n)));
    return [
      part(event.clientY, box.top, box.height, this.rows),
      part(event.clientX, box.left, box.width, this.columns),
    ];
  }

  value([row, column]) {
    return this.data[row * this.columns + column];
  }

  tell(cell) {
    this.canvas.title = `${this.name}[${cell}] = ${shown(this.value(cell))}`;
  }

  pick(cell) {
    this.cell = cell;
    this.choose(cell);
  }

  key(event) {
    const moves = { ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1] };
    const move = moves[event.key] ?? (event.key === "Enter" ? [0, 0] : null);
    if (!move) return;
    event.preventDefault();
    this.move(move);
  }

  // Choose the cell so many rows and columns away.
  move([down, right]) {
    const limit = (k, n) => Math.max(0, Math.min(n - 1, k));
    this.pick([limit(this.cell[0] + down, this.rows), limit(this.cell[1] + right, this.columns)]);
  }

  // Ring a cell, or none.
  ring(cell) {
    this.mark.hidden = !cell;
    if (!cell) return;
    this.cell = cell;
    const [height, width] = [100 / this.rows, 100 / this.columns];
    Object.assign(this.mark.style, {
      top: `${cell[0] * height}%`,
      left: `${cell[1] * width}%`,
      width: `${width}%`,
      height: `${height}%`,
    });
  }
}
