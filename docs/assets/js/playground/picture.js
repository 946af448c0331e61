// The data and what the model makes of them: the plane with its boundary, a curve, images or names.

import { make } from "../../explorer/dom.js";
import { css, mix } from "./colours.js";

const SIZE = 300;

export class Picture {
  // `drawn(x, y)` is called for a place in the plane that was clicked.
  constructor(element, drawn) {
    this.canvas = make("canvas", {
      width: SIZE,
      height: SIZE,
      role: "img",
      "aria-label": "The data, and the model's predictions behind them",
      click: (event) => this.click(event),
    });
    this.note = make("p", { class: "note" });
    this.names = make("p", { class: "names", "aria-live": "off" });
    this.drawn = drawn;
    this.back = document.createElement("canvas");
    element.replaceChildren(this.canvas, this.names, this.note);
  }

  use(about) {
    const same = about.kind === this.about?.kind && String(about.box) === String(this.about.box);
    this.about = about;
    if (!same) this.boundary = null;
    this.names.textContent = "";
    this.canvas.hidden = about.kind === "names" || about.kind === "table";
    this.note.textContent =
      {
        table: "A table of more than two columns has no picture: the lanes below show its numbers.",
        plane: "Points: the data. Behind them: which class the model predicts, paler in doubt.",
        curve: "Points: the data. The line: what the model predicts.",
        images: "The first 64 digits. A frame marks one that the model misreads, and says as what.",
        names: "Names that the model makes up, letter by letter, appear here while it trains.",
      }[about.kind] ?? "";
  }

  show(frame, colours) {
    if (frame.boundary.length) this.boundary = frame.boundary.slice();
    this.colours = colours;
    const { kind } = this.about;
    if (kind === "plane") this.plane();
    if (kind === "curve") this.curve();
    if (kind === "images") this.images();
  }

  say(names) {
    this.names.textContent = names.join(" · ");
  }

  plane() {
    const { about, boundary, canvas, colours } = this;
    const context = canvas.getContext("2d");
    context.fillStyle = css(colours.paper);
    context.fillRect(0, 0, SIZE, SIZE);
    if (boundary) {
      const { side } = about;
      Object.assign(this.back, { width: side, height: side });
      const image = this.back.getContext("2d").createImageData(side, side);
      boundary.forEach((p, k) => {
        const row = side - 1 - Math.floor(k / side);
        image.data.set([...this.shade(p), 255], 4 * (row * side + (k % side)));
      });
      this.back.getContext("2d").putImageData(image, 0, 0);
      context.imageSmoothingEnabled = true;
      context.drawImage(this.back, 0, 0, SIZE, SIZE);
    }
    about.X.forEach(([x, y], k) => {
      const [px, py] = this.place(x, y);
      context.beginPath();
      context.arc(px, py, 3.5, 0, 2 * Math.PI);
      context.fillStyle = css(colours.classes[this.colour(about.y[k])]);
      context.fill();
      context.strokeStyle = css(colours.paper);
      context.stroke();
    });
  }

  // The colour behind the points: of the likelier class, and paler where the model is in doubt.
  shade(p) {
    const { colours, about } = this;
    if (!Number.isFinite(p)) return colours.odd;
    if (about.classes > 2 || p > 1.0001) {
      const k = Math.floor(p);
      return mix(colours.paper, colours.classes[this.colour(k)], 0.1 + 0.5 * (p - k));
    }
    const side = Math.min(1, Math.abs(p - 0.5) * 2);
    return mix(colours.paper, colours.classes[p > 0.5 ? 1 : 0], 0.6 * side);
  }

  colour(y) {
    return Math.max(0, Math.round(y)) % this.colours.classes.length;
  }

  place(x, y) {
    const [x0, y0, x1, y1] = this.about.box;
    return [((x - x0) / (x1 - x0)) * SIZE, SIZE - ((y - y0) / (y1 - y0)) * SIZE];
  }

  curve() {
    const { about, boundary, canvas, colours } = this;
    const context = canvas.getContext("2d");
    context.fillStyle = css(colours.paper);
    context.fillRect(0, 0, SIZE, SIZE);
    const [x0, x1] = about.box;
    const [low, high] = [Math.min(...about.y), Math.max(...about.y)];
    const across = (x) => ((x - x0) / (x1 - x0)) * SIZE;
    const up = (y) => SIZE - ((y - low + 0.3) / (high - low + 0.6)) * SIZE;
    context.fillStyle = css(colours.classes[0]);
    about.X.forEach(([x], k) => context.fillRect(across(x) - 2, up(about.y[k]) - 2, 4, 4));
    if (!boundary) return;
    context.beginPath();
    boundary.forEach((y, k) => context.lineTo((k / (boundary.length - 1)) * SIZE, up(y)));
    context.lineWidth = 3;
    context.strokeStyle = css(colours.classes[1]);
    context.stroke();
  }

  images() {
    const { about, boundary: read, canvas, colours } = this;
    const context = canvas.getContext("2d");
    context.fillStyle = css(colours.paper);
    context.fillRect(0, 0, SIZE, SIZE);
    let misread = 0;
    const [across, side] = [8, Math.round(Math.sqrt(about.X[0].length))];
    const cell = SIZE / across;
    Object.assign(this.back, { width: side, height: side });
    const back = this.back.getContext("2d");
    context.imageSmoothingEnabled = false;
    about.X.slice(0, across * across).forEach((pixels, n) => {
      const image = back.createImageData(side, side);
      pixels.forEach((v, k) =>
        image.data.set(
          [
            ...mix(
              colours.paper,
              colours.zero.map((z) => 255 - z),
              v,
            ),
            255,
          ],
          4 * k,
        ),
      );
      back.putImageData(image, 0, 0);
      const [x, y] = [(n % across) * cell, Math.floor(n / across) * cell];
      context.drawImage(this.back, x + 1, y + 1, cell - 2, cell - 2);
      if (!read || read[n] === about.y[n]) return;
      misread += 1;
      this.frame(context, [x, y, cell], String(read[n]));
    });
    const known = read ? `; the model misreads ${misread} of them` : "";
    canvas.setAttribute("aria-label", `The first ${across * across} digits${known}`);
  }

  // A frame around an image, with what the model reads in it.
  frame(context, [x, y, cell], text) {
    const { colours } = this;
    context.strokeStyle = context.fillStyle = colours.alarm;
    context.lineWidth = 2;
    context.strokeRect(x + 2, y + 2, cell - 4, cell - 4);
    context.fillRect(x + 1, y + 1, 12, 13);
    context.fillStyle = css(colours.paper);
    context.font = "bold 11px sans-serif";
    context.fillText(text, x + 4, y + 12);
  }

  click(event) {
    if (this.about?.kind !== "plane") return;
    const box = this.canvas.getBoundingClientRect();
    const [x0, y0, x1, y1] = this.about.box;
    const part = [(event.clientX - box.left) / box.width, (event.clientY - box.top) / box.height];
    this.drawn(x0 + part[0] * (x1 - x0), y1 - part[1] * (y1 - y0));
  }
}

// The loss over the steps, on a logarithmic scale.
export class Curve {
  constructor(element) {
    this.canvas = make("canvas", {
      width: SIZE,
      height: 90,
      role: "img",
      "aria-label": "The loss over the steps",
    });
    this.points = [];
    const note = make("p", { class: "note" }, "The loss over the steps, on a logarithmic scale.");
    element.replaceChildren(this.canvas, note);
  }

  clear() {
    this.points = [];
  }

  add(step, loss) {
    if (this.points.length && step <= this.points.at(-1)[0]) return;
    if (Number.isFinite(loss) && loss > 0) this.points.push([step, Math.log(loss)]);
    if (this.points.length > 600) this.points = this.points.filter((_, k) => k % 2 === 0);
  }

  draw(colours) {
    const { canvas, points } = this;
    const context = canvas.getContext("2d");
    context.fillStyle = css(colours.paper);
    context.fillRect(0, 0, canvas.width, canvas.height);
    if (points.length < 2) return;
    const last = points.at(-1)[0];
    const losses = points.map(([, loss]) => loss);
    const [low, high] = [Math.min(...losses), Math.max(...losses)];
    context.beginPath();
    for (const [step, loss] of points) {
      const y = 8 + ((high - loss) / (high - low || 1)) * (canvas.height - 16);
      context.lineTo(4 + (step / last) * (canvas.width - 8), y);
    }
    context.lineWidth = 2;
    context.strokeStyle = css(colours.plus);
    context.stroke();
  }
}
