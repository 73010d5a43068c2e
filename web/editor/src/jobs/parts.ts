/** Reads parts of untrusted frames. */

import { fieldsOf, numberFrom, textOf } from "../json";

/**
 * Returns the document node for a runtime id: `5` for `5.end`, which node 5 expanded to. Inner
 * nodes of the subgraph node `97` have ids such as `97:98`.
 */
export function shownAs(id: unknown): string {
  return textOf(id).split(".")[0] ?? "";
}

export function byShown(raw: unknown): Record<string, unknown> {
  return Object.fromEntries(
    Object.entries(fieldsOf(raw)).map(([id, value]) => [shownAs(id), value]),
  );
}

export function numberOrNull(value: unknown): number | null {
  return value === null || value === undefined ? null : numberFrom(value);
}
