// M_k: one matrix moves every sinusoidal code by k positions.
import { canvases, shortNumber } from "../canvas.js";
import { heatMap } from "../heat_map.js";
import { sinusoidalCode, shifted, shiftMatrix } from "../formulas/codes.js";
import { ropeFrequencies } from "../formulas/rotations.js";

export const shift = {
  title: "M_k at work: code(p + k) = M_k code(p)",
  about: "The sinusoidal code of position p, the same moved by M_k, and the code of position p + k. M_k depends on k " +
    "alone; it turns each pair by ω k. RoPE turns queries and keys in the same way.",
  shows: (scheme) => scheme.name === "sinusoidal" || scheme.name === "rope",
  draw(element, _schemes, state) {
    const { position, distance } = state;
    const code = sinusoidalCode(position, state);
    const [moved, wanted] = [shifted(code, distance, state), sinusoidalCode(position + distance, state)];
    const rows = [code, moved, wanted];
    const named = `rows: code(${position}), M_${distance} code(${position}), code(${position + distance})`;
    const [canvas] = canvases(element, [named], "shift");
    heatMap(canvas, {
      rows: 3, columns: state.dims, share: (row, column) => rows[row][column], across: "channel", down: "",
      last: ["", state.dims - 1], height: 130,
    });
    const [[a, b], [c, d]] = shiftMatrix(ropeFrequencies(state)[0], distance).map((row) => row.map(shortNumber));
    const error = Math.max(...moved.map((value, n) => Math.abs(value - wanted[n])));
    return `M_${distance} of pair 0 is [[${a}, ${b}], [${c}, ${d}]]. ` +
      `Largest difference between rows two and three: ${error.toExponential(0)}.`;
  },
};
