/** Shows the whole graph in a corner, with the viewport marked. Dragging pans, the wheel zooms. */
import { Panel, useReactFlow, useStore, useStoreApi, type Viewport } from "@xyflow/react";
import { type PointerEvent, useCallback, useEffect, useRef } from "react";
import { type Box, boundsOf } from "../../document/layout/alignment";
import { viewOf } from "../bounds";
import { useViewportListener } from "../viewportListeners";
import { boxPath, type BoxPaths } from "./boxPaths";

const [WIDTH, HEIGHT] = [200, 150];
const MARGIN = 5;
/** Zoom exponent per pixel of the wheel, as on the canvas. */
const WHEEL = 0.002;

export function Overview({ boxPaths }: { readonly boxPaths: BoxPaths }) {
  const { all, frames, others } = boxPaths;
  const { zoomTo, getZoom } = useReactFlow();
  const store = useStoreApi();
  const width = useStore((state) => state.width);
  const height = useStore((state) => state.height);
  const frame = useRef<HTMLDivElement>(null);
  const outside = useRef<SVGPathElement>(null);
  const scale = useRef(1);
  const follow = useCallback(
    ({ x, y, zoom }: Viewport) => {
      const view = viewOf({ transform: [x, y, zoom], width, height });
      const both = boundsOf([all, view]);
      scale.current = Math.max(both.width / WIDTH, both.height / HEIGHT, 1e-6);
      const shown = around(both, scale.current);
      const viewBox = `${shown.x} ${shown.y} ${shown.width} ${shown.height}`;
      for (const drawing of frame.current?.children ?? []) {
        if (drawing.getAttribute("viewBox") !== viewBox) drawing.setAttribute("viewBox", viewBox);
      }
      outside.current?.setAttribute("d", `${boxPath(shown)} ${boxPath(view)}`);
    },
    [all, width, height],
  );
  useViewportListener(follow);
  const pan = ({ buttons, movementX, movementY }: PointerEvent) => {
    if (buttons === 0) return;
    const by = scale.current * getZoom();
    void store.getState().panBy({ x: -movementX * by, y: -movementY * by });
  };
  useEffect(() => {
    const element = frame.current;
    // React registers wheel listeners as passive
    const zoom = (event: WheelEvent) => {
      event.preventDefault();
      event.stopPropagation();
      void zoomTo(getZoom() * 2 ** (-event.deltaY * WHEEL));
    };
    element?.addEventListener("wheel", zoom, { passive: false });
    return () => element?.removeEventListener("wheel", zoom);
  }, [getZoom, zoomTo]);
  return (
    <Panel position="bottom-right" className="overview nopan nowheel">
      <div
        ref={frame}
        role="img"
        aria-label="overview of the graph"
        onPointerDown={(event) => event.currentTarget.setPointerCapture(event.pointerId)}
        onPointerMove={pan}
      >
        <svg width={WIDTH} height={HEIGHT}>
          <path className="frames" d={frames} />
          <path className="nodes" d={others} />
        </svg>
        <svg width={WIDTH} height={HEIGHT}>
          <path className="outside" ref={outside} fillRule="evenodd" />
        </svg>
      </div>
    </Panel>
  );
}

/** Returns the shown part of the graph with a margin around it. */
function around({ x, y, width, height }: Box, scale: number): Box {
  const margin = MARGIN * scale;
  const [shownWidth, shownHeight] = [scale * WIDTH + 2 * margin, scale * HEIGHT + 2 * margin];
  return {
    x: x - (shownWidth - width) / 2,
    y: y - (shownHeight - height) / 2,
    width: shownWidth,
    height: shownHeight,
  };
}
