/** A point that links are led through: dragged, selected and deleted as a node is. */
import type { NodeProps } from "@xyflow/react";
import { memo } from "react";
import type { PointNode } from "./layout";

export const Point = memo(function Point({ selected }: NodeProps<PointNode>) {
  return <span className={`point ${selected ? "selected" : ""}`} />;
});
