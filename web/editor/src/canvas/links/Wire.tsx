/** Draws a link through its reroutes. */
import {
  BaseEdge,
  type Edge,
  type EdgeProps,
  getBezierPath,
  type Position,
  useStore,
} from "@xyflow/react";
import { memo } from "react";
import type { Place } from "../../document/commands";
import type { LinkBadge } from "../../document/hidden";
import { useHeat } from "../../plan/HeatLook";
import { noteRender } from "../../renders";
import { useCanvas } from "../../state/canvas";
import { LinkBadges, STUB } from "./LinkBadges";

/** `badge`: the badge that replaces a hidden link, else null. */
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
  // as a string, so that only a move of one of these reroutes renders the link again
  const places = useStore(({ nodeLookup }) =>
    through
      .map((id) => nodeLookup.get(id)?.position)
      .map((place) => (place === undefined ? "" : `${place.x} ${place.y}`))
      .filter(Boolean)
      .join(),
  );
  const middle = places === "" ? [] : places.split(",").map(placeOf);
  const [from, to] = [
    { x: sourceX, y: sourceY },
    { x: targetX, y: targetY },
  ];
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
        path={
          shown
            ? linePath([from, ...middle, to], sourcePosition, targetPosition)
            : stubsPath(from, to)
        }
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

function placeOf(text: string): Place {
  const [x = 0, y = 0] = text.split(" ").map(Number);
  return { x, y };
}

/** Returns the path through the places, leaving and arriving at the given sides. */
export function linePath(
  places: readonly Place[],
  sourcePosition: Position,
  targetPosition: Position,
): string {
  const parts = places.slice(1).map((to, at) => {
    const from = places[at] ?? to;
    const ends = { sourceX: from.x, sourceY: from.y, targetX: to.x, targetY: to.y };
    return getBezierPath({ ...ends, sourcePosition, targetPosition })[0];
  });
  return parts.join(" ");
}

/** Returns the path of the two stubs of a hidden link. */
export function stubsPath(from: Place, to: Place): string {
  return `M${from.x},${from.y} h${STUB} M${to.x - STUB},${to.y} h${STUB}`;
}
