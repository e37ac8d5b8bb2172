// The chooser of schemes and the sliders.
import { SLIDERS, MOST_SCHEMES, placeOf, valueOf } from "./state.js";
import { shortNumber } from "./canvas.js";

export function chooser(element, entries, changed) {
  for (const { label, title } of entries) {
    const box = Object.assign(document.createElement("input"), { type: "checkbox", value: label });
    const outer = Object.assign(document.createElement("label"), { title });
    outer.append(box, Object.assign(document.createElement("span"), { textContent: label }));
    element.append(outer);
    box.addEventListener("change", () => changed([...element.querySelectorAll("input:checked")].map((one) => one.value)));
  }
}

// Ticks as in the state; at the most that are shown at once, the others cannot be chosen.
export function showChoice(element, schemes) {
  for (const box of element.querySelectorAll("input")) {
    box.checked = schemes.includes(box.value);
    box.disabled = !box.checked && schemes.length >= MOST_SCHEMES;
  }
}

export function sliders(element, changed) {
  for (const [name, slider] of Object.entries(SLIDERS)) {
    const range = Object.assign(document.createElement("input"), {
      type: "range", id: `slider-${name}`, name, min: slider.low, max: slider.high, step: slider.step,
    });
    const label = Object.assign(document.createElement("label"), { htmlFor: range.id, textContent: slider.label });
    const value = document.createElement("output");
    value.htmlFor = range.id;
    range.addEventListener("input", () => changed(name, valueOf(slider, Number(range.value))));
    const row = document.createElement("div");
    row.append(label, value, range);
    element.append(row);
  }
}

export function showSliders(element, state) {
  for (const range of element.querySelectorAll("input")) {
    const slider = SLIDERS[range.name];
    range.value = placeOf(slider, state[range.name]);
    range.previousElementSibling.textContent = shortNumber(state[range.name]);
    range.setAttribute("aria-valuetext", shortNumber(state[range.name]));
  }
}
