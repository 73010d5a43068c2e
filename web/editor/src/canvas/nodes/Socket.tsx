/** Draws one end for links. While the user draws a link, compatible ends are highlighted. */
import { Handle, Position } from "@xyflow/react";
import { compatible } from "../../catalog/catalog";
import { handleOf, type Input, type Output } from "../../catalog/ends";
import { socketColour } from "../../catalog/sockets";
import { useCanvas } from "../../state/canvas";

export function InputSocket({ input, label }: { readonly input: Input; readonly label?: string }) {
  const lit = useCanvas(
    ({ connecting }) =>
      connecting?.side === "from" &&
      connecting.end.node !== input.node &&
      compatible(connecting.end.type, input.type),
  );
  return (
    <span
      className={`in socket-${socketColour(input.type)} ${lit ? "lit" : ""} ${input.optional ? "optional" : ""}`}
    >
      <Handle type="target" position={Position.Left} id={handleOf(input)} />
      {label !== undefined && <span title={input.help}>{label}</span>}
    </span>
  );
}

export function OutputSocket({
  output,
  label,
  help,
}: {
  readonly output: Output;
  readonly label: string;
  readonly help: string;
}) {
  const lit = useCanvas(
    ({ connecting }) =>
      connecting?.side === "to" &&
      connecting.end.node !== output.node &&
      compatible(output.type, connecting.end.type),
  );
  return (
    <span className={`out socket-${socketColour(output.type)} ${lit ? "lit" : ""}`}>
      <span title={help}>{label}</span>
      <Handle type="source" position={Position.Right} id={`out:${output.slot}`} />
    </span>
  );
}
