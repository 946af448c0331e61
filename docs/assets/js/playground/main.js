// Begins the playground: reads the recorded run.

import { App } from "./app.js";
import { config, FOLDER, read } from "./config.js";

async function begin() {
  const root = document.getElementById("play");
  const [found, about] = await Promise.all([config(), read("recorded.json")]);
  const data = new Float32Array(await (await fetch(`${FOLDER}recorded.bin`)).arrayBuffer());
  new App(root, found, about, data).start();
  root.dataset.ready = "true";
}

begin();
