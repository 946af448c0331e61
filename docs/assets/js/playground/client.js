// The page's side of the worker: questions and answers, frames, and a restart that loses nothing.

import { parts } from "./link.js";

const SLOW = 5000; // milliseconds without a word after which the page offers to stop
const STALLED = 30_000; // and after which loading has failed

export class Client {
  // `on` has functions: stage, begun, replayed, frame, paused, failed, slow, awake.
  constructor(config, on) {
    Object.assign(this, { config, on, snapshot: null, code: null, points: null, watch: null });
    this.waiting = new Map();
    this.count = 0;
    this.running = this.booting = false;
  }

  // Load Pyodide, once. The promise is kept, so that a second call waits for the same worker.
  start() {
    if (this.ready) return this.ready;
    const ready = this.boot();
    this.ready = ready;
    ready.catch((error) => this.ready === ready && this.end(error));
    return ready;
  }

  async boot() {
    if (typeof WebAssembly === "undefined" || typeof Worker === "undefined") {
      throw new Error("this browser cannot run WebAssembly in a worker.");
    }
    this.booting = true;
    this.worker = new Worker(new URL("./worker.js", import.meta.url), { type: "module" });
    this.worker.onmessage = ({ data }) => this.receive(data);
    await new Promise((done, fail) => {
      this.worker.onerror = (event) => {
        event.preventDefault();
        fail(new Error(event.message || "the worker could not be started."));
      };
      this.send("boot", this.config).then(done, fail);
    });
    this.booting = false;
  }

  // Ask the worker; the promise fails with the error's `line`, if the program has one.
  send(name, args = {}) {
    const id = ++this.count;
    return new Promise((done, fail) => {
      this.waiting.set(id, { done, fail });
      this.worker.postMessage({ id, name, args });
      if (!this.watch) this.alive();
    });
  }

  async ask(name, args) {
    await this.start();
    return this.send(name, args);
  }

  // A program may post what it likes: what is no message of the worker's is passed over.
  receive(data) {
    if (data?.what === "answer") {
      const { done, fail } = this.waiting.get(data.id) ?? {};
      this.waiting.delete(data.id);
      if (data.error === undefined) done?.(data.result);
      else fail?.(Object.assign(new Error(data.error), { line: data.line }));
    } else if (data?.what === "snapshot") this.snapshot = data;
    else if (Object.hasOwn(this.on, data?.what)) this.on[data.what](data);
    this.on.awake();
    this.alive();
  }

  // The worker has said something. While an answer or a frame is due, silence is a loop that does
  // not end, or a network that does not answer.
  alive() {
    clearTimeout(this.watch);
    this.watch = null;
    if (this.booting) {
      const stalled = new Error("nothing has come for half a minute.");
      this.watch = setTimeout(() => this.end(stalled), STALLED);
    } else if (this.running || this.waiting.size) {
      this.watch = setTimeout(() => this.on.slow(), SLOW);
    }
  }

  // A new program; the worker keeps the last one if this one fails. The steps of a link are taken
  // in parts, while they are `wanted`.
  async init(code, { history = "", points = this.points, keep = false, wanted = () => true } = {}) {
    const given = code.includes("mine(") ? points : null;
    const about = await this.ask("init", { code, points_: given, keep });
    Object.assign(this, { code, points, snapshot: null });
    this.on.begun(about);
    for (const part of parts(history)) {
      if (!wanted()) break;
      this.on.replayed(await this.send("replay", { history: part }));
    }
    await this.send("frame");
    return about;
  }

  async run(stop) {
    await this.start();
    this.running = true;
    return this.send("run", stop);
  }

  pause() {
    this.running = false;
    return this.send("pause");
  }

  // End the worker: what was asked is answered by an error.
  end(error) {
    clearTimeout(this.watch);
    this.watch = this.ready = null;
    this.running = this.booting = false;
    this.worker?.terminate();
    const asked = [...this.waiting.values()];
    this.waiting.clear();
    for (const { fail } of asked) fail(error);
  }

  // Without COOP and COEP headers, nothing else interrupts Python: end the worker, start another
  // one, and go on from the last snapshot. The promise says whether there was one to go on from.
  async restart() {
    this.end(Object.assign(new Error("stopped"), { stopped: true }));
    await this.start();
    if (this.code === null) return false;
    const { code, points, snapshot } = this;
    this.on.begun(await this.send("init", { code, points_: points })); // which it had taken
    if (snapshot) await this.send("restore", { snapshot: snapshot.snapshot });
    else await this.send("frame");
    return true;
  }
}
