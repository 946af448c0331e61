// A frame: one array of numbers with all that is drawn. The session's `about` says what is where.

const HEAD = ["step", "epoch", "loss", "accuracy", "batch", "bad", "boundary"];

export class Frame {
  constructor(data, about) {
    Object.assign(this, { data, about });
    HEAD.forEach((name, k) => (this[name] = data[k]));
    this.boundary = data.subarray(about.length);
  }

  // The array of a layer: { data, rows, columns }; samples that the batch lacks are left out.
  array(path, name) {
    const [at, rows, columns] = this.about.layers[path].arrays[name];
    const samples = name === "Y" || name === "dY";
    const shown = samples ? Math.min(rows, this.batch) : rows;
    return { data: this.data.subarray(at, at + shown * columns), rows: shown, columns };
  }

  ratio(path) {
    return this.data[this.about.layers[path].ratio];
  }
}

// The frames of a recorded run, one after another in one array; a boundary ends each.
export function recorded(data, about) {
  const found = [];
  for (let at = 0; at < data.length;) {
    const size = about.length + data[at + HEAD.indexOf("boundary")];
    found.push(new Frame(data.subarray(at, at + size), about));
    at += size;
  }
  return found;
}
