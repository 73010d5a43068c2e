/** Shows all of the graph in a corner, and what of it is in view: dragged, the view goes along; the wheel zooms. */
import { Panel, useReactFlow, useStore, useStoreApi } from "@xyflow/react";
import { type PointerEvent, useDeferredValue, useEffect, useMemo, useRef } from "react";
import { type Box, boundsOf } from "../document/aligning";
import type { Drawn } from "./layout";

const [WIDTH, HEIGHT] = [200, 150];
const MARGIN = 5;
/** How much a wheel's pixel zooms, as on the canvas. */
const WHEEL = 0.002;

export function Overview({ nodes }: { readonly nodes: readonly Drawn[] }) {
  const drawn = useDeferredValue(nodes); // a node that is dragged comes before its picture here
  const { all, frames, others } = useMemo(() => outlines(drawn), [drawn]);
  const view = useView();
  const { zoomTo, getZoom } = useReactFlow();
  const store = useStoreApi();
  const frame = useRef<HTMLDivElement>(null);
  const both = boundsOf([all, view]);
  const scale = Math.max(both.width / WIDTH, both.height / HEIGHT, 1e-6);
  const shown = around(both, scale);
  const viewBox = `${shown.x} ${shown.y} ${shown.width} ${shown.height}`;
  const pan = ({ buttons, movementX, movementY }: PointerEvent) => {
    if (buttons === 0) return;
    const [, , zoom] = store.getState().transform;
    void store.getState().panBy({ x: -movementX * scale * zoom, y: -movementY * scale * zoom });
  };
  useEffect(() => {
    const element = frame.current;
    // React listens to wheels passively
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
        aria-label="all of the graph"
        onPointerDown={(event) => event.currentTarget.setPointerCapture(event.pointerId)}
        onPointerMove={pan}
      >
        <svg viewBox={viewBox} width={WIDTH} height={HEIGHT}>
          <path className="frames" d={frames} />
          <path className="nodes" d={others} />
        </svg>
        <svg viewBox={viewBox} width={WIDTH} height={HEIGHT}>
          <path className="outside" fillRule="evenodd" d={`${outline(shown)} ${outline(view)}`} />
        </svg>
      </div>
    </Panel>
  );
}

/** Where all nodes are, and the outlines of frames and of the others, as paths. */
function outlines(nodes: readonly Drawn[]) {
  const boxes = nodes.map(boxOf);
  const of = (frames: boolean) =>
    boxes
      .filter((_, at) => (nodes[at]?.type === "frame") === frames)
      .map(outline)
      .join("");
  return { all: boundsOf(boxes), frames: of(true), others: of(false) };
}

/** What of the graph is in view. */
function useView(): Box {
  const [x = 0, y = 0, width = 0, height = 0] = useStore(({ transform, width, height }) => {
    const [x, y, zoom] = transform;
    return [-x / zoom, -y / zoom, width / zoom, height / zoom] as const;
  }, isEqual);
  return useMemo(() => ({ x, y, width, height }), [x, y, width, height]);
}

function isEqual(one: readonly number[], other: readonly number[]): boolean {
  return one.every((value, at) => value === other[at]);
}

function boxOf({ position, measured, width, initialHeight, height }: Drawn): Box {
  return {
    ...position,
    width: measured?.width ?? width ?? 0,
    height: measured?.height ?? height ?? initialHeight ?? 0,
  };
}

/** The part of the graph that is shown, a margin around it. */
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

function outline({ x, y, width, height }: Box): string {
  return `M${x},${y}h${width}v${height}h${-width}z`;
}
