// The state in the address: the program, its seed, the steps taken, and points of one's own.

const encode = (text) =>
  btoa(String.fromCharCode(...new TextEncoder().encode(text)))
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
  const parts = new URLSearchParams({ code: encode(code) });
  if (seed !== null) parts.set("seed", seed);
  if (step) parts.set("step", step);
  if (points) parts.set("points", encode(JSON.stringify(points)));
  return `#${parts}`;
}

// What an address says, or null if it says nothing that can be read.
export function fromHash(hash) {
  const parts = new URLSearchParams(hash.slice(1));
  if (!parts.has("code")) return null;
  try {
    const step = parts.get("step") ?? "";
    return {
      code: decode(parts.get("code")),
      seed: parts.has("seed") ? Number(parts.get("seed")) : null,
      step: /^\d+$/.test(step) ? `b${step}` : step,
      points: parts.has("points") ? JSON.parse(decode(parts.get("points"))) : null,
    };
  } catch {
    return null;
  }
}
