// The linter knows where code runs, and its strict rules are in force.

import assert from "node:assert/strict";
import test from "node:test";

import { ESLint } from "eslint";

const ASSET = "phitodeep/inspect/explorer/assets/some.js";
const TEST = "tests/inspect/explorer/js/some.test.js";

async function broken(code, filePath) {
  const [result] = await new ESLint().lintText(code, { filePath });
  return result.messages.map((message) => message.ruleId);
}

test("an asset knows the browser's names and not Node's", async () => {
  assert.deepEqual(await broken("document.title = String(innerWidth);\n", ASSET), []);
  assert.deepEqual(await broken("process.exit();\n", ASSET), ["no-undef"]);
});

test("a test knows Node's names and not the browser's", async () => {
  assert.deepEqual(await broken("process.exit();\n", TEST), []);
  assert.deepEqual(await broken("document.title = 1;\n", TEST), ["no-undef"]);
});

test("mistakes are found", async () => {
  const code =
    "let a = 1;\nvar b = a == 2;\nconsole.log(b);\n// eslint-disable-next-line no-eval\n";
  const rules = ["prefer-const", "no-var", "eqeqeq", "no-console", null];
  assert.deepEqual((await broken(code, ASSET)).sort(), rules.sort());
});
