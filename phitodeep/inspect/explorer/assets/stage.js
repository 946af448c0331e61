// The stage: the step of this moment as an equation of pictures, the layer's other steps, its source.

import { Tile } from "./tiles.js";
import { Extras } from "./extras.js";
import { isLoss } from "./engine.js";
import { make, shown, symbol } from "./dom.js";
import { isGradientOfParameter, layerName, meaning, roleOf } from "./words.js";

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
    const { about } = phase === "update" ? doc.optimizer : doc.scopes[path];
    const name_ = phase === "update" ? `${doc.optimizer.name}: ` : "";
    const parts = [make("h2", {}, `${where} ${layerName(doc, path)}`, " ", ...round)];
    if (path && about) parts.push(make("p", { class: "about" }, name_ + about));
    if (phase === "backward") parts.push(this.rule(path, name), formula);
    else parts.push(formula);
    return parts;
  }

  // The chain rule, as every layer applies it.
  rule(path, name) {
    const own = isGradientOfParameter(this.app.pass.get(path), name);
    const [text, end] = own
      ? ["For its own weights: what arrives × what it had received = ", "their slopes"]
      : ["On the way back, each layer: what arrives × its local slope = ", "what it passes on"];
    return make("p", { class: "rule" }, text, make("b", {}, end));
  }

  without(phase, name) {
    const W = () => symbol(name);
    if (phase === "update") return [W(), " becomes ", W(), " + ", symbol(`Δ${name}`)];
    return [W(), ": ", meaning(this.app.pass, { path: "", symbol: name })];
  }

  // --- the equation ----------------------------------------------------------------------------

  draw() {
    const { app } = this;
    const { moment } = app;
    this.tiles = [];
    this.element.classList.toggle("loss", isLoss(moment.path));
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
    this.extra.replaceChildren(...new Extras(this.app).all());
  }

  // How large each of several pictures may be, so that three stand side by side.
  box(many) {
    const room = this.picture.clientWidth || 600;
    if (many === 1) return { ...BOX, width: room - 20 };
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
      .map((n) =>
        this.tile({ ...app.moment, direction: n === name ? "update" : "backward" }, n, box),
      );
    const change = new Tile({
      ref: { path, symbol: `Δ${name}`, t: null },
      name: `Δ${name}`,
      words: "what the optimizer adds",
      box,
      hints: app.hints(path, name),
      listen: app.listener({ path, symbol: name }, "change"),
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
      const centre = this.app.choices.start(tensor, path, name);
      if (tensor) tile.show(tensor, this.app.ink, centre);
    }
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
          make("span", { class: "hidden" }, step.text),
          make("div", { "aria-hidden": "true" }, formulaOf(step)),
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

  code({ path, direction: side, step, symbol: name }) {
    const { app } = this;
    if (side === "update") return this.source.replaceChildren();
    const data = app.doc.scopes[path];
    const source = app.doc.sources[data.source]?.[side];
    const lit = step?.line ?? null;
    const numpy = step && !["given", "through", "carry"].includes(step.kind);
    const short = numpy
      ? [
          make("h3", {}, "In NumPy"),
          make(
            "pre",
            {},
            make(
              "code",
              {},
              make("span", { class: "line lit plain" }, `${name} = ${codeOf(step)}`),
            ),
          ),
        ]
      : [];
    this.source.replaceChildren(
      ...short,
      make(
        "h3",
        {},
        `${data.kind}.${source?.name ?? side}`,
        make("small", {}, source ? " as it runs in training" : " has no source to show"),
      ),
    );
    if (!source) return null;
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
    const above = pre.querySelectorAll(".line")[Math.max(0, lit - 6)];
    return pre.scrollTo({ top: above.offsetTop }); // whole lines
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

function codeOf({ kind, code, reads, words, letters, out }) {
  if (kind !== "sum" && kind !== "max") return code || words;
  const given = letters.join(", ");
  if (kind === "max") return `${reads[0]}.max(...)  # ${given} -> ${out}`;
  return `np.einsum("${letters.join(",")}->${out.replaceAll("1", "")}", ${reads.join(", ")})`;
}
