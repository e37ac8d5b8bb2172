// What each scheme does, as functions of the parameters on the page. A scheme that has no line here comes as a table.
import { ropeFrequencies, interpolatedFrequencies, ntkFrequencies, byPartsFrequencies, llama3Frequencies } from "./rotations.js";
import { yarnLogitScale, rotatedScore } from "./rotations.js";
import { sinusoidalCode, binaryCode, integerCode, normalisedCode, codeScores } from "./codes.js";
import { alibiBias } from "./biases.js";
import { reropeDistance, leakyDistance, groupedDistance, chunkedDistance, targetLength } from "./remaps.js";
import { windowSees, sinksSee, sinksDistance, infiniteSees, infiniteDistance } from "./masks.js";

const ABF_BASE = 500000;

export const FORMULAS = {
  none: {},
  rope: { frequencies: ropeFrequencies },
  abf: { frequencies: (given) => ropeFrequencies({ ...given, base: ABF_BASE }) },
  pi: { frequencies: interpolatedFrequencies },
  ntk: { frequencies: ntkFrequencies },
  ntk_parts: { frequencies: (given) => byPartsFrequencies(given) },
  yarn: { frequencies: (given) => byPartsFrequencies(given), logitScale: yarnLogitScale },
  llama3: { frequencies: (given) => llama3Frequencies(given) },
  alibi: { bias: alibiBias },
  rerope: { frequencies: ropeFrequencies, distance: reropeDistance },
  leaky_rerope: { frequencies: ropeFrequencies, distance: leakyDistance },
  self_extend: { frequencies: ropeFrequencies, distance: groupedDistance },
  dca: { frequencies: ropeFrequencies, distance: chunkedDistance },
  window: { frequencies: ropeFrequencies, sees: windowSees },
  sinks: { frequencies: ropeFrequencies, sees: sinksSee, distance: sinksDistance },
  lm_infinite: { frequencies: ropeFrequencies, sees: infiniteSees, distance: infiniteDistance },
  integer: { code: integerCode },
  norm01: { code: normalisedCode },
  binary: { code: binaryCode },
  sinusoidal: { code: sinusoidalCode, pairs: ropeFrequencies },
};

// A formula with its parameters filled in: what the views draw. All functions are of positions or distances alone.
export function fromFormula(name, given) {
  const formula = FORMULAS[name];
  const length = targetLength(given);
  const last = length - 1;
  const frequencies = formula.frequencies?.(given);
  const code = formula.code && ((position) => formula.code(position, given, length));
  const used = formula.distance && ((distance) => formula.distance(last, last - distance, given));
  const sees = (distance) => !formula.sees || formula.sees(last, last - distance, given);
  const ofCodes = code && codeScores(code, length);
  const scale = formula.logitScale?.(given) ?? 1;
  const score = (distance) => {
    if (!sees(distance)) return null;
    if (ofCodes) return ofCodes(distance);
    const seen = used ? used(distance) : distance;
    return scale * (frequencies ? rotatedScore(frequencies, seen) : 1) + (formula.bias?.(0, seen, given) ?? 0);
  };
  return {
    name, length, score, code, frequencies, pairs: frequencies ?? formula.pairs?.(given), distance: used,
    biases: formula.bias && Array.from({ length: given.heads }, (_, head) => (distance) => formula.bias(head, distance, given)),
    sees: formula.sees && ((i, j) => formula.sees(i, j, given)),
  };
}
