// Frequencies of RoPE and its scalings: radians per token of each pair of channels.
// `given` has base, dims (channels of a head), factor, and trained (the trained length in tokens).

export function ropeFrequencies({ base, dims }) {
  return Array.from({ length: dims / 2 }, (_, m) => base ** ((-2 * m) / dims));
}

// Position interpolation: every frequency divided by the factor. arXiv:2306.15595
export function interpolatedFrequencies(given) {
  return ropeFrequencies(given).map((w) => w / given.factor);
}

// NTK-aware scaling: a larger base, which slows the last pair by the factor and the first not at all.
export function ntkFrequencies(given) {
  const last = Math.max(given.dims / 2 - 1, 1);
  return ropeFrequencies(given).map((w, m) => w * given.factor ** (-m / last));
}

// YaRN's frequencies (NTK by parts): pairs of many rotations stay, those of few are slowed. arXiv:2309.00071
export function byPartsFrequencies(given, fast = 32, slow = 1) {
  const { base, dims, factor, trained } = given;
  const pair = (rotations) => (dims * Math.log(trained / (2 * Math.PI * rotations))) / (2 * Math.log(base));
  const first = Math.max(Math.floor(pair(fast)), 0);
  const last = Math.min(Math.ceil(pair(slow)), dims - 1);
  const width = last - first || 0.001;
  return ropeFrequencies(given).map((w, m) => {
    const slowed = Math.min(Math.max((m - first) / width, 0), 1);
    return (1 - slowed) * w + (slowed * w) / factor;
  });
}

// Llama 3.1: the same with a ramp in the number of rotations, from 4 down to 1. arXiv:2407.21783
export function llama3Frequencies(given, low = 1, high = 4) {
  return ropeFrequencies(given).map((w) => {
    const rotations = (given.trained * w) / (2 * Math.PI);
    const kept = Math.min(Math.max((rotations - low) / (high - low), 0), 1);
    return ((1 - kept) * w) / given.factor + kept * w;
  });
}

// YaRN's factor of all logits, (0.1 ln s + 1)².
export function yarnLogitScale({ factor }) {
  return (0.1 * Math.log(factor) + 1) ** 2;
}

// Score of two equal vectors at some distance: the mean of the cosines of the angles between them.
export function rotatedScore(frequencies, distance) {
  return frequencies.reduce((sum, w) => sum + Math.cos(w * distance), 0) / frequencies.length;
}
