// The lanes: activations run to the right above, gradients to the left below, parameters between.

import { Tile } from "./tiles.js";
import { make, shown } from "./dom.js";
import { isContainer } from "./words.js";

const ARRAY = { width: 132, height: 96, cell: 16 };
const PHONE = "(max-width: 760px)"; // as in the style
const SETTLED = 120; // milliseconds without scrolling
const PARAMETER = { width: 70, height: 58, cell: 14 };

export class Lanes {
  constructor(app, element) {
    Object.assign(this, { app, element, container: null });
    this.tiles = [];
    this.units = new Map();
  }

  // Show the layers inside a container, "" for the model.
  show(container) {
    const { app } = this;
    const scope = app.base.get(container);
    this.container = container;
    this.numbers = null;
    this.tiles = [];
    this.units.clear();
    const inside = scope.data.forward.filter((step) => step.kind === "through");
    const units = inside.map((step) => this.layer(step.path));
    const from = inside[0]?.path ?? container;
    const first = this.arrays({ path: from, symbols: ["X", "dX"], title: "input" });
    if (!container) this.units.set("input", first);
    const own = scope.data.forward.filter(
      (step) => step.kind !== "through" && step.kind !== "given",
    );
    if (own.length && container) units.push(this.end(container));
    if (!container) units.push(this.loss());
    const pairs = this.joined(
      inside.map((step) => step.path),
      units,
    );
    this.element.replaceChildren(
      this.path(container),
      make("div", { class: "track", scroll: () => this.scrolled() }, first, ...pairs),
    );
    this.redraw();
  }

  // Two layers that training runs as one stand under one bracket.
  joined(paths, units) {
    const found = [];
    for (let k = 0; k < units.length; k++) {
      const note = this.app.fused(paths[k]);
      const next =
        k + 1 < paths.length
          ? this.app.fused(paths[k + 1])
          : units[k + 1]?.classList.contains("loss");
      if (note && next)
        found.push(
          make(
            "div",
            { class: "joined", title: note },
            make("span", {}, "joined in training"),
            units[k],
            units[++k],
          ),
        );
      else found.push(units[k]);
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
  layer(path) {
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
      make("div", { class: "pairs" }, pairs),
      make("div", { class: "arrow back", "aria-hidden": "true" }),
    );
    const unit = make(
      "section",
      { class: "unit", "aria-label": `Layer ${path}, ${data.name}` },
      block,
      this.arrays({ path, symbols: ["Y", "dY"] }),
    );
    this.units.set(path, unit);
    return unit;
  }

  arrays({ path, symbols, title = "" }) {
    const [above, below] = symbols.map((name, k) =>
      this.tile(path, name, ARRAY, {}, k ? "backward" : "forward"),
    );
    return make(
      "div",
      { class: "arrays", "aria-label": title || null },
      make("div", { class: "above" }, above),
      make("div", { class: "below" }, below),
    );
  }

  // What a container does with what the layers inside return, such as Y = X + F.
  end(path) {
    const data = this.app.doc.scopes[path];
    const unit = make(
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
      this.arrays({ path, symbols: ["Y", "dY"] }),
    );
    this.units.set(path, unit);
    return unit;
  }

  loss() {
    const { app } = this;
    const data = app.doc.scopes.loss;
    const target = "q" in data.values || data.forward.some((s) => s.symbol === "q") ? "q" : "T";
    this.numbers = make("p", { class: "numbers" });
    const unit = make(
      "section",
      { class: "unit loss", "aria-label": "The loss" },
      make(
        "div",
        { class: "block" },
        make("div", { class: "arrow there" }),
        make(
          "button",
          { type: "button", class: "head", click: () => app.layer("loss"), title: data.name },
          make("b", {}, data.kind),
        ),
        this.numbers,
        make("div", { class: "arrow back" }),
      ),
      make(
        "div",
        { class: "arrays" },
        make("div", { class: "above" }, this.tile("loss", target, ARRAY, {}, "forward")),
        make("div", { class: "below" }, this.tile("loss", "dP", ARRAY, {}, "backward")),
      ),
    );
    this.units.set("loss", unit);
    return unit;
  }

  // The loss, or what the chosen sample adds to it.
  tell() {
    const { pass, sample } = this.app;
    const { after } = pass.doc;
    const loss = make("b", {}, shown(pass.loss));
    const then =
      after === null ? [] : [" → ", make("b", {}, shown(Number(after))), " after this step"];
    this.numbers?.replaceChildren(
      ...(sample === null
        ? ["loss ", loss, ...then]
        : [`sample ${sample} adds `, loss, " to the loss"]),
    );
  }

  tile(path, name, box, hints, direction) {
    const tensor = this.app.base.get(path).find(name, null);
    if (!tensor?.shape)
      return make("p", { class: "none" }, direction === "backward" ? `no ${name}` : "");
    const ref = { path, symbol: name };
    const images = this.app.hints(path, name);
    const tile = new Tile({
      ref,
      name,
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
    this.now();
  }

  // What has been computed by now, and which layer is at work.
  now() {
    const { app } = this;
    const { moment } = app;
    for (const [path, unit] of this.units) {
      const input = path === "input" && app.at === 0;
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

  // On a phone, where one layer fills the screen, a swipe leads to the layer in the middle.
  scrolled() {
    clearTimeout(this.waiting);
    if (!window.matchMedia(PHONE).matches) return;
    this.waiting = setTimeout(() => {
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
    const middle = (from + to - track.clientWidth) / 2;
    track.scrollTo({ left: middle, behavior: this.app.still ? "auto" : "smooth" });
  }
}
