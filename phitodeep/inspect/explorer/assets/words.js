// What symbols mean, in words.

import { isLoss, stepOf } from "./engine.js";
import { gradients, moved } from "./terms.js";

// The role of an array in a step, as the chain rule tells it: what arrives times the local slope is
// what the layer passes on.
export function roleOf(pass, moment, symbol) {
  const scope = pass.get(moment.path);
  if (moment.direction === "update") return "";
  if (symbol === moment.symbol) {
    if (isGradientOfParameter(scope, symbol))
      return `the slopes of the loss for ${symbol.slice(1)}`;
    if (!scope.data.returns.backward.includes(symbol)) return "";
    return isLoss(moment.path) ? "where the way back begins" : "what it passes on";
  }
  if (moment.direction !== "backward" || isLoss(moment.path)) return "";
  if (scope.data.receives.backward.includes(symbol)) return "what arrives";
  if (gradients(pass, scope).has(symbol)) return "on the way back";
  if (stepOf(scope, symbol, "backward")) return "its local slope";
  return isGradientOfParameter(scope, moment.symbol) ? "what it had received" : "its local slope";
}

export function isContainer(doc, path) {
  return doc.scopes[path]?.forward.some((step) => step.kind === "through") ?? false;
}

// The layer that computed what a layer received, or that passed on what arrives: a cell of its Y
// or dX; null for the input of the model.
export function neighbour(pass, ref) {
  for (let next = moved(pass, ref); next; next = moved(pass, next)) {
    const { path, symbol } = next;
    const { forward, backward } = pass.get(path).data.returns;
    const returned = [...forward, ...backward].includes(symbol);
    if (returned && path !== "" && !isContainer(pass.doc, path)) return next;
  }
  return null;
}

export function isGradientOfParameter(scope, symbol) {
  return symbol.startsWith("d") && symbol.slice(1) in scope.data.params;
}

// Whether a symbol is what a layer receives or returns, such as X, or X2 of several inputs.
export function isOutside({ data: { receives, returns } }, symbol) {
  return [receives, returns].some((ends) => [...ends.forward, ...ends.backward].includes(symbol));
}

export function meaning(pass, { path, symbol }, direction) {
  const scope = pass.get(path);
  const step = stepOf(scope, symbol);
  if (direction === "update") return "what the optimizer adds to the parameter";
  if (isGradientOfParameter(scope, symbol)) {
    const W = symbol.slice(1);
    return `${symbol} is the slope of the loss in each number of ${W}: how fast the loss changes when that number grows. Every sample that used it adds its share.`;
  }
  if (symbol in scope.data.params) return `${symbol} is a parameter: training changes it.`;
  const known = {
    X: path === "" ? "the input of the model, sample by sample" : "what the layer receives",
    Y: "what the layer returns",
    dY: "what arrives on the way back: the slope of the loss in each number of Y",
    dX: "what the layer passes on: the slope of the loss in each number of X",
    P: "the predictions of the model",
    L: "the loss: one number for the whole batch",
    dP: "the slope of the loss in each prediction. Here the way back begins.",
    T: "the targets: what the model should predict",
  };
  return known[isOutside(scope, symbol) ? symbol.replace(/\d+$/, "") : symbol] ?? step?.words ?? "";
}

// Where a sum's index stands: "sample 7" for n, otherwise "i = 3".
export function place(at) {
  return Object.entries(at)
    .reverse()
    .map(([index, k]) => (index === "n" ? `sample ${k}` : `${index} = ${k}`))
    .join(", ");
}

export const nameOf = ({ symbol, cell }) => `${symbol}[${cell.join(", ")}]`;

export function layerName(doc, path) {
  if (path === "loss") return `the loss, ${doc.scopes.loss.name}`;
  if (isLoss(path)) return `the loss of ${path.slice(5)}, ${doc.scopes[path].name}`;
  if (path === "") return "the model";
  return `layer ${path}, ${doc.scopes[path].name}`;
}
