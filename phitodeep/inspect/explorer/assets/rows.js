// The rows of a sum in the inspector: a bar, the value, and the numbers that make it.

import { make, shown, signed, symbol } from "./dom.js";
import { nameOf, place } from "./words.js";

export class Rows {
  constructor(app) {
    this.app = app;
  }

  term(term, top) {
    const texts = term.factors.flatMap((factor, k) => [k ? " × " : "", this.factor(factor)]);
    const expression =
      term.text && !term.plain
        ? [
            make("span", { class: "expression" }, term.text),
            term.factors.length ? make("span", { class: "soft" }, " with ") : "",
            ...term.factors.flatMap((f, k) => [k ? ", " : "", this.factor(f)]),
          ]
        : texts;
    const where = place(term.at);
    return this.row(term.value, top, [
      ...(where ? [make("span", { class: "at" }, ...this.thumb(term.at.n), where)] : []),
      ...expression,
    ]);
  }

  // The picture of a sample, if samples are pictures.
  thumb(n) {
    const picture = n === undefined ? null : this.app.gallery.thumb(n, 22);
    return picture ? [make("span", { class: "thumb" }, picture)] : [];
  }

  row(value, top, content) {
    return make(
      "li",
      {},
      make("span", {
        class: `bar ${value < 0 ? "minus" : "plus"}`,
        style: `--part:${Math.min(1, Math.abs(value) / top)}`,
        "aria-hidden": "true",
      }),
      make("b", { class: value < 0 ? "minus" : "plus" }, signed(value, 3)),
      make("span", { class: "made" }, content),
    );
  }

  // A number that leads to its own cell.
  factor(ref) {
    const go = () => this.app.follow(ref);
    const hover = () => this.app.mark(ref);
    const leave = () => this.app.mark();
    const label = ref.cell.length ? nameOf(ref) : ref.symbol;
    return make(
      "button",
      {
        type: "button",
        class: "factor",
        title: `Where ${label} comes from`,
        click: go,
        pointerenter: hover,
        pointerleave: leave,
        focus: hover,
        blur: leave,
      },
      symbol(ref.symbol),
      ref.cell.length ? make("sub", {}, ref.cell.join(",")) : "",
      ` ${shown(ref.value, 3)}`,
    );
  }
}
