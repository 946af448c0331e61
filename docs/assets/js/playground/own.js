// Points of one's own: drawn in the picture, or pasted as a table.

import { paste } from "./editor.js";

export const EMPTY = {
  ...{ kind: "plane", X: [], y: [], classes: 2, side: 50 },
  box: [-1.2, -1.2, 1.2, 1.2],
};
const LARGEST = 200_000; // characters of a table
const ENOUGH = 2; // points of each class

export class Own {
  // `points` is what the worker is given: { X, y } or { csv }, or null. While they are `open`, the
  // picture shows them, and no predictions.
  constructor(app) {
    Object.assign(this, { app, points: null, open: false });
    app.parts.table.addEventListener("paste", (event) =>
      paste(event, LARGEST, (size) => app.loading.say(`The table has ${size}.`)),
    );
  }

  show(points) {
    const { app } = this;
    this.points = points;
    app.picture.use({ ...EMPTY, ...points });
    this.open = !app.live || app.about.kind !== "plane" || !points;
    app.picture.show({ boundary: [] }, app.colours);
  }

  begin() {
    this.show(null);
    this.app.loading.say("Draw at least two points of each class, or paste a table.");
  }

  draw(x, y) {
    const { app } = this;
    if (app.parts.own.hidden) return;
    const points = this.points?.X ? this.points : { X: [], y: [] };
    const kind = Number(app.root.querySelector("[name=play-class]:checked").value);
    const place = [Number(x.toFixed(3)), Number(y.toFixed(3))];
    this.show({ X: [...points.X, place], y: [...points.y, kind], drawn: true });
    const ones = this.points.y.filter(Boolean).length;
    if (ones < ENOUGH || this.points.y.length - ones < ENOUGH) return;
    if (app.live) app.programs.edited(app.editor.code);
    else app.loading.say("Press Run to train on your points.");
  }

  // Train on the table: the program gets the input and the output that it needs.
  async table() {
    const { app } = this;
    const csv = app.parts.table.value;
    const lines = app.editor.code.replace(/^X, y = .*\n/m, "");
    const code = await app.play("table", { csv, code: `X, y = mine()\n${lines}` });
    app.editor.code = code;
    app.controls.show(code);
    this.points = { csv };
    Object.assign(app.programs, { dirty: true, refused: null });
    return app.live ? app.programs.take(code) : app.ready();
  }
}
