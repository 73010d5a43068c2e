/** Draws a light outline of a node in a large graph, at low zoom or until its turn to be drawn. */
import { useUpdateNodeInternals } from "@xyflow/react";
import { memo, useEffect, useRef, useState } from "react";
import { useShallow } from "zustand/react/shallow";
import type { DocNode } from "../../document/model";
import { noteRender } from "../../renders";
import { useCanvas } from "../../state/canvas";
import { handlesOf } from "../layout";
import { Results } from "../nodes/Results";
import { mayRenderNow, queueContents, measureEnds } from "./renderQueue";

/**
 * Returns whether a node is drawn as an outline, which is cheap. `far` is true when the zoom is too
 * low to read text. In a large graph, a node is also an outline until its turn.
 */
export function useOutline(id: string): { readonly outlined: boolean; readonly far: boolean } {
  const { far, large } = useCanvas(useShallow(({ far, large }) => ({ far, large })));
  const measure = useUpdateNodeInternals();
  const [whole, setWhole] = useState(() => !large || (!far && mayRenderNow()));
  const outlined = !whole;
  const was = useRef(outlined);
  useEffect(() => {
    if (whole === far) return queueContents(() => setWhole(!far));
    return undefined;
  }, [far, whole]);
  useEffect(() => {
    // at low zoom ends are computed, also for nodes that have not become outlines yet
    if (was.current && !outlined && !far) measureEnds(id, measure);
    was.current = outlined || far;
  }, [outlined, far, id, measure]);
  return { outlined, far };
}

/**
 * Draws an outline. `ends`: the width when link ends must be placed, else null; `at`: the job's
 * key.
 */
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

/** Places the ends of links in an outline, where React Flow measures them. */
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
