// Elements, and how numbers and shapes are written.

// An element: attributes that are functions listen to events, and children are nodes or text.
export function make(tag, attributes = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (typeof value === "function") element.addEventListener(name, value);
    else if (value === true) element.setAttribute(name, "");
    else if (value !== false && value !== null && value !== undefined)
      element.setAttribute(name, value);
  }
  element.append(...children.flat().filter((child) => child !== null && child !== undefined));
  return element;
}

// Four significant digits, with a true minus sign.
export function shown(value, digits = 4) {
  if (!Number.isFinite(value)) return Number.isNaN(value) ? "NaN" : value > 0 ? "∞" : "−∞";
  if (value === 0) return "0";
  const size = Math.abs(value);
  const text =
    size >= 1e5 || size < 1e-4
      ? size
          .toExponential(digits - 1)
          .replace("e", " × 10^")
          .replace("^+", "^")
      : String(Number(size.toPrecision(digits)));
  return (value < 0 ? "−" : "") + text.replace(/10\^(-?\d+)/, (_, power) => `10${raised(power)}`);
}

export const signed = (value, digits) => (value > 0 ? "+" : "") + shown(value, digits);

const raised = (power) =>
  [...power].map((digit) => "⁻⁰¹²³⁴⁵⁶⁷⁸⁹"["-0123456789".indexOf(digit)]).join("");

export const count = (number) => number.toLocaleString("en-US");
export const shapeOf = (tensor) => (tensor.shape.length ? tensor.shape.join(" × ") : "one number");
export const plural = (number, word) => `${count(number)} ${word}${number === 1 ? "" : "s"}`;

const GREEK = {
  alpha: "α",
  beta: "β",
  gamma: "γ",
  delta: "δ",
  mu: "μ",
  sigma: "σ",
  theta: "θ",
  phi: "φ",
  Phi: "Φ",
  rho: "ρ",
  tau: "τ",
  eps: "ε",
};

// A symbol as formulas write it: X̂ for X_hat, γ for gamma, what follows a short name below the line.
export function symbol(name) {
  const [, d, rest] = /^(d(?=[A-Z]|[a-z]+$|._)|Δ)?(.*)$/.exec(name);
  const known = rest.replace(/_hat$/, "");
  const [base, ...under] = known.split("_");
  const short = base.length <= 2 || base in GREEK;
  const letters = short ? (GREEK[base] ?? base) : known;
  const hat = rest.endsWith("_hat") ? "\u0302" : "";
  const below = short && under.length ? make("sub", {}, under.join(" ")) : "";
  return make("var", { "data-sym": name }, (d ?? "") + letters + hat, below);
}
