// The inspector: one cell, its terms, what a change of it would do, and its paths to the loss.

import { Reduced } from "./tensor.js";
import { Pass, stepOf } from "./engine.js";
import { local, paths, valueOf, why } from "./terms.js";
import { count, make, plural, shown, signed, symbol } from "./dom.js";
import { isGradientOfParameter, layerName, meaning, nameOf, place } from "./words.js";
import { formulaOf } from "./stage.js";

const MOST = 5; // terms, or paths

export class Inspector {
  constructor(app, element) {
    Object.assign(this, { app, element });
    this.open = new Set(); // the parts that the reader has opened
  }

  // Show a cell: the one under the pointer, or the chosen one.
  show(ref, kept) {
    const { app } = this;
    if (!ref)
      return this.element.replaceChildren(
        make("p", { class: "soft" }, "Point at a cell to see where its number comes from."),
      );
    const tensor = app.pass.get(ref.path).find(ref.symbol, ref.t ?? null);
    if (ref.update) return this.update(ref);
    if (!tensor || tensor instanceof Reduced) return this.reduced(ref, tensor);
    const found = why(app.pass, ref);
    const parts = [...this.head(ref, found.total), this.terms(ref, found)];
    if (kept) parts.push(this.chain(ref), this.change(ref), this.ways(ref));
    parts.push(
      kept ? this.foot(ref) : make("p", { class: "soft hint" }, "Click to keep this cell."),
    );
    return this.element.replaceChildren(...parts.filter(Boolean));
  }

  head(ref, value) {
    const { app } = this;
    const step = stepOf(app.pass.get(ref.path), ref.symbol);
    const round = ref.t === null || ref.t === undefined ? "" : `, at step t = ${ref.t}`;
    return [
      make("p", { class: "where" }, `${layerName(app.doc, ref.path)}${round}`),
      make(
        "h2",
        {},
        symbol(ref.symbol),
        `[${ref.cell.join(", ")}] = `,
        make("b", { class: value < 0 ? "minus" : "plus" }, shown(value)),
      ),
      this.compared(ref),
      make("p", { class: "meaning" }, meaning(app.pass, ref)),
      step ? formulaOf(step) : null,
    ];
  }

  compared(ref) {
    const { app } = this;
    if (!app.other) return null;
    const other = app.other.get(ref.path)?.find(ref.symbol, ref.t ?? null);
    if (!other?.at) return null;
    const [a, b] = [valueOf(app.base, ref), other.at(ref.cell)];
    return make(
      "p",
      { class: "soft" },
      `this trace ${shown(a)}, the other ${shown(b)}: difference ${signed(a - b)}`,
    );
  }

  // --- the terms -------------------------------------------------------------------------------

  terms(ref, { total, terms, reasons, kind, step }) {
    const because = reasons.map(({ holds, text, numbers }) =>
      make(
        "p",
        { class: "soft" },
        `since ${holds ? "" : "not "}${text}`,
        numbers.length
          ? `, with ${numbers.map(({ name, value }) => `${name} = ${shown(value)}`).join(", ")}`
          : "",
      ),
    );
    if (!terms.length) return make("div", {}, this.given(ref, step));
    if (terms.length === 1 && ["arrange", "carry", "join", "through", "given"].includes(kind))
      return this.same(terms[0], step);
    const top = Math.abs(terms[0].value) || 1;
    const first = terms.slice(0, MOST);
    const rest = terms.slice(MOST);
    const others = rest.reduce((sum, term) => sum + term.value, 0);
    const size = terms.reduce((sum, term) => sum + Math.abs(term.value), 0);
    const rows = first.map((term) => this.term(term, top));
    if (rest.length)
      rows.push(
        this.row(others, top, [make("span", { class: "soft" }, plural(rest.length, "other"))]),
      );
    const share = Math.round((100 * Math.abs(terms[0].value)) / size);
    const against = terms[0].value * total < 0 ? ", and pulls the other way" : "";
    const who = place(terms[0].at);
    const sentence =
      terms.length > 1 && who && size > 0
        ? make(
            "p",
            {},
            `The largest term, of ${who}, has ${share} % of the weight in this sum${against}.`,
          )
        : null;
    return make(
      "section",
      { class: "terms" },
      make(
        "h3",
        {},
        kind === "max"
          ? "It is the largest"
          : terms.length > 1
            ? `The sum of ${plural(terms.length, "term")}`
            : "Computed from",
      ),
      ...because,
      make("ol", {}, rows),
      make("p", { class: "total" }, "total ", make("b", {}, shown(total, 6))),
      sentence,
    );
  }

  term(term, top) {
    const texts = term.factors.flatMap((factor, k) => [k ? " × " : "", this.factor(factor)]);
    const expression =
      term.text && !term.plain
        ? [
            make("span", { class: "expression" }, term.text),
            make("span", { class: "soft" }, " with "),
            ...term.factors.flatMap((f, k) => [k ? ", " : "", this.factor(f)]),
          ]
        : texts;
    const where = place(term.at);
    return this.row(term.value, top, [
      ...(where ? [make("span", { class: "at" }, `${where}: `)] : []),
      ...expression,
    ]);
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
    const hover = () => this.app.point(ref);
    const leave = () => this.app.point(null);
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

  same(term, step) {
    const [from] = term.factors;
    return make(
      "section",
      { class: "terms" },
      make(
        "p",
        {},
        step?.words ? `${step.words}: ` : "",
        "the same number as ",
        this.factor(from),
        ` of ${layerName(this.app.doc, from.path)}`,
      ),
    );
  }

  given(ref, step) {
    const value = this.app.pass.get(ref.path);
    if (ref.symbol in value.data.params)
      return make("p", { class: "soft" }, "A weight: the optimizer set it before this step.");
    if (step && "value" in step && step.reads.length)
      return make(
        "p",
        { class: "soft" },
        "Its terms are not in this file: it reads an array that is too large.",
      );
    return make("p", { class: "soft" }, step?.words ?? "Given from outside.");
  }

  reduced(ref, tensor) {
    if (!tensor)
      return this.element.replaceChildren(
        make("p", {}, "There is no such array: tokens have no gradient."),
      );
    const { counts, from, to } = tensor.histogram;
    const most = Math.max(...counts);
    const bars = counts.map((n, k) =>
      make("i", {
        style: `--part:${n / most}`,
        title: `${shown(from + (k * (to - from)) / counts.length, 2)}: ${count(n)}`,
      }),
    );
    const top = tensor.top
      .slice(0, 8)
      .map(([k, value]) =>
        make(
          "li",
          {},
          `[${cellOf(tensor.shape, k).join(", ")}] `,
          make("b", {}, shown(Number(value))),
        ),
      );
    return this.element.replaceChildren(
      make("h2", {}, symbol(ref.symbol)),
      make("p", {}, meaning(this.app.pass, ref)),
      make(
        "p",
        { class: "soft" },
        `${count(tensor.size)} numbers: too many for this file. A cell of the picture shows the largest of several, so that no spike is lost.`,
      ),
      make("h3", {}, "How the numbers are spread"),
      make(
        "div",
        { class: "histogram", role: "img", "aria-label": `from ${shown(from)} to ${shown(to)}` },
        bars,
      ),
      make("p", { class: "soft" }, `from ${shown(from)} to ${shown(to)}`),
      make("h3", {}, "The largest"),
      make("ol", {}, top),
    );
  }

  // --- the chain rule --------------------------------------------------------------------------

  // What arrives times what the layer did locally, where several steps lie between the two.
  chain(ref) {
    const { app } = this;
    const scope = app.pass.get(ref.path);
    const step = stepOf(scope, ref.symbol, "backward");
    if (
      ref.symbol !== "dX" ||
      ref.path === "" ||
      !step ||
      (step.reads.includes("dY") && step.kind === "sum") ||
      !app.doc.live
    )
      return null;
    return this.part("chain", "The chain rule for this cell", () => {
      const slopes = local(app.pass, ref);
      const arriving = scope.find("dY");
      const all = Array.from(slopes.data, (slope, k) => ({
        slope,
        k,
        value: slope * arriving.data[k],
      })).filter(({ slope }) => slope !== 0);
      all.sort((a, b) => Math.abs(b.value) - Math.abs(a.value));
      const top = Math.abs(all[0]?.value ?? 1) || 1;
      const rows = all.slice(0, MOST).map(({ slope, k, value }) =>
        this.row(value, top, [
          "arrives ",
          this.factor({
            path: ref.path,
            symbol: "dY",
            cell: arriving.cell(k),
            t: null,
            value: arriving.data[k],
          }),
          ` × slope ${shown(slope, 3)}`,
        ]),
      );
      const rest = all.slice(MOST).reduce((sum, { value }) => sum + value, 0);
      if (all.length > MOST)
        rows.push(
          this.row(rest, top, [
            make("span", { class: "soft" }, plural(all.length - MOST, "other")),
          ]),
        );
      return [
        make("p", {}, "What arrives × what the layer did locally = what it passes on:"),
        make("ol", {}, rows),
      ];
    });
  }

  // A part that computes its content when it is opened, and stays open for the next cell.
  part(key, title, content) {
    const body = make("div", {});
    const details = make(
      "details",
      {
        open: this.open.has(key),
        toggle: () => {
          if (details.open) this.open.add(key);
          else this.open.delete(key);
          if (details.open && !body.hasChildNodes()) body.append(...content().filter(Boolean));
        },
      },
      make("summary", {}, title),
      body,
    );
    if (details.open) body.append(...content().filter(Boolean));
    return details;
  }

  // --- what if ---------------------------------------------------------------------------------

  change(ref) {
    const { app } = this;
    const scope = app.pass.get(ref.path);
    const W = isGradientOfParameter(scope, ref.symbol) ? ref.symbol.slice(1) : ref.symbol;
    if (!(W in scope.data.params)) return null;
    const key = scope.data.params[W];
    if (!app.doc.live)
      return make(
        "p",
        { class: "soft" },
        "This file cannot try other weights: it does not hold all numbers of the model.",
      );
    if (!this.open.has("change-closed")) this.open.add("change");
    return this.part("change", "What if this weight were different?", () =>
      new Nudge(app, ref.path, W, key, ref.cell).parts(),
    );
  }

  // --- paths -----------------------------------------------------------------------------------

  ways(ref) {
    const { app } = this;
    const scope = app.pass.get(ref.path);
    const W = ref.symbol in scope.data.params ? `d${ref.symbol}` : ref.symbol;
    if (!scope.find(W, ref.t ?? null) || !stepOf(scope, W, "backward") || ref.path === "loss")
      return null;
    return this.part("paths", "The strongest paths to the loss", () => {
      const { paths: found, rest, total } = paths(app.pass, { ...ref, symbol: W }, MOST);
      const top = Math.abs(found[0]?.value ?? 1) || 1;
      const rows = found.map((way) => this.row(way.value, top, this.trail(way)));
      rows.push(this.row(rest, top, [make("span", { class: "soft" }, "all other paths together")]));
      return [
        make("p", {}, "Slopes multiply along a path, and paths add up:"),
        make("ol", { class: "paths" }, rows),
        make("p", { class: "total" }, "total ", make("b", {}, shown(total, 6))),
      ];
    });
  }

  // The slope of each layer that a path goes through, then what the loss says about the prediction.
  trail({ trail }) {
    const { doc } = this.app;
    const slopes = new Map();
    for (let k = 1; k < trail.length; k++) {
      const { path } = trail[k - 1].ref;
      if (doc.scopes[path]) slopes.set(path, (slopes.get(path) ?? 1) * trail[k].slope);
    }
    const own = [...slopes].filter(
      ([path, slope]) => path !== "" && path !== "loss" && !(slope === 1 && this.isContainer(path)),
    );
    const links = own.map(([path, slope], k) => [
      k ? " × " : "",
      make(
        "span",
        { class: "link", title: doc.scopes[path].name },
        `${shown(slope, 3)}`,
        make("small", {}, ` ${doc.scopes[path].kind} ${path}`),
      ),
    ]);
    const { ref } = trail.at(-1);
    return [...links.flat(), " × ", this.factor({ ...ref, value: valueOf(this.app.pass, ref) })];
  }

  isContainer(path) {
    return this.app.doc.scopes[path].forward.some((step) => step.kind === "through");
  }

  // --- updates ---------------------------------------------------------------------------------

  update({ path, symbol: name, cell }) {
    const { app } = this;
    const [value, dW] = [name, `d${name}`].map((own) => app.tensor(path, own)?.at?.(cell));
    const step = app.added(path, name, cell);
    const place = `[${cell.join(", ")}]`;
    const known = value !== undefined && step !== undefined;
    return this.element.replaceChildren(
      make("p", { class: "where" }, layerName(app.doc, path)),
      make(
        "h2",
        {},
        symbol(name),
        known ? `${place}: ${shown(value)} → ${shown(value + step)}` : place,
      ),
      make(
        "p",
        {},
        "The gradient here is ",
        make("b", {}, dW === undefined ? "not in this file" : shown(dW)),
        step === undefined
          ? "; of so large an array, this file has only the 64 largest changes."
          : `, and ${app.doc.optimizer} adds `,
        step === undefined ? "" : make("b", {}, signed(step)),
      ),
      make("p", {}, this.direction(dW, step)),
      make(
        "p",
        {},
        make(
          "button",
          {
            type: "button",
            click: () => app.follow({ path, symbol: `d${name}`, cell, t: null, value: dW }),
          },
          "Where the gradient comes from",
        ),
      ),
    );
  }

  direction(dW, step) {
    if (!dW || !step) return "";
    return Math.sign(dW) === Math.sign(step)
      ? "The optimizer moves along the gradient here: it also remembers earlier steps, or decays weights."
      : `The loss ${dW > 0 ? "rises" : "falls"} when this weight grows, so the step moves it ${step > 0 ? "up" : "down"}.`;
  }

  foot(ref) {
    const { app } = this;
    return make(
      "p",
      { class: "foot" },
      make(
        "button",
        { type: "button", click: () => app.table(ref) },
        "Table of ",
        symbol(ref.symbol),
      ),
      " ",
      app.past.length ? make("button", { type: "button", click: () => app.back() }, "Back") : null,
    );
  }
}

function cellOf(shape, place) {
  return [...shape]
    .reverse()
    .reduce(({ cell, rest }, n) => ({ cell: [rest % n, ...cell], rest: Math.floor(rest / n) }), {
      cell: [],
      rest: place,
    }).cell;
}

// --- a changed weight ------------------------------------------------------------------------------

const WIDTH = 300;
const HEIGHT = 96;

// One weight with another value: what its gradient predicts for the loss, and what is true.
class Nudge {
  constructor(app, path, name, key, cell) {
    Object.assign(this, { app, path, name, key, cell });
    this.W = app.base.parameter(key);
    this.now = this.W.at(cell);
    this.slope = this.slopes().reduce((sum, slope) => sum + slope, 0);
    const size = Math.sqrt(this.W.data.reduce((sum, v) => sum + v * v, 0) / this.W.size);
    this.most = 2 * Math.max(Math.abs(this.now), size, 0.05);
  }

  // The gradient of this weight in each layer that uses it: more than one if it is tied.
  slopes() {
    return [...this.app.base.scopes.values()].flatMap((scope) => {
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
    return new Pass(this.app.doc, { given: { [this.key]: W } }).forward().loss;
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
    this.set(0.25 * this.most, true);
    return [
      make("label", { for: "nudge" }, `${name} is ${shown(this.now)}. Move it:`),
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
    const show = () => {
      const before = this.app.base.loss;
      const moved = this.loss(delta);
      this.out.replaceChildren(
        make("p", {}, `moved by δ = ${signed(delta, 3)}, to ${shown(this.now + delta, 3)}`),
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
              make("td", {}, signed(moved - before, 3)),
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
    const began = performance.now();
    const before = this.app.base.loss;
    const points = [[0, before]];
    for (let k = 1; k <= 8 && performance.now() - began < 400; k++) {
      for (const delta of [(k / 8) * this.most, (-k / 8) * this.most])
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
    this.plot.innerHTML = `<svg viewBox="0 0 ${WIDTH} ${HEIGHT}" role="img" aria-label="The loss as this weight moves, and the straight line that its gradient predicts"><polyline class="true" points="${draw(points)}"/><polyline class="predicted" points="${draw(line)}"/><circle class="now" cx="${x}" cy="${y}" r="4"/><circle class="moved" r="4"/></svg><p class="soft"><i class="true"></i> true loss <i class="predicted"></i> what the gradient predicts</p>`;
    const delta = Number(this.slider.value);
    this.dot(delta, this.loss(delta));
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
      step === undefined ? "" : ` In this step, ${this.app.doc.optimizer} adds ${signed(step, 3)}.`;
    return make(
      "p",
      { class: "soft" },
      `The gradient ${name} is the slope of the curve at the dot. If it were twice as large, the same small move would change the loss twice as much, and plain gradient descent would move the weight twice as far.${moves}`,
    );
  }
}
