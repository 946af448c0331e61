/* A loss whose prediction can be dragged: it shows the loss, its slope and the tangent.

The build wrote every number that is shown into the page, computed by the library. */

const SVG = "http://www.w3.org/2000/svg";
const format = (value) => String(Number(value.toPrecision(3))).replace("-", "\u2212");

for (const figure of document.querySelectorAll(".pd-loss")) start(figure);

function start(figure) {
  const svg = figure.querySelector("svg");
  const data = JSON.parse(figure.querySelector("script").textContent);
  const caption = figure.querySelector("figcaption");
  const [loss, slope] = data.panels;
  let target = 0;
  let at = Math.round(data.x.length * 0.72);

  const tangent = add(svg, "path", "pd-tangent");
  const line = add(svg, "path", "pd-guide");
  const dots = [add(svg, "circle", "pd-dot pd-dot-L"), add(svg, "circle", "pd-dot pd-dot-slope")];
  dots.forEach((dot) => dot.setAttribute("r", "6"));

  const slider = document.createElement("input");
  Object.assign(slider, { type: "range", min: 0, max: data.x.length - 1, value: at });
  slider.setAttribute("aria-label", figure.dataset.axis);
  slider.addEventListener("input", () => show(Number(slider.value)));

  const buttons = data.targets.map(({ label }, i) => {
    const button = document.createElement("button");
    button.textContent = label;
    button.type = "button";
    button.addEventListener("click", () => {
      target = i;
      show(at);
    });
    return button;
  });
  const choice = document.createElement("div");
  choice.className = "pd-choice";
  choice.append(...buttons);
  const words = document.createElement("p");
  words.setAttribute("aria-live", "polite");
  caption.append(choice, slider, words);

  const drag = (event) => {
    const box = svg.getBoundingClientRect();
    const x = ((event.clientX - box.left) / box.width) * svg.viewBox.baseVal.width;
    const share = (x - loss.box[0]) / loss.box[2];
    show(Math.max(0, Math.min(data.x.length - 1, Math.round(share * (data.x.length - 1)))));
  };
  svg.addEventListener("pointerdown", (event) => {
    svg.setPointerCapture(event.pointerId);
    drag(event);
  });
  svg.addEventListener("pointermove", (event) => {
    if (event.buttons) drag(event);
  });
  show(at);

  function show(index) {
    at = index;
    slider.value = index;
    slider.setAttribute("aria-valuetext", format(data.x[at]));
    const { label, L, slope: slopes } = data.targets[target];
    const [x, value, rise] = [data.x[at], L[at], slopes[at]];
    for (const group of svg.querySelectorAll("[data-target]")) {
      group.toggleAttribute("hidden", Number(group.dataset.target) !== target);
    }
    buttons.forEach((button, i) => button.setAttribute("aria-pressed", String(i === target)));
    place(dots[0], loss, x, value);
    place(dots[1], slope, x, rise);
    const reach = (loss.x[1] - loss.x[0]) / 6;
    tangent.setAttribute(
      "d",
      path(loss, [
        [x - reach, value - rise * reach],
        [x + reach, value + rise * reach],
      ]),
    );
    line.setAttribute("d", `${path(loss, [[x, value]])}L${pixels(slope, x, rise)}`);
    words.textContent =
      `At ${format(x)} (${label}), L = ${format(value)} and the slope is ${format(rise)}: ` +
      `${step(rise)}`;
  }
}

/** What gradient descent does with a slope. */
function step(rise) {
  if (rise === 0) return "gradient descent leaves the prediction where it is.";
  const side = rise > 0 ? "lower" : "raise";
  return `gradient descent will ${side} the prediction.`;
}

function add(svg, kind, name) {
  const element = document.createElementNS(SVG, kind);
  element.setAttribute("class", name);
  return svg.appendChild(element);
}

function pixels({ box: [left, top, width, height], x: [x0, x1], y: [y0, y1] }, x, y) {
  const across = left + ((x - x0) / (x1 - x0)) * width;
  const down = top + ((y1 - y) / (y1 - y0)) * height;
  return [across.toFixed(1), down.toFixed(1)];
}

function path(panel, points) {
  return `M${points.map(([x, y]) => pixels(panel, x, y)).join("L")}`;
}

function place(dot, panel, x, y) {
  const [cx, cy] = pixels(panel, x, y);
  dot.setAttribute("cx", cx);
  dot.setAttribute("cy", cy);
}
