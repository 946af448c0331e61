// Panels of the inspector that are not about one computed cell.

import { count, make, shown, signed, symbol } from "./dom.js";
import { layerName, meaning } from "./words.js";
import { cellOf } from "./tensor.js";

// Of an array that is too large for the file: how its numbers are spread, and the largest.
export function reducedParts(app, ref, tensor) {
  if (!tensor) return [make("p", {}, "There is no such array: tokens have no gradient.")];
  const { counts, from, to } = tensor.histogram;
  const most = Math.max(...counts);
  const bars = counts.map((n, k) =>
    make("i", {
      style: `--part:${n / most}`,
      title: `${shown(from + (k * (to - from)) / counts.length, 2)}: ${count(n)}`,
    }),
  );
  const top = tensor.top
    .slice(0, 8)
    .map(([k, value]) =>
      make(
        "li",
        {},
        `[${cellOf(tensor.shape, k).join(", ")}] `,
        make("b", {}, shown(Number(value))),
      ),
    );
  return [
    make("p", { class: "where" }, layerName(app.doc, ref.path)),
    make("h2", { tabindex: "-1" }, symbol(ref.change ? `Δ${ref.symbol}` : ref.symbol)),
    make("p", {}, meaning(app.pass, ref, ref.change ? "update" : undefined)),
    make(
      "p",
      { class: "soft" },
      `${count(tensor.size)} numbers: too many for this file. A cell of the picture shows the largest of several, so that no spike is lost.`,
    ),
    make("h3", {}, "How the numbers are spread"),
    make(
      "div",
      { class: "histogram", role: "img", "aria-label": `from ${shown(from)} to ${shown(to)}` },
      bars,
    ),
    make("p", { class: "soft" }, `from ${shown(from)} to ${shown(to)}`),
    make("h3", {}, "The largest"),
    make("ol", {}, top),
  ];
}

// What the update does to one number of a parameter.
export function updateParts(app, { path, symbol: name, cell }) {
  const [value, dW] = [name, `d${name}`].map((own) => app.pass.get(path).find(own)?.at?.(cell));
  const step = app.added(path, name, cell);
  const where = `[${cell.join(", ")}]`;
  const known = value !== undefined && step !== undefined;
  return [
    make("p", { class: "where" }, layerName(app.doc, path)),
    make(
      "h2",
      { tabindex: "-1" },
      symbol(name),
      known ? `${where}: ${shown(value)} → ${shown(value + step)}` : where,
    ),
    make(
      "p",
      {},
      "The gradient here is ",
      make("b", {}, dW === undefined ? "not in this file" : shown(dW)),
      step === undefined
        ? "; of so large an array, this file has only the 64 largest changes."
        : `, and ${app.doc.optimizer.name} adds `,
      step === undefined ? "" : make("b", {}, signed(step)),
    ),
    make("p", {}, direction(dW, step)),
    make(
      "p",
      {},
      make(
        "button",
        {
          type: "button",
          click: () => app.follow({ path, symbol: `d${name}`, cell, t: null, value: dW }),
        },
        "Where the gradient comes from",
      ),
    ),
  ];
}

function direction(dW, step) {
  if (!dW || !step) return "";
  return Math.sign(dW) === Math.sign(step)
    ? "Here the optimizer moves with the gradient instead of against it, because it also remembers earlier steps or decays weights."
    : `The loss ${dW > 0 ? "rises" : "falls"} when this weight grows, so the step moves it ${step > 0 ? "up" : "down"}.`;
}
