/**
 * Cuts the links that a stroke crosses. The stroke is drawn with Ctrl and the right button, or with
 * Y held.
 */
import { useReactFlow } from "@xyflow/react";
import { useEffect, useRef, useState } from "react";
import type { Place } from "../../document/commands";
import { removeLinks } from "../../document/links";
import type { Doc } from "../../document/model";
import { boxAround, crosses, drawnLinks, type Line, lineOf, overlap } from "../links/geometry";

const KEY = "y";

/** Returns the links that a stroke on the canvas crosses. */
function crossed(stroke: Line): ReadonlySet<number> {
  const bounds = boxAround(stroke);
  const hit = drawnLinks().filter(
    (link) => overlap(link.bounds, bounds) && crosses(lineOf(link), stroke),
  );
  return new Set(hit.map(({ id }) => id));
}

export function LinkCutter({
  change,
}: {
  readonly change: (label: string, edit: (graph: Doc) => Doc) => void;
}) {
  const flow = useReactFlow();
  const drawing = useRef<SVGSVGElement>(null);
  const [stroke, setStroke] = useState<Line>([]); // in page coordinates
  const [armed, setArmed] = useState(false);

  useEffect(() => {
    const canvas = drawing.current?.parentElement;
    if (!canvas) return;
    let held = false;
    let points: Place[] | null = null;
    let isOurs = false; // the pressed button and its context menu are this gesture's
    const hold = (on: boolean) => {
      held = on;
      setArmed(on);
    };
    const onPointerDown = (event: PointerEvent) => {
      const right = event.button === 2 && (event.ctrlKey || event.metaKey);
      isOurs = right || (event.button === 0 && held);
      if (!isOurs) return;
      event.preventDefault();
      event.stopPropagation();
      points = [{ x: event.clientX, y: event.clientY }];
    };
    const onContextMenu = (event: Event) => {
      if (!isOurs) return;
      event.preventDefault();
      event.stopPropagation();
    };
    const onPointerMove = ({ clientX, clientY }: PointerEvent) => {
      if (points === null) return;
      points = [...points, { x: clientX, y: clientY }];
      setStroke(points);
    };
    const onPointerUp = ({ type }: Event) => {
      if (points === null) return;
      const gone = crossed(points.map((at) => flow.screenToFlowPosition(at)));
      const label = gone.size === 1 ? "cut a link" : `cut ${gone.size} links`;
      if (type === "pointerup" && gone.size > 0) change(label, (now) => removeLinks(now, gone));
      points = null;
      setStroke([]);
    };
    const onKey = ({ key, type, target, ctrlKey, metaKey, altKey }: KeyboardEvent) => {
      if (key.toLowerCase() !== KEY) return;
      const writing = target instanceof Element && target.closest("input, textarea, dialog");
      hold(type === "keydown" && !writing && !(ctrlKey || metaKey || altKey));
    };
    const letGo = () => hold(false);
    const ending = new AbortController();
    const { signal } = ending;
    canvas.addEventListener("pointerdown", onPointerDown, { capture: true, signal });
    canvas.addEventListener("contextmenu", onContextMenu, { capture: true, signal });
    window.addEventListener("pointermove", onPointerMove, { signal });
    window.addEventListener("pointerup", onPointerUp, { signal });
    window.addEventListener("pointercancel", onPointerUp, { signal });
    window.addEventListener("keydown", onKey, { signal });
    window.addEventListener("keyup", onKey, { signal });
    window.addEventListener("blur", letGo, { signal });
    return () => ending.abort();
  }, [change, flow]);

  const { left = 0, top = 0 } = drawing.current?.getBoundingClientRect() ?? {};
  return (
    <svg ref={drawing} className={`cutting ${armed ? "armed" : ""}`} aria-hidden="true">
      <polyline points={stroke.map(({ x, y }) => `${x - left},${y - top}`).join(" ")} />
    </svg>
  );
}
