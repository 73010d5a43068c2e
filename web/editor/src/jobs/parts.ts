/** Reads parts of frames, which may have any form. */

import { fieldsOf, numberFrom, textOf } from "../json";

/**
 * The node of the document that an id stands for: of `5.end`, which a node expanded to, `5`. Nodes
 * inside of a subgraph's node `97` are `97:98`.
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
