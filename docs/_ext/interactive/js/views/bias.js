// Biases that heads add to the score, one curve for each head.
import { canvases, shortNumber } from "../canvas.js";
import { curveChart, sampled } from "../curve_chart.js";

const MOST_CURVES = 6;

export const biasCurves = {
  title: "Bias of each head",
  about: "What each head adds to the score of a key k tokens back; lines end in the number of their head. Every scheme " +
    "has its own vertical scale.",
  shows: (scheme) => scheme.biases,
  draw(element, schemes, state) {
    const names = schemes.map((one) => one.name);
    canvases(element, names, "bias against distance").forEach((canvas, n) => {
      const { length, heads, biases } = schemes[n];
      const series = biases.slice(0, MOST_CURVES).map((of, number) =>
        ({ ...sampled(of, length), number, thin: true, word: String(heads?.[number] ?? number) }));
      curveChart(canvas, { series, length, marker: state.distance, across: "distance (tokens)", up: "added" });
    });
    const read = schemes.map((one) => one.biases.slice(0, MOST_CURVES).map((of, n) =>
      `${one.name} head ${one.heads?.[n] ?? n}: ${state.distance < one.length ? shortNumber(of(state.distance)) : "past its end"}`));
    return `At distance ${state.distance}: ${read.flat().join(", ")}.`;
  },
};
