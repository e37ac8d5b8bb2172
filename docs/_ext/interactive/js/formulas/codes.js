// Codes of positions, added to token embeddings: a vector of `dims` channels for each position.

export function sinusoidalCode(position, { base, dims }) {
  return Array.from({ length: dims }, (_, channel) => {
    const angle = position * base ** ((-2 * Math.floor(channel / 2)) / dims);
    return channel % 2 ? Math.cos(angle) : Math.sin(angle);
  });
}

export function binaryCode(position, { dims }) {
  return Array.from({ length: dims }, (_, bit) => Math.floor(position / 2 ** bit) % 2);
}

export function integerCode(position, { dims }) {
  return Array(dims).fill(position);
}

// The position as a share of a text of `length` tokens.
export function normalisedCode(position, { dims }, length) {
  return Array(dims).fill(position / Math.max(1, length - 1));
}

// M_k of one pair: code(p + k) = M_k code(p) for every p, where code = (sin ωp, cos ωp).
export function shiftMatrix(frequency, k) {
  const [cos, sin] = [Math.cos(frequency * k), Math.sin(frequency * k)];
  return [[cos, sin], [-sin, cos]];
}

// M_k of all pairs, applied to a sinusoidal code.
export function shifted(code, k, { base, dims }) {
  return code.map((_, channel) => {
    const pair = Math.floor(channel / 2);
    const [a, b] = shiftMatrix(base ** ((-2 * pair) / dims), k)[channel % 2];
    return a * code[2 * pair] + b * code[2 * pair + 1];
  });
}

export function innerProduct(one, other) {
  return one.reduce((sum, value, n) => sum + value * other[n], 0);
}

// ⟨code(i), code(j)⟩ for the last position i of a text, over the mean of ⟨code(p), code(p)⟩.
export function codeScores(codeOf, length) {
  const codes = Array.from({ length }, (_, position) => codeOf(position));
  const mean = codes.reduce((sum, code) => sum + innerProduct(code, code), 0) / length;
  const last = codes[length - 1];
  return (distance) => innerProduct(last, codes[length - 1 - distance]) / Math.max(mean, 1e-12);
}
