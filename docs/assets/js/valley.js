/* A slider for the learning rate: it chooses among the paths that the build drew. */

for (const figure of document.querySelectorAll(".pd-valley")) start(figure);

function start(figure) {
  const choices = JSON.parse(figure.querySelector("script").textContent);
  const words = figure.querySelector("figcaption p");
  if (choices.length < 2) return;
  const slider = document.createElement("input");
  Object.assign(slider, { type: "range", min: 0, max: choices.length - 1 });
  slider.value = figure.dataset.shown;
  slider.setAttribute("aria-label", "learning rate");
  const show = () => {
    const chosen = Number(slider.value);
    for (const path of figure.querySelectorAll("[data-rate]")) {
      path.toggleAttribute("hidden", Number(path.dataset.rate) !== chosen);
    }
    const { rate, words: said } = choices[chosen];
    words.textContent = `alpha = ${rate}: ${said}`;
    slider.setAttribute("aria-valuetext", rate);
  };
  slider.addEventListener("input", show);
  words.before(slider);
  words.setAttribute("aria-live", "polite");
  show();
}
