/** Matches a node's values with the widgets of its type, and builds new nodes. */
import type { DocNode } from "../document/model";
import { isObject, type Json, type JsonObject, numberFrom } from "../json";
import { type NodeType, offered, socketOf, type Widget } from "./catalog";

/** A widget of a node, with its value and the key of that value. */
export interface Placed {
  readonly widget: Widget;
  readonly key: number | string;
  readonly value: Json;
}

/** Returns a node's widgets with their values; none if the values do not match the type. */
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

/** Returns the widgets that a value of a dynamic choice adds. */
function broughtBy({ further }: Widget, value: Json): readonly Widget[] {
  return (typeof value === "string" ? further[value] : undefined) ?? [];
}

/** Returns how many entries of the value list a widget uses. */
function placesOf({ helper }: Widget): number {
  return helper === null ? 1 : 2;
}

/**
 * Returns the widgets that a node shows. If its values do not match its type, returns those of a
 * new node.
 */
export function shownWidgets(node: DocNode, type: NodeType): readonly Widget[] {
  const placed = placedWidgets(node, type);
  return placed.length > 0 ? placed.map(({ widget }) => widget) : startsOf(type.widgets).widgets;
}

/** The value of a widget, and the hidden value after it. */
interface Held {
  readonly value: Json;
  readonly after?: Json | undefined;
}

/** Values by widget name. */
export type Known = ReadonlyMap<string, Held>;

/** Returns the values of a node by widget name. */
export function heldBy({ values }: DocNode, placed: readonly Placed[]): Known {
  return new Map(
    placed.map(({ widget, key, value }) => {
      const follows = widget.helper !== null && typeof key === "number" && Array.isArray(values);
      return [widget.name, { value, after: follows ? values[key + 1] : undefined }];
    }),
  );
}

const HELPERS = { seed: "randomize", upload: "image" } as const;

/**
 * Returns the widgets and values of a new node, including those that dynamic choices add. `known`
 * values are retained.
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
 * Returns the values of a node after a dynamic choice is set: the inputs of the old value are
 * replaced by those of the new one. Inputs with the same name retain their values.
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

/** Returns whether a value has a type that the widget accepts. A choice accepts all but objects. */
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

/** Returns whether the user could enter this value in the widget. */
export function offers(widget: Widget, value: Json): boolean {
  if (!fits(widget, value)) return false;
  if (widget.kind === "choice") return widget.choices.includes(value);
  if (widget.kind !== "number") return true;
  const number = Number(value);
  const { min, max } = widget.options;
  const within = number >= numberFrom(min, -Infinity) && number <= numberFrom(max, Infinity);
  return within && (!widget.whole || Number.isInteger(number));
}

/**
 * Builds a node of a type in the file format, with the default for each value that is not `known`.
 */
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
