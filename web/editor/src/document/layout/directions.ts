/** Finds the next node for keyboard navigation, in a direction or along links. Pure. */
import { type Doc, type DocNode, linksOf, nodesOf } from "../model";

export type Direction = "left" | "right" | "up" | "down";

const AWAY: Readonly<Record<Direction, readonly [number, number]>> = {
  left: [-1, 0],
  right: [1, 0],
  up: [0, -1],
  down: [0, 1],
};

/**
 * Returns the nearest node in a direction, by box edges; the first node if `from` is not in the
 * graph.
 */
export function nearest(graph: Doc, from: string | undefined, way: Direction): string | null {
  const nodes = nodesOf(graph);
  const start = nodes.find(({ id }) => id === from);
  if (start === undefined) return nodes[0]?.id ?? null;
  const found = nodes
    .filter(({ id }) => id !== from)
    .flatMap((node) => {
      const distance = away(start, node, way);
      return distance === null ? [] : [{ id: node.id, distance }];
    })
    .sort((one, other) => one.distance - other.distance);
  return found[0]?.id ?? null;
}

/**
 * Returns the distance in a direction, sideways distance counted twice; null if the node is
 * elsewhere.
 */
function away(from: DocNode, to: DocNode, way: Direction): number | null {
  const [along, down] = AWAY[way];
  const middle = ({ x, y, width, height }: DocNode) => [x + width / 2, y + height / 2] as const;
  const [fromX, fromY] = middle(from);
  const [toX, toY] = middle(to);
  const [onward, sideways] = along !== 0 ? [toX - fromX, toY - fromY] : [toY - fromY, toX - fromX];
  if (onward * (along + down) <= Math.abs(sideways) / 2) return null;
  const right = Math.max(0, to.x - (from.x + from.width), from.x - (to.x + to.width));
  const below = Math.max(0, to.y - (from.y + from.height), from.y - (to.y + to.height));
  const [ahead, aside] = along !== 0 ? [right, below] : [below, right];
  if (aside > 2 * Math.max(from.width, from.height) + ahead) return null;
  return ahead + 2 * aside + 0.01 * Math.hypot(toX - fromX, toY - fromY);
}

/** Returns the node at the other end of a node's first link. */
export function along(graph: Doc, from: string, way: "back" | "forth"): string | null {
  const link = linksOf(graph).find((one) => (way === "back" ? one.to : one.from) === from);
  return link === undefined ? null : way === "back" ? link.from : link.to;
}

/** Returns a position near the given one that no other node has. */
export function freePlace(graph: Doc, x: number, y: number): { x: number; y: number } {
  const taken = (at: number) =>
    nodesOf(graph).some((one) => Math.abs(one.x - x - at) < 24 && Math.abs(one.y - y - at) < 24);
  let at = 0;
  while (taken(at)) at += 32;
  return { x: x + at, y: y + at };
}
