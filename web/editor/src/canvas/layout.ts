/** Turns a document into what React Flow draws. Equal parts keep their identity. */
import type { Edge, Node } from "@xyflow/react";
import {
  type Doc,
  type DocGroup,
  type DocNode,
  groupsOf,
  linksOf,
  nodesOf,
} from "../document/model";

export type CardNode = Node<{ readonly node: DocNode }, "card">;
export type GroupNode = Node<{ readonly group: DocGroup }, "group">;
export type Drawn = CardNode | GroupNode;

const LEAST_WIDTH = 200;

/** `before`: what was drawn, whose selection and measured sizes are kept. */
export function drawnNodes(doc: Doc, before: readonly Drawn[]): Drawn[] {
  const known = new Map(before.map((one) => [one.id, one]));
  const groups = groupsOf(doc).map((group, number): Drawn => {
    const id = `group:${number}`;
    const old = known.get(id);
    if (old?.type === "group" && old.data.group === group) return old;
    return {
      id,
      type: "group",
      data: { group },
      position: { x: group.x, y: group.y },
      width: group.width,
      height: group.height,
      zIndex: -1,
      selectable: false,
      draggable: false,
      focusable: false,
    };
  });
  const cards = nodesOf(doc).map((node): Drawn => {
    const old = known.get(node.id);
    const same =
      old?.type === "card" &&
      old.data.node === node &&
      old.position.x === node.x &&
      old.position.y === node.y;
    if (same) return old;
    return {
      ...(old?.type === "card" ? old : {}),
      id: node.id,
      type: "card",
      data: { node },
      position: { x: node.x, y: node.y },
      width: Math.max(LEAST_WIDTH, node.width),
      dragHandle: ".card-title",
      ariaLabel: node.title || node.type,
    };
  });
  return [...groups, ...cards];
}

export function drawnEdges(doc: Doc, selected: ReadonlySet<string>): Edge[] {
  return linksOf(doc).map((link) => ({
    id: String(link.id),
    source: link.from,
    sourceHandle: `out:${link.fromSlot}`,
    target: link.to,
    targetHandle: `in:${link.toSlot}`,
    className: `link socket-${socketColour(link.type)}`,
    selected: selected.has(String(link.id)),
  }));
}

export function slotOf(handle: string | null | undefined): number {
  return Number(handle?.split(":")[1] ?? 0);
}

const NAMED: Readonly<Record<string, number>> = {
  MODEL: 0,
  CLIP: 1,
  VAE: 2,
  CONDITIONING: 3,
  LATENT: 4,
  IMAGE: 5,
  MASK: 6,
  CONTROL_NET: 7,
};

/** Picks one of eight colours for a type. */
export function socketColour(type: string): number {
  const named = NAMED[type];
  if (named !== undefined) return named;
  let sum = 0;
  for (const letter of type) sum = (sum * 31 + letter.charCodeAt(0)) % 8;
  return sum;
}
