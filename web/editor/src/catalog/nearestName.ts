/** Suggests the nearest name for a misspelled one. Pure. */

const MIN_SIMILARITY = 0.4;

/**
 * Returns the choice that shares the most letter pairs with a name; null if none is similar enough.
 */
export function nearestName(name: string, choices: readonly string[]): string | null {
  const wanted = pairs(name);
  const scored = choices.map((choice) => {
    const own = pairs(choice);
    const shared = [...own].filter((pair) => wanted.has(pair)).length;
    return { choice, score: (2 * shared) / (own.size + wanted.size || 1) };
  });
  const best = scored.reduce((one, other) => (other.score > one.score ? other : one), {
    choice: "",
    score: 0,
  });
  return best.score >= MIN_SIMILARITY ? best.choice : null;
}

function pairs(text: string): ReadonlySet<string> {
  const plain = text.toLowerCase();
  return new Set(Array.from(plain.slice(1), (letter, at) => plain.charAt(at) + letter));
}
