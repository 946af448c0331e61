// The page of formulas: a forward pass that the reader types, and what `derive` makes of it.
//
// The build has derived the examples, so they are there at once. Python is loaded for the first formula
// of the reader's own; from then on, each edit is derived when the reader stops typing.

import { make } from "../../explorer/dom.js";
import { Client } from "./client.js";
import { config, read } from "./config.js";
import { Editor } from "./editor.js";
import { Loading } from "./loading.js";
import { save } from "./ways.js";

const PLACE = /^line (\d+), /; // how an error of `derive` begins
const PARTS = ["answer", "slow", "status", "stages", "code"];

class Formula {
  constructor(root, found, examples) {
    this.examples = examples;
    this.parts = Object.fromEntries(PARTS.map((name) => [name, make("div", { class: name })]));
    this.parts.status.setAttribute("role", "status");
    this.parts.slow = make("p", { class: "slow", role: "alert", hidden: true });
    this.parts.stages = make("ol", { class: "stages", hidden: true });
    this.fields(root);
    this.loading = new Loading(this.parts, found.stages, "your formula");
    const size = found.stages.reduce((sum, { MB }) => sum + MB, 0).toFixed(0);
    this.offer = `Derive loads Python (${size} MB, kept by the browser); then the page follows what you write.`;
    this.loading.say("The examples are derived already. Choose one, or change its text.");
    const nothing = () => {};
    this.client = new Client(found, {
      ...Object.fromEntries(
        ["begun", "replayed", "frame", "paused", "failed"].map((k) => [k, nothing]),
      ),
      stage: ({ stage, bytes }) => this.loading.stage(stage, bytes),
      slow: () => this.loading.offer("Python is still at work.", "stop", "Stop it"),
      awake: () => this.loading.offer(""),
    });
    root.addEventListener("click", ({ target }) =>
      this[target.closest("[data-act]")?.dataset.act]?.(),
    );
  }

  fields(root) {
    const names = Object.keys(this.examples);
    this.select = make(
      "select",
      { id: "formula-example", change: () => this.choose(this.select.value) },
      names.map((name) => make("option", {}, name)),
    );
    this.given = make("input", {
      id: "formula-given",
      spellcheck: "false",
      input: () => this.again(),
    });
    this.name = make("input", {
      id: "formula-name",
      spellcheck: "false",
      input: () => this.again(),
    });
    this.editor = new Editor(this.parts.code, () => this.edited(), {
      label: "The forward pass, in Python",
      rows: 4,
    });
    const label = (field, text) => make("label", {}, `${text} `, field);
    const { code, status, stages, slow, answer } = this.parts;
    root.replaceChildren(
      make("p", { class: "bar" }, label(this.select, "Example"), label(this.name, "Name")),
      code,
      make("p", {}, label(this.given, "Shapes and numbers")),
      make(
        "p",
        {},
        make("button", { type: "button", class: "main", "data-act": "derive" }, "Derive"),
      ),
      status,
      stages,
      slow,
      answer,
    );
  }

  // Another shape or name, with the same text.
  again() {
    this.editor.sent = null;
    this.editor.typed();
  }

  edited() {
    this.parts.answer.classList.add("stale");
    if (this.live) this.derive();
    else if (!this.loading.busy) this.loading.say(this.offer);
  }

  choose(name) {
    const { text, given, result } = this.examples[name];
    Object.assign(this.select, { value: name });
    this.editor.code = text.trim();
    this.given.value = given;
    this.name.value = name;
    this.asked = null;
    this.show(result);
  }

  async derive() {
    let asked = null;
    this.parts.answer.classList.add("stale");
    try {
      if (!this.live) await this.load();
      asked = { text: this.editor.code, given: this.given.value, name: this.name.value };
      this.asked = asked;
      const result = await this.client.ask("derive", asked);
      if (this.asked !== asked) return;
      this.editor.mark(null, "");
      this.show(result);
    } catch (error) {
      if (asked && this.asked === asked && !error.stopped) this.refuse(error.message);
    }
  }

  async load() {
    this.loading.begin();
    this.loading.say("Loading Python.");
    try {
      await this.client.start();
      this.loading.end("Python is loaded: the page follows what you write.");
      this.live = true;
    } catch (error) {
      this.loading.end("");
      this.loading.offer(`Python could not be loaded: ${error.message}`, "derive", "Try again");
      throw error;
    }
  }

  stop() {
    this.live = false;
    this.client.end(Object.assign(new Error("stopped"), { stopped: true }));
    this.loading.offer("");
  }

  refuse(message) {
    this.editor.mark(Number(PLACE.exec(message)?.[1]) || null, message.replace(PLACE, ""));
  }

  show(result) {
    const { answer } = this.parts;
    const listed = (title, steps) =>
      make(
        "div",
        { tabindex: "0", role: "group", "aria-label": title },
        make("h2", {}, title),
        make(
          "ol",
          { class: "pd-rule" },
          steps.map((step) => html("li", step)),
        ),
      );
    const file = `${result.name.replace(/(?<=[a-z0-9])(?=[A-Z])/g, "_").toLowerCase()}.py`;
    this.save = () => save(result.source, file);
    answer.classList.remove("stale");
    answer.replaceChildren(
      make(
        "div",
        { class: "pd-pair" },
        listed("Forward", result.forward),
        listed("Backward, from the last step to the first", result.backward),
      ),
      make("h2", {}, "Values and slopes"),
      make(
        "figure",
        { class: "plot pd-chart" },
        html("div", result.plot),
        make("figcaption", {}, result.caption),
      ),
      make("h2", {}, "Its check"),
      make("pre", { tabindex: "0" }, make("code", {}, result.check)),
      make("h2", {}, "The layer"),
      make("p", {}, make("button", { type: "button", "data-act": "save" }, `Download ${file}`)),
      make("pre", { tabindex: "0" }, make("code", {}, result.source)),
    );
  }
}

// Formulas and pictures come from the library, which escapes names.
function html(tag, text) {
  const element = make(tag);
  element.innerHTML = text;
  return element;
}

async function begin() {
  const root = document.getElementById("play");
  const [found, examples] = await Promise.all([config(), read("formulas.json")]);
  new Formula(root, found, examples).choose(Object.keys(examples)[0]);
  root.dataset.ready = "true";
}

begin();
