/** Computes the plan's mark on each node of the document. Pure. */
import type { Plan } from "./plan";

export interface Mark {
  /** Seconds per evaluation. */
  readonly seconds: number;
  /** The share of an evaluation's period, from 0 to 1. */
  readonly share: number;
  /** The number of equal operations in the same call. */
  readonly batched: number;
  readonly stale: boolean;
}

const known = new WeakMap<Plan, ReadonlyMap<string, Mark>>();

/** Returns the marks of the first variant by node. The sampler has a strip instead of a mark. */
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

/** The seconds per evaluation that a node computes on each device. */
export type Places = ReadonlyMap<number, number>;

const knownPlaces = new WeakMap<Plan, ReadonlyMap<string, Places>>();

/** Returns the devices of each node, both for samplers and for loops drawn by hand. */
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
