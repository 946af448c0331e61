// The colours of numbers.

// Orange for positive numbers and blue for negative ones, stronger for larger ones.
export function colours() {
  const style = getComputedStyle(document.documentElement);
  const read = (name) => rgb(style.getPropertyValue(name));
  const [zero, plus, minus, odd] = ["--zero", "--plus", "--minus", "--odd"].map(read);
  const ink = style.getPropertyValue("--ink").trim();
  const paper = style.getPropertyValue("--paper").trim();
  return {
    ink,
    paper,
    of(value, scale) {
      if (!Number.isFinite(value)) return `rgb(${odd})`;
      const part = scale > 0 ? Math.min(1, Math.abs(value) / scale) ** 0.7 : 0;
      const end = value < 0 ? minus : plus;
      return `rgb(${zero.map((from, k) => Math.round(from + (end[k] - from) * part))})`;
    },
  };
}

function rgb(hex) {
  const digits = hex.trim().slice(1);
  return [0, 2, 4].map((k) => Number.parseInt(digits.slice(k, k + 2), 16));
}
