// What is being loaded: named stages, how many MB of each have come, and what the page says.

import { make } from "../../explorer/dom.js";

export class Loading {
  // `own` is the last stage: what the reader waits for.
  constructor({ stages, status, slow }, list, own = "your model") {
    Object.assign(this, { element: stages, status, offered: slow, list, own, busy: false });
    const total = list.reduce((sum, { MB }) => sum + MB, 0);
    this.say(
      "A recorded run. Start here: move the slider under the picture, or choose a coloured cell " +
        `below. Run loads Python (${total.toFixed(0)} MB, kept by the browser) and goes on from here.`,
    );
  }

  say(text) {
    this.status.textContent = text;
  }

  // Say something that the reader has to decide, with a button for it; or nothing any more.
  offer(text, act, label) {
    this.offered.hidden = !text;
    if (!text) return this.offered.replaceChildren();
    const button = make("button", { type: "button", "data-act": act }, label);
    return this.offered.replaceChildren(`${text} `, button);
  }

  begin() {
    this.busy = true;
    this.offer("");
    this.say("Loading. The recorded run stays in use meanwhile.");
    this.element.hidden = false;
    this.items = [...this.list, { name: this.own }].map(({ name }) => make("li", {}, name));
    this.element.replaceChildren(...this.items);
    this.stage(0, 0);
  }

  // Stage k has begun, and so many of its bytes have come; those before it are done.
  stage(k, bytes) {
    this.items?.forEach((item, own) => {
      const { name, MB } = this.list[own] ?? {};
      item.className = own < k ? "done" : own === k ? "now" : "";
      item.setAttribute("aria-current", own === k ? "step" : "false");
      if (!MB) return;
      const part = own < k ? MB : own === k ? Math.min(MB, bytes / 1e6) : 0;
      item.style.setProperty("--part", part / MB);
      item.textContent = own < k ? `${name}, ${MB} MB` : `${name}, ${part.toFixed(1)} of ${MB} MB`;
    });
  }

  end(text) {
    this.busy = false;
    this.element.hidden = true;
    this.say(text);
  }

  fail(message) {
    this.end("The recorded run stays in use.");
    this.offer(`Python could not be loaded: ${message}`, "run", "Try again");
  }
}
