// The bar above: where in the step the page is, and playing it as a wave, layer by layer.

import { count, make } from "./dom.js";
import { PHASES } from "./timeline.js";
import { layerName } from "./words.js";

export class Player {
  constructor(app) {
    this.app = app;
    this.playing = null;
    this.fresh = true; // nobody has moved yet
    app.parts.pace.addEventListener("change", () => app.parts.pace.blur()); // so that the keys work
    const { segments, scrub } = this.app.parts;
    const parts = PHASES.map((phase) => {
      const own = this.app.stretches.map((s, k) => [s, k]).filter(([s]) => s.phase === phase);
      return make(
        "div",
        { class: `phase ${phase}`, style: `--many:${own.length}` },
        make("span", { class: "label" }, phase),
        make(
          "div",
          { class: "ticks" },
          own.map(([s, k]) =>
            make("i", { title: layerName(this.app.doc, s.path), click: () => this.stretch(k) }),
          ),
        ),
      );
    });
    segments.replaceChildren(...parts.filter((p) => p.querySelector("i")));
    this.ticks = [...segments.querySelectorAll("i")];
    scrub.max = this.app.stretches.length - 1;
    scrub.addEventListener("input", () => this.stretch(Number(scrub.value)));
  }

  get stretchNow() {
    return this.app.stretches.findIndex(({ from, to }) => this.app.at >= from && this.app.at <= to);
  }

  // Go to what a layer passes on, the last moment of its stretch.
  stretch(k, playing = false) {
    const to = Math.max(0, Math.min(this.app.stretches.length - 1, k));
    this.app.go(this.app.stretches[to].to, { playing });
  }

  report() {
    const { app } = this;
    const { scrub, now, say } = app.parts;
    const k = this.stretchNow;
    const { phase, path, symbol, t } = this.app.moment;
    scrub.value = String(k);
    this.ticks.forEach((tick, i) => {
      tick.classList.toggle("done", i <= k);
      tick.classList.toggle("here", i === k);
    });
    const words = `${phase}: ${layerName(this.app.doc, path)}, ${symbol}${t === null ? "" : ` at t = ${t}`}`;
    scrub.setAttribute("aria-valuetext", words);
    now.textContent = `${this.app.at + 1} of ${count(this.app.moments.length)}`;
    if (!this.playing) say.textContent = words;
  }

  play() {
    if (this.playing) return this.pause();
    const again = this.fresh || this.app.at === this.app.moments.length - 1;
    if (again) this.app.go(0);
    this.app.parts.play.textContent = "Pause";
    const next = () => {
      const k = this.stretchNow;
      const { to } = this.app.stretches[k];
      if (this.app.at < to) this.app.go(to, { playing: true });
      else if (k + 1 < this.app.stretches.length) this.stretch(k + 1, true);
      if (this.app.at === this.app.moments.length - 1) this.pause();
    };
    this.playing = setInterval(next, this.pace);
    return again || next();
  }

  // Milliseconds for a layer; without motion, frames that can be looked at.
  get pace() {
    const pace = Number(this.app.parts.pace.value);
    return this.app.still ? Math.max(1000, pace) : pace;
  }

  // The reader went somewhere: playing goes on from there, not from the beginning.
  moved() {
    this.fresh = false;
    this.pause();
  }

  pause() {
    if (!this.playing) return;
    clearInterval(this.playing);
    this.playing = null;
    this.app.parts.play.textContent = "Play";
    this.report();
  }
}
