// What is being loaded: named stages with their sizes, and what the page says meanwhile.

import { make } from "../../explorer/dom.js";

export class Loading {
  constructor({ stages, status }, list) {
    Object.assign(this, { element: stages, status, list });
    const total = list.reduce((sum, { MB }) => sum + MB, 0);
    this.say(
      "This is a recorded run: move the slider, choose a cell. " +
        `Run loads Python (${total.toFixed(0)} MB, kept by the browser) and goes on from here.`,
    );
  }

  say(text) {
    this.status.textContent = text;
  }

  begin() {
    this.say("Loading. The recorded run stays in use meanwhile.");
    this.element.hidden = false;
    this.items = [
      ...this.list.map(({ name, MB }) => make("li", {}, `${name}, ${MB} MB`)),
      make("li", {}, "your model"),
    ];
    this.element.replaceChildren(...this.items);
    this.stage(0);
  }

  // Stage k has begun, so those before it are done.
  stage(k) {
    this.items?.forEach((item, own) => {
      item.className = own < k ? "done" : own === k ? "now" : "";
      item.setAttribute("aria-current", own === k ? "step" : "false");
    });
  }

  end(text) {
    this.element.hidden = true;
    this.say(text);
  }

  fail(message) {
    this.element.hidden = true;
    this.say(
      `Python could not be loaded: ${message} The recorded run stays here; Run tries again.`,
    );
  }
}
