// The programs that the reader writes: the worker takes the newest, or keeps the last one.

import { verdict } from "./ways.js";

const KEPT = "Training goes on with the same weights.";
const ANEW = "The layers or the data changed: training starts again at step 0.";

export class Programs {
  // dirty    whether the editor holds a program that the worker has not
  // refused  the last program that the worker has refused
  // mixed    whether some of the steps ran with other settings
  constructor(app) {
    Object.assign(this, { app, dirty: false, refused: null, mixed: false });
    this.turn = 0; // counts programs, so that the newest one wins
  }

  // What the page shows does not belong to the program in the editor.
  waiting() {
    this.app.root.classList.toggle("stale", this.dirty);
  }

  rewrite(code) {
    this.app.editor.code = code;
    this.edited(code);
  }

  // Another program: the worker takes it, or the last one stays and its line is marked.
  async edited(code) {
    this.app.controls.show(code);
    this.dirty = true;
    if (this.app.address.linked) this.app.address.linked.step = "";
    if (!this.app.live) {
      this.waiting();
      this.app.loading.say("Press Run: Python is loaded once, then your program trains.");
      return;
    }
    clearTimeout(this.settling);
    this.settling = setTimeout(() => this.take(code, { keep: true }), 120);
  }

  // One program at a time; of those that wait, the newest. Training that runs goes on: with the
  // same weights if `keep` and the layers allow it, and with the last program if this one fails.
  async take(code, options = {}) {
    clearTimeout(this.settling);
    const turn = ++this.turn;
    await this.taking;
    if (turn !== this.turn) return false;
    this.taking = this.taken(code, { ...options, wanted: () => turn === this.turn });
    return this.taking;
  }

  async taken(code, options) {
    const { points = this.app.own.points } = options;
    const begun = this.app.frame?.step > 0;
    try {
      const { kept } = await this.app.client.init(code, { ...options, points });
      this.app.own.points = points;
      this.refused = null;
      this.dirty = code !== this.app.editor.code;
      this.mixed = kept && (this.mixed || begun);
      this.app.editor.mark(null, "");
      this.waiting();
      if (options.keep && begun) this.app.loading.say(kept ? KEPT : ANEW);
      this.app.address.follow();
      if (!this.app.running) await this.app.explain();
      await this.verdict();
      return true;
    } catch (error) {
      this.refused = code;
      const why = error.stopped ? "This program had not ended." : error.message;
      this.app.editor.mark(error.line ?? null, `${why} The last model is kept.`);
      this.waiting();
      return false;
    }
  }

  replayed(history) {
    this.app.history = history;
    this.app.loading.say(`Taking the link's steps: ${history}.`);
  }

  async verdict() {
    const { code } = this.app.client;
    const found = await this.app.client.ask("check");
    if (code === this.app.client.code && code === this.app.editor.code)
      this.app.editor.mark(null, ...verdict(found));
  }
}
