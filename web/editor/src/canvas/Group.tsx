import type { NodeProps } from "@xyflow/react";
import { memo } from "react";
import type { GroupNode } from "./layout";

export const Group = memo(function Group({ data: { group } }: NodeProps<GroupNode>) {
  return (
    <section className="group" style={group.colour ? { borderColor: group.colour } : undefined}>
      <h3>{group.title}</h3>
    </section>
  );
});
