// What else helps to see a step: the unrolled loop, the terms of a row, a Jacobian, the classes.

import { Tile } from "./tiles.js";
import { Tensor } from "./tensor.js";
import { addends, evaluated, symbolsIn, taken, written } from "./expression.js";
import { isLoss } from "./engine.js";
import { local } from "./terms.js";
import { make, shown, symbol } from "./dom.js";

// The extra pictures for the moment and the cell that an app shows.
export class Extras {
  constructor(app) {
    this.app = app;
  }

  all() {
    const { moment } = this.app;
    return [this.strip(moment), this.ways(), this.jacobian(), this.verdict(moment)].filter(Boolean);
  }

  // A loop over time, unrolled: the size of the state above and of its gradient below, by step.
  strip({ path, t, step }) {
    if (t === null) return null;
    const { app } = this;
    const scope = app.pass.get(path);
    const state = [...scope.series.keys()].find((name) => /^h_(t|new)$/.test(name)) ?? step.symbol;
    const gradient = [`d${state}`, "dh_t"].find((name) => scope.series.has(name));
    const size = (name, round) => {
      const tensor = name && scope.find(name, round);
      return tensor ? Math.sqrt(tensor.data.reduce((sum, v) => sum + v * v, 0) / tensor.size) : 0;
    };
    const T = scope.series.get(state).length;
    const times = Array.from({ length: T }, (_, k) => k);
    const tops = [state, gradient].map((name) =>
      Math.max(1e-300, ...times.map((k) => size(name, k))),
    );
    const bars = times.map((k) => {
      const [above, below] = [size(state, k) / tops[0], size(gradient, k) / tops[1]];
      const label = `t = ${k}: |${state}| ${shown(size(state, k), 3)}, |${gradient}| ${shown(size(gradient, k), 3)}`;
      return make(
        "button",
        {
          type: "button",
          "aria-label": label,
          title: label,
          "aria-current": k === t ? "step" : null,
          click: () => app.round(k),
        },
        make("i", { class: "above", style: `--part:${above}` }),
        make("span", {}, String(k)),
        make("i", { class: "below", style: `--part:${below}` }),
      );
    });
    return make(
      "section",
      { class: "strip", "aria-label": "The loop over time" },
      make(
        "p",
        {},
        "The same layer at each step t: the size of ",
        symbol(state),
        " above, of ",
        symbol(gradient ?? ""),
        " below.",
      ),
      make("div", { class: "rounds" }, bars),
    );
  }

  // A sum of several expressions in one row of the result: each as a row of its own.
  ways() {
    const { app } = this;
    const { moment, selected } = app;
    if (
      moment.step?.kind !== "let" ||
      !selected ||
      selected.symbol !== moment.symbol ||
      selected.path !== moment.path
    )
      return null;
    const scope = app.pass.get(moment.path);
    const whole = scope.find(moment.symbol, moment.t);
    const width = whole.shape.at(-1);
    if (!(whole instanceof Tensor) || !whole.shape.length || width > 128 || width < 2) return null;
    const rows = Array.from({ length: width }, (_, k) =>
      this.addends(scope, moment, [...selected.cell.slice(0, -1), k]),
    );
    const names = rows[0].map(({ text }) => text);
    if (names.length < 2 || rows.some((row) => row.length !== names.length)) return null;
    const values = [
      ...names.map((_, k) => rows.map((row) => row[k].value)),
      rows.map((row) => row.reduce((s, { value }) => s + value, 0)),
    ];
    const top = Math.max(...values.flat().map(Math.abs)) || 1;
    const body = [...names, "the sum"].map((name, k) =>
      make(
        "tr",
        {},
        make("th", { scope: "row" }, name),
        make(
          "td",
          {},
          make(
            "div",
            { class: "cells" },
            values[k].map((v, column) =>
              make("i", {
                style: `background:${app.ink.of(v, top)}`,
                class: column === selected.cell.at(-1) ? "here" : null,
                title: shown(v),
              }),
            ),
          ),
        ),
      ),
    );
    const way = { 2: "two", 3: "three", 4: "four" }[names.length] ?? names.length;
    return make(
      "section",
      { class: "ways" },
      make(
        "p",
        {},
        `One row, ${way} ways: what each term gives to `,
        symbol(moment.symbol),
        ` at [${selected.cell.slice(0, -1)}, ·].`,
      ),
      make("table", {}, make("tbody", {}, body)),
    );
  }

  addends(scope, { step, t }, cell) {
    const numberOf = (name) => {
      const tensor = scope.find(name, t);
      const own = cell.slice(cell.length - tensor.shape.length);
      return name === "t" ? t : tensor.at(tensor.shape.map((n, axis) => (n === 1 ? 0 : own[axis])));
    };
    return addends(taken(step.tree, numberOf)).map(([s, part]) => ({
      text: (s < 0 ? "−" : "") + written(part, s < 0 ? 4 : 0),
      value: s * evaluated(part, numberOf),
      names: symbolsIn(part),
    }));
  }

  // The Jacobian of a softmax for one row: how each of its inputs moves each of its outputs.
  jacobian() {
    const { app } = this;
    const { moment, selected } = app;
    const scope = app.pass.get(moment.path);
    const from = { Softmax: ["dX", "dY"], MultiHeadAttention: ["dS", "dP"] }[scope.data.kind];
    if (!from || moment.symbol !== from[0] || selected?.symbol !== from[0] || !app.doc.live)
      return null;
    const n = scope.find(from[0], moment.t).shape.at(-1);
    if (n > 32) return null;
    const row = selected.cell.slice(0, -1);
    const found = new Tensor([n, n]);
    for (let i = 0; i < n; i++) {
      const [slopes] = local(
        app.pass,
        { path: moment.path, symbol: from[0], cell: [...row, i], t: moment.t },
        [from[1]],
      );
      for (let j = 0; j < n; j++) found.data[i * n + j] = slopes.at([...row, j]);
    }
    if (!found.data.every(Number.isFinite)) return null;
    const tile = new Tile({
      ref: { path: moment.path, symbol: "J", t: null },
      name: "J",
      words: `${from[0]} = J ${from[1]}, for row [${row}]`,
      box: { width: 200, height: 200, cell: 22 },
      hints: {},
      listen: (what, cell) => what === "table" && app.dialogs.numbers("J", found, cell),
    });
    tile.show(found, app.ink);
    const words =
      "The slopes of the softmax: raising one score raises its own probability (the diagonal) and lowers all others.";
    return make("section", { class: "jacobian" }, make("p", {}, words), tile.element);
  }

  // At the loss: prediction, target and their difference, class by class, for the chosen sample.
  verdict(moment) {
    const { app } = this;
    if (!isLoss(moment.path)) return null;
    const scope = app.pass.get(moment.path);
    const p = ["p", "P"].map((name) => scope.find(name)).find((tensor) => tensor instanceof Tensor);
    const q = ["q", "T"]
      .map((name) => scope.find(name))
      .find((tensor) => tensor instanceof Tensor && String(tensor.shape) === String(p?.shape));
    if (!p || !q || p.shape.length < 2 || p.shape.at(-1) > 20) return null;
    const row =
      app.selected?.cell.length === p.shape.length
        ? app.selected.cell.slice(0, -1)
        : p.shape.slice(0, -1).map(() => 0);
    if (app.sample !== null) row[0] = app.sample;
    const classes = Array.from({ length: p.shape.at(-1) }, (_, k) => [
      p.at([...row, k]),
      q.at([...row, k]),
    ]);
    const top = Math.max(...classes.flat().map(Math.abs)) || 1;
    const bar = (value) =>
      make(
        "td",
        {},
        make("i", {
          class: value < 0 ? "minus" : "plus",
          style: `--part:${Math.min(1, Math.abs(value) / top)}`,
        }),
        make("span", {}, shown(value, 3)),
      );
    const rows = classes.map(([guess, truth], k) =>
      make(
        "tr",
        {},
        make("th", { scope: "row" }, String(k)),
        bar(guess),
        bar(truth),
        bar(guess - truth),
      ),
    );
    const head = make(
      "tr",
      {},
      ...["class", "prediction", "target", "difference"].map((name) =>
        make("th", { scope: "col" }, name),
      ),
    );
    const where = `Sample ${row[0]}${row.length > 1 ? `, t = ${row.slice(1).join(", ")}` : ""}`;
    return make(
      "section",
      { class: "verdict" },
      make("p", {}, `${where}: what the model predicts, what is true, and the difference.`),
      make("table", {}, make("thead", {}, head), make("tbody", {}, rows)),
    );
  }
}
