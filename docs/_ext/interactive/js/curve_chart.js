// Curves over positions or distances, with a marker at the one that is chosen.
import { prepared, shortNumber } from "./canvas.js";
import { pageColour, lineColour, lineDashes } from "./palette.js";
import { roundSteps } from "./round_steps.js";

const EDGE = { left: 62, right: 22, top: 10, bottom: 34 };
const MOST_POINTS = 1200;

// Limits of all numbers, a little wider.
function rangeOf(series) {
  const every = series.flatMap((one) => one.values).filter((value) => value !== null);
  const [low, high] = [Math.min(...every, Infinity), Math.max(...every, -Infinity)];
  if (!Number.isFinite(low)) return [0, 1];
  const room = 0.05 * (high - low || 1);
  return [low - room, high + room];
}

// Whether each curve, constants aside, spans at least a tenth of the common range; else one would look flat.
export function comparable(series) {
  const ranges = series.map((one) => one.values.filter((value) => value !== null)).filter((values) => values.length);
  const spans = ranges.map((values) => Math.max(...values) - Math.min(...values));
  const common = Math.max(...ranges.flat()) - Math.min(...ranges.flat());
  return spans.every((span) => span === 0 || span >= 0.1 * common);
}

// `length` numbers of a function, thinned out where there are too many to see.
export function sampled(of, length) {
  const stride = Math.max(1, Math.ceil(length / MOST_POINTS));
  const places = Array.from({ length: Math.ceil(length / stride) }, (_, n) => n * stride);
  return { places, values: places.map(of) };
}

// `series`: places, values, the number of the line's colour, and a word for its end. `line`: a height to mark, with its
// name.
export function curveChart(canvas, { series, length, marker, across, up, line }) {
  const { context, width, height } = prepared(canvas, 240);
  const [low, high] = rangeOf(line ? [...series, { values: [line.at] }] : series);
  const x = (place) => EDGE.left + (place / Math.max(1, length - 1)) * (width - EDGE.left - EDGE.right);
  const y = (value) => height - EDGE.bottom - ((value - low) / (high - low)) * (height - EDGE.top - EDGE.bottom);
  ticks(context, { x, y, low, high, length, width });
  context.textAlign = "center";
  context.fillText(across, (EDGE.left + width - EDGE.right) / 2, height - 4);
  context.save();
  context.translate(11, (height - EDGE.bottom) / 2);
  context.rotate(-Math.PI / 2);
  context.fillText(up, 0, 0);
  context.restore();
  if (line) rule(context, [x(0), y(line.at)], [x(length - 1), y(line.at)], [5, 4], line.name);
  if (marker !== undefined && marker < length) rule(context, [x(marker), EDGE.top], [x(marker), height - EDGE.bottom], [2, 3]);
  for (const one of series) stroke(context, one, x, y);
  return { placeAt: (pixels) => Math.round(((pixels - EDGE.left) / (width - EDGE.left - EDGE.right)) * (length - 1)) };
}

function ticks(context, { x, y, low, high, length, width }) {
  context.strokeStyle = pageColour("line");
  context.lineWidth = 1;
  context.textAlign = "right";
  for (const value of roundSteps(low, high)) {
    rule(context, [EDGE.left, y(value)], [width - EDGE.right, y(value)], []);
    context.fillText(shortNumber(value), EDGE.left - 5, y(value) + 4);
  }
  context.textAlign = "center";
  for (const place of roundSteps(0, Math.max(1, length - 1)).filter(Number.isInteger)) {
    context.fillText(String(place), x(place), y(low) + 15);
  }
}

function rule(context, from, to, dashes, name) {
  context.save();
  context.strokeStyle = pageColour(dashes.length ? "text" : "line");
  context.setLineDash(dashes);
  context.beginPath();
  context.moveTo(...from);
  context.lineTo(...to);
  context.stroke();
  if (name) {
    context.textAlign = "right";
    context.fillText(name, to[0], to[1] - 4);
  }
  context.restore();
}

function stroke(context, { places, values, number, thin, word }, x, y) {
  context.save();
  context.strokeStyle = lineColour(number);
  context.setLineDash(lineDashes(number));
  context.lineWidth = thin ? 1.3 : 2;
  context.beginPath();
  let drawing = false;
  values.forEach((value, n) => {
    if (value !== null) context[drawing ? "lineTo" : "moveTo"](x(places[n]), y(value));
    drawing = value !== null;
  });
  context.stroke();
  context.textAlign = "left";
  if (word && drawing) context.fillText(word, x(places.at(-1)) + 4, y(values.at(-1)) + 4);
  context.restore();
}
