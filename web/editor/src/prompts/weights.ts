/** Changes the weights of words in a prompt's text. Pure. */

export interface Selected {
  readonly text: string;
  readonly start: number;
  readonly end: number;
}

const STEP = 0.05;
const WEIGHTED = /^\((.*):([\d.]+)\)$/s;
const WORD = /[^\s,.()<>]/;

/** Changes the weight of the selection, or of the word at the cursor, by a step: `(text:1.05)`. */
export function weighed({ text, start, end }: Selected, way: 1 | -1): Selected {
  let [from, to] = [start, end];
  if (from === to) {
    while (from > 0 && WORD.test(text[from - 1] ?? "")) from--;
    while (to < text.length && WORD.test(text[to] ?? "")) to++;
  }
  if (from === to) return { text, start, end };
  // brackets around the selection belong to it
  const around = /^:[\d.]+\)/.exec(text.slice(to));
  if (text[from - 1] === "(" && around !== null) [from, to] = [from - 1, to + around[0].length];
  const part = text.slice(from, to);
  const [, inner = part, weight = "1"] = WEIGHTED.exec(part) ?? [];
  const next = Math.round((Number(weight) + way * STEP) * 100) / 100;
  const made = next === 1 ? inner : `(${inner}:${next})`;
  const open = next === 1 ? from : from + 1;
  return {
    text: text.slice(0, from) + made + text.slice(to),
    start: open,
    end: open + inner.length,
  };
}
