// Schemes without a formula here: numbers that the Python package computed, for a few factors.

// The numbers whose factor is nearest to the one asked for.
export function nearestTable(entry, { factor }) {
  return entry.by_factor.reduce((best, one) =>
    Math.abs(Math.log(one.factor / factor)) < Math.abs(Math.log(best.factor / factor)) ? one : best);
}

// The same shape as a formula with its parameters filled in.
export function fromTable(entry, given) {
  const found = nearestTable(entry, given);
  const within = (list) => list && ((distance) => list[distance] ?? null);
  return {
    name: entry.label, length: found.length, table: `trained length ${entry.trained_length}, factor ${found.factor}`,
    score: within(found.score) ?? (() => null), distance: within(found.distance),
    frequencies: found.frequencies, pairs: found.frequencies,
    code: found.code && ((position) => found.code[position]), positions: found.code?.length,
    biases: found.biases?.map(within), heads: found.heads,
    sees: found.mask && ((i, j) => seen(found, i, j)),
  };
}

// Rows of "01", every `stride`-th query and key.
function seen({ mask, stride }, i, j) {
  return mask[Math.min(mask.length - 1, Math.floor(i / stride))][Math.floor(j / stride)] === "1";
}
