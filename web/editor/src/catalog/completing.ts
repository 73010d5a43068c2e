/** Completes names of embeddings and LoRAs while a prompt is written. Pure. */
import type { Selected } from "./weights";

/** The kinds of models whose names stand in prompts, as their folders are called. */
export type Kind = "embeddings" | "loras";

export interface Unfinished {
  readonly kind: Kind;
  /** What is written of the name, and where it begins. */
  readonly part: string;
  readonly from: number;
}

const BEFORE: readonly (readonly [Kind, RegExp])[] = [
  ["embeddings", /(?:^|[\s(])embedding:([^\s,()]*)$/],
  ["loras", /<lora:([^<>:\n]*)$/],
];
const MOST = 8;

/** The name that is being written before the cursor; null where none is. */
export function unfinishedAt(text: string, cursor: number): Unfinished | null {
  for (const [kind, pattern] of BEFORE) {
    const part = pattern.exec(text.slice(0, cursor))?.[1];
    if (part !== undefined) return { kind, part, from: cursor - part.length };
  }
  return null;
}

/** The names that have what is written, those that begin with it first. */
export function candidates(part: string, names: readonly string[]): readonly string[] {
  const wanted = part.toLowerCase();
  const place = (name: string) => name.toLowerCase().indexOf(wanted);
  return names
    .filter((name) => place(name) >= 0)
    .sort((one, other) => Number(place(one) > 0) - Number(place(other) > 0))
    .slice(0, MOST);
}

/** The text with the whole name; of a LoRA with its strength, which is selected. */
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
