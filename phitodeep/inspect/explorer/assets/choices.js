// Which of the samples, and which of two traces, the page shows.

import { Pass } from "./engine.js";
import { Tensor } from "./tensor.js";
import { make } from "./dom.js";

export class Choices {
  constructor(app, documents) {
    Object.assign(this, { app, documents, sample: null, view: "this" });
    this.whole = documents.map((doc) => new Pass(doc).run());
    this.passes = this.whole; // of this trace, and of the other one
    const { samples, views } = app.parts;
    const [{ samples: many, sample }] = documents;
    const live = documents.every((doc) => doc.live);
    samples.append(
      make("option", { value: "" }, sample === null ? "all samples" : `sample ${sample}`),
      ...Array.from({ length: live ? many : 0 }, (_, n) =>
        make("option", { value: n }, `sample ${n}`),
      ),
    );
    samples.disabled = !live || many < 2 || sample !== null;
    views.closest("label").hidden = documents.length < 2;
    for (const part of [samples, views]) part.addEventListener("change", () => this.choose());
  }

  choose() {
    const { samples, views } = this.app.parts;
    document.activeElement.closest("select")?.blur(); // so that the keys work
    this.view = views.value;
    this.sample = samples.value === "" ? null : Number(samples.value);
    const { sample } = this;
    this.passes =
      sample === null ? this.whole : this.documents.map((doc) => new Pass(doc, { sample }).run());
    this.app.redraw();
  }

  // The pass whose terms the page explains.
  get pass() {
    return this.passes[this.view === "other" ? 1 : 0];
  }

  // An array as it is shown now: of this trace, of the other one, or their difference.
  tensor(path, symbol, t) {
    if (this.view !== "difference")
      return this.share(this.pass.get(path)?.find(symbol, t), path, symbol);
    const [own, other] = this.passes.map((pass) => pass.get(path)?.find(symbol, t));
    if (!(own instanceof Tensor) || !(other instanceof Tensor)) return own;
    const difference = own.data.map((value, k) => value - other.data[k]);
    return this.share(new Tensor(own.shape, difference), path, symbol);
  }

  // With one sample, the activations of the others are left out too.
  share(tensor, path, symbol) {
    if (this.sample === null || !this.bySample(tensor, path, symbol)) return tensor;
    const found = new Tensor(tensor.shape);
    const size = tensor.size / tensor.shape[0];
    const from = this.sample * size;
    found.data.set(tensor.data.subarray(from, from + size), from);
    return found;
  }

  // The first cell of the sample in an array that has one part for each, so that it is in view.
  start(tensor, path, symbol) {
    if (this.sample === null || !this.bySample(tensor, path, symbol)) return null;
    return tensor.shape.map((_, axis) => (axis === 0 ? this.sample : 0));
  }

  bySample(tensor, path, symbol) {
    const parameter = symbol.replace(/^[dΔ]/, "") in this.documents[0].scopes[path].params;
    return tensor instanceof Tensor && tensor.shape[0] === this.documents[0].samples && !parameter;
  }
}
