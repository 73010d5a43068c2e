/** Draws the lines along which dragged nodes align with others. */
import { useCanvas } from "../state/canvas";
import { Layer } from "./Layer";

export function Guides() {
  const guides = useCanvas((canvas) => canvas.guides);
  if (guides.length === 0) return null;
  return (
    <Layer>
      <svg className="guides" aria-hidden="true">
        {guides.map(({ axis, at, from, to }) =>
          axis === "x" ? (
            <line key={`x ${at}`} x1={at} x2={at} y1={from} y2={to} />
          ) : (
            <line key={`y ${at}`} x1={from} x2={to} y1={at} y2={at} />
          ),
        )}
      </svg>
    </Layer>
  );
}
