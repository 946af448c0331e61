// What sliders and menus do: they read the program's lines, and rewrite them.

const ACTIVATIONS = ["tanh", "relu", "sigmoid", "gelu", "silu", "leaky_relu"];
const ACTIVATION = new RegExp(`^(\\s*)\\.(${ACTIVATIONS.join("|")})\\(\\)$`);
const DENSE = /^(\s*)\.dense\((\d+)\)$/;
const NUMBER = {
  noise: /(noise=)([\d.]+)/,
  seed: /(\bseed=)(\d+)/,
  alpha: /(\.alpha\()([\d.eE+-]+)/,
  batch: /(\.batch\()(\d+)/,
};

export { ACTIVATIONS };

// The pairs of a hidden layer: a Dense and the activation in the next line.
function hidden(lines) {
  const found = [];
  for (let k = 0; k + 1 < lines.length; k++) {
    const dense = DENSE.exec(lines[k]);
    const activation = ACTIVATION.exec(lines[k + 1]);
    if (dense && activation && lines.slice(k + 2).some((line) => DENSE.test(line)))
      found.push({ at: k, units: Number(dense[2]), activation: activation[2], indent: dense[1] });
  }
  return found;
}

// What the controls show; null where the program has no such line.
export function read(code) {
  const lines = code.split("\n");
  const pairs = hidden(lines);
  const numbers = Object.entries(NUMBER).map(([name, pattern]) => {
    const found = pattern.exec(code);
    return [name, found ? Number(found[2]) : null];
  });
  return {
    ...Object.fromEntries(numbers),
    data: /^X, y = (\w+)\(/m.exec(code)?.[1] ?? null,
    layers: pairs.length || null,
    units: pairs[0]?.units ?? null,
    activation: pairs[0]?.activation ?? null,
    optimizer: /\.optimizer\("(\w+)"\)/.exec(code)?.[1] ?? null,
  };
}

// The program with one of these changed; other lines stay as they are.
export function write(code, name, value) {
  if (name in NUMBER) return code.replace(NUMBER[name], `$1${value}`);
  if (name === "optimizer") return code.replace(/(\.optimizer\(")\w+("\))/, `$1${value}$2`);
  const lines = code.split("\n");
  const pairs = hidden(lines);
  if (name === "units") {
    for (const { at, indent } of pairs) lines[at] = `${indent}.dense(${value})`;
  } else if (name === "activation") {
    for (const { at, indent } of pairs) lines[at + 1] = `${indent}.${value}()`;
  } else if (name === "layers" && pairs.length) {
    const last = pairs.at(-1);
    const one = [`${last.indent}.dense(${last.units})`, `${last.indent}.${last.activation}()`];
    const more = Math.max(0, value - pairs.length);
    lines.splice(last.at + 2, 0, ...Array.from({ length: more }, () => one).flat());
    for (const { at } of pairs.slice(value).reverse()) lines.splice(at, 2);
  }
  return lines.join("\n");
}

// The program for another data set: a model of points in the plane is kept.
export function withData(code, name, presets) {
  const plane = ["moons", "circles", "spirals", "xor", "mine"];
  const own = read(code).data;
  const fits = /SequentialBuilder\(2\b/.test(code) && !code.includes('"mse"');
  if (fits && plane.includes(name) && plane.includes(own)) {
    const line = /^X, y = .*$/m.exec(presets[name])[0];
    return code.replace(/^X, y = .*$/m, line);
  }
  return presets[name];
}
