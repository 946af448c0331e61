// The table of an array's numbers, and the search for an array.

import { Reduced, cellOf } from "./tensor.js";
import { count, make, shown } from "./dom.js";
import { layerName } from "./words.js";

export class Dialogs {
  constructor(app) {
    this.app = app;
  }

  // The numbers of an array as a table.
  table(ref) {
    const { app } = this;
    const tensor = ref.change
      ? app.change(ref.path, ref.symbol)
      : app.tensor(ref.path, ref.symbol, ref.t ?? null);
    if (!tensor) return;
    const round = ref.t === null || ref.t === undefined ? "" : `, at step t = ${ref.t}`;
    const name = `${ref.change ? "Δ" : ""}${ref.symbol}`;
    this.numbers(name, tensor, ref.cell, `${round}: ${layerName(app.doc, ref.path)}`);
  }

  // The numbers of an array that has a name, around a cell.
  numbers(name, tensor, cell, where = "") {
    const { table } = this.app.parts;
    const [title, content] = tensor instanceof Reduced ? top(tensor) : part(tensor, cell);
    table.querySelector("h2").textContent = `${name}${title}${where}`;
    table.querySelector(".scroll").replaceChildren(make("table", {}, content));
    table.showModal();
    table.querySelector(".here")?.scrollIntoView({ block: "center", inline: "center" });
  }

  find() {
    const { app } = this;
    const { search } = app.parts;
    const input = search.querySelector("input");
    const list = search.querySelector("ul");
    const seen = new Map();
    for (const m of app.moments) {
      const key = [m.path, m.symbol].filter(Boolean).join(".");
      if (!seen.has(key)) seen.set(key, m);
    }
    const fill = () => {
      const text = input.value.trim().toLowerCase();
      const far = ([key]) => Number(key.toLowerCase() !== text); // what has this very name is first
      const hits = [...seen]
        .filter(([key, m]) => searched(app, key, m).toLowerCase().includes(text))
        .sort((a, b) => far(a) - far(b))
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
              ` ${layerName(app.doc, m.path)}`,
            ),
          ),
        ),
        ...(hits.length ? [] : [make("li", {}, "No array has this name.")]),
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
    const { app } = this;
    app.parts.search.close();
    document.activeElement.blur();
    app.go(app.moments.indexOf(moment));
  }
}

// What a search goes through: 0.dW, 0.backward.dW as Python writes it, and the name of the layer.
function searched(app, key, { path, direction, symbol }) {
  return `${key} ${path}.${direction}.${symbol} ${layerName(app.doc, path)}`;
}

// The rows and columns around a cell.
function part(tensor, at) {
  const rank = tensor.shape.length;
  const [rows, columns] = [rank > 1 ? tensor.shape.at(-2) : 1, rank ? tensor.shape.at(-1) : 1];
  const start = (n, k) => Math.max(0, Math.min(n - 64, (k ?? 0) - 32));
  const [r0, c0] = [start(rows, at.at(-2)), start(columns, at.at(-1))];
  const every = (from, n) => Array.from({ length: Math.min(64, n - from) }, (_, k) => from + k);
  const cell = (r, c) => [
    ...at.slice(0, Math.max(0, rank - 2)),
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
      every(c0, columns).map((c) => {
        const here = String(cell(r, c)) === String(at);
        return make("td", { class: here ? "here" : null }, shown(tensor.at(cell(r, c))));
      }),
    ),
  );
  const before = rank > 2 ? ` [${at.slice(0, -2).join(", ")}, ·, ·]` : "";
  const left =
    rows * columns > 4096
      ? `, ${count(Math.min(64, rows) * Math.min(64, columns))} of ${count(tensor.size)} numbers`
      : "";
  return [before + left, [make("thead", {}, head), make("tbody", {}, body)]];
}

// The largest numbers of an array that is not in the file.
function top(tensor) {
  const rows = tensor.top.map(([k, value]) =>
    make(
      "tr",
      {},
      make("th", { scope: "row" }, `[${cellOf(tensor.shape, k).join(", ")}]`),
      make("td", {}, shown(Number(value))),
    ),
  );
  return [`, the ${rows.length} largest of ${count(tensor.size)} numbers`, make("tbody", {}, rows)];
}
