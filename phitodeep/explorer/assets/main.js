// The page: which moment is shown, which cell is chosen, and what keys and buttons do.

import { Reduced, Tensor, unpacked } from "./tensor.js";
import { Pass } from "./engine.js";
import { moved, why } from "./terms.js";
import { Lanes } from "./lanes.js";
import { Stage } from "./stage.js";
import { Inspector } from "./inspector.js";
import { colours } from "./tiles.js";
import { moments, stretches, PHASES } from "./timeline.js";
import { count, make, shown } from "./dom.js";
import { isGradientOfParameter, layerName } from "./words.js";

const WAVE = 250; // milliseconds for a layer
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
    this.scrubber();
    this.listen();
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
    this.parts.facts.title =
      this.parts.facts.textContent = `${layers.join(" · ")}. ${count(doc.samples)} samples, loss ${shown(this.base.loss)}${after}`;
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
    this.report();
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
      cell: new Tensor(tensor.shape, []).cell(best),
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
      ref = next;
    }
    this.selected = { ...ref, t: ref.t ?? null };
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

  // --- the bar above ---------------------------------------------------------------------------

  scrubber() {
    const { segments, scrub } = this.parts;
    const parts = PHASES.map((phase) => {
      const own = this.stretches.map((s, k) => [s, k]).filter(([s]) => s.phase === phase);
      return make(
        "div",
        { class: `phase ${phase}`, style: `--many:${own.length}` },
        make("span", { class: "label" }, phase),
        make(
          "div",
          { class: "ticks" },
          own.map(([s, k]) =>
            make("i", { title: layerName(this.doc, s.path), click: () => this.stretch(k) }),
          ),
        ),
      );
    });
    segments.replaceChildren(...parts.filter((p) => p.querySelector("i")));
    this.ticks = [...segments.querySelectorAll("i")];
    scrub.max = this.stretches.length - 1;
    scrub.addEventListener("input", () => this.stretch(Number(scrub.value)));
  }

  get stretchNow() {
    return this.stretches.findIndex(({ from, to }) => this.at >= from && this.at <= to);
  }

  // Go to what a layer passes on, the last moment of its stretch.
  stretch(k) {
    const to = Math.max(0, Math.min(this.stretches.length - 1, k));
    this.go(this.stretches[to].to);
  }

  report() {
    const { scrub, now, say } = this.parts;
    const k = this.stretchNow;
    const { phase, path, symbol, t } = this.moment;
    scrub.value = String(k);
    this.ticks.forEach((tick, i) => {
      tick.classList.toggle("done", i <= k);
      tick.classList.toggle("here", i === k);
    });
    const words = `${phase}: ${layerName(this.doc, path)}, ${symbol}${t === null ? "" : ` at t = ${t}`}`;
    scrub.setAttribute("aria-valuetext", words);
    now.textContent = `${this.at + 1} of ${count(this.moments.length)}`;
    if (!this.playing) say.textContent = words;
  }

  play() {
    if (this.playing) return this.pause();
    if (this.at === this.moments.length - 1) this.go(0);
    this.parts.play.textContent = "Pause";
    const next = () => {
      const k = this.stretchNow;
      const { to } = this.stretches[k];
      if (this.at < to) this.go(to);
      else if (k + 1 < this.stretches.length) this.stretch(k + 1);
      if (this.at === this.moments.length - 1) this.pause();
    };
    this.playing = setInterval(next, this.still ? 4 * WAVE : WAVE);
    return next();
  }

  pause() {
    clearInterval(this.playing);
    this.playing = null;
    this.parts.play.textContent = "Play";
    this.report();
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
      this.choose_(samples.value === "" ? null : Number(samples.value)),
    );
    views.closest("label").hidden = !this.other;
    views.addEventListener("change", () => {
      this.view = views.value;
      this.redraw();
    });
  }

  choose_(sample) {
    this.sample = sample;
    this.pass = sample === null ? this.base : new Pass(this.doc, { sample }).run();
    this.redraw();
  }

  redraw() {
    this.ink = colours();
    this.lanes.redraw();
    this.go(this.at, { keep: true });
  }

  // --- keys ------------------------------------------------------------------------------------

  listen() {
    const { play, table, search, help, sheet } = this.parts;
    play.addEventListener("click", () => this.play());
    document.getElementById("before").addEventListener("click", () => this.go(this.at - 1));
    document.getElementById("next").addEventListener("click", () => this.go(this.at + 1));
    document.getElementById("ask").addEventListener("click", () => help.showModal());
    document.getElementById("lookup").addEventListener("click", () => this.find());
    sheet.addEventListener("click", () => document.body.classList.toggle("reading"));
    for (const dialog of [table, search, help]) {
      dialog.querySelector(".close").addEventListener("click", () => dialog.close());
    }
    document.addEventListener("keydown", (event) => this.key(event));
    document.addEventListener("pointerover", (event) => this.light(event.target));
    document.addEventListener("focusin", (event) => this.light(event.target));
    window
      .matchMedia("(prefers-color-scheme: dark)")
      .addEventListener("change", () => this.redraw());
  }

  key(event) {
    const typing = event.target.closest("input, select, textarea, dialog[open]");
    if (typing || event.ctrlKey || event.metaKey || event.altKey) return;
    const first = (phase) => this.go(this.moments.findIndex((m) => m.phase === phase));
    const keys = {
      ArrowRight: () => this.go(this.at + 1),
      ArrowLeft: () => this.go(this.at - 1),
      ArrowDown: () => this.stretch(this.stretchNow + 1),
      ArrowUp: () => this.stretch(this.stretchNow - 1),
      f: () => first("forward"),
      l: () => first("loss"),
      b: () => first("backward"),
      u: () => first("update"),
      n: () => this.nudge(),
      t: () => this.selected && this.table(this.selected),
      "/": () => this.find(),
      "?": () => this.parts.help.showModal(),
      " ": () => !event.target.closest("button, summary, a") && this.play(),
    };
    if (!(event.key in keys)) return;
    if (event.key === " " && event.target.closest("button, summary, a")) return;
    event.preventDefault();
    keys[event.key]();
  }

  // The slider of the chosen weight; for another array, that of the layer's first weight.
  nudge() {
    const { path } = this.moment;
    const [name] = Object.keys(this.doc.scopes[path]?.params ?? {});
    if (!document.getElementById("nudge") && name) {
      const tensor = this.tensor(path, `d${name}`);
      if (tensor instanceof Tensor)
        this.follow({ path, symbol: `d${name}`, cell: tensor.shape.map(() => 0), t: null });
    }
    document.getElementById("nudge")?.focus();
  }

  // Pointing at a symbol in a formula lights up its array, and the other way round.
  light(target) {
    const element = target.closest?.("[data-sym], [data-array]");
    const name = element?.dataset.sym ?? element?.dataset.array;
    if (name === this.lit) return;
    this.lit = name;
    for (const lit of document.querySelectorAll(".alight")) lit.classList.remove("alight");
    if (!name) return;
    const here = document.querySelectorAll(
      `#stage [data-array="${CSS.escape(name)}"], main [data-sym="${CSS.escape(name)}"]`,
    );
    for (const other of here) other.classList.add("alight");
  }

  // --- dialogs ---------------------------------------------------------------------------------

  // The numbers of an array as a table: the rows and columns around a cell.
  table(ref) {
    const tensor = ref.update
      ? this.change(ref.path, ref.symbol)
      : this.tensor(ref.path, ref.symbol, ref.t ?? null);
    if (tensor instanceof Reduced || !tensor) return;
    const { table } = this.parts;
    const rank = tensor.shape.length;
    const [rows, columns] = [rank > 1 ? tensor.shape.at(-2) : 1, rank ? tensor.shape.at(-1) : 1];
    const start = (n, at) => Math.max(0, Math.min(n - 64, (at ?? 0) - 32));
    const [r0, c0] = [start(rows, ref.cell.at(-2)), start(columns, ref.cell.at(-1))];
    const every = (from, n) => Array.from({ length: Math.min(64, n - from) }, (_, k) => from + k);
    const cell = (r, c) => [
      ...ref.cell.slice(0, Math.max(0, rank - 2)),
      ...(rank > 1 ? [r] : []),
      ...(rank ? [c] : []),
    ];
    const head = make(
      "tr",
      {},
      make("td", {}),
      every(c0, columns).map((c) => make("th", { scope: "col" }, String(c))),
    );
    const body = every(r0, rows).map((r) =>
      make(
        "tr",
        {},
        make("th", { scope: "row" }, String(r)),
        every(c0, columns).map((c) => make("td", {}, shown(tensor.at(cell(r, c))))),
      ),
    );
    const before = rank > 2 ? ` [${ref.cell.slice(0, -2).join(", ")}, ·, ·]` : "";
    const part =
      rows * columns > 4096
        ? `, ${count(Math.min(64, rows) * Math.min(64, columns))} of ${count(tensor.size)} numbers`
        : "";
    table.querySelector("h2").textContent =
      `${ref.symbol}${before}: ${layerName(this.doc, ref.path)}${part}`;
    table
      .querySelector(".scroll")
      .replaceChildren(make("table", {}, make("thead", {}, head), make("tbody", {}, body)));
    table.showModal();
  }

  find() {
    const { search } = this.parts;
    const input = search.querySelector("input");
    const list = search.querySelector("ul");
    const seen = new Map();
    for (const m of this.moments) {
      const key = [m.path, m.direction === "update" ? "update" : null, m.symbol]
        .filter(Boolean)
        .join(".");
      if (!seen.has(key)) seen.set(key, m);
    }
    const fill = () => {
      const text = input.value.trim().toLowerCase();
      const hits = [...seen]
        .filter(([key, m]) => `${key} ${layerName(this.doc, m.path)}`.toLowerCase().includes(text))
        .slice(0, 30);
      list.replaceChildren(
        ...hits.map(([key, m]) =>
          make(
            "li",
            {},
            make(
              "button",
              { type: "button", click: () => this.found(m) },
              make("code", {}, key),
              ` ${layerName(this.doc, m.path)}`,
            ),
          ),
        ),
      );
    };
    input.value = "";
    input.oninput = fill;
    input.onkeydown = (event) => {
      if (event.key !== "Enter") return;
      event.preventDefault();
      list.querySelector("button")?.click();
    };
    fill();
    search.showModal();
    input.focus();
  }

  found(moment) {
    this.parts.search.close();
    this.go(this.moments.indexOf(moment));
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
