/**
 * Draws children in graph coordinates. React Flow's `ViewportPortal` looks up its element on every
 * change.
 */
import { useStore } from "@xyflow/react";
import { type ReactNode, useMemo } from "react";
import { createPortal } from "react-dom";

export function Layer({ children }: { readonly children: ReactNode }) {
  const flow = useStore(({ domNode }) => domNode);
  const place = useMemo(() => flow?.querySelector(".react-flow__viewport-portal"), [flow]);
  return place ? createPortal(children, place) : null;
}
