// The samples as small pictures, where the input of the model is a picture.

import { Tensor } from "./tensor.js";
import { isLoss } from "./engine.js";
import { make } from "./dom.js";

const MOST = 64; // samples

export class Gallery {
  constructor(app, element) {
    Object.assign(this, { app, element });
    const model = app.base.get("");
    const inputs = model.data.receives.forward.map((symbol) => model.find(symbol));
    this.X = inputs.find((X) => X instanceof Tensor && sides(X.shape)) ?? null;
    this.top = this.X?.data.reduce((most, v) => Math.max(most, Math.abs(v)), 0) || 1;
    element.hidden = !this.X || !app.doc.live;
    this.draw();
  }

  // Draw all samples again, in the colours of now.
  draw() {
    if (this.element.hidden) return;
    const { app } = this;
    const choose = (n) => app.only(app.sample === n ? null : n);
    const one = (n) => {
      const about = `sample ${n}${labelOf(app.base, n)}`;
      return make(
        "button",
        {
          type: "button",
          "aria-pressed": String(app.sample === n),
          title: about,
          click: () => choose(n),
        },
        this.thumb(n, 40),
        make("span", {}, String(n)),
      );
    };
    const many = Math.min(MOST, app.doc.samples);
    this.element.replaceChildren(
      make("p", {}, `The ${app.doc.samples} samples. Choose one to see its share:`),
      ...Array.from({ length: many }, (_, n) => one(n)),
    );
  }

  // A picture of a sample, `side` pixels wide, or null if samples are no pictures.
  thumb(n, side) {
    if (!this.X) return null;
    const [height, width, channels] = sides(this.X.shape);
    const canvas = make("canvas", { width, height, role: "img", "aria-label": `sample ${n}` });
    canvas.style.width = `${side}px`;
    const image = canvas.getContext("2d");
    const size = height * width * channels;
    const at = (y, x, c) => this.X.data[n * size + (y * width + x) * channels + c];
    for (let y = 0; y < height; y++) {
      for (let x = 0; x < width; x++) {
        const rgb = [0, 1, 2].map((c) => Math.round((255 * at(y, x, c)) / this.top));
        image.fillStyle = channels === 3 ? `rgb(${rgb})` : this.app.ink.of(at(y, x, 0), this.top);
        image.fillRect(x, y, 1, 1);
      }
    }
    return canvas;
  }
}

// Height, width and channels of a sample that is a picture, or null.
function sides([, ...shape]) {
  const [height, width, channels = 1] = shape;
  if (shape.length < 2 || shape.length > 3 || height < 5 || width < 5 || ![1, 3].includes(channels))
    return null;
  return [height, width, channels];
}

// What a sample should be, for a model that tells classes.
function labelOf(pass, n) {
  const q = [...pass.scopes.values()]
    .map((scope) => (isLoss(scope.path) ? scope.find("q") : null))
    .find((found) => found instanceof Tensor && found.shape.length === 2);
  if (!q) return "";
  const row = Array.from({ length: q.shape[1] }, (_, k) => q.at([n, k]));
  return `: class ${row.indexOf(Math.max(...row))}`;
}
