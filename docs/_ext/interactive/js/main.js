// The page: one state, drawn by every view that has something to show.
import { FORMULAS, fromFormula } from "./formulas/schemes.js";
import { fromTable } from "./formulas/tables.js";
import { lineColour } from "./palette.js";
import { startState, toHash, fromHash, SLIDERS } from "./state.js";
import { chooser, showChoice, sliders, showSliders } from "./controls.js";
import { clocks } from "./views/clocks.js";
import { codeMaps } from "./views/codes.js";
import { scores } from "./views/score.js";
import { biasCurves } from "./views/bias.js";
import { masks } from "./views/mask.js";
import { remaps } from "./views/remap.js";
import { shift } from "./views/shift.js";

const { entries, chosen } = JSON.parse(document.getElementById("data").textContent);
const known = entries.map((entry) => entry.label);
const start = startState(chosen);
const [choice, controls, legend] = ["choice", "sliders", "legend"].map((id) => document.getElementById(id));
const views = [scores, clocks, codeMaps, biasCurves, remaps, masks, shift].map(section);
let state = fromHash(location.hash, start, known);
const charts = new WeakMap();

// A view with the elements it draws in.
function section(view) {
  const element = document.createElement("section");
  const heading = Object.assign(document.createElement("h2"), { textContent: view.title });
  const about = Object.assign(document.createElement("p"), { textContent: view.about });
  const drawing = Object.assign(document.createElement("div"), { className: "drawing" });
  const read = Object.assign(document.createElement("p"), { className: "read" });
  if (view.moves) read.setAttribute("aria-live", "polite");
  element.append(heading, about, drawing, read);
  document.getElementById("views").append(element);
  return { view, element, drawing, read };
}

function scheme(label, number) {
  const entry = entries.find((one) => one.label === label);
  const filled = entry.by_factor ? fromTable(entry, state) : fromFormula(label, state);
  return { ...filled, number };
}

function draw() {
  const schemes = state.schemes.map(scheme);
  showChoice(choice, state.schemes);
  showSliders(controls, state);
  legend.replaceChildren(...schemes.map(legendLine));
  for (const { view, element, drawing, read } of views) {
    const shown = schemes.filter(view.shows);
    element.hidden = shown.length === 0;
    const move = view.moves && ((canvas, chart) => movable(canvas, chart, view.moves));
    if (shown.length) read.textContent = view.draw(drawing, shown, state, move);
  }
}

function legendLine({ name, number, table }) {
  const swatch = Object.assign(document.createElement("i"), { style: `background:${lineColour(number)}` });
  const line = document.createElement("li");
  line.append(swatch, `${name}${table ? ` (computed for ${table})` : ""}`);
  return line;
}

// Drag on a chart, or its arrow keys, move a slider.
function movable(canvas, chart, name) {
  if (!charts.has(canvas)) {
    canvas.tabIndex = 0;
    const drag = (event) => event.buttons && change(name, charts.get(canvas).placeAt(event.offsetX));
    canvas.addEventListener("pointerdown", (event) => { canvas.setPointerCapture(event.pointerId); drag(event); });
    canvas.addEventListener("pointermove", drag);
    canvas.addEventListener("keydown", (event) => {
      const step = { ArrowLeft: -1, ArrowRight: 1, PageDown: -10, PageUp: 10 }[event.key];
      if (step) { event.preventDefault(); change(name, state[name] + step); }
    });
  }
  charts.set(canvas, chart);
  canvas.setAttribute("role", "slider");
  for (const [key, value] of [["valuemin", SLIDERS[name].low], ["valuemax", SLIDERS[name].high], ["valuenow", state[name]]]) {
    canvas.setAttribute(`aria-${key}`, value);
  }
}

function change(name, value) {
  const { low, high, of } = SLIDERS[name] ?? {};
  state = { ...state, [name]: name === "schemes" || of ? value : Math.min(Math.max(value, low), high) };
  history.replaceState(null, "", toHash(state));
  draw();
}

// Schemes stay in the order in which they were chosen, so that colours stay.
function choose(labels) {
  const kept = state.schemes.filter((one) => labels.includes(one));
  if (labels.length) change("schemes", [...kept, ...labels.filter((one) => !kept.includes(one))]);
  else draw();
}

chooser(choice, entries, choose);
sliders(controls, change);
window.addEventListener("hashchange", () => { state = fromHash(location.hash, start, known); draw(); });
window.addEventListener("resize", draw);
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", draw);
draw();
