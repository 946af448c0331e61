// The inspector: one cell, its terms, what a change of it would do, and its paths to the loss.

import { Reduced } from "./tensor.js";
import { isLoss, stepOf } from "./engine.js";
import { local, paths, valueOf, why } from "./terms.js";
import { make, plural, shown, signed, symbol } from "./dom.js";
import {
  isContainer,
  isGradientOfParameter,
  layerName,
  meaning,
  nameOf,
  neighbour,
  place,
} from "./words.js";
import { reducedParts, updateParts } from "./panels.js";
import { formulaOf } from "./stage.js";
import { Nudge } from "./nudge.js";
import { Rows } from "./rows.js";

const MOST = 5; // terms, or paths
const HINT = () =>
  window.matchMedia("(hover: none)").matches
    ? "Tap it again to keep this cell, or to follow it."
    : "Click to keep this cell.";

export class Inspector {
  constructor(app, element) {
    Object.assign(this, { app, element, kept: null, rows: new Rows(app) });
    this.open = new Set(["change"]); // the parts that are open
  }

  // Build the panel of the chosen cell again.
  forget() {
    this.kept = null;
  }

  // Show a cell: the one under the pointer, or the chosen one.
  // The panel of the chosen cell stays as the reader left it while others are pointed at.
  show(ref, kept) {
    const panel = this.element.parentElement;
    if (this.kept?.away === false) Object.assign(this.kept, { top: panel.scrollTop, away: true });
    if (kept && this.kept?.ref !== ref) this.kept = { ref, parts: this.parts(ref, true), top: 0 };
    this.element.replaceChildren(...(kept ? this.kept.parts : this.parts(ref, false)));
    panel.scrollTop = kept ? this.kept.top : 0;
    if (kept) this.kept.away = false;
  }

  parts(ref, kept) {
    const { app } = this;
    if (!ref)
      return [make("p", { class: "soft" }, "Point at a cell to see where its number comes from.")];
    const tensor = ref.change
      ? app.change(ref.path, ref.symbol)
      : app.pass.get(ref.path).find(ref.symbol, ref.t ?? null);
    const foot = kept ? this.foot(ref) : make("p", { class: "soft hint" }, HINT());
    if (ref.update && !ref.reduced) return [...updateParts(app, ref), foot];
    if (!tensor || tensor instanceof Reduced) return [...reducedParts(app, ref, tensor), foot];
    const found = why(app.pass, ref);
    const parts = [...this.head(ref, found.total), this.terms(ref, found)];
    if (kept) parts.push(this.chain(ref), this.change(ref), this.ways(ref));
    return [...parts, foot].filter(Boolean);
  }

  head(ref, value) {
    const { app } = this;
    const step = stepOf(app.pass.get(ref.path), ref.symbol);
    const round = ref.t === null || ref.t === undefined ? "" : `, at step t = ${ref.t}`;
    const backward = ref.symbol.startsWith("d") && app.sample !== null;
    const share = backward ? `Only the share of sample ${app.sample}. ` : "";
    return [
      make("p", { class: "where" }, `${layerName(app.doc, ref.path)}${round}`),
      make(
        "h2",
        { tabindex: "-1" },
        symbol(ref.symbol),
        ref.cell.length ? `[${ref.cell.join(", ")}] = ` : " = ",
        make("b", { class: value < 0 ? "minus" : "plus" }, shown(value)),
      ),
      this.compared(ref),
      ref.from
        ? make(
            "p",
            { class: "soft" },
            `the same number as ${nameOf(ref.from)} of ${layerName(app.doc, ref.from.path)}, where you came from`,
          )
        : null,
      make("p", { class: "meaning" }, share + meaning(app.pass, ref)),
      step && !["given", "arrange"].includes(step.kind) ? formulaOf(step) : null,
    ];
  }

  compared(ref) {
    const { app } = this;
    const { passes } = app.choices;
    if (passes.length < 2) return null;
    const [a, b] = passes.map((pass) => valueOf(pass, ref));
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
    if (terms.length > 1 && terms.every(({ value }) => value === 0))
      return make("p", {}, `All ${terms.length} terms are 0.`);
    const top = Math.abs(terms[0].value) || 1;
    const most = Math.min(MOST, terms.filter(({ value }) => value !== 0).length || 1);
    const first = terms.slice(0, most);
    const rest = terms.slice(most);
    const others = rest.reduce((sum, term) => sum + term.value, 0);
    const rows = first.map((term) => this.rows.term(term, top));
    if (others !== 0)
      rows.push(
        this.rows.row(others, top, [make("span", { class: "soft" }, plural(rest.length, "other"))]),
      );
    const against = terms[0].value * total < 0 ? ", in the other direction" : "";
    const who = place(terms[0].at);
    const several = terms.filter(({ value }) => value !== 0).length > 1;
    const sentence =
      several && who && total !== 0 && this.app.sample === null
        ? make(
            "p",
            {},
            `The largest term comes from ${who}: ${shown(terms[0].value, 3)} of ${shown(total, 3)}${against}.`,
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
        this.rows.factor(from),
        ` of ${layerName(this.app.doc, from.path)}`,
      ),
    );
  }

  given(ref, step) {
    if (ref.symbol in this.app.pass.get(ref.path).data.params)
      return make(
        "p",
        { class: "soft" },
        "A parameter: initialization and earlier steps gave it this value.",
      );
    if (step && "value" in step && step.reads.length)
      return make(
        "p",
        { class: "soft" },
        "Its terms are not in this file: it reads an array that is too large.",
      );
    const from = step ? null : neighbour(this.app.pass, ref);
    if (!from) return "";
    const { forward } = this.app.pass.get(from.path).data.returns;
    const verb = forward.includes(from.symbol) ? "returned" : "passed on";
    const value = valueOf(this.app.pass, from);
    const name = layerName(this.app.doc, from.path);
    return make("p", {}, `What ${name}, ${verb}: `, this.rows.factor({ ...from, value }));
  }

  // --- the chain rule --------------------------------------------------------------------------

  // What arrives times what the layer did locally, where several steps lie between the two.
  chain(ref) {
    const { app } = this;
    const scope = app.pass.get(ref.path);
    const step = stepOf(scope, ref.symbol, "backward");
    const receives = scope.data.receives.backward;
    if (
      !scope.data.returns.backward.includes(ref.symbol) ||
      ref.path === "" ||
      isLoss(ref.path) ||
      !step ||
      (step.reads.some((name) => receives.includes(name)) && step.kind === "sum") ||
      !app.doc.live
    )
      return null;
    return this.part("chain", "The chain rule for this cell", () => {
      const slopes = local(app.pass, ref);
      const all = receives
        .flatMap((name, i) => {
          const arriving = scope.find(name);
          return Array.from(slopes[i].data, (slope, k) => {
            const from = { symbol: name, cell: arriving.cell(k), value: arriving.data[k] };
            return { slope, from, value: slope * from.value };
          });
        })
        .filter(({ slope }) => slope !== 0);
      all.sort((a, b) => Math.abs(b.value) - Math.abs(a.value));
      const top = Math.abs(all[0]?.value ?? 1) || 1;
      const rows = all
        .slice(0, MOST)
        .map(({ slope, from, value }) =>
          this.rows.row(value, top, [
            "arrives ",
            this.rows.factor({ path: ref.path, t: null, ...from }),
            ` × slope ${shown(slope, 3)}`,
          ]),
        );
      const rest = all.slice(MOST).reduce((sum, { value }) => sum + value, 0);
      if (all.length > MOST)
        rows.push(
          this.rows.row(rest, top, [
            make("span", { class: "soft" }, plural(all.length - MOST, "other")),
          ]),
        );
      return [
        make("p", {}, "What arrives × the local slope = what it passes on:"),
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
    return this.part("change", "What if this weight were different?", () =>
      new Nudge(app, ref.path, W, key, ref.cell).parts(),
    );
  }

  // --- paths -----------------------------------------------------------------------------------

  ways(ref) {
    const { app } = this;
    const scope = app.pass.get(ref.path);
    const W = ref.symbol in scope.data.params ? `d${ref.symbol}` : ref.symbol;
    if (!scope.find(W, ref.t ?? null) || !stepOf(scope, W, "backward") || isLoss(ref.path))
      return null;
    return this.part("paths", "The strongest paths to the loss", () => {
      const { paths: found, rest, total } = paths(app.pass, { ...ref, symbol: W }, MOST);
      const top = Math.abs(found[0]?.value ?? 1) || 1;
      const rows = found.map((way) => this.rows.row(way.value, top, this.trail(way)));
      rows.push(
        this.rows.row(rest, top, [make("span", { class: "soft" }, "all other paths together")]),
      );
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
      ([path, slope]) => path !== "" && !isLoss(path) && !(slope === 1 && isContainer(doc, path)),
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
    const sample =
      ref.path === "loss" ? [...this.rows.thumb(ref.cell[0]), `sample ${ref.cell[0]}: `] : [];
    return [
      ...sample,
      ...links.flat(),
      links.length ? " × " : "",
      this.rows.factor({ ...ref, value: valueOf(this.app.pass, ref) }),
    ];
  }

  foot(ref) {
    const { app } = this;
    return make(
      "p",
      { class: "foot" },
      make(
        "button",
        { type: "button", click: () => app.dialogs.table(ref) },
        "Table of ",
        symbol(ref.change ? `Δ${ref.symbol}` : ref.symbol),
      ),
      " ",
      app.past.length ? make("button", { type: "button", click: () => app.back() }, "Back") : null,
    );
  }
}
