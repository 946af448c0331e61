// The page's side of the worker: questions and answers, frames, and a restart that loses nothing.

const SLOW = 5000; // milliseconds after which the page offers to stop

export class Client {
  // `on` has functions: stage, begun, frame, paused, failed, slow.
  constructor(config, on) {
    Object.assign(this, { config, on, snapshot: null, code: null, points: null });
    this.waiting = new Map();
    this.count = 0;
    this.running = false;
  }

  // Load Pyodide, once. The promise is kept, so that a second call waits for the same worker.
  start() {
    this.ready ??= this.boot().catch((error) => {
      this.ready = null;
      this.worker?.terminate();
      throw error;
    });
    return this.ready;
  }

  boot() {
    if (typeof WebAssembly === "undefined" || typeof Worker === "undefined") {
      return Promise.reject(new Error("this browser cannot run WebAssembly in a worker."));
    }
    this.worker = new Worker(new URL("./worker.js", import.meta.url), { type: "module" });
    this.worker.onmessage = ({ data }) => this.receive(data);
    return new Promise((done, fail) => {
      this.worker.onerror = (event) => {
        event.preventDefault();
        fail(new Error(event.message || "the worker could not be started."));
      };
      this.send("boot", this.config).then(done, fail);
    });
  }

  // Ask the worker; the promise fails with the error's `line`, if the program has one.
  send(name, args = {}) {
    const id = ++this.count;
    const timer = name === "boot" ? null : setTimeout(() => this.on.slow(name), SLOW);
    return new Promise((done, fail) => {
      this.waiting.set(id, { done, fail, timer });
      this.worker.postMessage({ id, name, args });
    });
  }

  async ask(name, args) {
    await this.start();
    return this.send(name, args);
  }

  receive(data) {
    this.alive();
    if (data.what === "answer") {
      const { done, fail, timer } = this.waiting.get(data.id);
      this.waiting.delete(data.id);
      clearTimeout(timer);
      if (data.error === undefined) done(data.result);
      else fail(Object.assign(new Error(data.error), { line: data.line }));
    } else if (data.what === "snapshot") this.snapshot = data;
    else this.on[data.what](data);
  }

  // While training runs, silence is a loop that does not end.
  alive() {
    clearTimeout(this.watch);
    if (this.running) this.watch = setTimeout(() => this.on.slow("run"), SLOW);
  }

  // A new program; the worker keeps the last one if this one fails.
  async init(code, history = "", points = this.points) {
    const about = await this.ask("init", { code, history, points_: points });
    Object.assign(this, { code, points, snapshot: null });
    this.on.begun(about);
    await this.send("frame");
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

  // Without COOP and COEP headers, nothing else interrupts Python: end the worker, start another
  // one, and go on from the last snapshot.
  async restart() {
    clearTimeout(this.watch);
    this.running = false;
    this.worker.terminate();
    for (const { timer, fail } of this.waiting.values()) {
      clearTimeout(timer);
      fail(Object.assign(new Error("stopped"), { stopped: true }));
    }
    this.waiting.clear();
    this.ready = null;
    await this.start();
    if (this.code === null) return;
    const about = await this.send("init", { code: this.code, points_: this.points });
    this.on.begun(about);
    if (this.snapshot) await this.send("restore", { snapshot: this.snapshot.snapshot });
    else await this.send("frame");
  }
}
