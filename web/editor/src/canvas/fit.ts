/** Finds the view that shows nodes, whether they are mounted or not. */
import { getViewportForBounds, type ReactFlowInstance, type Viewport } from "@xyflow/react";
import type { Drawn } from "./layout";
import type { WireEdge } from "./Wire";

export const LEAST_ZOOM = 0.05;

export function fitting(
  flow: ReactFlowInstance<Drawn, WireEdge>,
  which: (id: string) => boolean,
  padding: number,
  least = LEAST_ZOOM,
): Viewport | null {
  const nodes = flow.getNodes().filter(({ id }) => which(id));
  const box = document.querySelector(".canvas")?.getBoundingClientRect();
  if (nodes.length === 0 || box === undefined) return null;
  const bounds = flow.getNodesBounds(nodes);
  return getViewportForBounds(bounds, box.width, box.height, least, 1, padding);
}
