/** Writes the help text of an input or output: its tooltip and its accepted values. Plain text. */
import { type NodeType, type Socket, socketOf, type Widget, widgetNamed } from "./catalog";

/** Returns a widget's tooltip, accepted values and default. */
export function widgetHelp(widget: Widget): string {
  const { tooltip, default: start } = widget.options;
  const takes = `${expectation(widget)}${start === undefined || start === "" ? "" : `; default ${shown(start)}`}`;
  return lines(typeof tooltip === "string" ? tooltip : "", takes);
}

export function socketHelp({ type, optional, tooltip }: Socket): string {
  return lines(tooltip, optional ? `${type}, optional` : type);
}

/** Returns the help of an output by slot; `otherwise` if the type is unknown. */
export function outputHelp(type: NodeType | undefined, slot: number, otherwise: string): string {
  const output = type?.outputs[slot];
  return output === undefined ? otherwise : lines(output.tooltip, output.type);
}

/** Returns the help of an input by name; `otherwise` if its type is unknown. */
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
