// Where the playground's files are, and where Pyodide comes from.

export const FOLDER = new URL("../../playground/", import.meta.url).href;
export const read = async (name) => (await fetch(`${FOLDER}${name}`)).json();

// Tests serve Pyodide themselves; a link must not be able to name another place to load it from.
export async function config() {
  const found = await read("config.json");
  const local = ["localhost", "127.0.0.1"].includes(location.hostname);
  const given = local && new URLSearchParams(location.search).get("pyodide");
  if (given) found.pyodide.base = given;
  return { ...found, folder: FOLDER };
}
