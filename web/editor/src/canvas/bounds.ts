/** Computes the boxes of nodes, and the part of the graph in view. */
import type { Node, ReactFlowState } from "@xyflow/react";
import type { Box } from "../document/layout/alignment";

type Placed = Pick<Node, "position" | "measured" | "width" | "initialHeight" | "height">;

export function boxOf({ position, measured, width, initialHeight, height }: Placed): Box {
  return {
    ...position,
    width: measured?.width ?? width ?? 0,
    height: measured?.height ?? height ?? initialHeight ?? 0,
  };
}

/** Returns the part of the graph that is in view. */
export function viewOf({
  transform: [x, y, zoom],
  width,
  height,
}: Pick<ReactFlowState, "transform" | "width" | "height">): Box {
  return { x: -x / zoom, y: -y / zoom, width: width / zoom, height: height / zoom };
}
