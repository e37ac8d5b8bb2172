// The state of the page, kept in the address: a link shows what its sender saw.

export const SLIDERS = {
  base: { label: "base θ", low: 2, high: 7, step: 0.01, start: 4, of: (x) => Math.round(10 ** x), back: Math.log10 },
  factor: { label: "extension factor", low: 1, high: 8, step: 0.1, start: 4 },
  dims: { label: "head width (channels)", low: 4, high: 128, step: 2, start: 64 },
  trained: { label: "trained length (tokens)", low: 16, high: 256, step: 8, start: 64 },
  position: { label: "position p", low: 0, high: 255, step: 1, start: 10 },
  distance: { label: "distance k (tokens)", low: 0, high: 255, step: 1, start: 8 },
  heads: { label: "heads", low: 1, high: 16, step: 1, start: 8 },
};
export const MOST_SCHEMES = 6;

export function startState(chosen) {
  const state = { schemes: chosen.slice(0, MOST_SCHEMES) };
  for (const [name, slider] of Object.entries(SLIDERS)) state[name] = valueOf(slider, slider.start);
  return state;
}

// What a slider at x stands for, and where a value is on it.
export const valueOf = (slider, x) => (slider.of ? slider.of(x) : Number(x));
export const placeOf = (slider, value) => (slider.back ? slider.back(value) : value);

export function toHash(state) {
  const words = Object.keys(SLIDERS).map((name) => `${name}=${state[name]}`);
  return `#schemes=${state.schemes.map(encodeURIComponent).join("+")}&${words.join("&")}`;
}

// The state that an address describes; what it leaves out or gets wrong is as in `start`.
export function fromHash(hash, start, known) {
  const state = { ...start };
  for (const word of hash.replace(/^#/, "").split("&")) {
    const [name, value = ""] = word.split("=");
    if (name === "schemes") {
      const schemes = value.split("+").map(decoded).filter((one, n, all) => known.includes(one) && all.indexOf(one) === n);
      if (schemes.length) state.schemes = schemes.slice(0, MOST_SCHEMES);
    } else if (Object.hasOwn(SLIDERS, name) && value !== "" && Number.isFinite(Number(value))) {
      state[name] = within(SLIDERS[name], Number(value));
    }
  }
  return state;
}

function decoded(text) {
  try {
    return decodeURIComponent(text);
  } catch {
    return text; // a malformed escape names no scheme
  }
}

function within(slider, value) {
  const clamped = Math.min(Math.max(value, valueOf(slider, slider.low)), valueOf(slider, slider.high));
  if (slider.of) return clamped;
  return Number((slider.low + Math.round((clamped - slider.low) / slider.step) * slider.step).toFixed(6));
}
