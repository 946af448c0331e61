// The page's address: it follows the state, and a state that came with it waits for Run.

import { fromHash, toHash } from "./link.js";
import { read, write } from "./rewrite.js";

const WAIT = 300; // milliseconds: browsers refuse addresses that change often

export class Address {
  // `linked` is the steps and the points of a link that has not run yet, or null.
  constructor(app) {
    Object.assign(this, { app, linked: null });
    window.addEventListener("hashchange", () => this.arrive());
  }

  // A program that came by a link is shown, and not run.
  async arrive() {
    const { app } = this;
    const found = fromHash(location.hash);
    if (!found && location.hash.includes("code="))
      app.loading.say("This link cannot be read, perhaps because it was cut off.");
    if (!found || (found.code === app.editor.code && found.step === app.history)) return;
    if (app.running) await app.stop();
    clearTimeout(this.timer);
    const { code, seed, step, points } = found;
    this.linked = { step, points };
    app.editor.code = seed === null ? code : write(code, "seed", seed);
    app.programs.dirty = true;
    app.programs.refused = null;
    app.controls.show(app.editor.code);
    app.parts.own.hidden = read(app.editor.code).data !== "mine";
    app.loading.say("This program came with the link. Read it first: it runs when you press Run.");
    app.programs.waiting();
  }

  // What `arrive` found, once.
  taken() {
    const { linked } = this;
    this.linked = null;
    return linked;
  }

  follow() {
    clearTimeout(this.timer);
    this.timer = setTimeout(() => this.write(), WAIT);
  }

  write() {
    clearTimeout(this.timer);
    const { client, history: step } = this.app;
    if (client.code === null || this.linked) return;
    const { code } = client;
    const { seed, data } = read(code);
    const points = data === "mine" ? client.points : null;
    history.replaceState(null, "", toHash({ code, seed, step, points }));
  }

  async copy() {
    const { app } = this;
    this.write();
    const kept = await navigator.clipboard?.writeText(location.href).then(
      () => true,
      () => false,
    );
    const mixed = app.programs.mixed
      ? " Some steps ran with other settings; the link takes all with these."
      : "";
    app.loading.say(
      `${kept ? "Copied: the" : "Copy the page's address: this"} link holds the program, its seed ` +
        `and the steps taken.${mixed}`,
    );
  }
}
