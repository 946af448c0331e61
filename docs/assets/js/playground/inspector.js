// Where a number comes from: its formula, its terms with numbers, and its layer.

import { make, shown, signed, symbol } from "../../explorer/dom.js";
import { Pass, checked } from "../../explorer/engine.js";
import { cellOf } from "../../explorer/tensor.js";
import { why } from "../../explorer/terms.js";

const TERMS = 5;
const MATHML = "http://www.w3.org/1998/Math/MathML";

// A formula as nodes: MathML only, since a program that came by a link may name its symbols freely.
export function formula(text) {
  const holder = make("template");
  holder.innerHTML = text;
  for (const node of holder.content.querySelectorAll("*")) {
    if (node.namespaceURI !== MATHML || node.localName === "annotation-xml") node.remove();
    else
      for (const { name } of [...node.attributes])
        if (/^on|href|src|style/i.test(name)) node.removeAttribute(name);
  }
  return holder.content;
}

const codeOf = ({ kind, code, reads }) =>
  kind === "sum" ? `np.einsum("${code}", ${reads.join(", ")})` : code;

export class Inspector {
  constructor(element) {
    Object.assign(this, { element, pass: null, chosen: null, total: make("b") });
  }

  // The document of a traced step, or null while none is known.
  use(doc) {
    this.pass = doc && new Pass(checked(doc)).run();
  }

  // Show a cell of a lane's array.
  show(about, path, name, [row, column], value) {
    this.chosen = { path, name, cell: [row, column] };
    const layer = about.layers[path];
    const place = row * layer.arrays[name][2] + column;
    const ref = this.pass && this.find(path, name, place);
    const own = layer.formulas[name] ?? layer.formulas[name === "dY" ? "dX" : ""];
    this.update(ref?.total ?? value);
    this.element.replaceChildren(
      make(
        "p",
        { class: "cell" },
        symbol(name),
        `[${this.index(ref, row, column)}] of layer ${path}, `,
        make("code", {}, layer.name),
      ),
      make("p", { class: "formula" }, ref?.formula ?? (own ? formula(own) : "")),
      make("p", { class: "total", "aria-live": "off" }, "= ", this.total),
      ref ? this.terms(ref) : make("p", { class: "soft" }, "Pause or step to see its terms."),
    );
  }

  // Another value of the cell, while training runs.
  update(value) {
    this.total.textContent = shown(value, 6);
  }

  index(ref, row, column) {
    return ref ? ref.cell.join(", ") : `${row}, ${column}`;
  }

  // The cell in the traced step. A layer receives its dY from the next layer, which computes it.
  find(path, name, place) {
    const { pass } = this;
    let [scope, key] = [path, name];
    if (name === "dY") {
      const next = String(Number(path) + 1);
      [scope, key] = pass.get(next) ? [next, "dX"] : ["loss", "dP"];
    }
    const tensor = pass.get(scope)?.find(key);
    if (!tensor?.shape) return null;
    const cell = cellOf(tensor.shape, place);
    const found = why(pass, { path: scope, symbol: key, cell, t: null });
    return { ...found, cell, scope, formula: found.step ? formula(found.step.formula) : null };
  }

  terms({ terms, total, scope, step }) {
    const rows = terms.slice(0, TERMS).map((term) => make("li", {}, this.term(term, total)));
    const rest = terms.slice(TERMS).reduce((sum, term) => sum + term.value, 0);
    if (terms.length > TERMS) {
      rows.push(
        make("li", { class: "soft" }, `${signed(rest)}  from ${terms.length - TERMS} others`),
      );
    }
    const where = scope === "loss" ? "the loss" : `layer ${scope}`;
    return make(
      "div",
      {},
      rows.length ? make("ol", {}, rows) : null,
      make(
        "p",
        { class: "soft" },
        `Computed by ${where}`,
        step ? [": ", make("code", {}, codeOf(step))] : "",
      ),
    );
  }

  term({ value, at, factors, text }, total) {
    const parts = factors.flatMap(({ symbol: name, value: v }, k) => [
      k ? " × " : "",
      symbol(name),
      ` ${shown(v, 3)}`,
    ]);
    const where = Object.entries(at).map(([letter, k]) =>
      letter === "n" ? `sample ${k}` : `${letter} = ${k}`,
    );
    const part = Math.round((100 * value) / total);
    const share = part >= 1 && part <= 100 ? ` · ${part} %` : ""; // without terms that cancel
    return [
      make("b", {}, signed(value, 4)),
      " = ",
      ...(text ? [`${text}: `] : []),
      ...parts,
      where.length ? make("span", { class: "soft" }, ` (${where.join(", ")}${share})`) : "",
    ];
  }
}
