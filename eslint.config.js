// The rules for JavaScript that is shipped (in browsers) and for its tests (in Node).
// Prettier decides the layout; these rules find mistakes.

import js from "@eslint/js";
import globals from "globals";

const strict = {
  "array-callback-return": "error",
  "consistent-return": "error",
  "default-case-last": "error",
  eqeqeq: "error",
  "max-lines": ["error", 400],
  "no-else-return": "error",
  "no-eval": "error",
  "no-implicit-coercion": ["error", { boolean: false }],
  "no-implied-eval": "error",
  "no-loop-func": "error",
  "no-new-func": "error",
  "no-param-reassign": "error",
  "no-promise-executor-return": "error",
  "no-return-assign": "error",
  "no-self-compare": "error",
  "no-shadow": "error",
  "no-throw-literal": "error",
  "no-unmodified-loop-condition": "error",
  "no-unreachable-loop": "error",
  "no-unused-expressions": "error",
  "no-use-before-define": ["error", { functions: false, classes: false, variables: false }],
  "no-useless-concat": "error",
  "no-useless-return": "error",
  "no-var": "error",
  "object-shorthand": "error",
  "prefer-const": "error",
  "prefer-rest-params": "error",
  "prefer-spread": "error",
  "prefer-template": "error",
};

export default [
  { ignores: [".mutants/", ".venv/", "site/"] },
  js.configs.recommended,
  { rules: strict, linterOptions: { reportUnusedDisableDirectives: "error" } },
  {
    files: ["phitodeep/**", "docs/**"],
    languageOptions: { globals: globals.browser },
    rules: { "no-console": "error" },
  },
  { files: ["tests/browser/**"], languageOptions: { globals: globals.browser } },
  {
    ignores: ["phitodeep/**", "docs/**", "tests/browser/**"],
    languageOptions: { globals: globals.node },
  },
];
