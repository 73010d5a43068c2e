/** Measures nodes again when the text size changes, because link ends move. */
import { useReactFlow, useUpdateNodeInternals } from "@xyflow/react";
import { useEffect, useRef } from "react";
import { useSettings } from "../state/settings";

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
