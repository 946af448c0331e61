// Ways out of the page: the explorer, a script, and what stopped training.

import { make } from "../../explorer/dom.js";

// The step that is shown, in the explorer.
export async function explore(client, root) {
  const html = await client.ask("explorer");
  const source = URL.createObjectURL(new Blob([html], { type: "text/html" }));
  const dialog = make(
    "dialog",
    { class: "play-dialog", "aria-label": "The explorer", close: () => dialog.remove() },
    make("button", { type: "button", click: () => dialog.close() }, "Close"),
    make("iframe", { src: source, title: "One step of training, there and back" }),
  );
  root.append(dialog);
  dialog.showModal();
}

// The program as a script that runs anywhere.
export const download = async (client) => save(await client.ask("export"), "playground.py");

// Give the reader a file of Python.
export function save(text, name) {
  const source = URL.createObjectURL(new Blob([text], { type: "text/x-python" }));
  make("a", { href: source, download: name }).click();
}

// Where the first number that is not finite arose, and what usually helps.
export function stopped({ message, findings }) {
  return [
    make("h3", {}, "Stopped at the first number that is not finite"),
    make("p", {}, message),
    make(
      "ul",
      {},
      findings.map(({ name, evidence, remedy }) =>
        make("li", {}, make("b", {}, name), `: ${evidence}. ${remedy}`),
      ),
    ),
  ];
}

// The first cell of an array that is not finite.
export function firstBad({ data, columns }) {
  const k = Math.max(
    0,
    data.findIndex((v) => !Number.isFinite(v)),
  );
  return [Math.floor(k / columns), k % columns];
}

// The cell of the largest number.
export function largest({ data, columns }) {
  let best = 0;
  data.forEach((v, k) => {
    if (Math.abs(v) > Math.abs(data[best])) best = k;
  });
  return [Math.floor(best / columns), best % columns];
}

// What the checker says about a model, in one line if it is right.
export function verdict({ right, words }) {
  if (!right) return [`The checker: ${words}`, "error"];
  const errors = [...words.matchAll(/(\d\.\de[-+]\d+)\s+\S+$/gm)].map((found) => Number(found[1]));
  const worst = errors.length ? `, to ${Math.max(...errors).toExponential(0)}` : "";
  return [`The checker: every gradient agrees with central differences${worst}.`, "good"];
}
