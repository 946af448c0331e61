// What keys, buttons and pointing at symbols do.

import { Tensor } from "./tensor.js";

export class Keys {
  constructor(app) {
    this.app = app;
    const { play, table, search, help, sheet } = app.parts;
    play.addEventListener("click", () => app.player.play());
    document.getElementById("before").addEventListener("click", () => app.go(app.at - 1));
    document.getElementById("next").addEventListener("click", () => app.go(app.at + 1));
    document.getElementById("ask").addEventListener("click", () => help.showModal());
    document.getElementById("lookup").addEventListener("click", () => app.dialogs.find());
    sheet.addEventListener("click", () => this.open(!document.body.classList.contains("reading")));
    for (const dialog of [table, search, help]) {
      dialog.querySelector(".close").addEventListener("click", () => dialog.close());
    }
    document.addEventListener("keydown", (event) => this.key(event));
    document.addEventListener("pointerover", (event) => this.light(event.target));
    document.addEventListener("focusin", (event) => this.light(event.target));
    let width = window.innerWidth;
    window.addEventListener("resize", () => {
      if (width !== window.innerWidth) app.redraw();
      width = window.innerWidth;
    });
    window
      .matchMedia("(prefers-color-scheme: dark)")
      .addEventListener("change", () => app.redraw());
  }

  key(event) {
    const { app } = this;
    const typing = event.target.closest("input:not([type=range]), select, dialog[open]");
    const sliding = event.target.closest("[type=range]") && event.key.startsWith("Arrow");
    if (typing || sliding || event.ctrlKey || event.metaKey || event.altKey) return;
    const first = (phase) => {
      const k = app.moments.findIndex((m) => m.phase === phase);
      if (k >= 0) app.go(k);
    };
    const keys = {
      ArrowRight: () => app.go(app.at + 1),
      ArrowLeft: () => app.go(app.at - 1),
      ArrowDown: () => app.player.stretch(app.player.stretchNow + 1),
      ArrowUp: () => app.player.stretch(app.player.stretchNow - 1),
      f: () => first("forward"),
      l: () => app.go(app.moments.findIndex((m) => m.path === "loss" && m.symbol === "L")),
      b: () => first("backward"),
      u: () => first("update"),
      n: () => this.nudge(),
      t: () => app.selected && app.dialogs.table(app.selected),
      "/": () => app.dialogs.find(),
      "?": () => app.parts.help.showModal(),
      " ": () => app.player.play(),
      Escape: () => this.open(false),
    };
    if (!(event.key in keys)) return;
    if (event.key === " " && event.target.closest("button, summary, a")) return;
    event.preventDefault();
    keys[event.key]();
  }

  // Open or close the inspector where it is a sheet.
  open(whether) {
    document.body.classList.toggle("reading", whether);
    this.app.parts.sheet.setAttribute("aria-expanded", whether);
  }

  // The slider of the chosen weight; for another array, that of the layer's first weight.
  nudge() {
    const { app } = this;
    const { path } = app.moment;
    const [name] = Object.keys(app.doc.scopes[path]?.params ?? {});
    if (!document.getElementById("nudge") && name) {
      const tensor = app.tensor(path, `d${name}`);
      if (tensor instanceof Tensor)
        app.follow({ path, symbol: `d${name}`, cell: tensor.shape.map(() => 0), t: null });
    }
    document.getElementById("nudge")?.focus();
  }

  // Pointing at a symbol in a formula lights up its array, and the other way round.
  light(target) {
    const element = target.closest?.("[data-sym], [data-array]");
    const name = element?.dataset.sym ?? element?.dataset.array;
    if (name === this.lit) return;
    this.lit = name;
    for (const lit of document.querySelectorAll(".alight")) lit.classList.remove("alight");
    if (!name) return;
    const here = document.querySelectorAll(
      `#stage [data-array="${CSS.escape(name)}"], main [data-sym="${CSS.escape(name)}"]`,
    );
    for (const other of here) other.classList.add("alight");
  }
}
