// The lanes: each layer with what it returns and its gradient, its weights and theirs, and how far
// the last step moved the weights.

import { make, shown } from "../../explorer/dom.js";
import { Tile } from "./tile.js";

const [LEAST, MOST] = [1e-5, 1e-1]; // of the update ratio's scale
const USUAL = "The last step changed the weights by this share; about 0.001 is usual.";

export class Lanes {
  // `choose(path, name, cell)` is called for a cell.
  constructor(element, choose) {
    Object.assign(this, { element, choose, tiles: new Map(), chosen: null });
  }

  // Draw the frames of another model.
  build(about) {
    this.tiles.clear();
    this.chosen = null;
    this.ratios = new Map();
    this.units = new Map();
    this.element.replaceChildren(...about.layers.map((layer) => this.layer(layer)));
  }

  layer({ path, name, kind, arrays }) {
    const names = Object.keys(arrays).filter((key) => key !== "Y" && key !== "dY");
    const parameters = names.filter((key) => !key.startsWith("d") || !names.includes(key.slice(1)));
    const pairs = [["Y", "dY"], ...parameters.map((key) => [key, `d${key}`])];
    const meter = make("meter", {
      min: "0",
      max: "1",
      "aria-label": `update ratio of layer ${path}`,
    });
    const number = make("span", { class: "number" }, "–");
    if (parameters.length) this.ratios.set(path, { meter, number });
    const unit = make(
      "section",
      { class: "unit", "aria-label": `Layer ${path}, ${name}` },
      make("h3", { title: name }, make("span", { class: "path" }, path), kind),
      make(
        "div",
        { class: "pairs" },
        pairs.map((pair) =>
          make(
            "div",
            { class: "pair" },
            pair.map((key) => this.tile(path, key)),
          ),
        ),
      ),
      parameters.length
        ? make("p", { class: "ratio", title: USUAL }, "update / weights ", number, meter)
        : null,
    );
    this.units.set(path, unit);
    return unit;
  }

  tile(path, name) {
    const what = name.startsWith("d") ? `the gradient of ${name.slice(1)}` : name;
    const tile = new Tile({
      name,
      about: `${what} of layer ${path}; arrow keys choose a cell`,
      choose: (cell) => this.choose(path, name, cell),
    });
    this.tiles.set(`${path} ${name}`, tile);
    return tile.element;
  }

  show(frame, colours) {
    for (const [key, tile] of this.tiles) tile.show(frame.array(...key.split(" ")), colours);
    for (const [path, { meter, number }] of this.ratios) {
      const ratio = frame.ratio(path);
      const known = Number.isFinite(ratio) && ratio > 0;
      number.textContent = known ? shown(ratio, 2) : "–";
      meter.value = known ? Math.log(ratio / LEAST) / Math.log(MOST / LEAST) : 0;
    }
  }

  // The cell whose terms are shown.
  ring(path, name, cell) {
    if (this.chosen) this.tiles.get(this.chosen)?.ring(null);
    this.chosen = `${path} ${name}`;
    this.tiles.get(this.chosen)?.ring(cell);
  }

  // Choose a cell next to the one whose terms are shown.
  move(by) {
    this.tiles.get(this.chosen)?.move(by);
  }

  // Mark the layer in which something is wrong, or none.
  alarm(path) {
    for (const [own, unit] of this.units) unit.classList.toggle("alarm", own === path);
  }
}
