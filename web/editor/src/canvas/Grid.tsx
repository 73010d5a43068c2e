/**
 * Draws dots behind the graph, so that panning and zooming are visible. At low zoom it draws none.
 */
import type { Viewport } from "@xyflow/react";
import { useCallback, useRef } from "react";
import { useViewportListener } from "./viewportListeners";

const GAP = 24;
/** The zoom below which the dots blur together. */
const MIN_DOT_ZOOM = 0.3;

export function Grid() {
  const pattern = useRef<SVGPatternElement>(null);
  const follow = useCallback(({ x, y, zoom }: Viewport) => {
    const element = pattern.current;
    const isShown = zoom >= MIN_DOT_ZOOM;
    if (isShown) element?.setAttribute("patternTransform", `translate(${x} ${y}) scale(${zoom})`);
    element?.ownerSVGElement?.style.setProperty("display", isShown ? "" : "none");
  }, []);
  useViewportListener(follow);
  return (
    <svg className="grid" aria-hidden="true">
      <pattern ref={pattern} id="dots" width={GAP} height={GAP} patternUnits="userSpaceOnUse">
        <circle cx={GAP / 2} cy={GAP / 2} r={0.5} />
      </pattern>
      <rect width="100%" height="100%" fill="url(#dots)" />
    </svg>
  );
}
