// Break the gradient: a mutant is dealt; find its layer, name the mistake, repair the line.

import { make, plural } from "../../explorer/dom.js";
import { Tile } from "./tile.js";

const plain = (words) => words.replaceAll("`", "");

export class Game {
  // `ask(name, args)` asks the worker, which it starts if need be.
  constructor(element, { ask, colours }) {
    Object.assign(this, { element, ask, colours, seed: 0 });
    this.body = make("div", { class: "table-of-game" });
    this.said = make("p", { class: "message", role: "status" });
    this.task = make("div", {});
    element.replaceChildren(
      make("h2", {}, "Break the gradient"),
      make(
        "p",
        {},
        "One line of one layer's backward pass is wrong. Find the layer from the gradients, " +
          "name the mistake, and repair the line. The gradient checker is the referee.",
      ),
      make(
        "p",
        {},
        this.button("Deal a mutant", () => this.deal()),
      ),
      this.body,
      this.task,
      this.said,
    );
  }

  button(text, click) {
    return make("button", { type: "button", click: () => this.attempt(click) }, text);
  }

  async attempt(action) {
    try {
      await action();
    } catch (error) {
      if (!error.stopped) this.say(error.message, "error");
    }
  }

  say(text, kind = "") {
    this.said.className = `message ${kind}`;
    this.said.textContent = text;
  }

  async deal(seed = this.seed + 1) {
    this.say("Dealing a mutant ...");
    const { layers } = await this.ask("deal", { seed });
    this.seed = seed;
    this.tries = 0;
    this.element.dataset.seed = seed;
    this.body.replaceChildren(...layers.map((layer) => this.layer(layer)));
    this.task.replaceChildren();
    this.say("Which layer is broken? Its own gradients may be right, and those before it wrong.");
  }

  // A layer: what the model computes next to what is right, by central differences.
  layer({ path, name, gradients }) {
    return make(
      "section",
      { class: "unit", "aria-label": `Layer ${path}, ${name}` },
      make("h3", {}, make("span", { class: "path" }, path), name),
      gradients.length
        ? gradients.map((gradient) => this.gradient(path, gradient))
        : make("p", { class: "soft" }, "no parameters"),
      this.button("It is this one", () => this.find(path)),
    );
  }

  gradient(path, { symbol, got, right, wrong }) {
    const tile = (rows, name) => {
      const made = new Tile({ name, about: `${name} of layer ${path}`, choose: () => {} });
      const [r, c] = [rows.length, rows[0].length];
      made.show({ data: rows.flat(), rows: r, columns: c }, this.colours());
      return made.element;
    };
    return make(
      "div",
      { class: wrong ? "gradient wrong" : "gradient" },
      tile(got, symbol),
      tile(right, "should be"),
      make("span", {}, wrong ? "✗ wrong" : "✓ right"),
    );
  }

  async find(path) {
    this.tries += 1;
    const { right, words, choices, text } = await this.ask("find", { path });
    if (!right) return this.say(words, "error");
    this.text = text;
    this.say(
      `Layer ${path} it is, after ${plural(this.tries, "try").replace("trys", "tries")}.`,
      "good",
    );
    this.task.replaceChildren(
      make("h3", {}, "What is the mistake?"),
      make(
        "ul",
        { class: "choices" },
        choices.map((choice) =>
          make(
            "li",
            {},
            this.button(plain(choice), () => this.name(choice)),
          ),
        ),
      ),
    );
    return null;
  }

  async name(words) {
    const { right } = await this.ask("name", { words });
    if (!right)
      return this.say(
        "No: compare the lines of this pass with what the gradient must be.",
        "error",
      );
    const lines = make("textarea", {
      id: "play-repair",
      rows: this.text.split("\n").length + 1,
      spellcheck: "false",
    });
    lines.value = this.text;
    this.say(`Yes: ${plain(words)}.`, "good");
    this.task.replaceChildren(
      make(
        "h3",
        {},
        make("label", { for: "play-repair" }, "Repair the line of this backward pass"),
      ),
      lines,
      make(
        "p",
        {},
        this.button("Ask the checker", () => this.repair(lines.value)),
      ),
    );
    return lines.focus();
  }

  async repair(text) {
    const { right, words } = await this.ask("repair", { text });
    this.element.dataset.solved = right;
    if (right) this.say("The checker agrees: every gradient is right. Deal another one?", "good");
    else this.say(`The checker: ${words}`, "error");
  }
}
