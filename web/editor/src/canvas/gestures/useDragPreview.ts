/** Draws nodes at new positions during a drag, without changing React's state or the document. */
import { type NodeChange, useStoreApi } from "@xyflow/react";
import { useCallback, useEffect, useRef } from "react";
import type { Place } from "../../document/commands";
import type { Drawn } from "../layout";
import type { WireEdge } from "../links/Wire";

/** Events for the release of the mouse button or of the last finger. */
const LIFTS = ["mouseup", "touchend", "touchcancel"] as const;

/** `nodes`: the nodes in React's state. `left`: called when an aborted drag puts nodes back. */
export function useDragPreview(nodes: readonly Drawn[], left: () => void) {
  const store = useStoreApi<Drawn, WireEdge>();
  const carried = useRef<Map<string, Place> | null>(null);

  const place = useCallback(
    (places: ReadonlyMap<string, Place>) => {
      const { nodeLookup, nodes } = store.getState();
      for (const [id, position] of places) {
        const node = nodeLookup.get(id);
        if (node === undefined) continue;
        const { x, y } = node.internals.positionAbsolute;
        const positionAbsolute = {
          x: x + position.x - node.position.x,
          y: y + position.y - node.position.y,
        };
        const internals = { ...node.internals, positionAbsolute };
        nodeLookup.set(id, { ...node, position, dragging: true, internals }); // stays mounted
      }
      store.setState({ nodes: [...nodes] });
    },
    [store],
  );

  /** Draws nodes at these positions, also after React replaces the nodes, until the drag ends. */
  const draw = useCallback(
    (places: ReadonlyMap<string, Place>) => {
      for (const [id, at] of places) carried.current?.set(id, at);
      place(places);
    },
    [place],
  );

  /**
   * Draws dragged nodes at their new positions. Returns false if there are other changes or a drop.
   */
  const carry = useCallback(
    (changes: readonly NodeChange<Drawn>[]): boolean => {
      const places = new Map<string, Place>();
      for (const one of changes) {
        if (one.type !== "position" || one.dragging !== true || !one.position) return false;
        places.set(one.id, one.position);
      }
      draw(places);
      return true;
    },
    [draw],
  );

  /** Ends the drag. From React's next change on, nodes are drawn where its state says. */
  const end = useCallback(() => {
    const { nodeLookup, domNode } = store.getState();
    for (const id of carried.current?.keys() ?? []) {
      const node = nodeLookup.get(id);
      if (node !== undefined) node.dragging = false;
    }
    carried.current = null;
    domNode?.classList.remove("carrying");
  }, [store]);

  const begin = useCallback(() => {
    carried.current = new Map();
    store.getState().domNode?.classList.add("carrying");
  }, [store]);

  useEffect(() => {
    if (carried.current !== null) place(carried.current);
  }, [nodes, place]);

  useEffect(() => {
    // React Flow reports nothing when a second finger or the node's removal aborts a drag
    const lifted = (event: Event) => {
      const isHeld = "touches" in event && (event as TouchEvent).touches.length > 0;
      if (carried.current === null || isHeld) return;
      setTimeout(() => {
        if (carried.current === null) return; // dropped normally
        const { nodeLookup } = store.getState();
        const stood = [...carried.current.keys()].flatMap((id) => {
          const node = nodeLookup.get(id);
          return node === undefined ? [] : [[id, node.internals.userNode.position] as const];
        });
        place(new Map(stood));
        end();
        left();
      });
    };
    for (const lift of LIFTS) window.addEventListener(lift, lifted, true);
    return () => {
      for (const lift of LIFTS) window.removeEventListener(lift, lifted, true);
    };
  }, [end, left, place, store]);

  return { begin, draw, carry, end };
}
