// ALiBi: −slope · distance is added to the score; one slope for each head. arXiv:2108.12409

function geometricSlopes(heads) {
  return Array.from({ length: heads }, (_, head) => 2 ** ((-8 * (head + 1)) / heads));
}

// The released rule: heads that are no power of two take every second slope of the next one.
export function alibiSlopes(heads) {
  const below = 2 ** Math.floor(Math.log2(heads));
  const between = geometricSlopes(2 * below).filter((_, n) => n % 2 === 0);
  return [...geometricSlopes(below), ...between.slice(0, heads - below)];
}

export function alibiBias(head, distance, { heads }) {
  return -alibiSlopes(heads)[head] * distance;
}
