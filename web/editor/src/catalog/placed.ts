/** Finds the widgets that a node shows, with the values that lie as its type says; makes new nodes. */
import type { DocNode } from "../document/model";
import { isObject, type Json, type JsonObject, numberFrom } from "../json";
import { type NodeType, offered, socketOf, type Widget } from "./catalog";

/** A widget of a node with the key of its value. */
export interface Placed {
  readonly widget: Widget;
  readonly key: number | string;
  readonly value: Json;
}

/** Finds a node's widgets with their values; none where they do not lie as its type says. */
export function placedWidgets(node: DocNode, type: NodeType | undefined): readonly Placed[] {
  if (type === undefined) return [];
  const { values } = node;
  const placed: Placed[] = [];
  const pending = [...type.widgets];
  let place = 0;
  for (let widget = pending.shift(); widget !== undefined; widget = pending.shift()) {
    const isListed = Array.isArray(values);
    const key = isListed ? place : widget.name;
    const value = (isListed ? values[place] : (values as JsonObject)[widget.name]) as
      Json | undefined;
    if (value === undefined) {
      if (isListed) break;
      continue;
    }
    if (isListed && !fits(widget, value)) return [];
    placed.push({ widget, key, value });
    pending.unshift(...broughtBy(widget, value));
    place += placesOf(widget);
  }
  return placed;
}

/** The widgets that a value of a dynamic choice shows behind it. */
function broughtBy({ further }: Widget, value: Json): readonly Widget[] {
  return (typeof value === "string" ? further[value] : undefined) ?? [];
}

/** How many values of a list are a widget's. */
function placesOf({ helper }: Widget): number {
  return helper === null ? 1 : 2;
}

/** The widgets that a node shows: where its values do not lie as its type says, those of a new one. */
export function shownWidgets(node: DocNode, type: NodeType): readonly Widget[] {
  const placed = placedWidgets(node, type);
  return placed.length > 0 ? placed.map(({ widget }) => widget) : startsOf(type.widgets).widgets;
}

/** A widget's value, and the hidden one that follows it. */
interface Held {
  readonly value: Json;
  readonly after?: Json | undefined;
}

/** Values of widgets by the widgets' names. */
export type Known = ReadonlyMap<string, Held>;

/** The values that a node holds. */
export function heldBy({ values }: DocNode, placed: readonly Placed[]): Known {
  return new Map(
    placed.map(({ widget, key, value }) => {
      const follows = widget.helper !== null && typeof key === "number" && Array.isArray(values);
      return [widget.name, { value, after: follows ? values[key + 1] : undefined }];
    }),
  );
}

const HELPERS = { seed: "randomize", upload: "image" } as const;

/** What widgets show and hold in a new node, and the further ones that they bring; `known` values
 * stay.
 */
function startsOf(given: readonly Widget[], known: Known = new Map()) {
  const widgets: Widget[] = [];
  const values: Json[] = [];
  const pending = [...given];
  for (let widget = pending.shift(); widget !== undefined; widget = pending.shift()) {
    const held = known.get(widget.name);
    const value = held?.value ?? startOf(widget);
    widgets.push(widget);
    values.push(value);
    if (widget.helper !== null) values.push(held?.after ?? HELPERS[widget.helper]);
    pending.unshift(...broughtBy(widget, value));
  }
  return { widgets, values };
}

/**
 * The values of a node after one of its dynamic choices is set: those behind it are of what it shows
 * now. Of equal names the values stay.
 */
export function chosenValues(
  node: DocNode,
  type: NodeType,
  name: string,
  value: Json,
): DocNode["values"] {
  const placed = placedWidgets(node, type);
  const at = placed.find(({ widget }) => widget.name === name);
  if (at === undefined) return node.values;
  const below = placed.filter(({ widget }) => widget.name.startsWith(`${name}.`));
  const known = heldBy(node, below);
  const next = startsOf(broughtBy(at.widget, value), known);
  if (typeof at.key === "string") {
    const gone = new Set(below.map(({ widget }) => widget.name));
    const kept = Object.entries(node.values).filter(([held]) => !gone.has(held));
    const shown = next.widgets.map((one) => [one.name, known.get(one.name)?.value ?? startOf(one)]);
    return Object.fromEntries([...kept, [name, value], ...shown]);
  }
  const values = [...(node.values as readonly Json[])];
  const count = below.reduce((sum, { widget }) => sum + placesOf(widget), 0);
  values.splice(at.key, 1 + count, value, ...next.values);
  return values;
}

/** Tells whether a value can be this widget's; links may stand for any. */
function fits(widget: Widget, value: Json): boolean {
  switch (widget.kind) {
    case "number":
      return typeof value === "number" || typeof value === "bigint";
    case "text":
    case "colour":
      return typeof value === "string";
    case "switch":
      return typeof value === "boolean";
    case "choice":
      return !isObject(value);
  }
}

/** Tells whether a person could give a widget this value. */
export function offers(widget: Widget, value: Json): boolean {
  if (!fits(widget, value)) return false;
  if (widget.kind === "choice") return widget.choices.includes(value);
  if (widget.kind !== "number") return true;
  const number = Number(value);
  const { min, max } = widget.options;
  const within = number >= numberFrom(min, -Infinity) && number <= numberFrom(max, Infinity);
  return within && (!widget.whole || Number.isInteger(number));
}

/** Builds a node of a type as the format stores it, with its defaults where no value is `known`. */
export function newNode(
  type: NodeType,
  x: number,
  y: number,
  known: Known = new Map(),
): JsonObject {
  const { widgets, values } = startsOf(type.widgets, known);
  const sockets = offered(type);
  const rows = Math.max(sockets.length, type.outputs.length) + widgets.length;
  return {
    type: type.name,
    pos: [x, y],
    size: [280, 40 + 24 * rows],
    flags: {},
    mode: 0,
    inputs: [
      ...sockets.map(({ name, type: socket }) => ({ name, type: socket, link: null })),
      ...(type.isVirtual ? [] : widgets).map((widget) => ({
        name: widget.name,
        type: socketOf(widget),
        link: null,
        widget: { name: widget.name },
      })),
    ],
    outputs: type.outputs.map(({ name, type: socket }) => ({ name, type: socket, links: [] })),
    properties: { "Node name for S&R": type.name },
    widgets_values: values,
  };
}

function startOf(widget: Widget): Json {
  const { default: given, min } = widget.options;
  if (given !== undefined) return given;
  switch (widget.kind) {
    case "number":
      return min ?? 0;
    case "text":
      return "";
    case "switch":
      return false;
    case "choice":
      return widget.choices[0] ?? "";
    case "colour":
      return "#000000";
  }
}
