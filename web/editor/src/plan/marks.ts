/** Says what of a plan stands at each node of the document. Pure. */
import type { Plan } from "./plan";

export interface Mark {
  readonly devices: readonly number[];
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
  for (const { device, calls } of first?.segments ?? [])
    for (const { operations: ids, seconds } of calls)
      for (const id of ids) {
        const node = operations.get(id)?.node ?? "";
        if (node === sampler) continue;
        const before = marks.get(node);
        const total = (before?.seconds ?? 0) + seconds / ids.length;
        marks.set(node, {
          devices: [...new Set([...(before?.devices ?? []), device])],
          seconds: total,
          share: period > 0 ? total / period : 0,
          batched: Math.max(before?.batched ?? 1, ids.length),
          stale: before?.stale === true || stale.has(id),
        });
      }
  return marks;
}
