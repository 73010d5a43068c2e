/** Turns a graph into React Flow nodes and edges. Unchanged parts keep their identity. */
import { type Node, type NodeHandle, Position } from "@xyflow/react";
import { socketColour } from "../catalog/sockets";
import type { Place } from "../document/commands";
import { badgesOf } from "../document/hidden";
import {
  type Doc,
  type DocGroup,
  type DocNode,
  groupsOf,
  linksOf,
  nodesOf,
} from "../document/model";
import { type Reroute, reroutesOf, throughOf } from "../document/reroutes";
import { type Boundary, boundariesOf } from "../document/scope";
import type { WireEdge } from "./links/Wire";

export type CardNode = Node<{ readonly node: DocNode }, "card">;
export type GroupNode = Node<{ readonly group: DocGroup; readonly number: number }, "frame">;
export type BoundaryNode = Node<{ readonly boundary: Boundary }, "boundary">;
export type PointNode = Node<{ readonly reroute: Reroute }, "point">;
export type Drawn = CardNode | GroupNode | BoundaryNode | PointNode;

const MIN_WIDTH = 200;
/** The height of a title. In the file, a node's position is below its title. */
export const TITLE = 30;
const ROW = 21;
/** The size of a reroute. */
const POINT = 14;

/** Returns the position in the file of a drawn node. */
export function placeOf({ type, position: { x, y } }: Drawn): Place {
  return { x: Math.round(x), y: Math.round(y) + (type === "card" ? TITLE : 0) };
}

/** `before`: the nodes drawn last; their selection and measured sizes are retained. */
export function drawnNodes(graph: Doc, before: readonly Drawn[]): Drawn[] {
  const known = new Map(before.map((one) => [one.id, one]));
  return [
    ...groupsOf(graph).map((group, number) => drawnGroup(group, number, known)),
    ...boundariesOf(graph).map((boundary): Drawn => {
      const old = known.get(boundary.id);
      const { id, x, y } = boundary;
      return {
        ...(old?.type === "boundary" ? old : {}),
        id,
        type: "boundary",
        data: { boundary },
        position: { x, y },
      };
    }),
    ...nodesOf(graph).map((node) => drawnCard(node, known)),
    ...drawnPoints(graph, known),
  ];
}

/** Hides the points through which only hidden links pass. */
function drawnPoints(graph: Doc, known: ReadonlyMap<string, Drawn>): Drawn[] {
  const badges = badgesOf(graph);
  const seen = new Set(
    [...throughOf(graph)].flatMap(([link, points]) => (badges.has(link) ? [] : points)),
  );
  return reroutesOf(graph).map((one) => ({
    ...drawnPoint(one, known),
    className: seen.has(one.id) ? "" : "unseen-point",
  }));
}

function drawnPoint(reroute: Reroute, known: ReadonlyMap<string, Drawn>): PointNode {
  const id = pointId(reroute.id);
  const old = known.get(id);
  const { x, y } = reroute;
  return {
    ...(old?.type === "point" ? old : {}),
    id,
    type: "point",
    data: { reroute },
    position: { x, y },
    origin: [0.5, 0.5],
    width: POINT,
    height: POINT,
    ariaLabel: "reroute",
  };
}

export function pointId(reroute: number): string {
  return `point:${reroute}`;
}

function drawnGroup(group: DocGroup, number: number, known: ReadonlyMap<string, Drawn>): Drawn {
  const id = `group:${number}`;
  const old = known.get(id);
  const { x, y, width, height } = group;
  const stands = old?.position.x === x && old.position.y === y && old.width === width;
  if (old?.type === "frame" && old.data.group === group && stands) return old;
  return {
    ...(old?.type === "frame" ? old : {}),
    id,
    type: "frame",
    data: { group, number },
    position: { x, y },
    width,
    height,
    zIndex: -1,
    dragHandle: ".group-title",
    className: "group-frame",
  };
}

function drawnCard(node: DocNode, known: ReadonlyMap<string, Drawn>): Drawn {
  const old = known.get(node.id);
  const position = { x: node.x, y: node.y - TITLE };
  const width = Math.max(MIN_WIDTH, node.width);
  const same =
    old?.type === "card" &&
    old.data.node === node &&
    old.position.x === position.x &&
    old.position.y === position.y &&
    old.width === width;
  if (same) return old;
  return {
    ...(old?.type === "card" ? old : { handles: handlesOf(node, width) }),
    id: node.id,
    type: "card",
    data: { node },
    position,
    width,
    initialHeight: node.height + TITLE,
    dragHandle: ".card-title, .card.outlined",
    draggable: !node.pinned,
    ariaLabel: node.title || node.type,
  };
}

/** Gives all nodes computed handles until they are measured again. */
export function computed(nodes: readonly Drawn[]): Drawn[] {
  return nodes.map((node) =>
    node.type === "card"
      ? { ...node, handles: handlesOf(node.data.node, node.width ?? MIN_WIDTH) }
      : node,
  );
}

/** Lets the measured handles of these nodes replace the computed ones. */
export function measured(nodes: readonly Drawn[], these: ReadonlySet<string>): Drawn[] {
  return nodes.map((node) =>
    node.measured === undefined || node.handles === undefined || !these.has(node.id)
      ? node
      : { ...node, handles: undefined },
  );
}

/** Computes handles before they are measured, so that links to nodes out of view are drawn. */
export function handlesOf(node: DocNode, width: number): NodeHandle[] {
  const y = (row: number) => TITLE + 5 + ROW * row + ROW / 2;
  const size = { width: 1, height: 1 };
  return [
    ...node.inputs.map((_, slot): NodeHandle => {
      return {
        id: `in:${slot}`,
        type: "target",
        position: Position.Left,
        x: 0,
        y: y(slot),
        ...size,
      };
    }),
    ...node.outputs.map((_, slot): NodeHandle => {
      const place = { position: Position.Right, x: width, y: y(slot) };
      return { id: `out:${slot}`, type: "source", ...place, ...size };
    }),
  ];
}

/** `before`: the edges drawn last; unchanged links keep their identity. */
export function drawnEdges(
  graph: Doc,
  selected: ReadonlySet<string>,
  before: readonly WireEdge[] = [],
): WireEdge[] {
  const through = throughOf(graph);
  const badges = badgesOf(graph);
  const known = new Map(before.map((edge) => [edge.id, edge]));
  return linksOf(graph).map((link): WireEdge => {
    const id = String(link.id);
    const colour = `socket-${socketColour(link.type)}`;
    const made: WireEdge = {
      id,
      type: "wire",
      source: link.from,
      sourceHandle: `out:${link.fromSlot}`,
      target: link.to,
      targetHandle: `in:${link.toSlot}`,
      className: `link ${colour}`,
      selected: selected.has(id),
      data: {
        through: (through.get(link.id) ?? []).map(pointId),
        badge: badges.get(link.id) ?? null,
        colour,
      },
    };
    const old = known.get(id);
    return old !== undefined && isSame(old, made) ? old : made;
  });
}

function isSame(one: WireEdge, other: WireEdge): boolean {
  return (
    one.source === other.source &&
    one.sourceHandle === other.sourceHandle &&
    one.target === other.target &&
    one.targetHandle === other.targetHandle &&
    one.className === other.className &&
    one.selected === other.selected &&
    one.data?.through.join() === other.data?.through.join() &&
    one.data?.badge?.name === other.data?.badge?.name &&
    one.data?.badge?.row === other.data?.badge?.row
  );
}
