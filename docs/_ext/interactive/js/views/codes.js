// Codes that are added to embeddings, as maps of position × channel.
import { canvases, shortNumber } from "../canvas.js";
import { heatMap } from "../heat_map.js";

const MOST_ROWS = 128;

export const codeMaps = {
  title: "Codes: what is added to the embedding of a token",
  about: "Position down, channel across; the frame is position p. Orange is positive, purple negative, white zero; each " +
    "map has its own scale.",
  shows: (scheme) => scheme.code,
  draw(element, schemes, state) {
    const names = schemes.map((one) => one.name);
    const sizes = canvases(element, names, "codes").map((canvas, n) => codeMap(canvas, schemes[n], state));
    return `Largest value: ${names.map((name, n) => `${name} ${shortNumber(sizes[n])}`).join(", ")}.`;
  },
};

function codeMap(canvas, scheme, { position }) {
  const rows = Math.min(MOST_ROWS, scheme.positions ?? Math.max(scheme.length, position + 1));
  const codes = Array.from({ length: rows }, (_, p) => scheme.code(p));
  const size = codes.reduce((most, code) => code.reduce((m, value) => Math.max(m, Math.abs(value)), most), 0) || 1;
  const columns = codes[0].length;
  heatMap(canvas, {
    rows, columns, share: (row, column) => codes[row][column] / size, marked: position,
    across: "channel", down: "position", last: [rows - 1, columns - 1],
  });
  return size;
}
