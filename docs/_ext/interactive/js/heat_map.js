// Maps of cells in the signed palette, with a frame around one row.
import { prepared } from "./canvas.js";
import { pageColour, signedColour } from "./palette.js";

const MAP_EDGE = { left: 34, top: 4, bottom: 30 };

// `share(row, column)` is between −1 and 1, or null; `last` names the last row and column.
export function heatMap(canvas, { rows, columns, share, marked, across, down, last, height = 220 }) {
  const { context, width } = prepared(canvas, height);
  const image = new ImageData(columns, rows);
  for (let row = 0; row < rows; row++) {
    for (let column = 0; column < columns; column++) {
      image.data.set([...signedColour(share(row, column)), 255], 4 * (row * columns + column));
    }
  }
  const cells = Object.assign(document.createElement("canvas"), { width: columns, height: rows });
  cells.getContext("2d").putImageData(image, 0, 0);
  const [wide, high] = [width - MAP_EDGE.left - 4, height - MAP_EDGE.top - MAP_EDGE.bottom];
  context.imageSmoothingEnabled = false;
  context.drawImage(cells, MAP_EDGE.left, MAP_EDGE.top, wide, high);
  context.fillText("0", MAP_EDGE.left, height - MAP_EDGE.bottom + 13);
  context.textAlign = "right";
  context.fillText(String(last[1]), width - 4, height - MAP_EDGE.bottom + 13);
  context.fillText(String(last[0]), MAP_EDGE.left - 3, height - MAP_EDGE.bottom);
  context.textAlign = "center";
  context.fillText(across, MAP_EDGE.left + wide / 2, height - 4);
  context.save();
  context.translate(11, MAP_EDGE.top + high / 2);
  context.rotate(-Math.PI / 2);
  context.fillText(down, 0, 0);
  context.restore();
  if (marked !== undefined && marked < rows) {
    context.strokeStyle = pageColour("accent");
    context.lineWidth = 2;
    context.strokeRect(MAP_EDGE.left, MAP_EDGE.top + (marked * high) / rows - 1, wide, high / rows + 2);
  }
}
