/** Draws the name of a hidden link at both of its ends. A click shows the other end. */
import { EdgeLabelRenderer } from "@xyflow/react";
import { change } from "../../commands/edits/selection";
import { hideLinks, type LinkBadge } from "../../document/hidden";
import { linkName, useCanvas } from "../../state/canvas";
import { Renaming } from "../nodes/Title";

/** Pixels between a socket and its badge, and between two badges. */
export const STUB = 14;
const ROW = 19;

export function LinkBadges({
  link,
  badge,
  colour,
  source,
  target,
  sourceX,
  sourceY,
  targetX,
  targetY,
}: {
  readonly link: string;
  readonly badge: LinkBadge;
  readonly colour: string;
  readonly source: string;
  readonly target: string;
  readonly sourceX: number;
  readonly sourceY: number;
  readonly targetX: number;
  readonly targetY: number;
}) {
  const renaming = useCanvas((canvas) => canvas.renaming === linkName(link));
  const { name, row } = badge;
  return (
    <EdgeLabelRenderer>
      {row !== null && (
        <Badge
          link={link}
          className={`given ${colour}`}
          name={name}
          x={sourceX + STUB}
          y={sourceY + row * ROW}
          leadsTo={target}
        />
      )}
      {renaming ? (
        <div className="link-badge" style={placeAt(targetX - STUB, targetY)}>
          <Renaming
            name={name}
            done={(given) => {
              useCanvas.setState({ renaming: null });
              if (given !== null && given !== name)
                change(
                  "name a link",
                  (graph) => hideLinks(graph, new Set([Number(link)]), given),
                  linkName(link),
                );
            }}
          />
        </div>
      ) : (
        <Badge
          link={link}
          className={`taken ${colour}`}
          name={name}
          x={targetX - STUB}
          y={targetY}
          leadsTo={source}
        />
      )}
    </EdgeLabelRenderer>
  );
}

function Badge({
  link,
  className,
  name,
  x,
  y,
  leadsTo,
}: {
  readonly link: string;
  readonly className: string;
  readonly name: string;
  readonly x: number;
  readonly y: number;
  readonly leadsTo: string;
}) {
  return (
    <button
      type="button"
      tabIndex={-1}
      className={`link-badge ${className}`}
      style={placeAt(x, y)}
      title={`${name}: hidden link, show the other end`}
      data-id={link}
      onDoubleClick={(event) => event.stopPropagation()} // not also a double-click on the link
      onClick={(event) => {
        event.stopPropagation();
        const { select, reveal } = useCanvas.getState();
        select(new Set([leadsTo]));
        reveal(leadsTo);
      }}
    >
      {name}
    </button>
  );
}

function placeAt(x: number, y: number): { readonly left: number; readonly top: number } {
  return { left: x, top: y };
}
