// The colours of the page, as the style sheet defines them.

export function ink(element) {
  const style = getComputedStyle(element);
  const read = (name) => rgb(style.getPropertyValue(name).trim());
  const classes = Array.from({ length: 10 }, (_, k) => read(`--class-${k}`));
  return {
    zero: read("--zero"),
    plus: read("--plus"),
    minus: read("--minus"),
    odd: read("--odd"),
    alarm: style.getPropertyValue("--alarm").trim(),
    text: style.getPropertyValue("--text").trim(),
    paper: read("--paper"),
    classes,
  };
}

function rgb(hex) {
  return [1, 3, 5].map((k) => Number.parseInt(hex.slice(k, k + 2), 16));
}

export const mix = (a, b, part) => a.map((from, k) => Math.round(from + (b[k] - from) * part));
export const css = (colour) => `rgb(${colour})`;

// Orange for positive numbers, blue for negative ones, violet for what is no number.
export function signed(value, scale, colours) {
  if (!Number.isFinite(value)) return colours.odd;
  const part = scale > 0 ? Math.min(1, Math.abs(value) / scale) ** 0.7 : 0;
  return mix(colours.zero, value < 0 ? colours.minus : colours.plus, part);
}
