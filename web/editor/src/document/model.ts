/**
 * Reads the editor's document (ComfyUI's UI format, v0.4 and v1.0). The document is stored
 * unchanged, so unknown fields are preserved. Independent of the page and of node types.
 */
import {
  fieldsOf,
  isObject,
  type Json,
  type JsonObject,
  listOf,
  numberFrom,
  textOf,
} from "../json";

/** The parsed file. Never mutated: a changed document is a new object. */
export type Doc = JsonObject;

export interface InputSlot {
  readonly name: string;
  readonly label: string;
  readonly type: string;
  readonly link: number | null;
  /** The widget that the input can replace. */
  readonly widget: string | null;
}

export interface OutputSlot {
  readonly name: string;
  readonly label: string;
  readonly type: string;
}

export interface DocNode {
  readonly id: string;
  readonly type: string;
  readonly title: string;
  readonly x: number;
  readonly y: number;
  readonly width: number;
  readonly height: number;
  readonly mode: number;
  readonly collapsed: boolean;
  readonly pinned: boolean;
  readonly colour: string;
  readonly inputs: readonly InputSlot[];
  readonly outputs: readonly OutputSlot[];
  readonly values: readonly Json[] | JsonObject;
  readonly raw: JsonObject;
}

export interface DocLink {
  readonly id: number;
  readonly from: string;
  readonly fromSlot: number;
  readonly to: string;
  readonly toSlot: number;
  readonly type: string;
}

export interface DocGroup {
  readonly title: string;
  readonly colour: string;
  readonly x: number;
  readonly y: number;
  readonly width: number;
  readonly height: number;
}

export const MUTED = 2;
export const BYPASSED = 4;
const COLOUR = /^#[0-9a-f]{3,8}$/i;

/** Caches the result for each object, so that equal objects return the same result. */
function once<Value>(read: (raw: JsonObject) => Value): (raw: JsonObject) => Value {
  const known = new WeakMap<JsonObject, Value>();
  return (raw) => {
    const found = known.get(raw);
    if (found !== undefined) return found;
    const made = read(raw);
    known.set(raw, made);
    return made;
  };
}

export const nodeOf = once((raw: JsonObject): DocNode => {
  const [x, y] = pair(raw.pos, [0, 0]);
  const [width, height] = pair(raw.size, [260, 80]);
  const flags = fieldsOf(raw.flags);
  return {
    id: idOf(raw.id),
    type: textOf(raw.type),
    title: textOf(raw.title),
    x,
    y,
    width,
    height,
    mode: numberFrom(raw.mode),
    collapsed: flags.collapsed === true,
    pinned: flags.pinned === true,
    colour: colourOf(raw.color),
    inputs: listOf(raw.inputs).map(inputOf),
    outputs: listOf(raw.outputs).map(outputOf),
    values: isObject(raw.widgets_values) ? raw.widgets_values : listOf(raw.widgets_values),
    raw,
  };
});

export const nodesOf = once((doc: Doc): readonly DocNode[] =>
  listOf(doc.nodes).filter(isObject).map(nodeOf),
);

export const linksOf = once((doc: Doc): readonly DocLink[] =>
  listOf(doc.links).flatMap((raw) => {
    const link = linkOf(raw);
    return link === null ? [] : [link];
  }),
);

export const groupsOf = once((doc: Doc): readonly DocGroup[] =>
  listOf(doc.groups)
    .filter(isObject)
    .map((raw) => {
      const bounds = listOf(raw.bounding).map((value) => numberFrom(value));
      const [x = 0, y = 0, width = 0, height = 0] = bounds;
      return { title: textOf(raw.title), colour: colourOf(raw.color), x, y, width, height };
    }),
);

/** Reads a link: a list in v0.4, an object in v1.0. */
function linkOf(raw: Json): DocLink | null {
  if (Array.isArray(raw)) {
    const [id, from, fromSlot, to, toSlot, type] = raw as readonly Json[];
    return {
      id: numberFrom(id),
      from: idOf(from),
      fromSlot: numberFrom(fromSlot),
      to: idOf(to),
      toSlot: numberFrom(toSlot),
      type: textOf(type, "*"),
    };
  }
  if (!isObject(raw)) return null;
  return {
    id: numberFrom(raw.id),
    from: idOf(raw.origin_id),
    fromSlot: numberFrom(raw.origin_slot),
    to: idOf(raw.target_id),
    toSlot: numberFrom(raw.target_slot),
    type: textOf(raw.type, "*"),
  };
}

function inputOf(raw: Json): InputSlot {
  const slot = fieldsOf(raw);
  const widget = isObject(slot.widget) ? textOf(slot.widget.name) : "";
  const name = textOf(slot.name);
  return {
    name,
    label: textOf(slot.label) || textOf(slot.localized_name) || name,
    type: socketOf(slot.type),
    link: slot.link === null || slot.link === undefined ? null : numberFrom(slot.link),
    widget: widget || null,
  };
}

function outputOf(raw: Json): OutputSlot {
  const slot = fieldsOf(raw);
  const name = textOf(slot.name);
  return {
    name,
    label: textOf(slot.label) || textOf(slot.localized_name) || name,
    type: socketOf(slot.type),
  };
}

function socketOf(raw: Json | undefined): string {
  return typeof raw === "string" && raw !== "" ? raw : "*";
}

export function idOf(raw: Json | undefined): string {
  return typeof raw === "string" ? raw : String(raw);
}

function colourOf(raw: Json | undefined): string {
  return typeof raw === "string" && COLOUR.test(raw) ? raw : "";
}

/** Reads a pair: a list, or an object with the keys "0" and "1". */
function pair(raw: Json | undefined, otherwise: readonly [number, number]): [number, number] {
  const [first, second] = Array.isArray(raw) ? raw : isObject(raw) ? [raw["0"], raw["1"]] : [];
  return [numberFrom(first, otherwise[0]), numberFrom(second, otherwise[1])];
}
