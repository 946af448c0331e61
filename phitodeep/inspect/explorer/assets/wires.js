// How the layers in a container are connected, and the lines that show it around the lanes.

// What the lanes show, in order: { key, sources, names }. A key is the path of a layer or of a loss,
// or "input X". The sources are the keys before it whose values it reads; most read only the one
// before. The names are those of the values that it gives. So that few lines are needed, an input
// stands before the first layer that reads it, and a loss after the layer that gives the prediction.
export function stations(doc, container) {
  const { forward, receives, returns } = doc.scopes[container];
  const nameOf = (symbol) =>
    forward.filter(({ tree }) => tree === symbol).map((step) => step.symbol);
  const inputs = receives.forward.map((symbol) => {
    return { key: `input ${symbol}`, sources: [], symbol, names: nameOf(symbol) };
  });
  const from = new Map(inputs.map(({ key, symbol }) => [symbol, [key]]));
  const sourcesOf = (names) => [...new Set(names.flatMap((name) => from.get(name) ?? []))];
  const found = [];
  for (const step of forward.flatMap((one) => one.body ?? [one])) {
    const { kind, symbol, path: key } = step;
    const sources = sourcesOf(kind === "arrange" ? [step.of] : step.reads);
    if (kind === "through" && step.runs) found.push({ key, sources, reads: step.reads, names: [] });
    if (kind === "through") found.find((station) => station.key === key).names.push(symbol);
    from.set(symbol, kind === "through" ? [key] : sources);
  }
  if (container && forward.some(makes)) {
    found.push({ key: container, sources: sourcesOf(returns.forward) });
  }
  for (const input of inputs) {
    const first = found.findIndex(({ sources }) => sources.includes(input.key));
    found.splice(Math.max(0, first), 0, input);
  }
  for (const { key, k } of container ? [] : losses(doc)) {
    const sources = sourcesOf([returns.forward[k]]);
    found.splice(found.findLastIndex((other) => sources.includes(other.key)) + 1, 0, {
      key,
      sources,
    });
  }
  return found;
}

// Whether a step of a container computes something itself: "Y = v" only says how v is called.
const makes = ({ kind, tree }) =>
  !["through", "given"].includes(kind) && !(kind === "let" && typeof tree === "string");

// The loss, or those of several outputs, each with the number of its output.
export function losses(doc) {
  const { forward, receives } = doc.scopes.loss;
  const heads = forward.filter(({ kind, runs }) => kind === "through" && runs);
  const several = heads.map(({ path: key, reads: [P] }) => ({
    key,
    k: receives.forward.indexOf(P),
  }));
  return several.length ? several : [{ key: "loss", k: 0 }];
}

// The lines from stations to others that are not the next one: { from, to, level }, by number. A line
// runs above those that are shorter and overlap it, so lines that can be nested never cross.
export function lines(found) {
  const number = new Map(found.map(({ key }, k) => [key, k]));
  const every = found.flatMap(({ sources }, to) =>
    sources.map((key) => ({ from: number.get(key), to })).filter(({ from }) => from !== to - 1),
  );
  every.sort((a, b) => a.to - a.from - (b.to - b.from));
  every.forEach((line, k) => {
    const below = every.slice(0, k).filter((one) => one.from < line.to && one.to > line.from);
    line.level = 1 + Math.max(0, ...below.map(({ level }) => level));
  });
  return every;
}
