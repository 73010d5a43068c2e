/** Draws a link, through its reroutes where it has some. */
import { BaseEdge, type Edge, type EdgeProps, getBezierPath, useStore } from "@xyflow/react";
import { memo } from "react";
import { noteRender } from "../renders";
import { useCanvas } from "./state";

export type WireEdge = Edge<{ readonly through: readonly string[] }, "wire">;

export const Wire = memo(function Wire(edge: EdgeProps<WireEdge>) {
  noteRender(`link ${edge.id}`);
  const into = useCanvas((canvas) => canvas.into === Number(edge.id));
  const { sourceX, sourceY, targetX, targetY, sourcePosition, targetPosition } = edge;
  const through = edge.data?.through ?? [];
  // as text, so that only a move of one of these renders the link anew
  const places = useStore(({ nodeLookup }) =>
    through
      .map((id) => nodeLookup.get(id)?.position)
      .map((place) => (place === undefined ? "" : `${place.x} ${place.y}`))
      .filter(Boolean)
      .join(),
  );
  const middle = places === "" ? [] : places.split(",").map((text) => text.split(" ").map(Number));
  const points = [[sourceX, sourceY], ...middle, [targetX, targetY]];
  const path = points.slice(1).map(([toX = 0, toY = 0], at) => {
    const [fromX = 0, fromY = 0] = points[at] ?? [];
    const ends = { sourceX: fromX, sourceY: fromY, targetX: toX, targetY: toY };
    return getBezierPath({ ...ends, sourcePosition, targetPosition })[0];
  });
  return (
    <BaseEdge
      id={edge.id}
      className={into ? "into" : ""}
      path={path.join(" ")}
      interactionWidth={16}
    />
  );
});
