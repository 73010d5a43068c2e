/** Reads parts of frames, which may have any form. */

export type Fields = Readonly<Record<string, unknown>>;

export function fields(value: unknown): Fields {
  return typeof value === "object" && value !== null ? (value as Fields) : {};
}

/**
 * The node of the document that an id stands for: of `5.end`, which a node expanded to, `5`. Nodes
 * inside of a subgraph's node `97` are `97:98`.
 */
export function shownAs(id: unknown): string {
  return text(id).split(".")[0] ?? "";
}

export function text(value: unknown): string {
  return typeof value === "string" ? value : "";
}

export function byShown(raw: unknown): Record<string, unknown> {
  return Object.fromEntries(Object.entries(fields(raw)).map(([id, value]) => [shownAs(id), value]));
}

export function number(value: unknown, otherwise = 0): number {
  return typeof value === "number" ? value : typeof value === "bigint" ? Number(value) : otherwise;
}

export function numberOrNull(value: unknown): number | null {
  return value === null || value === undefined ? null : number(value);
}
