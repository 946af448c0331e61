// Begins the playground: reads the recorded run, and decides where Pyodide comes from.

import { App } from "./app.js";

const FOLDER = new URL("../../playground/", import.meta.url).href;

async function begin() {
  const root = document.getElementById("play");
  const read_ = async (name) => (await fetch(`${FOLDER}${name}`)).json();
  const [config, about] = await Promise.all([read_("config.json"), read_("recorded.json")]);
  const data = new Float32Array(await (await fetch(`${FOLDER}recorded.bin`)).arrayBuffer());
  // Tests serve Pyodide themselves; a link must not be able to name another place to load it from.
  const local = ["localhost", "127.0.0.1"].includes(location.hostname);
  const given = local && new URLSearchParams(location.search).get("pyodide");
  if (given) config.pyodide.base = given;
  new App(root, { ...config, folder: FOLDER }, about, data).start();
  root.dataset.ready = "true";
}

begin();
