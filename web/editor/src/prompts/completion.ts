/** Completes names of embeddings and LoRAs in a prompt. Pure. */
import type { Selected } from "./weights";

/** The kinds of models that prompts name, by the names of their folders. */
export type Kind = "embeddings" | "loras";

export interface Unfinished {
  readonly kind: Kind;
  /** The part of the name before the cursor, and its position. */
  readonly part: string;
  readonly from: number;
}

const BEFORE: readonly (readonly [Kind, RegExp])[] = [
  ["embeddings", /(?:^|[\s(])embedding:([^\s,()]*)$/],
  ["loras", /<lora:([^<>:\n]*)$/],
];
const MAX_CANDIDATES = 8;

/** Returns the incomplete name before the cursor; null without one. */
export function unfinishedAt(text: string, cursor: number): Unfinished | null {
  for (const [kind, pattern] of BEFORE) {
    const part = pattern.exec(text.slice(0, cursor))?.[1];
    if (part !== undefined) return { kind, part, from: cursor - part.length };
  }
  return null;
}

/** Returns the names that contain the part; those that begin with it come first. */
export function candidates(part: string, names: readonly string[]): readonly string[] {
  const wanted = part.toLowerCase();
  const place = (name: string) => name.toLowerCase().indexOf(wanted);
  return names
    .filter((name) => place(name) >= 0)
    .sort((one, other) => Number(place(one) > 0) - Number(place(other) > 0))
    .slice(0, MAX_CANDIDATES);
}

/** Inserts the whole name. A LoRA also gets its strength, which is selected. */
export function completed(text: string, { kind, part, from }: Unfinished, name: string): Selected {
  const rest = text.slice(from + part.length);
  const [strength = ":1>"] = kind === "loras" ? (/^:[^<>\n]*>/.exec(rest) ?? []) : [""];
  const after = from + name.length;
  const made = text.slice(0, from) + name;
  if (kind === "embeddings") return { text: made + rest, start: after, end: after };
  const behind = rest.startsWith(strength) ? rest.slice(strength.length) : rest;
  return {
    text: made + strength + behind,
    start: after + 1,
    end: after + strength.length - 1,
  };
}
