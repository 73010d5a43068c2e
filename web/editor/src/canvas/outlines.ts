/** Where the nodes of a graph are, as boxes and as paths, and what of them is in view. */
import type { Node, ReactFlowState } from "@xyflow/react";
import { type Box, boundsOf } from "../document/aligning";
import type { Drawn } from "./layout";

/** `frames` and `others`: the outlines of groups and of all else. */
export interface Outlines {
  readonly all: Box;
  readonly frames: string;
  readonly others: string;
}

export function outlines(nodes: readonly Drawn[]): Outlines {
  const boxes = nodes.map(boxOf);
  const of = (frames: boolean) =>
    boxes
      .filter((_, at) => (nodes[at]?.type === "frame") === frames)
      .map(outline)
      .join("");
  return { all: boundsOf(boxes), frames: of(true), others: of(false) };
}

export function outline({ x, y, width, height }: Box): string {
  return `M${x},${y}h${width}v${height}h${-width}z`;
}

type Placed = Pick<Node, "position" | "measured" | "width" | "initialHeight" | "height">;

export function boxOf({ position, measured, width, initialHeight, height }: Placed): Box {
  return {
    ...position,
    width: measured?.width ?? width ?? 0,
    height: measured?.height ?? height ?? initialHeight ?? 0,
  };
}

/** What of the graph is in view. */
export function viewOf({
  transform: [x, y, zoom],
  width,
  height,
}: Pick<ReactFlowState, "transform" | "width" | "height">): Box {
  return { x: -x / zoom, y: -y / zoom, width: width / zoom, height: height / zoom };
}
