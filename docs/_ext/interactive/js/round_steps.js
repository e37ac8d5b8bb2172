// Round numbers for an axis.

// Those inside a range, at most nine: multiples of 1, 2 or 5 times a power of ten.
export function roundSteps(low, high) {
  const least = (high - low) / 8;
  const power = 10 ** Math.floor(Math.log10(least));
  const step = [1, 2, 5, 10].map((n) => n * power).find((size) => size >= least);
  const first = Math.ceil(low / step);
  return Array.from({ length: Math.floor(high / step) - first + 1 }, (_, n) => (first + n) * step);
}
