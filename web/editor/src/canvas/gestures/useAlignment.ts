/** Aligns dragged nodes with others and shows guide lines. */
import { type NodeChange, useReactFlow, useStoreApi } from "@xyflow/react";
import { useCallback, useRef } from "react";
import type { Place } from "../../document/commands";
import { alignment, type Box, boundsOf } from "../../document/layout/alignment";
import { useCanvas } from "../../state/canvas";
import { boxOf, viewOf } from "../bounds";
import type { Drawn } from "../layout";
import { overlap } from "../links/geometry";
import type { WireEdge } from "../links/Wire";

/** Screen pixels within which nodes snap. */
const REACH = 6;
const NOWHERE: Place = { x: 0, y: 0 };

export function useAlignment() {
  const flow = useReactFlow<Drawn, WireEdge>();
  const store = useStoreApi();
  const others = useRef<readonly Box[] | null>(null);
  const by = useRef(NOWHERE);
  const isFree = useRef(false);

  /** Returns the boxes of nodes in view that are not dragged. */
  const around = useCallback(
    (dragged: ReadonlySet<string>): readonly Box[] => {
      const view = viewOf(store.getState());
      return flow
        .getNodes()
        .filter(({ id, type }) => type === "card" && !dragged.has(id))
        .map(boxOf)
        .filter((box) => overlap(box, view));
    },
    [flow, store],
  );

  /** Moves the dragged nodes so that they align. */
  const aligned = useCallback(
    (changes: NodeChange<Drawn>[]): NodeChange<Drawn>[] => {
      const places = new Map(
        changes.flatMap((one) =>
          one.type === "position" && one.position !== undefined ? [[one.id, one.position]] : [],
        ),
      );
      if (places.size === 0) return changes;
      const dragging = changes.some((one) => one.type === "position" && one.dragging);
      const dragged = [...places].flatMap(([id, position]) => {
        const node = flow.getNode(id);
        return node === undefined ? [] : [{ ...node, position }];
      });
      const movable = dragging && !isFree.current && dragged.every(({ type }) => type === "card");
      if (dragging) {
        others.current ??= around(new Set(places.keys()));
        const found = movable
          ? alignment(boundsOf(dragged.map(boxOf)), others.current, REACH / flow.getZoom())
          : { by: NOWHERE, guides: [] };
        by.current = found.by;
        if (found.guides.length + useCanvas.getState().guides.length > 0)
          useCanvas.setState({ guides: found.guides });
      }
      const { x, y } = by.current;
      return changes.map((one) =>
        one.type === "position" && one.position !== undefined
          ? { ...one, position: { x: one.position.x + x, y: one.position.y + y } }
          : one,
      );
    },
    [around, flow],
  );

  /** Sets whether dragged nodes follow the pointer without aligning. */
  const setFree = useCallback((free: boolean) => {
    isFree.current = free;
  }, []);

  /** Ends the drag and returns the offset of the dragged nodes from the pointer. */
  const settled = useCallback((): Place => {
    const last = by.current;
    by.current = NOWHERE;
    others.current = null;
    if (useCanvas.getState().guides.length > 0) useCanvas.setState({ guides: [] });
    return last;
  }, []);

  return { aligned, setFree, settled };
}
