/**
 * Computes the viewport that shows nodes, mounted or not. If it needs a zoom below `least`, the
 * viewport shows their top left corner at `least`.
 */
import { getViewportForBounds, type ReactFlowInstance, type Viewport } from "@xyflow/react";
import type { Drawn } from "./layout";
import type { WireEdge } from "./links/Wire";

export const MIN_ZOOM = 0.05;
/** Pixels between the corners of the canvas and of the graph. */
const MARGIN = 40;

export function viewportFor(
  flow: ReactFlowInstance<Drawn, WireEdge>,
  which: (id: string) => boolean,
  padding: number,
  least = MIN_ZOOM,
): Viewport | null {
  const nodes = flow.getNodes().filter(({ id }) => which(id));
  const box = document.querySelector(".canvas")?.getBoundingClientRect();
  if (nodes.length === 0 || box === undefined) return null;
  const bounds = flow.getNodesBounds(nodes);
  const all = getViewportForBounds(bounds, box.width, box.height, MIN_ZOOM, 1, padding);
  if (all.zoom >= least) return all;
  return { x: MARGIN - bounds.x * least, y: MARGIN - bounds.y * least, zoom: least };
}
