// The playground: a recorded run at first; the same state turns live when the reader runs it.

import { make, shown } from "../../explorer/dom.js";
import { Client } from "./client.js";
import { ink } from "./colours.js";
import { Controls } from "./controls.js";
import { Editor } from "./editor.js";
import { Frame, recorded } from "./frame.js";
import { Game } from "./game.js";
import { Inspector } from "./inspector.js";
import { Lanes } from "./lanes.js";
import { fromHash, toHash } from "./link.js";
import { Loading } from "./loading.js";
import { Own } from "./own.js";
import { build } from "./page.js";
import { Curve, Picture } from "./picture.js";
import { read, withData, write } from "./rewrite.js";
import { download, explore, firstBad, largest, stopped, verdict } from "./ways.js";

export class App {
  constructor(root, config, about, data) {
    Object.assign(this, { root, config, recording: about, about });
    this.frames = recorded(data, about);
    this.live = false;
    this.linked = null;
    this.history = "";
    this.dirty = false; // whether the editor holds a program that the worker has not
    this.parts = build(root);
    this.client = new Client(config, {
      stage: ({ stage }) => this.loading.stage(stage),
      begun: (found) => this.use(found),
      frame: ({ frame }) => this.arrived(frame),
      paused: (data_) => this.paused(data_),
      failed: ({ message }) => this.failed(message),
      slow: () => this.slow(),
    });
    this.loading = new Loading(this.parts, config.stages);
    this.lanes = new Lanes(this.parts.lanes, (...cell) => this.choose(...cell));
    this.inspector = new Inspector(this.parts.inspector);
    this.picture = new Picture(this.parts.picture, (x, y) => this.own.draw(x, y));
    this.own = new Own(this);
    this.curve = new Curve(this.parts.curve);
    this.editor = new Editor(this.parts.code, (code) => this.edited(code));
    this.controls = new Controls(this.parts.controls, {
      changed: (name, value) => this.rewrite(write(this.editor.code, name, value)),
      data: (name) => this.data(name),
    });
    this.game = new Game(this.parts.game, {
      ask: async (name, args) => (await this.awake()) && this.client.ask(name, args),
      colours: () => this.colours,
    });
    this.parts.timeline.max = this.frames.length - 1;
  }

  start() {
    const { parts } = this;
    this.colours = ink(this.root);
    this.root.addEventListener("click", (event) => {
      const act = event.target.closest("[data-act]")?.dataset.act;
      if (act) this.act(act);
    });
    parts.timeline.addEventListener("input", () => this.scrub(Number(parts.timeline.value)));
    window.addEventListener("hashchange", () => this.arrive());
    new MutationObserver(() => this.recolour()).observe(document.body, {
      attributes: true,
      attributeFilter: ["data-md-color-scheme"],
    });
    this.use(this.recording);
    this.frames.forEach((frame) => this.curve.add(frame.step, frame.loss));
    this.editor.code = this.recording.code;
    this.controls.show(this.editor.code);
    this.scrub(this.recording.open);
    this.arrive();
  }

  recolour() {
    this.colours = ink(this.root);
    this.render();
  }

  // --- the recorded run ------------------------------------------------------------------------

  async scrub(k) {
    const frame = this.frames[k];
    this.parts.timeline.value = k;
    this.parts.timeline.setAttribute("aria-valuetext", `step ${frame.step}`);
    this.history = frame.step ? `b${frame.step}` : "";
    this.frame = frame;
    this.inspector.use(null);
    this.render();
    if (!this.lanes.chosen) this.choose(...this.telling());
    const answer = await fetch(`${this.config.folder}traces/${frame.step}.json`);
    if (this.frame === frame && answer.ok) this.trace(await answer.json());
  }

  // --- a program that came by a link -----------------------------------------------------------

  arrive() {
    const found = fromHash(location.hash);
    if (!found || (found.code === this.editor.code && found.step === this.history)) return;
    const { code, seed, step, points } = found;
    this.linked = { step, points };
    this.editor.code = seed === null ? code : write(code, "seed", seed);
    this.dirty = true;
    this.controls.show(this.editor.code);
    this.parts.own.hidden = read(this.editor.code).data !== "mine";
    this.loading.say("This program came with the link. Read it first: it runs when you press Run.");
    this.waiting();
  }

  // What the page shows does not belong to the program in the editor.
  waiting() {
    this.root.classList.toggle("stale", this.dirty);
  }

  address() {
    const { code, points } = this.client;
    const link = toHash({ code, seed: read(code).seed, step: this.history, points });
    history.replaceState(null, "", link);
  }

  // --- the program -----------------------------------------------------------------------------

  rewrite(code) {
    this.editor.code = code;
    this.edited(code);
  }

  // Another program: the worker takes it, or the last one stays and its line is marked.
  async edited(code) {
    this.controls.show(code);
    this.dirty = true;
    if (!this.live) {
      this.waiting();
      this.loading.say("Press Run: Python is loaded once, then your program trains.");
      return;
    }
    clearTimeout(this.settling);
    this.settling = setTimeout(() => this.take(code), 120);
  }

  async take(code, step = "", points = this.own.points) {
    const again = this.running;
    if (again) await this.stop();
    try {
      await this.client.init(code, step, points);
      this.own.points = points;
      this.dirty = false;
      this.editor.mark(null, "");
      this.address();
      if (again) await this.run();
      else await this.explain();
      await this.verdict();
      return true;
    } catch (error) {
      this.refused = code;
      if (!error.stopped) this.editor.mark(error.line, `${error.message} The last model is kept.`);
      this.waiting();
      return false;
    }
  }

  async verdict() {
    const { code } = this.client;
    const found = await this.client.ask("check");
    if (code === this.client.code && code === this.editor.code)
      this.editor.mark(null, ...verdict(found));
  }

  data(name) {
    this.parts.own.hidden = name !== "mine";
    const code = withData(this.editor.code, name, this.config.presets);
    if (name === "mine" && !this.own.points) {
      this.editor.code = code;
      this.dirty = true;
      this.own.begin();
    } else this.rewrite(code);
  }

  // --- frames ----------------------------------------------------------------------------------

  use(about) {
    this.about = about;
    this.history = about.history ?? "";
    this.picture.use(about);
    this.lanes.build(about);
    this.curve.clear();
    this.inspector.use(null);
    this.frame = null;
    this.problem(null);
  }

  // The newest frame wins: an older one that was not drawn yet is dropped.
  arrived(data) {
    this.next = data;
    if (this.drawing) return;
    this.drawing = requestAnimationFrame(() => {
      this.drawing = null;
      this.adopt();
    });
  }

  adopt() {
    if (!this.next || this.next.length < this.about.length) return;
    this.frame = new Frame(this.next, this.about);
    this.next = null;
    this.curve.add(this.frame.step, this.frame.loss);
    this.render();
    if (this.running && this.about.kind === "names" && this.frame.step % 20 === 0) this.speak();
  }

  async speak() {
    this.picture.say(await this.client.ask("names"));
  }

  render() {
    const { frame, about, parts } = this;
    if (!frame) return;
    this.picture.show(frame, this.colours);
    this.curve.draw(this.colours);
    this.lanes.show(frame, this.colours);
    const score = about.classes
      ? `${shown(100 * frame.accuracy, 3)} % right`
      : `R² ${shown(frame.accuracy, 3)}`;
    parts.facts.textContent = `step ${frame.step} · epoch ${frame.epoch} · loss ${shown(frame.loss, 3)} · ${score}`;
    Object.assign(parts.facts.dataset, { step: frame.step, score: frame.accuracy });
  }

  // The cell that is shown first: the largest gradient of the first layer that has weights.
  telling() {
    const layer = this.about.layers.find(({ arrays }) => "dW" in arrays) ?? this.about.layers[0];
    const name = "dW" in layer.arrays ? "dW" : "Y";
    return [layer.path, name, largest(this.frame.array(layer.path, name))];
  }

  choose(path, name, cell) {
    this.cell = [path, name, cell];
    this.lanes.ring(path, name, cell);
    const { data, columns } = this.frame.array(path, name);
    this.inspector.show(this.about, path, name, cell, data[cell[0] * columns + cell[1]]);
  }

  trace(doc) {
    this.inspector.use(doc);
    this.choose(
      ...(this.cell && this.about.layers[this.cell[0]]?.arrays[this.cell[1]]
        ? this.cell
        : this.telling()),
    );
  }

  // After a step: its document, for formulas with numbers.
  async explain() {
    if (this.next) this.adopt();
    const doc = await this.client.ask("trace").catch(() => null);
    if (!this.running && doc && this.frame) this.trace(doc);
  }

  // --- what the reader does --------------------------------------------------------------------

  async act(name) {
    const acts = {
      usetable: () => this.own.table(),
      clear: () => this.own.begin(),
      link: () => this.copy(),
    };
    if (name in acts) return acts[name]();
    if (name === "run" && this.running) return this.stop();
    if (name === "stop") return this.restart();
    if (!(await this.ready())) return null;
    if (name === "run") return this.run();
    if (name === "reset") return this.take(this.editor.code);
    if (name === "explorer") return explore(this.client, this.root);
    if (name === "export") return download(this.client);
    if (name === "diagnose") return this.report(await this.client.ask("diagnose"));
    return this.step(name);
  }

  // Load Python, if it is not there yet.
  async awake() {
    try {
      if (!this.client.ready) this.loading.begin();
      await this.client.start();
      return true;
    } catch (error) {
      this.loading.fail(error.message);
      return false;
    }
  }

  // Load Python at the first run, and bring the worker to the state that the page shows.
  async ready() {
    if (this.live && (!this.dirty || this.refused === this.editor.code)) return true;
    const first = !this.live;
    if (!(await this.awake())) return false;
    this.live = true;
    this.root.classList.add("live");
    const { linked } = this;
    this.linked = null;
    const same = first && !this.dirty;
    const step = linked?.step ?? (same ? this.history : "");
    const taken = await this.take(this.editor.code, step, linked?.points ?? this.own.points);
    this.loading.end(
      taken
        ? `Live: this page runs phitodeep itself, in Pyodide ${this.config.pyodide.version}.`
        : "",
    );
    this.waiting();
    return taken;
  }

  async step(what) {
    if (this.running) await this.stop();
    const { history, bad } = await this.client.ask("step", { what });
    await this.client.ask("frame");
    this.history = history;
    this.adopt();
    this.problem(bad);
    this.address();
    await this.explain();
  }

  async run() {
    const { parts } = this;
    this.running = true;
    parts.run.textContent = "Pause";
    this.inspector.use(null);
    const steps = Number(parts.stopsteps.value) || null;
    await this.client.run({ steps, accuracy: Number(parts.stopscore.value) / 100 || null });
  }

  // The worker says that it has paused before it answers.
  stop() {
    return this.client.pause();
  }

  async paused({ reason, history, bad }) {
    this.running = this.client.running = false;
    this.client.alive();
    this.parts.run.textContent = "Run";
    this.history = history;
    if (reason) this.loading.say(`Stopped: ${reason}.`);
    this.adopt();
    this.problem(bad);
    this.address();
    await this.explain();
  }

  failed(message) {
    this.running = this.client.running = false;
    this.parts.run.textContent = "Run";
    this.editor.mark(null, message);
  }

  // A number that is not finite: where it arose, and what usually helps.
  problem(bad) {
    const { parts } = this;
    parts.bad.hidden = !bad;
    this.lanes.alarm(bad ? bad.path.split(".")[0] : null);
    if (!bad) return;
    parts.bad.replaceChildren(...stopped(bad));
    const name = bad.symbol === "dX" ? "dY" : bad.symbol;
    if (this.about.layers[bad.path]?.arrays[name] && this.frame)
      this.cell = [bad.path, name, firstBad(this.frame.array(bad.path, name))];
  }

  slow() {
    this.parts.slow.hidden = false;
    this.parts.slow.replaceChildren(
      "Python has not answered for five seconds: a loop may never end. ",
      make(
        "button",
        { type: "button", "data-act": "stop" },
        "Stop it, and go back to the last state",
      ),
    );
  }

  async restart() {
    this.parts.slow.hidden = true;
    this.running = false;
    this.parts.run.textContent = "Run";
    this.loading.begin();
    await this.client.restart();
    this.loading.end("Stopped. The last state is back.");
    this.history = this.client.snapshot?.history ?? "";
  }

  report(text) {
    this.parts.report.hidden = false;
    this.parts.report.textContent = text;
  }

  async copy() {
    if (this.live) this.address();
    await navigator.clipboard?.writeText(location.href);
    this.loading.say("The link holds the program, its seed and the steps taken.");
  }
}
