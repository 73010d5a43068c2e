/** Draws a node of a large graph that is far away, or waits for its turn: a box with what can be told from afar. */
import { useUpdateNodeInternals } from "@xyflow/react";
import { memo, useEffect, useRef, useState } from "react";
import { useShallow } from "zustand/react/shallow";
import type { DocNode } from "../document/model";
import { noteRender } from "../renders";
import { handlesOf } from "./layout";
import { Results } from "./Results";
import { useCanvas } from "./state";
import { hasTime, inTurn, measureEnds } from "./turns";

/**
 * Whether a node is drawn as an outline, which is light: `far` from where its texts cannot be read, and in a large graph
 * until it is its turn.
 */
export function useOutline(id: string): { readonly outlined: boolean; readonly far: boolean } {
  const { far, large } = useCanvas(useShallow(({ far, large }) => ({ far, large })));
  const measure = useUpdateNodeInternals();
  const [whole, setWhole] = useState(() => !large || (!far && hasTime()));
  const outlined = !whole;
  const was = useRef(outlined);
  useEffect(() => {
    if (whole === far) return inTurn(() => setWhole(!far));
    return undefined;
  }, [far, whole]);
  useEffect(() => {
    // from afar ends are computed, of those too that had no turn to become outlines
    if (was.current && !outlined && !far) measureEnds(id, measure);
    was.current = outlined || far;
  }, [outlined, far, id, measure]);
  return { outlined, far };
}

/** What is in it. `ends`: how wide it is where its ends have to be found; `at`: what the job calls it. */
export function Outline({
  node,
  ends,
  at,
}: {
  readonly node: DocNode;
  readonly ends: number | null;
  readonly at: string;
}) {
  noteRender(`node ${node.id}`);
  return (
    <>
      {ends !== null && <Ends node={node} width={ends} />}
      <Results node={at} />
    </>
  );
}

/** The ends of links of an outline, as React Flow measures them. */
const Ends = memo(function Ends({
  node,
  width,
}: {
  readonly node: DocNode;
  readonly width: number;
}) {
  return (
    <div className="ends">
      {handlesOf(node, width).map(({ id, type, position, x, y }) => (
        <i
          key={id}
          className={type}
          data-handleid={id}
          data-handlepos={position}
          style={{ left: x, top: y }}
        />
      ))}
    </div>
  );
});
