// What if a weight were different: what its gradient predicts for the loss, and what is true.

import { Pass } from "./engine.js";
import { make, shown, signed, symbol } from "./dom.js";

const WIDTH = 300;
const HEIGHT = 96;
const HALF = 8; // points of the curve on either side

// The parts of the panel for one weight.
export class Nudge {
  constructor(app, path, name, key, cell) {
    Object.assign(this, { app, path, name, key, cell });
    this.W = app.pass.parameter(key);
    this.before = app.pass.loss;
    this.now = this.W.at(cell);
    this.slope = this.slopes().reduce((sum, slope) => sum + slope, 0);
    const size = Math.sqrt(this.W.data.reduce((sum, v) => sum + v * v, 0) / this.W.size);
    this.most = 2 * Math.max(Math.abs(this.now), size, 0.05);
  }

  // The gradient of this weight in each layer that uses it: more than one if it is tied.
  slopes() {
    return [...this.app.pass.scopes.values()].flatMap((scope) => {
      const names = Object.entries(scope.data.params)
        .filter(([, key]) => key === this.key)
        .map(([own]) => own);
      return names.map((own) => scope.find(`d${own}`)?.at?.(this.cell) ?? 0);
    });
  }

  // The loss with this weight moved by delta.
  loss(delta) {
    const W = this.W.copy();
    W.data[W.place(this.cell)] += delta;
    const { doc, sample } = this.app.pass;
    return new Pass(doc, { given: { [this.key]: W }, sample }).forward().loss;
  }

  parts() {
    const name = `${this.name}[${this.cell.join(", ")}]`;
    const slider = make("input", {
      type: "range",
      min: -this.most,
      max: this.most,
      step: this.most / 50,
      value: 0,
      id: "nudge",
      input: () => this.set(Number(slider.value)),
    });
    this.slider = slider;
    this.out = make("div", { class: "outcome", "aria-live": "polite" });
    this.plot = make("div", { class: "plot" });
    const step = this.app.added(this.path, this.name, this.cell);
    const choose = (text, delta) =>
      make("button", { type: "button", click: () => this.set(delta) }, text);
    this.set(0, true);
    return [
      make(
        "label",
        { for: "nudge" },
        `${name} is ${shown(this.now)}. Move it to see what happens to the loss:`,
      ),
      slider,
      make(
        "p",
        { class: "choices" },
        choose("double it", this.now),
        " ",
        choose("set it to 0", -this.now),
        " ",
        step === undefined ? null : choose("what this step does", step),
      ),
      this.out,
      this.plot,
      this.doubled(step),
    ];
  }

  set(delta, late = false) {
    this.slider.value = String(delta);
    this.delta = delta;
    const show = () => {
      const moved = this.loss(delta);
      this.out.replaceChildren(
        make(
          "p",
          {},
          `${this.name} is ${shown(this.now + delta)}, moved by δ = ${signed(delta, 3)}. The loss is ${shown(moved)}, and was ${shown(this.before)}.`,
        ),
        make(
          "table",
          {},
          make(
            "tbody",
            {},
            make(
              "tr",
              {},
              make(
                "th",
                { scope: "row" },
                "predicted: ",
                symbol(`d${this.name}`),
                this.slopes().length > 1 ? " of all layers that share it × δ" : " × δ",
              ),
              make("td", {}, signed(this.slope * delta, 3)),
            ),
            make(
              "tr",
              {},
              make("th", { scope: "row" }, "true change of the loss"),
              make("td", {}, signed(moved - this.before, 3)),
            ),
          ),
        ),
      );
      this.dot(delta, moved);
    };
    if (late)
      setTimeout(() => {
        show();
        this.curve();
      }, 0);
    else show();
  }

  // The true loss for several deltas, and the straight line that the gradient predicts.
  curve() {
    const { before } = this;
    if (!Number.isFinite(before + this.slope)) return;
    const points = [[0, before]];
    for (let k = 1; k <= HALF; k++) {
      for (const delta of [(k / HALF) * this.most, (-k / HALF) * this.most])
        points.push([delta, this.loss(delta)]);
    }
    points.sort((a, b) => a[0] - b[0]);
    this.points = points;
    const line = [-this.most, this.most].map((delta) => [delta, before + this.slope * delta]);
    const heights = [...points, ...line].map(([, L]) => L).filter(Number.isFinite);
    const [low, high] = [Math.min(...heights), Math.max(...heights)];
    this.at = ([delta, L]) => [
      ((delta + this.most) / (2 * this.most)) * WIDTH,
      HEIGHT - 6 - ((L - low) / (high - low || 1)) * (HEIGHT - 12),
    ];
    const draw = (list) =>
      list
        .filter(([, L]) => Number.isFinite(L))
        .map((p) =>
          this.at(p)
            .map((v) => v.toFixed(1))
            .join(","),
        )
        .join(" ");
    const [x, y] = this.at([0, before]);
    this.plot.innerHTML = `<svg viewBox="0 0 ${WIDTH} ${HEIGHT}" role="img" aria-label="The loss as this weight moves, and the straight line that its gradient predicts"><polyline class="true" points="${draw(points)}"/><polyline class="predicted" points="${draw(line)}"/><circle class="now" cx="${x}" cy="${y}" r="4"/><circle class="moved" r="4"/><text x="${WIDTH - 2}" y="10">${shown(high, 5)}</text><text x="${WIDTH - 2}" y="${HEIGHT - 2}">${shown(low, 5)}</text></svg><p class="soft"><i class="true"></i> the true loss <i class="predicted"></i> what the gradient predicts</p>`;
    this.dot(this.delta, this.loss(this.delta));
  }

  dot(delta, L) {
    const dot = this.plot.querySelector(".moved");
    if (!dot || !Number.isFinite(L)) return;
    const [x, y] = this.at([delta, L]);
    dot.setAttribute("cx", x);
    dot.setAttribute("cy", Math.max(4, Math.min(HEIGHT - 4, y)));
  }

  doubled(step) {
    const name = `d${this.name}`;
    const moves =
      step === undefined
        ? " What this step adds is not in this file: of so large an array, it has only the largest changes."
        : ` Other optimizers decide for themselves how far: in this step, ${this.app.doc.optimizer.name} adds ${signed(step, 3)}.`;
    return make(
      "p",
      { class: "soft" },
      `The gradient ${name} is the slope of the curve at the dot. If it were twice as large, the same small move would change the loss twice as much, and plain gradient descent would move the weight twice as far.${moves}`,
    );
  }
}
