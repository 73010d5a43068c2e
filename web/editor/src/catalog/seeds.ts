/** Computes the next value of each seed, according to its control value. */
import { setValue } from "../document/commands";
import { type Doc, nodesOf } from "../document/model";
import { type Json, listOf } from "../json";
import type { Catalog } from "./catalog";
import { placedWidgets } from "./placed";

export const NEXT = ["fixed", "increment", "decrement", "randomize"] as const;
export const NEXT_WORDS: Readonly<Record<string, string>> = {
  fixed: "keep",
  increment: "+1",
  decrement: "−1",
  randomize: "random",
};
const SEED_LIMIT = 2n ** 53n;

export function withNextSeeds(doc: Doc, catalog: Catalog, random: () => bigint = randomSeed): Doc {
  let next = doc;
  for (const node of nodesOf(doc))
    for (const { widget, key, value } of placedWidgets(node, catalog.get(node.type)))
      if (widget.helper === "seed" && typeof key === "number") {
        const control = listOf(node.values as Json)[key + 1];
        const seed = following(value, control, random);
        if (seed !== value) next = setValue(next, node.id, key, seed, widget.name);
      }
  return next;
}

function following(value: Json, control: Json | undefined, random: () => bigint): Json {
  if (typeof value !== "number" && typeof value !== "bigint") return value;
  switch (control) {
    case "increment":
      return exact(BigInt(value) + 1n);
    case "decrement":
      return exact(BigInt(value) > 0n ? BigInt(value) - 1n : 0n);
    case "randomize":
      return exact(random());
    default:
      return value;
  }
}

function exact(value: bigint): number | bigint {
  return value <= BigInt(Number.MAX_SAFE_INTEGER) ? Number(value) : value;
}

function randomSeed(): bigint {
  const [first = 0, second = 0] = crypto.getRandomValues(new Uint32Array(2));
  return ((BigInt(first) << 32n) | BigInt(second)) % SEED_LIMIT;
}
