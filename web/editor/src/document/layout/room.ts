/** Makes room in a graph for a node that grows. */
import { moveNodes, type Place } from "../commands";
import { resizeGroup } from "../groups";
import { type Doc, groupsOf, nodesOf } from "../model";
import { moveReroutes, reroutesOf } from "../reroutes";
import { boundariesOf } from "../scope";

export interface Extent extends Place {
  readonly width: number;
  readonly height: number;
}

/**
 * Moves everything right of and below an area, including a subgraph's boundaries, so that the area
 * can grow to `width` and `height`. Groups around the area grow. Pinned nodes stay.
 */
export function withRoom(graph: Doc, at: Extent, width: number, height: number): Doc {
  const [right, down] = [Math.max(0, width - at.width), Math.max(0, height - at.height)];
  const shifted = ({ x, y, width: wide }: Extent): Place => {
    if (x >= at.x + at.width) return { x: x + right, y };
    const below = y >= at.y + at.height && x + wide > at.x;
    return below ? { x, y: y + down } : { x, y };
  };
  const small = ({ x, y }: Place) => shifted({ x, y, width: 0, height: 0 });
  const places = [
    ...nodesOf(graph)
      .filter(({ pinned }) => !pinned)
      .map((node) => [node.id, shifted(node)] as const),
    ...boundariesOf(graph).map((boundary) => [boundary.id, small(boundary)] as const),
  ];
  const points = reroutesOf(graph).map((point) => [point.id, small(point)] as const);
  const moved = moveReroutes(moveNodes(graph, new Map(places)), new Map(points));
  return groupsOf(graph).reduce((next, group, number) => {
    const around =
      group.x <= at.x &&
      group.y <= at.y &&
      group.x + group.width >= at.x + at.width &&
      group.y + group.height >= at.y + at.height;
    const { width: wide, height: high } = group;
    const box = around
      ? { ...group, width: wide + right, height: high + down }
      : { ...group, ...shifted(group) };
    return resizeGroup(next, number, box);
  }, moved);
}
