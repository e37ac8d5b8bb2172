// Pairs of channels as clock hands: pair m turns by its frequency ω at every token.
import { canvases, prepared, shortNumber } from "../canvas.js";
import { pageColour } from "../palette.js";

const MOST_HANDS = 8;
const DIAL = 62;

export const clocks = {
  title: "Clocks: pairs of channels at position p",
  about: "A rotation turns each pair of channels like the hand of a clock; pair 0 is the fastest. Hands start upright. " +
    "Under each: tokens for one full turn. A scaling slows some of them.",
  shows: (scheme) => scheme.pairs,
  draw(element, schemes, state) {
    const drawn = canvases(element, schemes.map((one) => one.name), "clock hands");
    drawn.forEach((canvas, n) => face(canvas, schemes[n].pairs, state));
    const turned = shortNumber(state.position * schemes[0].pairs[0]);
    return `At position ${state.position} pair 0 has turned ${turned} radians (${schemes[0].name}).`;
  },
};

function face(canvas, pairs, { position }) {
  const count = Math.min(MOST_HANDS, pairs.length);
  const fitting = Math.max(1, Math.floor((canvas.clientWidth || 300) / DIAL));
  const across = Math.ceil(count / Math.ceil(count / fitting)); // rows of one length
  const { context, width } = prepared(canvas, Math.ceil(count / across) * (DIAL + 28));
  const cell = width / across;
  for (let n = 0; n < count; n++) {
    const pair = count > 1 ? Math.round((n * (pairs.length - 1)) / (count - 1)) : 0;
    const centre = [(n % across) * cell + cell / 2, Math.floor(n / across) * (DIAL + 28) + DIAL / 2 - 2];
    hand(context, centre, position * pairs[pair]);
    context.textAlign = "center";
    context.fillText(`pair ${pair}`, centre[0], centre[1] + DIAL / 2 + 8);
    context.fillText(shortNumber(Number(((2 * Math.PI) / pairs[pair]).toPrecision(3))), centre[0], centre[1] + DIAL / 2 + 21);
  }
}

function hand(context, [x, y], angle) {
  const radius = DIAL / 2 - 6;
  context.strokeStyle = pageColour("text");
  context.lineWidth = 1;
  context.beginPath();
  context.arc(x, y, radius, 0, 2 * Math.PI);
  context.stroke();
  context.strokeStyle = pageColour("accent");
  context.lineWidth = 3;
  context.beginPath();
  context.moveTo(x, y);
  context.lineTo(x + 0.9 * radius * Math.sin(angle), y - 0.9 * radius * Math.cos(angle));
  context.stroke();
}
