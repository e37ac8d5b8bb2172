// Distance in use against the true one, for the last query of the text.
import { canvases, shortNumber } from "../canvas.js";
import { curveChart, sampled } from "../curve_chart.js";

export const remaps = {
  title: "Remap: the distance that attention is told",
  about: "For the last query of the text. Distances below the dashed line, the trained length, occurred in training.",
  shows: (scheme) => scheme.distance,
  draw(element, schemes, state) {
    const length = Math.max(...schemes.map((one) => one.length));
    const seen = (one) => (distance) => (one.score(distance) === null ? null : one.distance(distance));
    const series = schemes.map((one) => ({ ...sampled(seen(one), one.length), number: one.number }));
    const [canvas] = canvases(element, [""], "distance in use");
    curveChart(canvas, {
      series, length, marker: state.distance, across: "true distance (tokens)", up: "distance in use",
      line: { at: state.trained, name: "trained length" },
    });
    const at = (one) => (state.distance < one.length ? shortNumber(seen(one)(state.distance)) : "past its end");
    const read = schemes.map((one) => `${one.name} ${at(one)}`);
    return `A key ${state.distance} tokens back is at distance ${read.join(", ")}.`;
  },
};
