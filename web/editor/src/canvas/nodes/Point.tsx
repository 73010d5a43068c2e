/** Draws a reroute point of links. It is dragged, selected and deleted like a node. */
import type { NodeProps } from "@xyflow/react";
import { memo } from "react";
import type { PointNode } from "../layout";

export const Point = memo(function Point({ selected }: NodeProps<PointNode>) {
  return <span className={`point ${selected ? "selected" : ""}`} />;
});
