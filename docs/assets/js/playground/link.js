// The state in the address: the program, its seed, the steps taken, and points of one's own.

const LONGEST = 100_000; // characters of an address; a larger table is left out
const AT_ONCE = { s: 200, b: 200, e: 10 }; // steps that the worker takes before it answers

const encode = (text) =>
  btoa(Array.from(new TextEncoder().encode(text), (byte) => String.fromCharCode(byte)).join(""))
    .replaceAll("+", "-")
    .replaceAll("/", "_")
    .replaceAll("=", "");

function decode(text) {
  const letters = atob(text.replaceAll("-", "+").replaceAll("_", "/"));
  return new TextDecoder("utf-8", { fatal: true }).decode(
    Uint8Array.from(letters, (letter) => letter.charCodeAt(0)),
  );
}

export function toHash({ code, seed, step, points }) {
  const parts_ = new URLSearchParams({ code: encode(code) });
  if (seed !== null) parts_.set("seed", seed);
  if (step) parts_.set("step", step);
  const own = points ? encode(JSON.stringify(points)) : "";
  if (own && own.length < LONGEST) parts_.set("points", own);
  return `#${parts_}`;
}

// What an address says, or null if it says nothing that can be read.
export function fromHash(hash) {
  const said = new URLSearchParams(hash.slice(1));
  if (!said.has("code")) return null;
  try {
    const step = said.get("step") ?? "";
    return {
      code: decode(said.get("code")),
      seed: /^\d{1,9}$/.test(said.get("seed") ?? "") ? Number(said.get("seed")) : null,
      step: /^\d+$/.test(step) ? `b${step}` : step,
      points: said.has("points") ? usable(JSON.parse(decode(said.get("points")))) : null,
    };
  } catch {
    return null;
  }
}

// Points that were drawn, or a table; null for anything else.
function usable(points) {
  if (typeof points?.csv === "string") return { csv: points.csv };
  const { X, y } = points ?? {};
  const numbers = (row) => Array.isArray(row) && row.every(Number.isFinite);
  const drawn = Array.isArray(X) && X.every(numbers) && numbers(y) && X.length === y.length;
  return drawn ? { X, y, drawn: true } : null;
}

// The steps in parts, so that the worker answers between them: b450 is b200, b200 and b50.
export function* parts(history) {
  for (const [, what, count] of history.matchAll(/([sbe])(\d{1,6})/g)) {
    const most = AT_ONCE[what];
    for (let left = Number(count); left > 0; left -= most) yield what + Math.min(left, most);
  }
}
