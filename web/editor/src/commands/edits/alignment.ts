/** Aligns and distributes the selected nodes, and straightens their links. */
import { moveNodes, type Place } from "../../document/commands";
import {
  alignedAt,
  type Axis,
  type Box,
  type Boxes,
  distributed,
  type Edge,
  straightened,
} from "../../document/layout/alignment";
import { type Doc, linksOf, nodesOf } from "../../document/model";
import { moveReroutes, reroutesOf, throughOf } from "../../document/reroutes";
import { useCanvas } from "../../state/canvas";
import { change, onNodes } from "./selection";

/**
 * Returns the boxes of the selected nodes as drawn, which are larger than the sizes in the file.
 */
function boxesOf(graph: Doc, chosen: ReadonlySet<string>): Boxes {
  const sizes = useCanvas.getState().sizes();
  return new Map(
    nodesOf(graph)
      .filter(({ id }) => chosen.has(id))
      .map((node): [string, Box] => {
        const { id, x, y, width, height } = node;
        return [id, { x, y, width, height, ...sizes.get(id) }];
      }),
  );
}

/** Moves nodes, except pinned ones. */
function placed(graph: Doc, places: ReadonlyMap<string, Place>): Doc {
  const pinned = new Set(nodesOf(graph).flatMap((node) => (node.pinned ? [node.id] : [])));
  return moveNodes(graph, new Map([...places].filter(([id]) => !pinned.has(id))));
}

export function align(edge: Edge): void {
  onNodes((graph, nodes) => {
    const places = alignedAt(boxesOf(graph, nodes), edge);
    if (places.size > 1) change(`align ${edge}`, (now) => placed(now, places));
  });
}

export function distribute(axis: Axis): void {
  onNodes((graph, nodes) => {
    const places = distributed(boxesOf(graph, nodes), axis);
    if (places.size > 0) change("distribute", (now) => placed(now, places));
  });
}

/** Straightens the links between the selected nodes, including their reroutes. */
export function straighten(): void {
  onNodes((graph, nodes) => {
    const ends = useCanvas.getState().ends();
    const links = linksOf(graph).flatMap(({ id, from, to }) => {
      const drawn = ends.get(id);
      return drawn === undefined ? [] : [{ id, from, to, ...drawn }];
    });
    const { places, links: levels } = straightened(boxesOf(graph, nodes), links);
    if (levels.size > 0)
      change("straighten", (now) => moveReroutes(placed(now, places), levelled(now, levels)));
  });
}

/** Returns positions of reroutes at the heights of their links. */
function levelled(graph: Doc, levels: ReadonlyMap<number, number>): ReadonlyMap<number, Place> {
  const through = throughOf(graph);
  const heights = new Map(
    [...levels].flatMap(([link, y]) =>
      (through.get(link) ?? []).map((point): [number, number] => [point, Math.round(y)]),
    ),
  );
  return new Map(
    reroutesOf(graph).flatMap(({ id, x }): [number, Place][] => {
      const y = heights.get(id);
      return y === undefined ? [] : [[id, { x, y }]];
    }),
  );
}
