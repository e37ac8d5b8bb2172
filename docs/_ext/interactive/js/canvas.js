// Drawing on canvases: sizes in CSS pixels, sharp on every screen.
import { pageColour } from "./palette.js";

// A context whose unit is one CSS pixel, cleared; the width is that of the element.
export function prepared(canvas, height) {
  const width = canvas.clientWidth || 300;
  const ratio = window.devicePixelRatio || 1;
  canvas.width = Math.round(width * ratio);
  canvas.height = Math.round(height * ratio);
  canvas.style.height = `${height}px`;
  const context = canvas.getContext("2d");
  context.scale(ratio, ratio);
  context.font = "12px system-ui, sans-serif";
  context.fillStyle = context.strokeStyle = pageColour("text");
  return { context, width, height };
}

// One canvas for each name inside an element; canvases that are there already stay, so that dragging is not interrupted.
export function canvases(element, names, described) {
  const key = names.join("\n");
  if (element.dataset.names !== key) {
    element.dataset.names = key;
    element.replaceChildren(...names.map((name) => {
      const figure = document.createElement("figure");
      figure.append(Object.assign(document.createElement("figcaption"), { textContent: name }), document.createElement("canvas"));
      return figure;
    }));
  }
  return [...element.querySelectorAll("canvas")].map((canvas, n) => {
    canvas.setAttribute("role", "img");
    canvas.setAttribute("aria-label", names[n] ? `${described}: ${names[n]}` : described);
    return canvas;
  });
}

// A number in at most four significant digits.
export function shortNumber(value) {
  if (value === null || value === undefined) return "hidden";
  if (value !== 0 && Math.abs(value) < 0.001) return value.toExponential(1);
  return String(Number(value.toPrecision(4))).replace("-", "−");
}
