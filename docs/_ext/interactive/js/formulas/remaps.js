// Remaps: the distance at which a query at position i attends to a key at position j ≤ i.

const half = (trained) => Math.max(1, Math.floor(trained / 2));

// Distances clip at a window of half the trained length. kexue.fm/archives/9708
export function reropeDistance(i, j, { trained }) {
  return Math.min(i - j, half(trained));
}

// Beyond the window they grow by 1/16 a token.
export function leakyDistance(i, j, { trained }) {
  const window = half(trained);
  return i - j < window ? i - j : window + (i - j - window) / 16;
}

// Self-Extend: beyond the window distances are counted in groups of tokens. arXiv:2401.01325
export function groupedDistance(i, j, { trained, factor }) {
  const window = half(trained);
  const target = targetLength({ trained, factor });
  const group = Math.max(1, Math.ceil((target - window) / (trained - window)));
  if (i - j < window) return i - j;
  return Math.floor(i / group) - Math.floor(j / group) + window - Math.floor(window / group);
}

// Dual chunk attention: positions start over in every chunk. arXiv:2402.17463
export function chunkedDistance(i, j, { trained }) {
  const chunk = Math.max(2, Math.floor((trained * 3) / 4));
  const stride = chunk - Math.max(1, Math.floor(trained / 8));
  const apart = Math.floor(i / stride) - Math.floor(j / stride);
  const key = j % stride;
  if (apart === 0) return (i % stride) - key;
  if (apart === 1) return Math.min((i % stride) + stride, chunk) - key;
  return Math.min(2 * stride - 1, chunk) - key;
}

export function targetLength({ trained, factor }) {
  return Math.max(trained, Math.round(trained * factor));
}
