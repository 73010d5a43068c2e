/** Draws nodes elsewhere while they are dragged. What React and the document know of their places stays as it is. */
import { type NodeChange, useStoreApi } from "@xyflow/react";
import { useCallback, useEffect, useRef } from "react";
import type { Place } from "../../document/commands";
import type { Drawn } from "../layout";
import type { WireEdge } from "../Wire";

/** Where the pointer's button or the last finger lifts. */
const LIFTS = ["mouseup", "touchend", "touchcancel"] as const;

/** `nodes`: as React has them. `left`: called where nodes are put back since their drag was broken off. */
export function useCarrying(nodes: readonly Drawn[], left: () => void) {
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
        nodeLookup.set(id, { ...node, position, dragging: true, internals }); // it stays mounted
      }
      store.setState({ nodes: [...nodes] });
    },
    [store],
  );

  /** Draws nodes there, now and whenever React has others of them, until this ends. */
  const draw = useCallback(
    (places: ReadonlyMap<string, Place>) => {
      for (const [id, at] of places) carried.current?.set(id, at);
      place(places);
    },
    [place],
  );

  /** Draws what is dragged where it is; false where there is more to do, or it was dropped. */
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

  /** Ends it: nodes stand where React has them from its next change of them on. */
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
    // React Flow says nothing where a second finger or the node's removal breaks a drag off
    const lifted = (event: Event) => {
      const isHeld = "touches" in event && (event as TouchEvent).touches.length > 0;
      if (carried.current === null || isHeld) return;
      setTimeout(() => {
        if (carried.current === null) return; // it was dropped
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
