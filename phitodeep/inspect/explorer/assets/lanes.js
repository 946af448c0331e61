// The lanes: activations run to the right above, gradients to the left below, parameters between.

import { Tile } from "./tiles.js";
import { make, shown } from "./dom.js";
import { isLoss } from "./engine.js";
import { isContainer, layerName } from "./words.js";
import { lines, stations } from "./wires.js";

const ARRAY = { width: 132, height: 96, cell: 16 };
const PHONE = "(max-width: 760px)"; // as in the style
const SETTLED = 120; // milliseconds without scrolling
const LINE = 10; // pixels from a line around the lanes to the next
const SVG = "http://www.w3.org/2000/svg";
const PARAMETER = { width: 70, height: 58, cell: 14 };

// Whether a loss is that of one of several outputs.
const isHead = (path) => path !== "loss";

// A line from (a, start) up or down to y = turn, over to b and back to (b, end).
const bent = (a, b, start, end, turn) => {
  const [r, way] = [Math.min(6, Math.abs(b - a) / 2), b < a ? -1 : 1];
  const near = turn + Math.sign(start - turn) * r;
  return `M${a} ${start}V${near}Q${a} ${turn} ${a + way * r} ${turn}H${b - way * r}Q${b} ${turn} ${b} ${near}V${end}`;
};

export class Lanes {
  constructor(app, element) {
    Object.assign(this, { app, element, container: null });
    this.tiles = [];
    this.units = new Map(); // by key of a station
    this.numbers = new Map(); // of each loss, by path
    window.addEventListener("resize", () => this.wires && this.wire());
  }

  // Show the layers inside a container, "" for the model.
  show(container) {
    const { app } = this;
    this.container = container;
    this.tiles = [];
    this.units.clear();
    this.numbers.clear();
    const found = stations(app.doc, container);
    this.lines = lines(found);
    found.forEach((station, k) => {
      const unit = this.station(station, k);
      const [before] = found.slice(k - 1, k);
      unit.classList.toggle("apart", k > 0 && !station.sources.includes(before.key));
      this.units.set(station.key, unit);
    });
    this.wires = document.createElementNS(SVG, "svg");
    this.wires.setAttribute("class", "wires");
    this.wires.setAttribute("aria-hidden", "true");
    const deep = Math.max(0, ...this.lines.map(({ level }) => level));
    const taken = () => (this.aim = null);
    const listen = { scroll: () => this.scrolled(), pointerdown: taken, wheel: taken };
    const track = { class: "track", style: `--lines:${deep}`, ...listen };
    this.element.replaceChildren(
      this.path(container),
      make("div", track, this.wires, ...this.joined([...this.units])),
    );
    this.redraw();
  }

  // An input, a layer, or an end. A value that is read further on has its name, and so have those
  // that a layer reads from afar.
  station({ key, symbol, reads, names }, k) {
    if (symbol) return this.arrays(this.container, [symbol], [`d${symbol}`], names);
    if (!reads) return this.end(key);
    const read = this.lines.some(({ to }) => to === k) ? `reads ${reads.join(", ")}` : "";
    return this.layer(key, read, this.lines.some(({ from }) => from === k) ? names : []);
  }

  // Two layers that training runs as one stand under one bracket.
  joined(units) {
    const found = [];
    for (let k = 0; k < units.length; k++) {
      const [path, unit] = units[k];
      const [after, next] = units[k + 1] ?? [];
      const note = this.app.fused(path);
      if (note && next && (isLoss(after) || this.app.fused(after))) {
        const title = make("span", {}, "joined in training");
        found.push(make("div", { class: "joined", title: note }, title, unit, next));
        k++;
      } else found.push(unit);
    }
    return found;
  }

  // The way from the model to this container.
  path(container) {
    const parts = container ? container.split(".") : [];
    const crumbs = parts.map((_, k) => parts.slice(0, k + 1).join("."));
    const link = (path, text) =>
      make(
        "button",
        { type: "button", click: () => this.app.enter(path), disabled: path === container },
        text,
      );
    const { doc } = this.app;
    const all = [
      link("", "model"),
      ...crumbs.filter((p) => p in doc.scopes).map((p) => link(p, `${p} ${doc.scopes[p].name}`)),
    ];
    return make("nav", { class: "crumbs", "aria-label": "Containers", hidden: !container }, all);
  }

  // One layer: its parameters with their gradients, and what it returns with its gradient.
  layer(path, reads, names) {
    const { app } = this;
    const data = app.doc.scopes[path];
    const inside = isContainer(app.doc, path);
    const params = Object.keys(data.params).slice(0, 2);
    const pairs = params.map((name) =>
      make(
        "div",
        { class: "pair" },
        this.tile(path, name, PARAMETER, { parameter: true }, "forward"),
        this.tile(path, `d${name}`, PARAMETER, { parameter: true }, "backward"),
      ),
    );
    const label = make(
      "span",
      {},
      make("b", {}, data.kind),
      make("span", { class: "number" }, path.split(".").at(-1)),
    );
    const head = inside
      ? make(
          "button",
          {
            type: "button",
            class: "head inside",
            click: () => app.enter(path),
            title: "Show the layers inside",
          },
          label,
          " ⤵",
        )
      : make(
          "button",
          { type: "button", class: "head", click: () => app.layer(path), title: data.name },
          label,
        );
    const block = make(
      "div",
      { class: "block" },
      make("div", { class: "arrow there", "aria-hidden": "true" }),
      head,
      make("div", { class: "pairs" }, pairs, reads ? make("small", {}, reads) : null),
      make("div", { class: "arrow back", "aria-hidden": "true" }),
    );
    return make(
      "section",
      { class: "unit", "aria-label": `Layer ${path}, ${data.name}` },
      block,
      this.arrays(path, data.returns.forward, data.receives.backward, names),
    );
  }

  // Arrays in the upper lane and in the lower one, with the names of their values, if they need one.
  arrays(path, above, below, names = []) {
    const tiles = (symbols, way) =>
      symbols.map((symbol, k) => this.tile(path, symbol, ARRAY, {}, way, names[k]));
    return make(
      "div",
      { class: "arrays" },
      make("div", { class: "above" }, tiles(above, "forward")),
      make("div", { class: "below" }, tiles(below, "backward")),
    );
  }

  // What a container does with what the layers inside return, such as Y = X + F; or a loss.
  end(path) {
    if (isLoss(path)) return this.loss(path);
    const data = this.app.doc.scopes[path];
    return make(
      "section",
      { class: "unit end", "aria-label": data.name },
      make(
        "div",
        { class: "block" },
        make("div", { class: "arrow there" }),
        make(
          "button",
          { type: "button", class: "head", click: () => this.app.layer(path) },
          make("b", {}, data.kind),
        ),
        make("div", { class: "arrow back" }),
      ),
      this.arrays(path, data.returns.forward, data.receives.backward),
    );
  }

  loss(path) {
    const { app } = this;
    const data = app.doc.scopes[path];
    const target = "q" in data.values || data.forward.some((s) => s.symbol === "q") ? "q" : "T";
    const numbers = make("p", { class: "numbers" });
    this.numbers.set(path, numbers);
    return make(
      "section",
      { class: "unit loss", "aria-label": isHead(path) ? layerName(app.doc, path) : "The loss" },
      make(
        "div",
        { class: "block" },
        make("div", { class: "arrow there" }),
        make(
          "button",
          { type: "button", class: "head", click: () => app.layer(path), title: data.name },
          make("b", {}, data.kind),
        ),
        numbers,
        make("div", { class: "arrow back" }),
      ),
      this.arrays(path, [target], ["dP"]),
    );
  }

  // The losses, or what the chosen sample adds to them.
  tell() {
    const { pass, sample } = this.app;
    const { after } = pass.doc;
    for (const [path, numbers] of this.numbers) {
      const loss = make("b", {}, shown(pass.get(path).find("L")?.data?.[0] ?? NaN));
      const then =
        after === null || isHead(path)
          ? []
          : [" → ", make("b", {}, shown(Number(after))), " after this step"];
      numbers.replaceChildren(
        ...(sample === null
          ? ["loss ", loss, ...then]
          : [`sample ${sample} adds `, loss, " to the loss"]),
      );
    }
  }

  // Draw the lines around the lanes: above, from a value to what reads it; below, back.
  wire() {
    const units = [...this.units.values()];
    const track = this.element.querySelector(".track");
    const whole = track.getBoundingClientRect();
    const [left, top] = [whole.left - track.scrollLeft, whole.top];
    const ends = units.map(() => 0); // lines that end there so far
    const paths = this.lines.map(({ from, to, level }) => {
      const start = units[from].querySelector(".above").getBoundingClientRect();
      const [end, low] = [units[to], units[from]].map((unit) => unit.getBoundingClientRect());
      const x = [(start.left + start.right) / 2, end.left + 24 + 9 * ends[to]++];
      const far = 4 + LINE * level;
      return [
        bent(x[0] - left, x[1] - left, start.top - top, end.top - top + 14, end.top - top - far),
        bent(
          x[1] - left,
          x[0] - left,
          end.bottom - top - 14,
          low.bottom - top - 4,
          end.bottom - top + far,
        ),
      ];
    });
    this.wires.style.width = `${track.scrollWidth - 20}px`;
    this.wires.innerHTML = `<defs><marker id="tip" viewBox="0 0 8 8" refX="6" refY="4" markerWidth="8" markerHeight="8" markerUnits="userSpaceOnUse" orient="auto"><path d="M0 0L8 4L0 8Z"/></marker></defs>${paths
      .flat()
      .map((d) => `<path class="wire" marker-end="url(#tip)" d="${d}"/>`)
      .join("")}`;
  }

  tile(path, name, box, hints, direction, words = "") {
    const tensor = this.app.base.get(path).find(name, null);
    if (!tensor?.shape)
      return make("p", { class: "none" }, direction === "backward" ? `no ${name}` : "");
    const ref = { path, symbol: name };
    const images = this.app.hints(path, name);
    const tile = new Tile({
      ref,
      name,
      words,
      box,
      small: true,
      hints: { ...images, ...hints },
      listen: this.app.listener(ref, direction),
    });
    tile.direction = direction;
    this.tiles.push(tile);
    return tile.element;
  }

  redraw() {
    for (const tile of this.tiles) {
      const tensor = this.app.tensor(tile.ref.path, tile.ref.symbol);
      const centre = this.app.choices.start(tensor, tile.ref.path, tile.ref.symbol);
      if (tensor) tile.show(tensor, this.app.ink, centre);
    }
    this.tell();
    this.wire();
    this.now();
  }

  // What has been computed by now, and which layer is at work.
  now() {
    const { app } = this;
    const { moment } = app;
    for (const [path, unit] of this.units) {
      const input = moment.path === "" && path === `input ${moment.symbol}`;
      const inside = path !== this.container && moment.path.startsWith(`${path}.`);
      const here = input || path === moment.path || inside;
      unit.classList.toggle("current", here);
    }
    for (const tile of this.tiles) {
      const { path, symbol } = tile.ref;
      tile.element.classList.toggle("later", !app.known(path, symbol, tile.direction));
    }
    const current = [...this.units].find(([, unit]) => unit.classList.contains("current"))?.[1];
    if (current) this.scrollTo(current);
  }

  // On a phone, where one layer fills the screen, a swipe leads to the layer in the middle; the
  // page's own way to `aim` is no swipe, however often it halts.
  scrolled() {
    clearTimeout(this.waiting);
    if (!window.matchMedia(PHONE).matches) return;
    this.waiting = setTimeout(() => {
      const { scrollLeft } = this.element.querySelector(".track");
      if (Math.abs(scrollLeft - (this.aim ?? scrollLeft)) > 1) return;
      this.aim = null;
      const middle = window.innerWidth / 2;
      const holds = ({ left, right }) => left <= middle && right > middle;
      const found = [...this.units].find(([, unit]) => holds(unit.getBoundingClientRect()));
      if (found && !found[1].classList.contains("current")) this.app.layer(found[0]);
    }, SETTLED);
  }

  scrollTo(unit) {
    const track = this.element.querySelector(".track");
    const from =
      unit.getBoundingClientRect().left - track.getBoundingClientRect().left + track.scrollLeft;
    const to = from + unit.offsetWidth;
    if (from >= track.scrollLeft && to <= track.scrollLeft + track.clientWidth) return;
    const [middle, end] = [
      (from + to - track.clientWidth) / 2,
      track.scrollWidth - track.clientWidth,
    ];
    this.aim = Math.min(Math.max(middle, 0), end);
    track.scrollTo({ left: this.aim, behavior: this.app.still ? "auto" : "smooth" });
  }
}
