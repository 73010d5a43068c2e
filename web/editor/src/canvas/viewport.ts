/**
 * Moves the viewport. During a pan or zoom, each frame moves the layers directly; React Flow and
 * its listeners get the viewport once it rests or moves slowly. Code that asks React Flow for the
 * viewport gets the current one.
 */
import { useStoreApi, type Viewport } from "@xyflow/react";
import { useCallback, useEffect, useRef, useState } from "react";
import { useCanvas } from "../state/canvas";
import { admit, afterTurns, entering, standAside, standIn, whileMoving } from "./large";
import type { Drawn } from "./layout";
import type { WireEdge } from "./links/Wire";
import { notifyListeners, useViewportListener } from "./viewportListeners";

/** Milliseconds until React Flow is updated, for a slow pan and for a viewport held still. */
const [OFTEN, HELD] = [200, 120];
/** Pixels per millisecond: nobody reads text during a faster pan. */
const SLOW = 0.4;
/** Pixels of a drag before other elements ignore the pointer; a shorter one is a click. */
const CLICK = 4;

const START: Viewport = { x: 0, y: 0, zoom: 1 };
/**
 * Returns the props with which React Flow lets this hook move the viewport. `name`: the key under
 * which the viewport is stored.
 */
export function useView(name: string) {
  const store = useStoreApi<Drawn, WireEdge>();
  const [known] = useState(() => useCanvas.getState().views[name]);
  const viewport = known ?? START;
  const began = useRef<Viewport | null>(null);
  const told = useRef({ at: 0, view: viewport });
  const last = useRef({ at: 0, view: viewport });
  const holding = useRef(0);

  const tell = useCallback(() => {
    const state = store.getState();
    const [x, y, zoom] = state.transform;
    const { view } = told.current;
    if (x === view.x && y === view.y && zoom === view.zoom) return;
    told.current = { at: performance.now(), view: { x, y, zoom } };
    const coming = useCanvas.getState().large ? entering(state) : [];
    store.setState({ transform: [x, y, zoom] });
    admit(store, coming);
  }, [store]);

  const rest = useCallback(() => {
    clearTimeout(holding.current);
    const { domNode } = store.getState();
    whileMoving(false);
    tell();
    if (domNode) standAside(domNode);
    domNode?.classList.remove("dragged");
    afterTurns(() => domNode?.classList.remove("moving"));
  }, [store, tell]);

  const hold = useCallback(() => {
    whileMoving(true);
    clearTimeout(holding.current);
    holding.current = window.setTimeout(rest, HELD);
  }, [rest]);

  const onMoveStart = useCallback(
    (_: unknown, view: Viewport) => {
      began.current = view;
      told.current.at = performance.now();
      hold();
      // before React Flow handles the release and mounts all nodes that came into view at once
      window.addEventListener("pointerup", tell, { capture: true, once: true });
    },
    [hold, tell],
  );

  const onViewportChange = useCallback(
    (view: Viewport) => {
      const state = store.getState();
      state.transform = [view.x, view.y, view.zoom];
      notifyListeners(view);
      began.current ??= view; // a previous gesture that ended late has reset this one
      const { x, y, zoom } = began.current;
      const isZoomed = view.zoom !== zoom;
      const isMoved = isZoomed || Math.hypot(view.x - x, view.y - y) > CLICK;
      const flow = state.domNode;
      if (isMoved && flow) {
        if (useCanvas.getState().far && !state.connection.inProgress) standIn(flow);
        flow.classList.add("moving");
        flow.classList.toggle("dragged", state.paneDragging && !isZoomed);
      }
      hold();
      const now = performance.now();
      const { at, view: before } = last.current;
      last.current = { at: now, view };
      const way = Math.hypot(view.x - before.x, view.y - before.y);
      const isSlow = way < SLOW * (now - at) && now - told.current.at > OFTEN;
      const isRead = isSlow && !isZoomed && !useCanvas.getState().far;
      if (isRead || state.connection.inProgress) tell();
    },
    [hold, store, tell],
  );

  const onMoveEnd = useCallback(
    (_: unknown, view: Viewport) => {
      began.current = null;
      rest();
      useCanvas.setState(({ views }) => ({ views: { ...views, [name]: view } }));
    },
    [name, rest],
  );

  const layer = useCallback(
    ({ x, y, zoom }: Viewport) => {
      const element = store.getState().domNode?.querySelector<HTMLElement>(".react-flow__viewport");
      if (element) element.style.transform = `translate(${x}px,${y}px) scale(${zoom})`;
    },
    [store],
  );
  useViewportListener(layer);
  useEffect(
    () => () => {
      clearTimeout(holding.current);
      window.removeEventListener("pointerup", tell, true);
      whileMoving(false);
    },
    [tell],
  );
  return {
    isKnown: known !== undefined,
    viewport,
    defaultViewport: viewport,
    onMoveStart,
    onViewportChange,
    onMoveEnd,
  };
}
