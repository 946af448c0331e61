// Menus and sliders: they show what the program says, and rewrite its lines.

import { make } from "../../explorer/dom.js";
import { ACTIVATIONS, read } from "./rewrite.js";

const DATA = {
  moons: "moons",
  circles: "circles",
  spirals: "spirals",
  xor: "XOR",
  sine: "sine",
  digits: "small digits",
  names: "names",
  mine: "your own: draw or paste",
};
const PLAIN = { from: String, to: Number };
const LOG = { from: (v) => String(Math.log10(v)), to: (v) => Number((10 ** v).toPrecision(2)) };
const SLIDERS = [
  { name: "layers", label: "hidden layers", min: 1, max: 4, step: 1, ...PLAIN },
  { name: "units", label: "units", min: 1, max: 64, step: 1, ...PLAIN },
  { name: "alpha", label: "learning rate", min: -4, max: 2, step: 0.1, ...LOG },
  { name: "batch", label: "batch", min: 1, max: 64, step: 1, ...PLAIN },
  { name: "noise", label: "noise", min: 0, max: 0.5, step: 0.01, ...PLAIN },
];
const OPTIMIZERS = ["sgd", "momentum", "rmsprop", "adam", "adamw"];

export class Controls {
  // `changed(name, value)` is called for a line to rewrite, `data(name)` for another data set.
  constructor(element, { changed, data }) {
    this.changed = changed;
    this.parts = {};
    element.replaceChildren(
      this.menu("data", "data", Object.entries(DATA), data),
      ...SLIDERS.map((slider) => this.slider(slider)),
      this.menu("activation", "activation", pairs(ACTIVATIONS)),
      this.menu("optimizer", "optimizer", pairs(OPTIMIZERS)),
      this.number("seed", "seed"),
    );
  }

  // Show what a program says; a control without its line is off.
  show(code) {
    const found = read(code);
    for (const [name, set] of Object.entries(this.parts)) set(found[name]);
    return found;
  }

  menu(name, label, options, changed = (value) => this.changed(name, value)) {
    const select = make(
      "select",
      { id: `play-${name}`, change: () => changed(select.value) },
      options.map(([value, text]) => make("option", { value }, text)),
    );
    this.parts[name] = (value) => {
      select.disabled = value === null && name !== "data";
      if (options.some(([own]) => own === value)) select.value = value;
      else select.selectedIndex = -1;
    };
    return make("p", {}, make("label", { for: select.id }, label), select);
  }

  slider({ name, label, min, max, step, from, to }) {
    const shown = make("output", { for: `play-${name}` });
    const input = make("input", {
      ...{ type: "range", id: `play-${name}`, min, max, step },
      input: () => {
        shown.textContent = to(Number(input.value));
        this.changed(name, to(Number(input.value)));
      },
    });
    this.parts[name] = (value) => {
      input.disabled = value === null;
      shown.textContent = value ?? "–";
      if (value !== null) input.value = from(value);
    };
    return make("p", {}, make("label", { for: input.id }, label), input, shown);
  }

  number(name, label) {
    const input = make("input", {
      ...{ type: "number", id: `play-${name}`, min: 0, max: 9999, step: 1 },
      change: () => input.value !== "" && this.changed(name, Math.abs(Math.trunc(input.value))),
    });
    this.parts[name] = (value) => {
      input.disabled = value === null;
      input.value = value ?? "";
    };
    return make("p", {}, make("label", { for: input.id }, label), input);
  }
}

const pairs = (names) => names.map((name) => [name, name]);
