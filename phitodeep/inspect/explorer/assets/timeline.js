// The moments of the step in true order: one for each symbol, as it is computed.

export const PHASES = ["forward", "loss", "backward", "update"];

// All moments: { phase, path, direction, symbol, t, step }.
export function moments(pass) {
  const given = { phase: "forward", path: "", direction: "forward", t: null, step: null };
  const found = pass.get("").data.receives.forward.map((symbol) => ({ ...given, symbol }));
  const add = (phase, direction, path) => {
    const scope = pass.get(path);
    const visit = (steps, t) => {
      for (const step of steps) {
        if (step.kind === "loop") for (const round of scope.times(step)) visit(step.body, round);
        else if (step.kind === "through") {
          if (step.runs) add(phase, direction, step.path);
        } else if (scope.find(step.symbol, t)?.shape.length || step.symbol === "L") {
          found.push({ phase, path, direction, symbol: step.symbol, t, step });
        }
      }
    };
    visit(scope.data[direction], null);
  };
  add("forward", "forward", "");
  add("loss", "forward", "loss");
  add("loss", "backward", "loss");
  add("backward", "backward", "");
  for (const key of Object.keys(pass.doc.updates)) {
    const at = key.lastIndexOf(".");
    found.push({
      phase: "update",
      path: key.slice(0, at),
      direction: "update",
      symbol: key.slice(at + 1),
      t: null,
      step: null,
    });
  }
  return found;
}

// The layers and phases as runs of moments, for the scrubber: { phase, path, from, to }.
export function stretches(every) {
  const found = [];
  every.forEach(({ phase, path }, k) => {
    const last = found.at(-1);
    if (last && last.phase === phase && last.path === path) last.to = k;
    else found.push({ phase, path, from: k, to: k });
  });
  return found;
}
