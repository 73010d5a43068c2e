/** Draws a link, through its reroutes where it has some. */
import { BaseEdge, type Edge, type EdgeProps, getBezierPath, useStore } from "@xyflow/react";
import { memo } from "react";
import { useHeat } from "../plan/HeatLook";
import type { LinkBadge } from "../document/hidden";
import { noteRender } from "../renders";
import { LinkBadges, STUB } from "./LinkBadges";
import { useCanvas } from "./state";

/** `badge`: what stands in place of the link, if it is hidden. */
export type WireEdge = Edge<
  {
    readonly through: readonly string[];
    readonly badge: LinkBadge | null;
    readonly colour: string;
  },
  "wire"
>;

export const Wire = memo(function Wire(edge: EdgeProps<WireEdge>) {
  noteRender(`link ${edge.id}`);
  const into = useCanvas((canvas) => canvas.into === Number(edge.id));
  const badge = edge.data?.badge ?? null;
  const { source, target, selected } = edge;
  const shown = useCanvas(
    (canvas) =>
      badge === null || selected || canvas.selected.has(source) || canvas.selected.has(target),
  );
  const { sourceX, sourceY, targetX, targetY, sourcePosition, targetPosition } = edge;
  const critical = useHeat(({ links }) => links.has(Number(edge.id)), false);
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
  const stubs = `M${sourceX},${sourceY} h${STUB} M${targetX - STUB},${targetY} h${STUB}`;
  const state = [
    into ? "into" : "",
    shown ? "" : "stub",
    badge === null ? "" : "named",
    critical ? "critical" : "",
  ];
  return (
    <>
      <BaseEdge
        id={edge.id}
        className={state.join(" ")}
        path={shown ? path.join(" ") : stubs}
        interactionWidth={16}
      />
      {badge !== null && (
        <LinkBadges
          link={edge.id}
          badge={badge}
          colour={edge.data?.colour ?? ""}
          {...{ source, target, sourceX, sourceY, targetX, targetY }}
        />
      )}
    </>
  );
});
