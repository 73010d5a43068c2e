/** Decides which ends may be linked: the one rule for dragging, search, paste and keyboard. */
import type { End } from "../document/links";
import { type Doc, linksOf } from "../document/model";
import { compatible } from "./catalog";

/** Returns why an output may not be linked to an input; null if it may. */
export function refusal(
  graph: Doc,
  from: End & { readonly type: string },
  to: End & { readonly type: string },
): string | null {
  if (from.node === to.node) return "a node cannot be linked to itself";
  if (!compatible(from.type, to.type)) return `${from.type} does not fit ${to.type}`;
  return leadsTo(graph, to.node, from.node) ? "the link would close a loop" : null;
}

/** Returns whether `goal` depends on `start`. */
function leadsTo(graph: Doc, start: string, goal: string): boolean {
  const next = new Map<string, string[]>();
  for (const { from, to } of linksOf(graph)) next.set(from, [...(next.get(from) ?? []), to]);
  const seen = new Set([start]);
  for (const node of seen) {
    if (node === goal) return true;
    for (const to of next.get(node) ?? []) seen.add(to);
  }
  return false;
}

/** Returns the nodes upstream or downstream of these, including these. */
export function reached(
  graph: Doc,
  nodes: ReadonlySet<string>,
  way: "upstream" | "downstream",
): ReadonlySet<string> {
  const found = new Set(nodes);
  for (const node of found)
    for (const { from, to } of linksOf(graph)) {
      if (way === "upstream" && to === node) found.add(from);
      if (way === "downstream" && from === node) found.add(to);
    }
  return found;
}
