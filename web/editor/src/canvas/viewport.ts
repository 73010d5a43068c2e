/**
 * Moves the viewport. During a pan or zoom, each frame moves the layers directly; React Flow and
 * its listeners get the viewport once it rests or moves slowly. Code that asks React Flow for the
 * viewport gets the current one.
 */
import { useStoreApi, type Viewport } from "@xyflow/react";
import { useCallback, useEffect, useRef, useState } from "react";
import { useCanvas } from "../state/canvas";
import {
  mountInBatches,
  whenRendered,
  hideUnmounted,
  hideStandIns,
  showStandIns,
  setViewportMoving,
} from "./large";
import type { Drawn } from "./layout";
import type { WireEdge } from "./links/Wire";
import { notifyListeners, useViewportListener } from "./viewportListeners";

/** Milliseconds until React Flow is updated, for a slow pan and for a viewport held still. */
const [UPDATE_INTERVAL_MS, HOLD_MS] = [200, 120];
/** Pixels per millisecond: text is unreadable during a faster pan. */
const MAX_READING_SPEED = 0.4;
/** Pixels of a drag before other elements ignore the pointer; a shorter one is a click. */
const MAX_CLICK_PIXELS = 4;

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
  const published = useRef({ at: 0, view: viewport });
  const last = useRef({ at: 0, view: viewport });
  const holding = useRef(0);

  const publish = useCallback(() => {
    const state = store.getState();
    const [x, y, zoom] = state.transform;
    const { view } = published.current;
    if (x === view.x && y === view.y && zoom === view.zoom) return;
    published.current = { at: performance.now(), view: { x, y, zoom } };
    const coming = useCanvas.getState().large ? hideUnmounted(state) : [];
    store.setState({ transform: [x, y, zoom] });
    mountInBatches(store, coming);
  }, [store]);

  const rest = useCallback(() => {
    clearTimeout(holding.current);
    const { domNode } = store.getState();
    setViewportMoving(false);
    publish();
    if (domNode) hideStandIns(domNode);
    domNode?.classList.remove("dragged");
    whenRendered(() => domNode?.classList.remove("moving"));
  }, [store, publish]);

  const hold = useCallback(() => {
    setViewportMoving(true);
    clearTimeout(holding.current);
    holding.current = window.setTimeout(rest, HOLD_MS);
  }, [rest]);

  const onMoveStart = useCallback(
    (_: unknown, view: Viewport) => {
      began.current = view;
      published.current.at = performance.now();
      hold();
      // before React Flow handles the release and mounts all nodes that came into view at once
      window.addEventListener("pointerup", publish, { capture: true, once: true });
    },
    [hold, publish],
  );

  const onViewportChange = useCallback(
    (view: Viewport) => {
      const state = store.getState();
      state.transform = [view.x, view.y, view.zoom];
      notifyListeners(view);
      began.current ??= view; // a previous gesture that ended late has reset this one
      const { x, y, zoom } = began.current;
      const isZoomed = view.zoom !== zoom;
      const isMoved = isZoomed || Math.hypot(view.x - x, view.y - y) > MAX_CLICK_PIXELS;
      const flow = state.domNode;
      if (isMoved && flow) {
        if (useCanvas.getState().far && !state.connection.inProgress) showStandIns(flow);
        flow.classList.add("moving");
        flow.classList.toggle("dragged", state.paneDragging && !isZoomed);
      }
      hold();
      const now = performance.now();
      const { at, view: before } = last.current;
      last.current = { at: now, view };
      const way = Math.hypot(view.x - before.x, view.y - before.y);
      const isSlow =
        way < MAX_READING_SPEED * (now - at) && now - published.current.at > UPDATE_INTERVAL_MS;
      const isRead = isSlow && !isZoomed && !useCanvas.getState().far;
      if (isRead || state.connection.inProgress) publish();
    },
    [hold, store, publish],
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
      window.removeEventListener("pointerup", publish, true);
      setViewportMoving(false);
    },
    [publish],
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
