// The program as text with numbered lines; an error marks its line.

import { count, make } from "../../explorer/dom.js";

const LONGEST = 50_000; // characters of a program
const AT_ONCE = 2000; // characters that a browser may paste itself
const NUMBERED = 2000; // lines with a number

// Text is pasted at once: Chromium's own way takes seconds for a thousand lines, and forever for
// more than the page can handle. That is refused, and `say` is told its size.
export function paste(event, longest, say) {
  const text = event.clipboardData.getData("text");
  if (text.length < AT_ONCE) return;
  event.preventDefault();
  const { target: field } = event;
  if (text.length > longest)
    say(`${count(text.length)} characters: the playground takes ${count(longest)}`);
  else {
    field.setRangeText(text, field.selectionStart, field.selectionEnd, "end");
    field.dispatchEvent(new Event("input"));
  }
}

export class Editor {
  // `changed(code)` is called when the reader stops typing, or presses Ctrl+Enter.
  constructor(
    element,
    changed,
    { wait = 600, label = "The model's Python program", rows = 16 } = {},
  ) {
    Object.assign(this, { changed, wait, rows, line: null });
    this.numbers = make("pre", { class: "lines", "aria-hidden": "true" });
    this.text = make("textarea", {
      spellcheck: "false",
      maxlength: LONGEST,
      autocapitalize: "off",
      autocomplete: "off",
      "aria-label": label,
      input: () => this.typed(),
      paste: (event) =>
        paste(event, LONGEST, (size) => this.mark(null, `The program has ${size}.`)),
      keydown: (event) => this.key(event),
      scroll: () => (this.numbers.scrollTop = this.text.scrollTop),
    });
    this.message = make("p", { class: "message", role: "status" });
    element.replaceChildren(
      make("div", { class: "editor" }, this.numbers, this.text),
      this.message,
    );
  }

  get code() {
    return this.text.value;
  }

  set code(code) {
    this.text.value = code;
    this.sent = code;
    this.mark(null, "");
    clearTimeout(this.timer);
  }

  typed() {
    this.mark(null, "");
    clearTimeout(this.timer);
    this.timer = setTimeout(() => this.send(), this.wait);
  }

  send() {
    clearTimeout(this.timer);
    if (this.code === this.sent) return;
    this.sent = this.code;
    this.changed(this.code);
  }

  // Tab stays the way out of the field; Ctrl+Enter runs the program at once.
  key(event) {
    if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) {
      event.preventDefault();
      this.send();
    }
  }

  // Mark a line, and say why; kind is "error", "good" or "".
  mark(line, message, kind = "error") {
    this.line = line;
    const lines = Math.min(NUMBERED, this.code.split("\n").length);
    this.numbers.replaceChildren(
      ...Array.from({ length: lines }, (_, k) =>
        make("span", { class: k + 1 === line ? "wrong" : "" }, `${k + 1}\n`),
      ),
    );
    this.message.className = `message ${message ? kind : ""}`;
    this.message.textContent = message ? `${line ? `line ${line}: ` : ""}${message}` : "";
    this.text.setAttribute("aria-invalid", kind === "error" && message ? "true" : "false");
    this.text.rows = Math.min(26, Math.max(this.rows, lines));
  }
}
