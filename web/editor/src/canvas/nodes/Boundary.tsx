/** Draws the inputs or outputs of a subgraph, seen from inside. */
import type { NodeProps } from "@xyflow/react";
import { memo } from "react";
import type { BoundaryNode } from "../layout";
import { InputSocket, OutputSocket } from "./Socket";

export const BoundaryCard = memo(function BoundaryCard({
  id,
  data: { boundary },
}: NodeProps<BoundaryNode>) {
  return (
    <article className="card boundary">
      <header className="card-title">
        <span className="name">{boundary.side === "inputs" ? "Inputs" : "Outputs"}</span>
      </header>
      <div className="sockets">
        {boundary.slots.map(({ name, type }, slot) => (
          <div className="row" key={name}>
            {boundary.side === "inputs" ? (
              <OutputSocket output={{ node: id, slot, type }} label={name} help={type} />
            ) : (
              <InputSocket
                input={{ node: id, slot, name, type, widget: null, optional: false, help: type }}
                label={name}
              />
            )}
          </div>
        ))}
      </div>
    </article>
  );
});
