// Masks of a decoder: whether a query at position i attends to a key at position j, and at which distance.

export function windowSees(i, j, { trained }) {
  return i - j < trained;
}

// Attention sinks (StreamingLLM): the first 4 tokens and the most recent ones; positions are counted inside the cache.
export const SINKS = 4;

export function sinksSee(i, j, { trained }) {
  return j < SINKS || i - j < Math.max(1, trained - SINKS);
}

export function sinksDistance(i, j, { trained }) {
  const recent = Math.max(1, trained - SINKS);
  return i - j < recent ? i - j : Math.min(i, SINKS + recent - 1) - j;
}

// LM-Infinite: the first 10 tokens, at the distance of the window, and those inside the window.
export function infiniteSees(i, j, { trained }) {
  return j < 10 || i - j < trained;
}

export function infiniteDistance(i, j, { trained }) {
  return Math.min(i - j, trained);
}
