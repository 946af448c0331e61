// Answers questions about documents with the explorer's own modules: one line of JSON in, one out.
//
//     {"doc": ..., "ask": [["why", {"sample": 2}, {"path": "0", "symbol": "dW", "cell": [0, 1]}]]}
//
// Each question names an answer below, the options of the pass, and its arguments.

import { createInterface } from "node:readline";

const assets = new URL("../../../phitodeep/inspect/explorer/assets/", import.meta.url);
const load = (name) => import(new URL(name, assets));
const [{ Reduced, Tensor }, { evaluated }, { Pass, checked }, terms] = await Promise.all(
  ["tensor.js", "expression.js", "engine.js", "terms.js"].map(load),
);

const number = (x) => (Number.isFinite(x) ? x : String(x));

function packed(value) {
  if (value instanceof Reduced) {
    const top = value.top.map(([place, x]) => [place, number(x)]);
    return { n: value.size, top, thumb: packed(value.thumb) };
  }
  if (!(value instanceof Tensor)) return null;
  const { buffer, byteOffset, byteLength } = value.data;
  return {
    shape: value.shape,
    data: Buffer.from(buffer, byteOffset, byteLength).toString("base64"),
  };
}

const symbolsOf = (scope) => [...new Set([...scope.values.keys(), ...scope.series.keys()])];

const answers = {
  arrays: (pass) =>
    [...pass.scopes].flatMap(([path, scope]) =>
      symbolsOf(scope).map((symbol) => [path, symbol, packed(scope.find(symbol))]),
    ),
  loss: (pass) => number(pass.loss),
  why: (pass, ref) => {
    const { total, terms: found, kind, reasons } = terms.why(pass, ref);
    const shown = found.map(({ value, at, factors }) => ({
      value: number(value),
      at,
      factors: factors.map((factor) => number(factor.value)),
    }));
    return { total: number(total), terms: shown, kind, reasons };
  },
  slopes: (pass, ref) =>
    terms
      .slopes(pass, ref)
      .map(({ ref: to, slope }) => [number(slope), number(terms.valueOf(pass, to))]),
  paths: (pass, ref, count, width) => {
    const { total, paths, rest } = terms.paths(pass, ref, count, width);
    const shown = paths.map(({ value, slope, trail }) => {
      const { ref: end } = trail.at(-1);
      const steps = trail.reduce((all, { slope: one }) => all * one, 1);
      return {
        value,
        slope,
        steps,
        end: `${end.path}.${end.symbol}`,
        last: terms.valueOf(pass, end),
      };
    });
    return { total: number(total), rest: number(rest), paths: shown };
  },
  local: (pass, { from, ...ref }) => terms.local(pass, ref, from)?.map(packed),
  source: (pass, ref) => terms.source(pass, ref),
  // Every function for the first cell of every symbol: it is enough that none of them fails.
  everything: (pass) => {
    let count = 0;
    for (const [path, scope] of pass.scopes) {
      for (const symbol of symbolsOf(scope)) {
        const value = scope.find(symbol);
        if (value !== null && !(value instanceof Tensor) && !(value instanceof Reduced)) {
          throw new Error(`${path}.${symbol} is ${value}`);
        }
        const ref = { path, symbol, cell: (value?.shape ?? []).map(() => 0), t: null };
        for (const ask of [terms.valueOf, terms.why, terms.slopes, terms.local, terms.source]) {
          ask(pass, ref);
        }
        terms.paths(pass, ref, 5, 50);
        count++;
      }
    }
    return count;
  },
  milliseconds: (pass) => {
    const times = [0, 1, 2, 3, 4].map(() => {
      const start = performance.now();
      new Pass(pass.doc).run();
      return performance.now() - start;
    });
    return Math.min(...times);
  },
};

function answered({ doc, ask, refuse, trees }) {
  if (trees)
    return trees.map(([tree, numbers]) => number(evaluated(tree, (name) => numbers[name])));
  if (refuse) return checked(refuse).version;
  const passes = new Map();
  const passOf = ({ given = {}, sample = null }) => {
    const key = JSON.stringify([given, sample]);
    if (!passes.has(key)) {
      const made = Object.entries(given).map(([name, { shape, data }]) => {
        return [name, new Tensor(shape, Float64Array.from(data))];
      });
      passes.set(key, new Pass(doc, { given: Object.fromEntries(made), sample }).run());
    }
    return passes.get(key);
  };
  return ask.map(([what, options, ...args]) => answers[what](passOf(options), ...args));
}

for await (const line of createInterface({ input: process.stdin })) {
  let answer;
  try {
    answer = { answers: answered(JSON.parse(line)) };
  } catch (error) {
    answer = { error: error.message, stack: error.stack };
  }
  process.stdout.write(`${JSON.stringify(answer)}\n`);
}
