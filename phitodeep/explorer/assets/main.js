// The page: which moment is shown, which cell is chosen, and what keys and buttons do.

import { Reduced, Tensor, cellOf, unpacked } from "./tensor.js";
import { Pass } from "./engine.js";
import { moved, why } from "./terms.js";
import { Lanes } from "./lanes.js";
import { Stage } from "./stage.js";
import { Inspector } from "./inspector.js";
import { colours } from "./tiles.js";
import { Player } from "./player.js";
import { Dialogs } from "./dialogs.js";
import { Keys } from "./keys.js";
import { moments, stretches } from "./timeline.js";
import { count, make, shown } from "./dom.js";
import { isGradientOfParameter } from "./words.js";

const MARKED = 4000; // cells that are marked for one cell
const STRONG = 5;

class App {
  constructor(documents) {
    [this.doc] = documents;
    const began = performance.now();
    this.base = new Pass(this.doc).run();
    this.other = documents[1] ? new Pass(documents[1]).run() : null;
    this.seconds = (performance.now() - began) / 1000;
    this.pass = this.base;
    this.view = "this";
    this.sample = null;
    this.moments = moments(this.base);
    this.stretches = stretches(this.moments);
    this.firsts = new Map(
      this.moments.map((m, k) => [`${m.direction} ${m.path} ${m.symbol}`, k]).reverse(),
    );
    this.past = [];
    this.selected = this.hovered = null;
    const find = (id) => document.getElementById(id);
    this.parts = Object.fromEntries(
      [
        "scrub",
        "segments",
        "now",
        "play",
        "samples",
        "views",
        "table",
        "search",
        "help",
        "say",
        "title",
        "facts",
        "sheet",
      ].map((id) => [id, find(id)]),
    );
    const reduced = window.matchMedia("(prefers-reduced-motion: reduce)");
    this.still = reduced.matches;
    reduced.addEventListener("change", () => (this.still = reduced.matches));
    this.ink = colours();
    this.lanes = new Lanes(this, find("lanes"));
    this.stage = new Stage(this, {
      heading: find("heading"),
      picture: find("picture"),
      extra: find("extra"),
      steps: find("steps"),
      source: find("source"),
    });
    this.inspector = new Inspector(this, find("inspector"));
  }

  start() {
    this.introduce();
    this.choices();
    this.player = new Player(this);
    this.dialogs = new Dialogs(this);
    this.keys = new Keys(this);
    this.go(this.begin());
  }

  // The last gradient of a matrix of weights before the loss: what the page is about.
  begin() {
    const isStart = ({ phase, path, symbol }) =>
      phase === "backward" &&
      isGradientOfParameter(this.base.get(path), symbol) &&
      this.base.get(path).find(symbol)?.shape.length === 2;
    const k = this.moments.findIndex(isStart);
    return k < 0 ? this.moments.length - 1 : k;
  }

  introduce() {
    const { doc } = this;
    const after = doc.after === null ? "" : ` → ${shown(Number(doc.after))} after it`;
    const layers = doc.scopes[""].forward
      .filter((s) => s.kind === "through")
      .map((s) => doc.scopes[s.path].kind);
    const facts = `${count(doc.samples)} samples, loss ${shown(this.base.loss)}${after}: ${layers.join(" · ")}`;
    this.parts.facts.textContent = facts;
    this.parts.facts.title = facts;
  }

  // --- arrays ----------------------------------------------------------------------------------

  // An array as it is shown now: of this trace, of the other one, or their difference.
  tensor(path, symbol, t = null) {
    const own = this.pass.get(path)?.find(symbol, t);
    if (!this.other || this.view === "this") return this.shareOf(own, path, symbol);
    const other = this.other.get(path)?.find(symbol, t);
    if (this.view === "other") return other;
    if (!(own instanceof Tensor) || !(other instanceof Tensor)) return own;
    return new Tensor(
      own.shape,
      own.data.map((v, k) => v - other.data[k]),
    );
  }

  // With one sample, the activations of the others are left out too.
  shareOf(tensor, path, symbol) {
    const whole =
      this.sample === null || !(tensor instanceof Tensor) || tensor.shape[0] !== this.doc.samples;
    if (whole || symbol.replace(/^d/, "") in this.pass.get(path).data.params) return tensor;
    const share = new Tensor(tensor.shape);
    const size = tensor.size / this.doc.samples;
    const from = this.sample * size;
    share.data.set(tensor.data.subarray(from, from + size), from);
    return share;
  }

  change(path, name) {
    const packed = this.doc.updates[`${path}.${name}`];
    this.changes ??= new Map();
    if (packed && !this.changes.has(packed)) this.changes.set(packed, unpacked(packed));
    return this.changes.get(packed);
  }

  // What the optimizer adds to one number of a parameter, if this file knows it.
  added(path, name, cell) {
    const change = this.change(path, name);
    if (!(change instanceof Reduced)) return change?.at(cell);
    const place = new Tensor(change.shape, []).place(cell);
    const known = change.top.find(([k]) => k === place);
    return known && Number(known[1]);
  }

  hints(path, symbol) {
    const scope = this.base.get(path);
    const parameter =
      symbol.replace(/^[dΔ]/, "") in scope.data.params || symbol in scope.data.params;
    const outside = ["X", "Y", "dX", "dY"].includes(symbol);
    return { parameter, images: outside || scope.find("X")?.shape.length === 4 };
  }

  // Whether an array has been computed by this moment.
  known(path, symbol, direction) {
    let ref = { path, symbol, t: null };
    const scope = this.base.get(path);
    if (symbol in scope.data.params || (path === "" && symbol === "X")) return true;
    const tensor = scope.find(symbol, null);
    if (!(tensor instanceof Tensor)) return true;
    ref.cell = tensor.shape.map(() => 0);
    for (let next = ref; next; next = moved(this.base, next)) {
      ref = next;
      const at = this.firsts.get(
        `${ref.path === "loss" && direction === "backward" ? "backward" : direction} ${ref.path} ${ref.symbol}`,
      );
      if (at !== undefined) return at <= this.at;
    }
    return true;
  }

  fused(path) {
    const row = this.doc.rows.find(([own]) => own === path);
    return row?.at(-1).includes("fused") ? row.at(-1) : "";
  }

  // --- moments ---------------------------------------------------------------------------------

  go(k, { keep = false } = {}) {
    this.at = Math.max(0, Math.min(this.moments.length - 1, k));
    this.moment = this.moments[this.at];
    this.hovered = null;
    if (!keep) this.selected = this.telling();
    const container = this.containerOf(this.moment.path);
    if (container !== this.lanes.container) this.lanes.show(container);
    this.stage.show();
    this.lanes.now();
    this.player.report();
    this.focus();
  }

  // The cell of the largest number of this moment's array.
  telling() {
    const { path, symbol, t, phase } = this.moment;
    const tensor = phase === "update" ? this.change(path, symbol) : this.tensor(path, symbol, t);
    if (!tensor?.size) return null;
    let best = tensor instanceof Reduced ? tensor.top[0][0] : 0;
    tensor.data?.forEach((v, k) => {
      if (Math.abs(v) > Math.abs(tensor.data[best])) best = k;
    });
    return {
      path,
      symbol,
      t,
      cell: cellOf(tensor.shape, best),
      update: phase === "update",
    };
  }

  containerOf(path) {
    if (path === "loss" || path === "") return "";
    const has = (p) => this.doc.scopes[p]?.forward.some((step) => step.kind === "through");
    if (has(path)) return path;
    const parts = path.split(".");
    while (parts.pop() !== undefined) if (has(parts.join("."))) return parts.join(".");
    return "";
  }

  enter(path) {
    const inside = this.doc.scopes[path].forward.find((step) => step.kind === "through");
    const k = this.moments.findIndex(
      (m) => m.path === inside.path || m.path.startsWith(`${inside.path}.`),
    );
    this.go(k);
  }

  layer(path) {
    const { direction } = this.moment;
    const own = (m) => m.path === path || m.path.startsWith(`${path}.`);
    const same = this.moments.findIndex((m) => own(m) && m.direction === direction);
    this.go(same < 0 ? this.moments.findIndex(own) : same);
  }

  step(path, direction, step) {
    const fits = (m) => m.path === path && m.direction === direction && m.symbol === step.symbol;
    const same = this.moments.findIndex((m) => fits(m) && m.t === this.moment.t);
    const k = same < 0 ? this.moments.findIndex(fits) : same;
    if (k >= 0) this.go(k);
  }

  round(t) {
    const { path, symbol, direction } = this.moment;
    this.go(
      this.moments.findIndex(
        (m) => m.path === path && m.direction === direction && m.symbol === symbol && m.t === t,
      ),
    );
  }

  // Go to the moment that computed a cell, and choose the cell.
  follow(ref) {
    this.past.push({ at: this.at, selected: this.selected });
    let last = ref;
    for (let next = ref; next; next = moved(this.base, next)) {
      const { path, symbol, t = null } = next;
      const k = this.moments.findIndex(
        (m) => m.path === path && m.symbol === symbol && m.t === t && m.direction !== "update",
      );
      if (k >= 0) {
        this.selected = { path, symbol, t, cell: next.cell };
        this.go(k, { keep: true });
        return;
      }
      last = next;
    }
    this.selected = { ...last, t: last.t ?? null };
    this.focus();
  }

  back() {
    const { at, selected } = this.past.pop();
    this.selected = selected;
    this.go(at, { keep: true });
  }

  // --- cells -----------------------------------------------------------------------------------

  listener(ref, direction) {
    return (what, cell) => {
      const own = cell && { t: null, ...ref, cell, update: direction === "update" };
      if (what === "hover") this.point(own);
      else if (what === "leave") this.point(null);
      else if (direction === "result" || direction === "update") this.choose(own);
      else this.follow(own);
    };
  }

  point(ref) {
    if (
      ref &&
      this.hovered &&
      String(ref.cell) === String(this.hovered.cell) &&
      ref.symbol === this.hovered.symbol &&
      ref.path === this.hovered.path
    )
      return;
    this.hovered = ref;
    this.focus();
  }

  choose(ref) {
    this.selected = ref;
    this.hovered = null;
    this.stage.extras();
    this.focus();
    document.body.classList.add("reading");
  }

  // Show the cell under the pointer, or else the chosen one, and mark the cells of its terms.
  focus() {
    const ref = this.hovered ?? this.selected;
    const marks = ref && !ref.update ? this.marksOf(ref) : new Map();
    if (ref) this.mark(marks, ref, "ring");
    for (const tile of [...this.stage.tiles, ...this.lanes.tiles]) {
      tile.mark(marks.get(tileKey(tile.ref)) ?? {});
    }
    this.inspector.show(ref, !this.hovered);
  }

  marksOf(ref) {
    const marks = new Map();
    const tensor = this.pass.get(ref.path).find(ref.symbol, ref.t ?? null);
    if (!(tensor instanceof Tensor)) return marks;
    why(this.pass, ref)
      .terms.slice(0, MARKED)
      .forEach((term, k) => {
        for (const factor of term.factors) {
          for (let next = factor; next; next = moved(this.pass, next))
            this.mark(marks, next, k < STRONG ? "strong" : "weak");
        }
      });
    return marks;
  }

  mark(marks, ref, how) {
    const key = tileKey(ref);
    if (!marks.has(key)) marks.set(key, { ring: null, strong: [], weak: [] });
    if (how === "ring") marks.get(key).ring = ref.cell;
    else marks.get(key)[how].push(ref.cell);
  }

  // --- which sample, which trace ---------------------------------------------------------------

  choices() {
    const { samples, views } = this.parts;
    const { doc } = this;
    samples.append(
      make("option", { value: "" }, "all samples"),
      ...Array.from({ length: Math.min(256, doc.samples) }, (_, n) =>
        make("option", { value: n }, `sample ${n}`),
      ),
    );
    samples.disabled = !doc.live || doc.samples < 2;
    samples.addEventListener("change", () =>
      this.only(samples.value === "" ? null : Number(samples.value)),
    );
    views.closest("label").hidden = !this.other;
    views.addEventListener("change", () => {
      this.view = views.value;
      this.redraw();
    });
  }

  only(sample) {
    this.sample = sample;
    this.pass = sample === null ? this.base : new Pass(this.doc, { sample }).run();
    this.redraw();
  }

  redraw() {
    this.ink = colours();
    this.lanes.redraw();
    this.go(this.at, { keep: true });
  }
}

const tileKey = ({ path, symbol, t = null }) => `${path}|${symbol}|${t}`;

// The documents are in the page: this trace, and perhaps another one to compare it with.
function begin() {
  const texts = document.querySelectorAll('script[type="application/json"]');
  const documents = Array.from(texts, (element) => JSON.parse(element.textContent));
  new App(documents).start();
}

begin();
