// The elements of the playground, by name.

import { make } from "../../explorer/dom.js";

const button = (name, text, attributes = {}) => [
  name,
  make("button", { type: "button", "data-act": name, ...attributes }, text),
];

const LEGEND = [
  ["negative", "negative"],
  ["positive", "positive; the stronger the colour, the larger the number within its tile"],
  ["odd", "not a number"],
];
const MOVES = {
  "←": ["one column to the left", "0,-1"],
  "→": ["one column to the right", "0,1"],
  "↑": ["one row up", "-1,0"],
  "↓": ["one row down", "1,0"],
};

// Build the page inside an element; return its parts.
export function build(root) {
  const part = (name, tag = "div", attributes = {}, ...children) => [
    name,
    make(tag, { class: name, ...attributes }, ...children),
  ];
  const parts = Object.fromEntries([
    button("run", "Run", { class: "main" }),
    button("s", "one sample"),
    button("b", "one batch"),
    button("e", "one epoch"),
    button("reset", "Reset"),
    button("explorer", "Open the step in the explorer"),
    button("export", "Export as a script"),
    button("diagnose", "Diagnose"),
    button("link", "Copy the link"),
    button("usetable", "Use this table"),
    button("clear", "Clear the points"),
    part("facts", "p"),
    part("status", "p", { role: "status" }),
    part("stages", "ol", { hidden: true }),
    part("slow", "p", { role: "alert", hidden: true }),
    part("timeline", "input", { type: "range", min: "0", step: "1", id: "play-timeline" }),
    part("controls"),
    part("picture"),
    part("curve"),
    part("code"),
    part("lanes", "div", { tabindex: "0", role: "group", "aria-label": "Layers" }),
    part("inspector", "div", { "aria-live": "polite" }),
    part("bad", "div", { role: "alert", hidden: true }),
    part("report", "pre", { hidden: true, tabindex: "0" }),
    part("game"),
    part("table", "textarea", {
      rows: "5",
      id: "play-table",
      maxlength: 200000,
      placeholder: "x1,x2,class\n0.1,0.7,red\n0.9,-0.2,blue",
    }),
    part("stopsteps", "input", { type: "number", min: "1", id: "play-stop-steps" }),
    part("stopscore", "input", { type: "number", min: "1", max: "100", id: "play-stop-score" }),
  ]);
  const p = parts;
  const radio = (value, text) =>
    make(
      "label",
      {},
      make("input", { type: "radio", name: "play-class", value, checked: value === "0" }),
      ` ${text} `,
    );
  p.own = make(
    "div",
    { class: "own", hidden: true },
    make(
      "p",
      {},
      "Click in the picture to draw points of ",
      radio("0", "class 0"),
      radio("1", "class 1"),
      p.clear,
    ),
    make(
      "p",
      {},
      make("label", { for: "play-table" }, "or paste a table; the last column is the target:"),
    ),
    p.table,
    p.usetable,
  );
  p.recorded = make(
    "p",
    { class: "recorded" },
    make("label", { for: "play-timeline" }, "recorded steps "),
    p.timeline,
  );
  root.replaceChildren(
    make(
      "div",
      { class: "bar" },
      p.run,
      make("span", { class: "steps" }, "step ", p.s, p.b, p.e),
      p.reset,
      p.facts,
    ),
    p.status,
    p.stages,
    p.slow,
    make(
      "div",
      { class: "columns" },
      make("section", { "aria-label": "Settings" }, p.controls, p.own, stops(p)),
      make("section", { "aria-label": "Picture" }, p.picture, p.curve, p.recorded),
      make(
        "section",
        { "aria-label": "Program" },
        p.code,
        make("p", { class: "acts" }, p.link, p.export, p.diagnose),
      ),
    ),
    p.bad,
    p.report,
    make("h2", {}, "Layer by layer"),
    make(
      "p",
      { class: "soft" },
      "A tile is an array, and a cell is one number. Upper row: what each layer returns (Y), and " +
        "its weights. Lower row: the gradient of each. In Y and dY, a row is a sample of the " +
        "batch, and a column is a unit. Choose a cell: below, you see what it is the sum of.",
    ),
    make(
      "ul",
      { class: "legend" },
      LEGEND.map(([kind, text]) => make("li", {}, make("span", { class: kind }), text)),
    ),
    p.lanes,
    make(
      "p",
      { class: "moves", role: "group", "aria-label": "The next cell" },
      Object.entries(MOVES).map(([sign, [label, move]]) =>
        make("button", { type: "button", "aria-label": label, "data-move": move }, sign),
      ),
      make("span", { class: "soft" }, "the next cell"),
    ),
    p.inspector,
    make("p", { class: "acts" }, p.explorer),
    p.game,
  );
  return parts;
}

const stops = (p) =>
  make(
    "p",
    { class: "stops" },
    make("label", { for: "play-stop-steps" }, "stop after "),
    p.stopsteps,
    " steps, or ",
    make("label", { for: "play-stop-score" }, "at "),
    p.stopscore,
    " % right",
  );
