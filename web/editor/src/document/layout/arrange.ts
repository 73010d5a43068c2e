/** Arranges nodes in columns by their longest path from a source, and each column by its links. */
import type { Place } from "../commands";
import { type Doc, type DocNode, linksOf, nodesOf } from "../model";

const ACROSS = 90;
const DOWN = 40;

/**
 * Returns positions for the chosen nodes, or for all if none are chosen. Their top left corner
 * stays.
 */
export function arranged(
  graph: Doc,
  chosen: ReadonlySet<string>,
  height: (node: DocNode) => number,
): ReadonlyMap<string, Place> {
  const nodes = nodesOf(graph).filter(({ id }) => chosen.size === 0 || chosen.has(id));
  if (nodes.length === 0) return new Map();
  const known = new Set(nodes.map(({ id }) => id));
  const links = linksOf(graph).filter(({ from, to }) => known.has(from) && known.has(to));
  const sources = grouped(links, ({ to }) => to);
  const column = columnsOf(nodes, sources);
  const columns = [...grouped(nodes, ({ id }) => column.get(id) ?? 0)]
    .sort(([one], [other]) => one - other)
    .map(([, members]) => members);
  const places = new Map<string, Place>();
  const top = Math.min(...nodes.map(({ y }) => y));
  let x = Math.min(...nodes.map((node) => node.x));
  for (const members of columns) {
    const wish = (node: DocNode) => {
      const above = (sources.get(node.id) ?? []).flatMap(({ from }) => places.get(from)?.y ?? []);
      return above.length === 0 ? node.y : above.reduce((sum, y) => sum + y, 0) / above.length;
    };
    let y = top;
    for (const node of [...members].sort((one, other) => wish(one) - wish(other))) {
      places.set(node.id, { x, y });
      y += height(node) + DOWN;
    }
    x += Math.max(...members.map(({ width }) => width)) + ACROSS;
  }
  return places;
}

function grouped<Key, Item>(items: readonly Item[], by: (item: Item) => Key): Map<Key, Item[]> {
  const groups = new Map<Key, Item[]>();
  for (const item of items) groups.set(by(item), [...(groups.get(by(item)) ?? []), item]);
  return groups;
}

/**
 * Returns the length of the longest path to each node. A cycle counts up to its first repeated
 * node.
 */
function columnsOf(
  nodes: readonly DocNode[],
  sources: ReadonlyMap<string, readonly { readonly from: string }[]>,
): ReadonlyMap<string, number> {
  const columns = new Map<string, number>();
  const waiting = nodes.map(({ id }) => id);
  const open = new Set<string>();
  while (waiting.length > 0) {
    const id = waiting.at(-1) ?? "";
    const before = (sources.get(id) ?? []).map(({ from }) => from);
    const missing = before.filter((from) => !columns.has(from) && !open.has(from));
    if (!columns.has(id) && missing.length > 0) {
      open.add(id);
      waiting.push(...missing);
      continue;
    }
    waiting.pop();
    open.delete(id);
    if (!columns.has(id))
      columns.set(id, Math.max(-1, ...before.map((from) => columns.get(from) ?? -1)) + 1);
  }
  return columns;
}
