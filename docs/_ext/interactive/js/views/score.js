// Score of the last query with every key, where only position differs.
import { canvases, shortNumber } from "../canvas.js";
import { comparable, curveChart, sampled } from "../curve_chart.js";

export const scores = {
  title: "Score against distance",
  about: "The last query scores the key k tokens before it; all tokens are equal. If heads differ, head 0 is shown. " +
    "Drag in the picture, or use the arrow keys on it, to move k. Schemes share a scale, unless one would look flat.",
  shows: () => true,
  moves: "distance",
  draw(element, schemes, state, move) {
    const length = Math.max(...schemes.map((one) => one.length));
    const series = schemes.map((one, number) => ({ ...sampled(one.score, one.length), number }));
    const together = comparable(series);
    const names = together ? [""] : schemes.map((one) => one.name);
    canvases(element, names, "score against distance").forEach((canvas, n) => {
      const shown = together ? series : [series[n]];
      const axes = { marker: state.distance, across: "distance (tokens)", up: "score" };
      move(canvas, curveChart(canvas, { series: shown, length, ...axes }));
    });
    const at = (one) => (state.distance < one.length ? shortNumber(one.score(state.distance)) : "past its end");
    const read = schemes.map((one) => `${one.name} ${at(one)}`);
    return `At distance ${state.distance}: ${read.join(", ")}.`;
  },
};
