// The playground's modules that need no page: what sliders rewrite, and what a link holds.

import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { test } from "node:test";

import { fromHash, parts, toHash } from "../../../docs/assets/js/playground/link.js";
import { read, withData, write } from "../../../docs/assets/js/playground/rewrite.js";
import { Frame, recorded } from "../../../docs/assets/js/playground/frame.js";

const program = (name) => readFileSync(`website/playground/programs/${name}.py`, "utf8");
const moons = program("moons");

test("controls show what the program says", () => {
  const found = read(moons);
  assert.deepEqual(found, {
    ...{ noise: 0.15, seed: 1, alpha: 0.03, batch: 32, data: "moons" },
    ...{ layers: 2, units: 8, activation: "tanh", optimizer: "adam" },
  });
});

test("each control rewrites its own lines, and can be read back", () => {
  const values = {
    ...{ noise: 0.3, seed: 7, alpha: 0.5, batch: 16, layers: 4, units: 20 },
    ...{ activation: "relu", optimizer: "sgd" },
  };
  for (const [name, value] of Object.entries(values)) {
    const code = write(moons, name, value);
    assert.deepEqual(read(code), { ...read(moons), [name]: value }, name);
  }
  const one = write(moons, "layers", 1);
  assert.equal(one.match(/\.dense\(8\)/g).length, 1);
  assert.ok(one.includes(".dense(1)\n    .sigmoid()"), "the output layer stays");
});

test("lines that no control knows stay as they are", () => {
  const own = moons.replace(".tanh()", ".add(Swish())  # mine");
  assert.ok(write(own, "units", 3).includes(".add(Swish())  # mine"));
  assert.equal(read("model = None").alpha, null);
});

test("another set of points keeps the model; other data bring their own", () => {
  const presets = { xor: program("xor"), sine: program("sine") };
  const wide = write(moons, "units", 13);
  const found = withData(wide, "xor", presets);
  assert.equal(read(found).units, 13);
  assert.equal(read(found).data, "xor");
  assert.equal(withData(wide, "sine", presets), presets.sine);
});

test("a link holds the program, the seed, the steps and the points", () => {
  const points = { X: [[1, 2]], y: [0], drawn: true };
  const state = { code: "# é ∑\nX = 1\n", seed: 3, step: "b12s1", points };
  assert.deepEqual(fromHash(toHash(state)), state);
  assert.equal(fromHash("#step=3"), null);
  assert.equal(fromHash("#code=%%%"), null);
  assert.equal(fromHash(`${toHash({ code: "a", seed: null, step: "" })}&step=7`).step, "b7");
});

test("a link with rubbish holds what can be read of it", () => {
  const link = (points) => fromHash(toHash({ code: "a", seed: null, step: "b1", points })).points;
  for (const points of [7, "a", { X: 1, y: [1] }, { X: [["a"]], y: [0] }, { X: [[1]], y: [] }])
    assert.equal(link(points), null);
  assert.deepEqual(link({ csv: "1,2", more: 3 }), { csv: "1,2" });
  assert.equal(link({ csv: "1,2\n".repeat(50_000) }), null, "a large table is left out");
  const code = toHash({ code: "x".repeat(300_000), seed: null, step: "" });
  assert.equal(fromHash(`${code}&seed=NaN`).seed, null);
});

test("a link's steps are taken in parts", () => {
  assert.deepEqual([...parts("b450s3e12")], ["b200", "b200", "b50", "s3", "e10", "e2"]);
  assert.deepEqual([...parts("x9 b")], []);
});

test("a model of a table is not one of points in the plane", () => {
  const presets = { moons, mine: program("mine") };
  const own = presets.mine.replace("SequentialBuilder(2", "SequentialBuilder(3");
  assert.equal(withData(own, "moons", presets), moons);
  assert.notEqual(withData(presets.mine.replace("dense(8)", "dense(9)"), "moons", presets), moons);
});

test("frames of a recorded run are cut where they end", () => {
  const layers = { 0: { arrays: { dY: [7, 2, 2] }, ratio: 11 } };
  const about = { length: 12, layers };
  const first = [1, 0, 0.5, 0.9, 1, 0, 2, 1, 2, 3, 4, 0.1, 8, 9];
  const second = [2, 0, 0.5, 0.9, 2, 0, 0, 5, 6, 7, 8, 0.2];
  const frames = recorded(Float32Array.from([...first, ...second]), about);
  assert.deepEqual(
    frames.map(({ step }) => step),
    [1, 2],
  );
  assert.deepEqual([...frames[0].boundary], [8, 9]);
  assert.equal(frames[0].array("0", "dY").rows, 1, "a batch of one sample");
  assert.ok(frames[1] instanceof Frame);
  assert.ok(Math.abs(frames[1].ratio("0") - 0.2) < 1e-6);
});
