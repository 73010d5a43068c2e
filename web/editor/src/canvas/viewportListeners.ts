/** Calls listeners in every frame in which the viewport moves. */
import { useStoreApi, type Viewport } from "@xyflow/react";
import { useEffect } from "react";

type Listener = (view: Viewport) => void;
const listeners = new Set<Listener>();

/** Calls `listen` once now and in every frame in which the viewport moves. */
export function useViewportListener(listen: Listener): void {
  const store = useStoreApi();
  useEffect(() => {
    const [x, y, zoom] = store.getState().transform;
    listen({ x, y, zoom });
    listeners.add(listen);
    return () => void listeners.delete(listen);
  }, [listen, store]);
}

export function notifyListeners(view: Viewport): void {
  for (const listen of listeners) listen(view);
}
