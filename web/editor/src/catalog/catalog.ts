/** Describes node types as `/object_info` tells them: sockets, widgets, and how values lie. */

import type { DocNode } from "../document/model";
import { fieldsOf, isObject, type Json, type JsonObject, listOf, textOf, textsOf } from "../json";

export interface Widget {
  readonly name: string;
  readonly kind: "number" | "text" | "switch" | "choice" | "colour";
  readonly whole: boolean;
  readonly lines: boolean;
  readonly choices: readonly Json[];
  readonly options: JsonObject;
  /** A hidden value follows it: what a seed becomes next, or a button. */
  readonly helper: "seed" | "upload" | null;
}

export interface Socket {
  readonly name: string;
  readonly type: string;
  readonly optional: boolean;
  /** What the node's author says of it; "" for nothing. */
  readonly tooltip: string;
}

export interface NodeType {
  readonly name: string;
  readonly title: string;
  readonly category: string;
  readonly description: string;
  /** Who brings it. */
  readonly pack: string;
  /** Other words that it is looked for by. */
  readonly aliases: readonly string[];
  readonly sockets: readonly Socket[];
  readonly widgets: readonly Widget[];
  readonly outputs: readonly {
    readonly name: string;
    readonly type: string;
    readonly tooltip: string;
  }[];
  readonly isOutput: boolean;
  /** Whether only editors know it: it never runs, and its values cannot be linked. */
  readonly isVirtual: boolean;
}

export type Catalog = ReadonlyMap<string, NodeType>;

/** A widget of a node with the key of its value. */
export interface Placed {
  readonly widget: Widget;
  readonly key: number | string;
  readonly value: Json;
}

const SEEDS = ["seed", "noise_seed"];
const UPLOADS = ["image_upload", "video_upload", "audio_upload", "file_upload"];
const KINDS: Readonly<Record<string, Widget["kind"]>> = {
  INT: "number",
  FLOAT: "number",
  STRING: "text",
  BOOLEAN: "switch",
  COMBO: "choice",
  COLOR: "colour",
};

export function catalogOf(info: Json): Catalog {
  const entries = isObject(info) ? Object.entries(info) : [];
  const types = entries.flatMap(([name, raw]) => (isObject(raw) ? [typeOf(name, raw)] : []));
  return new Map([...types, ...VIRTUAL].map((type) => [type.name, type]));
}

const NOTE: Widget = {
  name: "text",
  kind: "text",
  whole: false,
  lines: true,
  choices: [],
  options: {},
  helper: null,
};

function virtual(name: string, title: string, description: string, given: Partial<NodeType>) {
  return {
    name,
    title,
    description,
    category: "editor",
    pack: "editor",
    aliases: [],
    sockets: [],
    widgets: [],
    outputs: [],
    isOutput: false,
    isVirtual: true,
    ...given,
  };
}

const VIRTUAL: readonly NodeType[] = [
  virtual("Note", "Note", "A text for people.", { widgets: [NOTE] }),
  virtual("MarkdownNote", "Markdown Note", "A text for people.", { widgets: [NOTE] }),
  virtual("Reroute", "Reroute", "Leads a link around.", {
    sockets: [{ name: "", type: "*", optional: false, tooltip: "" }],
    outputs: [{ name: "", type: "*", tooltip: "" }],
  }),
];

function typeOf(name: string, raw: JsonObject): NodeType {
  const groups = fieldsOf(raw.input);
  const declared = (["required", "optional"] as const).flatMap((group) => {
    const inputs = groups[group];
    return isObject(inputs)
      ? Object.entries(inputs).map(([input, spec]) => ({
          name: input,
          spec: listOf(spec),
          optional: group === "optional",
        }))
      : [];
  });
  const sockets: Socket[] = [];
  const widgets: Widget[] = [];
  for (const { name: input, spec, optional } of declared) {
    const widget = widgetOf(input, spec);
    if (widget !== null) widgets.push(widget);
    else {
      const tooltip = textOf(fieldsOf(spec[1]).tooltip);
      sockets.push({ name: input, type: textOf(spec[0], "*"), optional, tooltip });
    }
  }
  const tooltips = listOf(raw.output_tooltips);
  const names = listOf(raw.output_name);
  return {
    name,
    title: textOf(raw.display_name) || name,
    category: textOf(raw.category),
    description: textOf(raw.description),
    pack: packOf(textOf(raw.python_module)),
    aliases: textsOf(raw.search_aliases),
    sockets,
    widgets,
    outputs: listOf(raw.output).map((type, number) => ({
      name: textOf(names[number]) || textOf(type, "*"),
      type: textOf(type, "*"),
      tooltip: textOf(tooltips[number]),
    })),
    isOutput: raw.output_node === true,
    isVirtual: false,
  };
}

function widgetOf(name: string, spec: readonly Json[]): Widget | null {
  const [type, given] = spec;
  const options = fieldsOf(given);
  const listed = Array.isArray(type);
  const kind = listed ? "choice" : KINDS[textOf(type)];
  if (kind === undefined || options.forceInput === true) return null;
  const seeded = options.control_after_generate;
  const isSeed =
    type === "INT" &&
    (seeded === true ||
      typeof seeded === "string" ||
      (seeded === undefined && SEEDS.includes(name)));
  return {
    name,
    kind,
    whole: type === "INT",
    lines: options.multiline === true,
    choices: listed ? listOf(type) : listOf(options.options),
    options,
    helper: isSeed ? "seed" : UPLOADS.some((key) => options[key] === true) ? "upload" : null,
  };
}

/** Finds a node's widgets with their values; none where they do not lie as its type says. */
export function placedWidgets(node: DocNode, type: NodeType | undefined): readonly Placed[] {
  if (type === undefined) return [];
  const { values } = node;
  if (!Array.isArray(values)) {
    const named = values as JsonObject;
    return type.widgets
      .filter((widget) => named[widget.name] !== undefined)
      .map((widget) => ({ widget, key: widget.name, value: named[widget.name] ?? null }));
  }
  const listed = values as readonly Json[];
  const placed: Placed[] = [];
  let place = 0;
  for (const widget of type.widgets) {
    const value = listed[place];
    if (value === undefined) break;
    if (!fits(widget, value)) return [];
    placed.push({ widget, key: place, value });
    place += widget.helper === null ? 1 : 2;
  }
  return placed;
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

/** Builds a node of a type as the format stores it, with its defaults. */
export function newNode(type: NodeType, x: number, y: number): JsonObject {
  const values: Json[] = [];
  for (const widget of type.widgets) {
    values.push(startOf(widget));
    if (widget.helper === "seed") values.push("randomize");
    if (widget.helper === "upload") values.push("image");
  }
  const rows = Math.max(type.sockets.length, type.outputs.length) + type.widgets.length;
  return {
    type: type.name,
    pos: [x, y],
    size: [280, 40 + 24 * rows],
    flags: {},
    mode: 0,
    inputs: [
      ...type.sockets.map(({ name, type: socket }) => ({ name, type: socket, link: null })),
      ...(type.isVirtual ? [] : type.widgets).map((widget) => ({
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

/** The type of the input that stands for a widget. */
export function socketOf({ kind, whole }: Widget): string {
  if (kind === "number") return whole ? "INT" : "FLOAT";
  return { text: "STRING", switch: "BOOLEAN", choice: "COMBO", colour: "COLOR" }[kind];
}

const PACKS = "custom_nodes.";

function packOf(module: string): string {
  return module.startsWith(PACKS) ? module.slice(PACKS.length) : "Katz Graph";
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

/** Tells whether an output may be linked to an input: the one rule for all gestures. */
export function compatible(output: string, input: string): boolean {
  if (output === "*" || input === "*") return true;
  const given = new Set(output.split(","));
  return input.split(",").some((type) => given.has(type.trim()));
}
