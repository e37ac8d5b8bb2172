// Visible keys of each query.
import { canvases } from "../canvas.js";
import { heatMap } from "../heat_map.js";

const CELLS = 96;

export const masks = {
  title: "Mask: which keys a query sees",
  about: "Query down, key across. Orange is visible, grey is hidden; the frame is the query at position p.",
  shows: (scheme) => scheme.sees,
  draw(element, schemes, state) {
    canvases(element, schemes.map((one) => one.name), "mask").forEach((canvas, n) => maskMap(canvas, schemes[n], state));
    return schemes.map((one) => `${one.name}: query ${state.position} sees ${visible(one, state.position)} keys`).join("; ") + ".";
  },
};

function maskMap(canvas, { sees, length }, { position }) {
  const stride = Math.max(1, Math.ceil(length / CELLS));
  const cells = Math.ceil(length / stride);
  heatMap(canvas, {
    rows: cells, columns: cells, marked: Math.floor(position / stride), last: [length - 1, length - 1],
    share: (row, column) => (column <= row && sees(row * stride, column * stride) ? 0.6 : null), across: "key", down: "query",
  });
}

function visible({ sees, length }, position) {
  const query = Math.min(position, length - 1);
  return Array.from({ length: query + 1 }, (_, key) => sees(query, key)).filter(Boolean).length;
}
