// Colours: Okabe and Ito's for lines, each with dashes of its own; purple over white to orange for signed maps.

const LINES = ["#E69F00", "#56B4E9", "#009E73", "#D55E00", "#0072B2", "#CC79A7"];
const DASHES = [[], [7, 3], [2, 2], [9, 3, 2, 3], [4, 4], [12, 4]];
const SIGNED = [[45, 0, 75], [84, 39, 136], [153, 142, 195], [247, 247, 247], [241, 163, 64], [179, 88, 6], [127, 59, 8]];
const MASKED = [206, 208, 212];

export const lineColour = (n) => LINES[n % LINES.length];
export const lineDashes = (n) => DASHES[n % DASHES.length];

// Colour of a share between −1 and 1; grey where there is no number.
export function signedColour(share) {
  if (share === null || Number.isNaN(share)) return MASKED;
  const at = ((Math.min(Math.max(share, -1), 1) + 1) / 2) * (SIGNED.length - 1);
  const low = Math.min(Math.floor(at), SIGNED.length - 2);
  return SIGNED[low].map((value, n) => value + (at - low) * (SIGNED[low + 1][n] - value));
}

// The page's own colours, which follow its light or dark mode.
export function pageColour(name) {
  return getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();
}
