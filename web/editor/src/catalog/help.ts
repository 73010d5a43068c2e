/** Says of one input or output what its author says, and what it takes. Plain text. */
import { type NodeType, type Socket, socketOf, type Widget, widgetNamed } from "./catalog";

/** Of a widget: its tooltip, what values it takes, its default. */
export function widgetHelp(widget: Widget): string {
  const { tooltip, default: start } = widget.options;
  const takes = `${expectation(widget)}${start === undefined || start === "" ? "" : `; default ${shown(start)}`}`;
  return lines(typeof tooltip === "string" ? tooltip : "", takes);
}

export function socketHelp({ type, optional, tooltip }: Socket): string {
  return lines(tooltip, optional ? `${type}, optional` : type);
}

/** Of an output, by its place; `otherwise` where the type is not known. */
export function outputHelp(type: NodeType | undefined, slot: number, otherwise: string): string {
  const output = type?.outputs[slot];
  return output === undefined ? otherwise : lines(output.tooltip, output.type);
}

/** Of an input, by its name; `otherwise` where its type is not known. */
export function inputHelp(type: NodeType | undefined, name: string, otherwise: string): string {
  const socket = type?.sockets.find((one) => one.name === name);
  if (socket !== undefined) return socketHelp(socket);
  const widget = widgetNamed(type, name);
  return widget === undefined ? otherwise : widgetHelp(widget);
}

function expectation(widget: Widget): string {
  const { min, max } = widget.options;
  switch (widget.kind) {
    case "number": {
      const kind = widget.whole ? "a whole number" : "a number";
      if (min !== undefined && max !== undefined) return `${kind} from ${min} to ${max}`;
      if (min !== undefined) return `${kind} of at least ${min}`;
      return max === undefined ? kind : `${kind} of at most ${max}`;
    }
    case "text":
      return "a text";
    case "switch":
      return "yes or no";
    case "choice":
      return `one of ${widget.choices.length}`;
    case "colour":
      return `${socketOf(widget)}, as #rrggbb`;
  }
}

function shown(value: unknown): string {
  return value === true ? "yes" : value === false ? "no" : String(value);
}

function lines(...parts: readonly string[]): string {
  return parts.filter((part) => part !== "").join("\n");
}
