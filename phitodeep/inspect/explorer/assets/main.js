// The page: which moment is shown, which cell is chosen, and what keys and buttons do.

import { Reduced, Tensor, cellOf, unpacked } from "./tensor.js";
import { checked, isLoss } from "./engine.js";
import { moved } from "./terms.js";
import { keyOf, marksOf } from "./marks.js";
import { Choices } from "./choices.js";
import { Gallery } from "./gallery.js";
import { Lanes } from "./lanes.js";
import { Stage } from "./stage.js";
import { Inspector } from "./inspector.js";
import { colours } from "./colours.js";
import { Player } from "./player.js";
import { Dialogs } from "./dialogs.js";
import { Keys } from "./keys.js";
import { moments, stretches } from "./timeline.js";
import { plural, shown } from "./dom.js";
import { isContainer, isGradientOfParameter, isOutside } from "./words.js";

const PARTS = [
  ...["scrub", "segments", "now", "play", "pace", "samples", "views", "table"],
  ...["search", "help", "say", "title", "facts", "sheet"],
];

class App {
  constructor(documents) {
    [this.doc] = documents;
    const find = (id) => document.getElementById(id);
    this.parts = Object.fromEntries(PARTS.map((id) => [id, find(id)]));
    this.choices = new Choices(this, documents);
    [this.base] = this.choices.whole;
    this.moments = moments(this.base);
    this.stretches = stretches(this.moments);
    this.firsts = new Map(
      this.moments.map((m, k) => [`${m.direction} ${m.path} ${m.symbol}`, k]).reverse(),
    );
    this.past = [];
    this.selected = this.hovered = null;
    const reduced = window.matchMedia("(prefers-reduced-motion: reduce)");
    this.still = reduced.matches;
    reduced.addEventListener("change", () => (this.still = reduced.matches));
    this.ink = colours();
    this.lanes = new Lanes(this, find("lanes"));
    this.gallery = new Gallery(this, find("gallery"));
    this.stage = new Stage(this, {
      element: find("stage"),
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
    this.player = new Player(this);
    this.dialogs = new Dialogs(this);
    this.keys = new Keys(this);
    const header = document.querySelector("header");
    const room = () =>
      document.documentElement.style.setProperty("--header", `${header.offsetHeight}px`);
    new ResizeObserver(room).observe(header);
    this.go(this.begin());
    this.player.fresh = true;
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
    const layers = doc.scopes[""].forward.filter((s) => s.kind === "through" && s.runs);
    const kinds = layers.map((s) => doc.scopes[s.path].kind).join(" · ");
    const many = plural(doc.samples, "sample");
    const share = doc.sample === null ? "" : `the share of sample ${doc.sample} in `;
    const after =
      doc.after === null ? "" : ` After the update, the loss is ${shown(Number(doc.after))}.`;
    const forward = `Forward: ${share}${many} through ${plural(layers.length, "layer")}, to a loss of ${shown(this.base.loss)} (how wrong the model is).`;
    const backward =
      "Backward: a slope for every weight (how fast the loss changes when it grows).";
    this.parts.facts.textContent = `${forward} ${backward}${after}`;
    this.parts.facts.title = kinds;
  }

  // --- arrays ----------------------------------------------------------------------------------

  get pass() {
    return this.choices.pass;
  }

  get sample() {
    return this.choices.sample;
  }

  // An array as it is shown now: perhaps of one sample, or of another trace.
  tensor(path, symbol, t = null) {
    return this.choices.tensor(path, symbol, t);
  }

  change(path, name) {
    const packed = this.pass.doc.updates[`${path}.${name}`];
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
    const { receives } = scope.data;
    const images = receives.forward.some((name) => scope.find(name)?.shape.length === 4);
    return { parameter, images: images || isOutside(scope, symbol) };
  }

  // Whether an array has been computed by this moment.
  known(path, symbol, direction) {
    let ref = { path, symbol, t: null };
    const scope = this.base.get(path);
    if (
      symbol in scope.data.params ||
      (path === "" && scope.data.receives.forward.includes(symbol))
    )
      return true;
    const tensor = scope.find(symbol, null);
    if (!(tensor instanceof Tensor)) return true;
    ref.cell = tensor.shape.map(() => 0);
    for (let next = ref; next; next = moved(this.base, next)) {
      ref = next;
      const at = this.firsts.get(
        `${isLoss(ref.path) && direction === "backward" ? "backward" : direction} ${ref.path} ${ref.symbol}`,
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

  go(k, { keep = false, playing = false } = {}) {
    if (!playing) this.player.moved();
    this.inspector.forget();
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
    const update = phase === "update";
    const tensor = update ? this.change(path, symbol) : this.tensor(path, symbol, t);
    if (!tensor?.size) return null;
    const reduced = tensor instanceof Reduced && !update;
    const { shape, data } = reduced ? tensor.thumb : tensor;
    let best = data ? 0 : tensor.top[0][0];
    data?.forEach((v, k) => {
      if (Math.abs(v) > Math.abs(data[best])) best = k;
    });
    return { path, symbol, t, cell: cellOf(shape, best), update, change: update, reduced };
  }

  containerOf(path) {
    if (isLoss(path) || path === "") return "";
    const has = (p) => isContainer(this.doc, p);
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
    if (this.lanes.container !== path) {
      this.lanes.show(path); // its first layer is a container too
      this.focus();
    }
  }

  // Go to a layer, in the direction of this moment; "input X" is what the model receives as X.
  layer(path) {
    const input = this.moments.findIndex((m) => m.path === "" && path === `input ${m.symbol}`);
    if (input >= 0) return this.go(input);
    const { direction } = this.moment;
    const own = (m) => m.path === path || m.path.startsWith(`${path}.`);
    const same = this.moments.findIndex((m) => own(m) && m.direction === direction);
    return this.go(same < 0 ? this.moments.findIndex(own) : same);
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
    const from = document.activeElement.closest("#picture, #inspector")?.id;
    this.past.push({ at: this.at, selected: this.selected });
    let last = ref;
    let at = -1;
    for (let next = ref; next && at < 0; next = ref.reduced ? null : moved(this.base, next)) {
      const { path, symbol, t = null } = next;
      last = next;
      at = this.moments.findIndex(
        (m) => m.path === path && m.symbol === symbol && m.t === t && m.direction !== "update",
      );
    }
    this.selected = { ...last, t: last.t ?? null, from: last === ref ? null : ref };
    if (at >= 0) this.go(at, { keep: true });
    else this.focus();
    this.land(from);
  }

  // Keep the focus of the keyboard where it was: in the pictures, or in the inspector.
  land(from) {
    if (from === "inspector") this.inspector.element.querySelector("h2")?.focus();
    if (from === "picture") this.stage.tiles[0]?.canvas.focus();
  }

  back() {
    const { at, selected } = this.past.pop();
    this.selected = selected;
    this.go(at, { keep: true });
    this.land("inspector");
  }

  // --- cells -----------------------------------------------------------------------------------

  // What a tile calls: a tap shows a cell as pointing does, and a second one chooses it.
  listener(ref, direction) {
    const change = direction === "change"; // and not the parameter that it changes
    const kind = { change, update: change || direction === "update" };
    return (what, cell, reduced = false) => {
      const own = cell && { t: null, ...ref, cell, ...kind, reduced };
      if (what === "table") this.dialogs.table(own);
      else if (what === "hover" || (what === "tap" && !same(own, this.hovered))) this.point(own);
      else if (what === "leave") this.point(null);
      else if (direction === "result" || kind.update) this.choose(own);
      else this.follow(own);
    };
  }

  point(ref) {
    if (same(ref, this.hovered)) return;
    this.hovered = ref;
    this.focus();
  }

  choose(ref) {
    this.selected = ref;
    this.hovered = null;
    this.stage.extras();
    this.focus();
    this.keys.open(true);
  }

  // Show the cell under the pointer, or else the chosen one, and mark the cells of its terms.
  focus() {
    const ref = this.hovered ?? this.selected;
    this.mark();
    this.inspector.show(ref, !this.hovered);
  }

  // Mark the cells of the shown cell, and one more that is pointed at in words.
  mark(pointed = null) {
    const ref = this.hovered ?? this.selected;
    const marks = ref ? marksOf(this.pass, ref, pointed) : new Map();
    for (const tile of [...this.stage.tiles, ...this.lanes.tiles]) {
      const found = marks.get(keyOf(tile.ref)) ?? {};
      const fits = !tile.layout?.reduced || ref.reduced;
      tile.mark(fits ? found : {});
    }
  }

  // Show one sample's share, or null for all of them.
  only(sample) {
    this.parts.samples.value = sample ?? "";
    this.choices.choose();
  }

  redraw() {
    this.ink = colours();
    this.gallery.draw();
    this.lanes.redraw();
    this.go(this.at, { keep: true });
  }
}

const same = (a, b) => a === b || (a && b && keyOf(a) === keyOf(b) && `${a.cell}` === `${b.cell}`);

// The documents are in the page: this trace, and perhaps another one to compare it with.
function begin() {
  const texts = document.querySelectorAll('script[type="application/json"]');
  const documents = Array.from(texts, (element) => checked(JSON.parse(element.textContent)));
  new App(documents).start();
}

begin();
