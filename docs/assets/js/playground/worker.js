// The worker that owns the model: it loads Pyodide, and answers questions to the Python session.
//
// A message in is { id, name, args }; the answer is { id, result } or { id, error, line }. While it
// runs, it trains in slices of 12 ms, so that messages are read between them, and sends 30 frames a
// second. A frame is one Float32Array, which is transferred.

const SLICE = 12; // milliseconds
const PACE = 1000 / 30; // milliseconds between frames
const KEEP = 1500; // milliseconds between snapshots
const BOUNDARY = 5; // frames from one boundary to the next

let python = null; // the session's Worker object
let running = null; // the stop condition while training runs
let frames = 0;
let sent = 0;
let kept = 0;

const post = (what, data = {}, transfer = []) => self.postMessage({ what, ...data }, transfer);

// --- loading ---------------------------------------------------------------------------------

// Count the bytes of each stage as they come. The answers themselves stay as they are, so that the
// browser can keep the compiled program; what it imports as a script is not seen here.
function counting() {
  const plain = self.fetch;
  const now = { stage: 0, bytes: 0, told: 0 };
  const tell = () => post("stage", { stage: now.stage, bytes: now.bytes });
  const count = async (body) => {
    const reader = body.getReader();
    for (let part = await reader.read(); !part.done; part = await reader.read()) {
      now.bytes += part.value.length;
      if (performance.now() - now.told < 100) continue;
      now.told = performance.now();
      tell();
    }
    tell();
  };
  self.fetch = async (...request) => {
    const answer = await plain(...request);
    if (answer.ok && answer.body) count(answer.clone().body).catch(() => {});
    return answer;
  };
  return {
    stage(stage) {
      Object.assign(now, { stage, bytes: 0 });
      tell();
    },
    end: () => (self.fetch = plain),
  };
}

async function boot({ pyodide: { base }, wheel, folder }) {
  const counted = counting();
  counted.stage(0);
  const { loadPyodide } = await import(`${base}pyodide.mjs`);
  const pyodide = await loadPyodide({ indexURL: base, packageBaseUrl: base });
  counted.stage(1);
  await pyodide.loadPackage("numpy", { messageCallback: () => {}, checkIntegrity: true });
  counted.stage(2);
  const read = async (name) => {
    const answer = await fetch(`${folder}${name}`);
    if (!answer.ok) throw new Error(`${name} could not be loaded (${answer.status}).`);
    return answer.arrayBuffer();
  };
  const [library, session] = await Promise.all([read(wheel), read("session.zip")]);
  pyodide.unpackArchive(library, "wheel");
  pyodide.unpackArchive(session, "zip");
  python = pyodide.pyimport("session.worker").Worker();
  counted.stage(3);
  counted.end();
  return pyodide.version;
}

// --- frames ----------------------------------------------------------------------------------

function send(boundary) {
  const array = python.session.frame(boundary);
  const view = array.getBuffer("f32");
  const frame = view.data.slice();
  view.release();
  array.destroy();
  post("frame", { frame }, [frame.buffer]);
}

function keep() {
  const bytes = python.session.snapshot();
  const snapshot = bytes.toJs();
  bytes.destroy();
  post("snapshot", { snapshot, history: python.session.path }, [snapshot.buffer]);
}

// --- running ---------------------------------------------------------------------------------

const { port1, port2 } = new MessageChannel(); // a turn of the event loop, without a delay
port1.onmessage = () => slice();

function slice() {
  if (!running) return;
  const now = performance.now();
  const due = now - sent >= PACE;
  try {
    const { steps, from } = running;
    python.session.run(SLICE, due, steps ? from + steps - python.session.step : undefined);
    const reached = isReached(running, due);
    if (due) {
      sent = now;
      send(frames++ % BOUNDARY === 0);
    }
    if (now - kept >= KEEP) {
      kept = now;
      keep();
    }
    if (python.session.bad || reached) pause(reached);
    else port2.postMessage(null);
  } catch (error) {
    fail(error);
  }
}

function fail(error) {
  running = null;
  post("failed", { message: lastLine(error) });
}

// A score is looked at when a frame is due, since the frame shows that step.
function isReached({ steps, accuracy, from }, due) {
  if (steps && python.session.step - from >= steps) return `${steps} steps are done`;
  if (due && accuracy && python.session.score() >= accuracy) {
    return `${Math.round(100 * accuracy)} % is reached`;
  }
  return "";
}

function pause(reason = "") {
  running = null;
  try {
    python.session.settle();
    send(true);
    keep();
  } catch (error) {
    return fail(error);
  }
  return post("paused", { reason, ...JSON.parse(python.call("status", "{}")).result });
}

const lastLine = (error) =>
  String(error.message ?? error)
    .trim()
    .split("\n")
    .at(-1)
    .replace(/^[\w.]+\.Refused: /, "");

// --- messages --------------------------------------------------------------------------------

const OWN = {
  boot,
  run(stop) {
    if (running) return null;
    running = { ...stop, from: python.session.step };
    sent = kept = frames = 0;
    port2.postMessage(null);
    return null;
  },
  pause() {
    if (running) pause();
    return null;
  },
  frame() {
    send(true);
    keep();
    return null;
  },
  restore({ snapshot }) {
    python.session.restore(toBytes(snapshot));
    send(true);
    return null;
  },
};

// Python's bytes from an array.
function toBytes(array) {
  return python.bytes_of(array);
}

self.onmessage = async ({ data: { id, name, args } }) => {
  try {
    if (name in OWN) return post("answer", { id, result: await OWN[name](args ?? {}) });
    const answer = JSON.parse(python.call(name, JSON.stringify(args ?? {})));
    if (name === "init" && running && answer.result?.kept === false) running.from = 0;
    return post("answer", { id, ...answer });
  } catch (error) {
    return post("answer", { id, error: lastLine(error), line: null, fatal: name === "boot" });
  }
};
