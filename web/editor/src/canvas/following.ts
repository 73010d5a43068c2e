/**
 * Moves the view. While somebody pans or zooms, what goes along is moved by hand in each frame, and React Flow, with all that
 * listens to it, hears of it where the view rests, or moves slowly. Who asks it where the view is has it at once.
 */
import { useStoreApi, type Viewport } from "@xyflow/react";
import { useCallback, useEffect, useRef, useState } from "react";
import { entering, admit } from "./admitting";
import type { Drawn } from "./layout";
import { useCanvas } from "./state";
import { standAside, standIn } from "./standins";
import { afterTurns, whileMoving } from "./turns";
import type { WireEdge } from "./Wire";

/** Milliseconds after which React Flow hears of a view that is panned slowly, and of one that is held. */
const [OFTEN, HELD] = [200, 120];
/** Pixels a millisecond: who pans faster does not read. */
const SLOW = 0.4;
/** Pixels that a view is dragged before the pointer touches nothing else: less is a click. */
const CLICK = 4;

const START: Viewport = { x: 0, y: 0, zoom: 1 };
type Follower = (view: Viewport) => void;
const followers = new Set<Follower>();

/** Calls `follow` in each frame in which the view moves, and once before. */
export function useFollowing(follow: Follower): void {
  const store = useStoreApi();
  useEffect(() => {
    const [x, y, zoom] = store.getState().transform;
    follow({ x, y, zoom });
    followers.add(follow);
    return () => void followers.delete(follow);
  }, [follow, store]);
}

/** What React Flow is given so that this moves the view. `name`: under which its place is kept. */
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
      // before React Flow hears of the button, and mounts at once what has come into view
      window.addEventListener("pointerup", tell, { capture: true, once: true });
    },
    [hold, tell],
  );

  const onViewportChange = useCallback(
    (view: Viewport) => {
      const state = store.getState();
      state.transform = [view.x, view.y, view.zoom];
      followers.forEach((follow) => follow(view));
      began.current ??= view; // one that ended late has ended this one as well
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

  const layer = useCallback<Follower>(
    ({ x, y, zoom }) => {
      const element = store.getState().domNode?.querySelector<HTMLElement>(".react-flow__viewport");
      if (element) element.style.transform = `translate(${x}px,${y}px) scale(${zoom})`;
    },
    [store],
  );
  useFollowing(layer);
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
