/** Computes the ends of links in graph coordinates. */
import type { InternalNode } from "@xyflow/react";
import type { Place } from "../../document/commands";
import { type Drawn, handlesOf } from "../layout";

/** Returns the centre of a handle as measured, else as computed; null if neither is known. */
export function endAt(
  node: InternalNode<Drawn> | undefined,
  side: "source" | "target",
  handle: string | null | undefined,
): Place | null {
  if (node === undefined) return null;
  const { userNode } = node.internals;
  const computed = () =>
    userNode.type === "card"
      ? handlesOf(userNode.data.node, node.width ?? 0).filter(({ type }) => type === side)
      : [];
  const known = node.internals.handleBounds?.[side] ?? computed();
  const found = known.find(({ id }) => id === handle);
  if (found === undefined) return null;
  const { x, y } = node.internals.positionAbsolute;
  return { x: x + found.x + (found.width ?? 0) / 2, y: y + found.y + (found.height ?? 0) / 2 };
}
