/** Measures nodes anew where their texts become larger or smaller: the ends of links move. */
import { useReactFlow, useUpdateNodeInternals } from "@xyflow/react";
import { useEffect, useRef } from "react";
import { useSettings } from "../shell/settings";

export function useTextSize(): void {
  const size = useSettings(({ look }) => look.text);
  const flow = useReactFlow();
  const measure = useUpdateNodeInternals();
  const was = useRef(size);
  useEffect(() => {
    if (was.current === size) return;
    was.current = size;
    measure(flow.getNodes().map(({ id }) => id));
  }, [size, flow, measure]);
}
