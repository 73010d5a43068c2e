/** Says what of a plan stands at each node of the document. Pure. */
import type { Plan } from "./plan";

export interface Mark {
  /** Of one evaluation. */
  readonly seconds: number;
  /** Of the period of an evaluation, from 0 to 1. */
  readonly share: number;
  /** How many equal operations are one call with this one. */
  readonly batched: number;
  readonly stale: boolean;
}

const known = new WeakMap<Plan, ReadonlyMap<string, Mark>>();

/** Marks by node, of the first variant. The sampler itself has its strip, and no mark. */
export function marksOf(plan: Plan): ReadonlyMap<string, Mark> {
  const found = known.get(plan) ?? read(plan);
  known.set(plan, found);
  return found;
}

function read({ variants, operations, sampler, period }: Plan): ReadonlyMap<string, Mark> {
  const marks = new Map<string, Mark>();
  const [first] = variants;
  const stale = new Set(first?.edges.flatMap((edge) => (edge.stale ? [edge.from] : [])));
  for (const { calls } of first?.segments ?? [])
    for (const { operations: ids, seconds } of calls)
      for (const id of ids) {
        const node = operations.get(id)?.node ?? "";
        if (node === sampler) continue;
        const before = marks.get(node);
        const total = (before?.seconds ?? 0) + seconds / ids.length;
        marks.set(node, {
          seconds: total,
          share: period > 0 ? total / period : 0,
          batched: Math.max(before?.batched ?? 1, ids.length),
          stale: before?.stale === true || stale.has(id),
        });
      }
  return marks;
}

/** The seconds of an evaluation that a node takes on each device. */
export type Places = ReadonlyMap<number, number>;

const knownPlaces = new WeakMap<Plan, ReadonlyMap<string, Places>>();

/** Where each node computes, samplers and nodes of loops drawn by hand alike. */
export function placesOf(plan: Plan): ReadonlyMap<string, Places> {
  const found = knownPlaces.get(plan) ?? readPlaces(plan);
  knownPlaces.set(plan, found);
  return found;
}

function readPlaces({ variants, operations }: Plan): ReadonlyMap<string, Places> {
  const places = new Map<string, Map<number, number>>();
  for (const { device, calls } of variants[0]?.segments ?? [])
    for (const { operations: ids, seconds } of calls)
      for (const id of ids) {
        const node = operations.get(id)?.node ?? "";
        const there = places.get(node) ?? new Map<number, number>();
        there.set(device, (there.get(device) ?? 0) + seconds / ids.length);
        places.set(node, there);
      }
  return places;
}
