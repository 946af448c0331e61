// The playground: a recorded run at first; the same state turns live when the reader runs it.

import { shown } from "../../explorer/dom.js";
import { Address } from "./address.js";
import { Client } from "./client.js";
import { ink } from "./colours.js";
import { Controls } from "./controls.js";
import { Editor } from "./editor.js";
import { Frame, recorded } from "./frame.js";
import { Game } from "./game.js";
import { Inspector } from "./inspector.js";
import { Lanes } from "./lanes.js";
import { Loading } from "./loading.js";
import { Own } from "./own.js";
import { build } from "./page.js";
import { Curve, Picture } from "./picture.js";
import { Programs } from "./programs.js";
import { withData, write } from "./rewrite.js";
import { download, explore, firstBad, largest, stopped } from "./ways.js";

export class App {
  constructor(root, config, about, data) {
    Object.assign(this, { root, config, recording: about, about });
    this.frames = recorded(data, about);
    this.live = this.running = false;
    this.history = ""; // the steps that were taken
    this.parts = build(root);
    this.client = new Client(config, {
      stage: ({ stage, bytes }) => this.loading.stage(stage, bytes),
      begun: (found) => this.use(found),
      replayed: ({ history }) => this.programs.replayed(history),
      frame: ({ frame }) => this.arrived(frame),
      paused: (data_) => this.paused(data_),
      failed: ({ message }) => this.failed(message),
      slow: () => this.slow(),
      awake: () => this.late && this.slow(false),
    });
    this.loading = new Loading(this.parts, config.stages);
    this.lanes = new Lanes(this.parts.lanes, (...cell) => this.choose(...cell));
    this.inspector = new Inspector(this.parts.inspector);
    this.picture = new Picture(this.parts.picture, (x, y) => this.own.draw(x, y));
    this.own = new Own(this);
    this.programs = new Programs(this);
    this.curve = new Curve(this.parts.curve);
    this.editor = new Editor(this.parts.code, (code) => this.programs.edited(code));
    this.controls = new Controls(this.parts.controls, {
      changed: (name, value) => this.programs.rewrite(write(this.editor.code, name, value)),
      data: (name) => this.data(name),
    });
    this.game = new Game(this.parts.game, {
      ask: (name, args) => this.play(name, args),
      colours: () => this.colours,
    });
    this.address = new Address(this);
    this.parts.timeline.max = this.frames.length - 1;
  }

  start() {
    const { parts } = this;
    this.colours = ink(this.root);
    this.root.addEventListener("click", (event) => {
      const act = event.target.closest("[data-act]")?.dataset.act;
      if (act) this.act(act);
    });
    this.root.addEventListener("click", ({ target }) => {
      const move = target.closest("[data-move]")?.dataset.move;
      if (move) this.lanes.move(move.split(",").map(Number));
    });
    parts.timeline.addEventListener("input", () => this.scrub(Number(parts.timeline.value)));
    new MutationObserver(() => this.recolour()).observe(document.body, {
      attributes: true,
      attributeFilter: ["data-md-color-scheme"],
    });
    this.use(this.recording);
    this.frames.forEach((frame) => this.curve.add(frame.step, frame.loss));
    this.editor.code = this.recording.code;
    this.controls.show(this.editor.code);
    this.scrub(this.recording.open);
    this.address.arrive();
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

  // --- frames ----------------------------------------------------------------------------------

  use(about) {
    this.about = about;
    this.history = about.history ?? "";
    this.own.open = false;
    this.next = null;
    this.picture.use(about);
    if (!about.kept) {
      this.lanes.build(about);
      this.curve.clear();
      this.inspector.use(null);
      this.frame = this.cell = null;
    }
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
    this.picture.show(this.own.open ? { boundary: [] } : frame, this.colours);
    this.curve.draw(this.colours);
    this.lanes.show(frame, this.colours);
    if (this.running && this.cell) this.inspector.update(this.value(...this.cell));
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
    this.inspector.show(this.about, path, name, cell, this.value(path, name, cell));
  }

  value(path, name, [row, column]) {
    const { data, columns } = this.frame.array(path, name);
    return data[row * columns + column];
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
    try {
      await this.perform(name);
    } catch (error) {
      if (!error.stopped) this.editor.mark(error.line ?? null, error.message);
    }
  }

  async data(name) {
    this.parts.own.hidden = name !== "mine";
    const code = withData(this.editor.code, name, this.config.presets);
    if (name !== "mine" || this.own.points) return this.programs.rewrite(code);
    if (this.running) await this.stop();
    this.editor.code = code;
    this.programs.dirty = true;
    return this.own.begin();
  }

  async perform(name) {
    const acts = {
      usetable: () => this.own.table(),
      clear: () => this.own.begin(),
      link: () => this.address.copy(),
      stop: () => this.restart(),
    };
    if (name in acts) return acts[name]();
    if (this.loading.busy) return null;
    if (name === "run" && this.running) return this.stop();
    if (name === "reset" && this.running) await this.stop();
    if (name === "reset" && (this.live || !this.programs.dirty)) return this.reset();
    if (!(await this.ready())) return null;
    if (name === "run") return this.run();
    if (name === "reset") return null; // it has just begun
    if (name === "explorer") return explore(this.client, this.root);
    if (name === "export") return download(this.client);
    if (name === "diagnose") return this.report(await this.client.ask("diagnose"));
    return this.step(name);
  }

  async reset() {
    if (!this.live) return this.scrub(0);
    if (await this.programs.take(this.editor.code)) this.loading.say("Back at step 0.");
    return null;
  }

  // Load Python, if it is not there yet.
  async awake() {
    if (!this.client.ready) this.loading.begin();
    try {
      await this.client.start();
      return true;
    } catch (error) {
      this.loading.fail(error.message);
      return false;
    }
  }

  // The game needs Python, and no program.
  async play(name, args) {
    const first = !this.client.ready;
    if (!(await this.awake())) throw new Error("Python is not loaded.");
    if (first) this.loading.end("Python is loaded: Run trains the program.");
    return this.client.ask(name, args);
  }

  // Load Python at the first run, and bring the worker to the state that the page shows.
  async ready() {
    if (this.live && (!this.programs.dirty || this.programs.refused === this.editor.code))
      return true;
    const first = !this.live;
    if (!(await this.awake())) return false;
    this.live = true;
    this.root.classList.add("live");
    const linked = this.address.taken();
    const history = linked?.step ?? (first && !this.programs.dirty ? this.history : "");
    const points = linked?.points ?? this.own.points;
    const keep = !first && !linked;
    const taken = await this.programs.take(this.editor.code, { history, points, keep });
    const version = `in Pyodide ${this.config.pyodide.version}`;
    if (taken && (first || linked))
      this.loading.end(`Live: this page runs phitodeep itself, ${version}.`);
    else if (first && this.live) this.loading.end("The program was not taken: see its message.");
    return taken;
  }

  // Of steps that are asked for fast, only the last one is explained.
  async step(what) {
    if (this.running) await this.stop();
    const turn = (this.steps = (this.steps ?? 0) + 1);
    const { history, bad } = await this.client.ask("step", { what });
    await this.client.ask("frame");
    this.history = history;
    this.adopt();
    this.problem(bad);
    this.address.follow();
    if (turn === this.steps) await this.explain();
  }

  async run() {
    const { parts } = this;
    this.running = true;
    parts.run.textContent = "Pause";
    this.inspector.use(null);
    this.choose(...(this.cell ?? this.telling()));
    const steps = Number(parts.stopsteps.value) || null;
    await this.client.run({ steps, accuracy: Number(parts.stopscore.value) / 100 || null });
  }

  // The worker says that it has paused before it answers.
  stop() {
    return this.client.pause();
  }

  halted() {
    this.running = this.client.running = false;
    this.parts.run.textContent = "Run";
  }

  async paused({ reason, history, bad }) {
    this.halted();
    this.history = history;
    if (reason) this.loading.say(`Stopped: ${reason}.`);
    this.adopt();
    this.problem(bad);
    this.address.follow();
    await this.explain();
  }

  failed(message) {
    this.halted();
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

  // Python has not answered for a while, or it has now.
  slow(late = true) {
    this.late = late;
    const text = late ? "Python has not answered for five seconds: a loop may never end." : "";
    this.loading.offer(text, "stop", "Stop it, and go back to the last state");
  }

  async restart() {
    this.slow(false);
    this.halted();
    this.programs.turn += 1;
    this.loading.begin();
    const back = await this.client.restart().catch((error) => error);
    this.live = back === true;
    if (back instanceof Error) return this.loading.fail(back.message);
    this.root.classList.toggle("live", back);
    this.history = this.client.snapshot?.history ?? "";
    return this.loading.end(
      back ? "Stopped. The last state is back." : "Stopped. Run starts the program at step 0.",
    );
  }

  report(text) {
    this.parts.report.hidden = false;
    this.parts.report.textContent = text;
  }
}
