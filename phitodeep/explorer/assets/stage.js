// The stage: the step of this moment as an equation of pictures, the layer's other steps, its source.

import { Tile } from "./tiles.js";
import { Tensor } from "./tensor.js";
import { addends, symbolsIn, taken, evaluated, written } from "./expression.js";
import { local } from "./terms.js";
import { make, shown, symbol } from "./dom.js";
import { layerName, meaning, roleOf } from "./words.js";

const BOX = { width: 330, height: 250, cell: 44 };

export class Stage {
  constructor(app, parts) {
    Object.assign(this, { app, ...parts });
    this.tiles = [];
  }

  show() {
    const { moment } = this.app;
    this.heading.replaceChildren(...this.title(moment));
    this.draw();
    this.list(moment);
    this.code(moment);
  }

  title({ phase, path, symbol: name, t, step }) {
    const { doc } = this.app;
    const where = {
      forward: "Forward through",
      loss: "At",
      backward: "Back through",
      update: "The update of",
    }[phase];
    const round = t === null ? [] : [make("span", { class: "round" }, `step t = ${t}`)];
    const formula = step
      ? formulaOf(step)
      : make("p", { class: "formula" }, this.without(phase, name));
    return [make("h2", {}, `${where} ${layerName(doc, path)}`, " ", ...round), formula];
  }

  without(phase, name) {
    if (phase === "update")
      return [symbol(name), " + Δ", symbol(name), make("small", {}, this.app.doc.optimizer)];
    return [symbol(name), ": ", meaning(this.app.pass, { path: "", symbol: name })];
  }

  // --- the equation ----------------------------------------------------------------------------

  draw() {
    const { app } = this;
    const { moment } = app;
    this.tiles = [];
    const names = this.operands(moment);
    const box = this.box(moment.phase === "update" ? 3 : names.length + 1);
    const parts =
      moment.phase === "update" ? this.update(moment, box) : this.equation(moment, names, box);
    this.picture.replaceChildren(...parts);
    this.extras();
    this.redraw();
  }

  // What depends on the chosen cell.
  extras() {
    const { moment } = this.app;
    this.extra.replaceChildren(
      ...[this.strip(moment), this.ways(), this.jacobian(), this.verdict(moment)].filter(Boolean),
    );
  }

  // How large each of several pictures may be, so that three stand side by side.
  box(many) {
    const room = this.picture.clientWidth || 600;
    const share = (room - 90 * (Math.min(many, 3) - 1)) / Math.min(many, 3);
    return {
      ...BOX,
      width: Math.max(120, Math.min(BOX.width, share)),
      height: many > 3 ? 170 : BOX.height,
    };
  }

  // The arrays that the step reads; instead of windows or columns of an array, the array itself.
  operands({ path, step }) {
    const scope = this.app.pass.get(path);
    const reads = step && !("value" in step) ? step.reads : [];
    const all = reads.map((name) => {
      const from = this.arrangement(scope, name);
      return from ? { name: from.of, through: name, words: from.words } : { name };
    });
    return all.filter(({ name }, k) => all.findIndex((other) => other.name === name) === k);
  }

  arrangement(scope, name) {
    const every = [...scope.data.forward, ...scope.data.backward];
    return every.find(
      (s) =>
        s.kind === "arrange" &&
        s.symbol === name &&
        !("value" in s) &&
        scope.find(s.of, null)?.shape.length < scope.find(name, null)?.shape.length,
    );
  }

  equation(moment, names, box) {
    const result = this.tile(moment, moment.symbol, box, true);
    const { scalars, arrays } = this.split(moment, names);
    const operands = arrays.map(({ name, through }) =>
      this.tile(moment, name, box, false, through),
    );
    const equals = operands.length
      ? [make("span", { class: "equals", "aria-hidden": "true" }, "=")]
      : [];
    const chips = scalars.map(({ name, value }) =>
      make("span", { class: "chip", "data-array": name }, symbol(name), ` = ${shown(value)}`),
    );
    return [
      result,
      ...equals,
      ...operands,
      chips.length ? make("p", { class: "chips" }, chips) : null,
    ].filter(Boolean);
  }

  split({ path, t }, names) {
    const scope = this.app.pass.get(path);
    const found = names
      .map((one) => ({ ...one, tensor: scope.find(one.name, t) }))
      .filter((one) => one.tensor);
    return {
      scalars: found
        .filter(({ tensor }) => !tensor.shape.length)
        .map(({ name, tensor }) => ({ name, value: tensor.data[0] })),
      arrays: found.filter(({ tensor }) => tensor.shape.length),
    };
  }

  tile({ path, t, direction }, name, box, result = false, through = null) {
    const { app } = this;
    const scope = app.pass.get(path);
    const ref = { path, symbol: name, t: scope.series.has(name) ? t : null };
    const words = roleOf(app.pass, app.moment, name) || (through ? "in windows" : "");
    const tile = new Tile({
      ref,
      name,
      words,
      box,
      hints: app.hints(path, name),
      listen: app.listener(ref, result ? "result" : direction),
    });
    if (result) tile.element.classList.add("result");
    this.tiles.push(tile);
    return tile.element;
  }

  update({ path, symbol: name }, box) {
    const { app } = this;
    const figures = [name, `d${name}`]
      .filter((n) => app.tensor(path, n))
      .map((n) => this.tile(app.moment, n, box));
    const change = new Tile({
      ref: { path, symbol: `Δ${name}`, t: null },
      name: `Δ${name}`,
      words: "what the optimizer adds",
      box: box,
      hints: app.hints(path, name),
      listen: app.listener({ path, symbol: name }, "update"),
    });
    this.tiles.push(change);
    return [...figures, change.element];
  }

  redraw() {
    for (const tile of this.tiles) {
      const { path, symbol: name, t } = tile.ref;
      const tensor = name.startsWith("Δ")
        ? this.app.change(path, name.slice(1))
        : this.app.tensor(path, name, t);
      if (tensor) tile.show(tensor, this.app.ink);
    }
  }

  // --- what else helps to see it ---------------------------------------------------------------

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
      const slopes = local(
        app.pass,
        { path: moment.path, symbol: from[0], cell: [...row, i], t: moment.t },
        from[1],
      );
      for (let j = 0; j < n; j++) found.data[i * n + j] = slopes.at([...row, j]);
    }
    const tile = new Tile({
      ref: { path: moment.path, symbol: "J", t: null },
      name: "J",
      words: `${from[0]} = J ${from[1]}, for row [${row}]`,
      box: { width: 200, height: 200, cell: 22 },
      hints: {},
      listen: () => {},
    });
    tile.show(found, app.ink);
    const words =
      "The softmax's slopes: raising one score lifts its own probability (the diagonal) and takes from all others.";
    return make("section", { class: "jacobian" }, make("p", {}, words), tile.element);
  }

  // At the loss: prediction, target and their difference, class by class, for the chosen sample.
  verdict(moment) {
    const { app } = this;
    if (moment.path !== "loss") return null;
    const scope = app.pass.get("loss");
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
      make("p", {}, `${where}: what the model says, what is true, and the difference.`),
      make("table", {}, make("thead", {}, head), make("tbody", {}, rows)),
    );
  }

  // --- the steps and the source ----------------------------------------------------------------

  list({ path, direction, symbol: name }) {
    const { app } = this;
    const scope = app.pass.get(path);
    const row = (step, side, inside) =>
      make(
        "li",
        { class: inside ? "inside" : null },
        make(
          "button",
          {
            type: "button",
            class: step.symbol === name && side === direction ? "current" : null,
            "aria-current": step.symbol === name && side === direction ? "step" : null,
            click: () => app.step(path, side, step),
          },
          formulaOf(step),
          step.words && !step.text.includes(step.words) && step.kind !== "given"
            ? make("small", {}, step.words)
            : null,
        ),
      );
    const rows = (steps, side) =>
      steps.flatMap((step) =>
        step.kind === "loop"
          ? [
              make(
                "li",
                { class: "loop" },
                `for each t, ${step.reverse ? "last to first" : "first to last"}:`,
              ),
              ...step.body.map((s) => row(s, side, true)),
            ]
          : [row(step, side, false)],
      );
    const part = (side, title) =>
      scope.data[side].length
        ? [make("h3", {}, title), make("ol", {}, rows(scope.data[side], side))]
        : [];
    this.steps.replaceChildren(...part("forward", "Forward"), ...part("backward", "Backward"));
    const current = this.steps.querySelector(".current");
    if (current) this.steps.scrollTo({ top: current.offsetTop - this.steps.clientHeight / 2 });
  }

  code({ path, direction, step, symbol: name }) {
    const { app } = this;
    const side = direction === "update" ? "backward" : direction;
    const data = app.doc.scopes[path];
    const source = app.doc.sources[data.source]?.[side];
    const lit = step?.line ?? null;
    this.source.replaceChildren(
      make(
        "h3",
        {},
        `${data.kind}.${source?.name ?? side}`,
        make("small", {}, source ? " as it runs in training" : " has no source to show"),
      ),
    );
    if (!source) return;
    const lines = source.lines.map(([number, line], k) =>
      make(
        "span",
        {
          class: k === lit ? "line lit" : "line",
          "data-number": number ?? "",
          "aria-current": k === lit ? "step" : null,
        },
        line || " ",
      ),
    );
    const pre = make(
      "pre",
      { tabindex: "0", "aria-label": `Source of ${data.kind}, ${side}` },
      make("code", {}, lines),
    );
    this.source.append(pre);
    if (lit === null && step)
      this.source.append(
        make(
          "p",
          { class: "soft" },
          symbol(name),
          " has no line of its own there. As a step: ",
          make("code", {}, codeOf(step)),
        ),
      );
    const line = pre.querySelector(".lit");
    if (line) pre.scrollTo({ top: line.offsetTop - pre.clientHeight / 2 });
  }
}

// A formula as MathML, which the document holds; or what stands for it in words.
export function formulaOf(step) {
  if (step.kind === "given" || step.kind === "arrange") {
    return make("div", { class: "formula words" }, symbol(step.symbol), ` = ${step.words}`);
  }
  const holder = make("div", { class: "formula" });
  holder.innerHTML = step.formula;
  return holder;
}

function codeOf({ kind, code, reads, words }) {
  return kind === "sum" || kind === "max"
    ? `np.${kind === "sum" ? "einsum" : "max"}("${code}", ${reads.join(", ")})`
    : code || words;
}
