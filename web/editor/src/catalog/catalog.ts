/** Describes the node types from `/object_info`: sockets, widgets and the order of values. */

import {
  fieldsOf,
  isObject,
  type Json,
  type JsonObject,
  listOf,
  numberFrom,
  textOf,
  textsOf,
} from "../json";

export interface Widget {
  readonly name: string;
  readonly kind: "number" | "text" | "switch" | "choice" | "colour";
  readonly whole: boolean;
  readonly lines: boolean;
  readonly choices: readonly Json[];
  readonly options: JsonObject;
  /** The widgets shown after a dynamic choice, by its value; they are named `choice.widget`. */
  readonly further: Readonly<Record<string, readonly Widget[]>>;
  /** A hidden value follows this widget: the control of a seed, or the button of an upload. */
  readonly helper: "seed" | "upload" | null;
}

export interface Socket {
  readonly name: string;
  readonly type: string;
  readonly optional: boolean;
  /** The tooltip by the node's author, or "". */
  readonly tooltip: string;
  /** The group of equal sockets; a node shows the linked ones and one more. "" without a group. */
  readonly group: string;
  /** The choice and the values for which the socket is shown; null if it is always shown. */
  readonly shownFor: { readonly choice: string; readonly values: readonly string[] } | null;
}

export interface NodeType {
  readonly name: string;
  readonly title: string;
  readonly category: string;
  readonly description: string;
  /** The name of the pack that defines the type. */
  readonly pack: string;
  /** Additional search words. */
  readonly aliases: readonly string[];
  readonly sockets: readonly Socket[];
  readonly widgets: readonly Widget[];
  readonly outputs: readonly {
    readonly name: string;
    readonly type: string;
    readonly tooltip: string;
  }[];
  readonly isOutput: boolean;
  /** Whether only the editor knows the type: it never runs, and its values cannot be linked. */
  readonly isVirtual: boolean;
}

export type Catalog = ReadonlyMap<string, NodeType>;

const SEEDS = ["seed", "noise_seed"];
/** The type of a choice with further inputs for each value. */
const DYNAMIC = "COMFY_DYNAMICCOMBO_V3";
/** The type of a growing group of sockets, and its maximum size. */
const GROWING = "COMFY_AUTOGROW_V3";
const MAX_GROUP_INPUTS = 100;
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
  further: {},
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
  virtual("Note", "Note", "A comment; the run ignores it.", { widgets: [NOTE] }),
  virtual("MarkdownNote", "Markdown Note", "A comment; the run ignores it.", { widgets: [NOTE] }),
  virtual("Reroute", "Reroute", "Routes a link around nodes.", {
    sockets: [{ name: "", type: "*", optional: false, tooltip: "", group: "", shownFor: null }],
    outputs: [{ name: "", type: "*", tooltip: "" }],
  }),
];

function typeOf(name: string, raw: JsonObject): NodeType {
  const { sockets, widgets } = declaredIn(raw.input, "");
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

/**
 * Returns the inputs of a type, or of one value of a dynamic choice. `prefix` starts their names.
 */
function declaredIn(raw: Json | undefined, prefix: string) {
  const groups = fieldsOf(raw);
  const sockets: Socket[] = [];
  const widgets: Widget[] = [];
  for (const group of ["required", "optional"] as const)
    for (const [input, raw] of Object.entries(fieldsOf(groups[group]))) {
      const [name, spec, optional] = [prefix + input, listOf(raw), group === "optional"];
      if (spec[0] === GROWING) {
        sockets.push(...grownOf(name, fieldsOf(fieldsOf(spec[1]).template)));
        continue;
      }
      const widget = widgetOf(name, spec);
      if (widget === null) {
        const tooltip = textOf(fieldsOf(spec[1]).tooltip);
        const type = textOf(spec[0], "*");
        sockets.push({ name, type, optional, tooltip, group: "", shownFor: null });
        continue;
      }
      widgets.push(widget);
      if (spec[0] !== DYNAMIC) continue;
      for (const { key, inputs } of choicesOf(widget.options))
        for (const one of declaredIn(inputs, `${name}.`).sockets) {
          const known = sockets.findIndex((other) => other.name === one.name);
          const values = [...(sockets[known]?.shownFor?.values ?? []), key];
          // an inner choice's socket is shown for that choice
          const brought = {
            ...one,
            optional: true,
            shownFor: one.shownFor ?? { choice: name, values },
          };
          if (known < 0) sockets.push(brought);
          else sockets[known] = brought;
        }
    }
  return { sockets, widgets };
}

/** Returns all sockets that a group may have. */
function grownOf(group: string, template: JsonObject): readonly Socket[] {
  const { prefix, names, max, min } = template;
  const numbered = Array.from(
    { length: Math.min(numberFrom(max, 0), MAX_GROUP_INPUTS) },
    (_, number) => {
      return `${textOf(prefix)}${number}`;
    },
  );
  const [required, optional] = ["required", "optional"].map((one) =>
    Object.values(fieldsOf(fieldsOf(template.input)[one])).map(listOf),
  );
  const [type, options] = required?.[0] ?? optional?.[0] ?? [];
  const least = required?.length ? numberFrom(min, 1) : 0;
  return (prefix === undefined ? textsOf(names).slice(0, MAX_GROUP_INPUTS) : numbered).map(
    (name, number) => ({
      name: `${group}.${name}`,
      type: Array.isArray(type) ? "COMBO" : textOf(type, "*"),
      optional: number >= least,
      tooltip: textOf(fieldsOf(options).tooltip),
      group,
      shownFor: null,
    }),
  );
}

/**
 * Returns the sockets that a node offers. Of a group: the linked ones, the required ones, and the
 * first free one.
 */
export function offered(
  { sockets }: Pick<NodeType, "sockets">,
  linked: ReadonlySet<string> = new Set(),
): readonly Socket[] {
  const free = new Set<string>();
  return sockets.filter(({ name, group, optional }) => {
    if (group === "" || linked.has(name)) return true;
    if (optional && free.has(group)) return false;
    free.add(group);
    return true;
  });
}

function choicesOf(options: JsonObject) {
  return listOf(options.options)
    .filter(isObject)
    .map(({ key, inputs }) => ({ key: textOf(key), inputs }));
}

function widgetOf(name: string, spec: readonly Json[]): Widget | null {
  const [type, given] = spec;
  const options = fieldsOf(given);
  const listed = Array.isArray(type);
  const brings = type === DYNAMIC ? choicesOf(options) : [];
  const kind = listed || type === DYNAMIC ? "choice" : KINDS[textOf(type)];
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
    choices: listed
      ? listOf(type)
      : type === DYNAMIC
        ? brings.map(({ key }) => key)
        : listOf(options.options),
    options,
    further: Object.fromEntries(
      brings.map(({ key, inputs }) => [key, declaredIn(inputs, `${name}.`).widgets]),
    ),
    helper: isSeed ? "seed" : UPLOADS.some((key) => options[key] === true) ? "upload" : null,
  };
}

/** Returns all widgets that a node of a type may show. */
function allWidgets({ widgets }: Pick<NodeType, "widgets">): readonly Widget[] {
  return widgets.flatMap((widget) => [
    widget,
    ...Object.values(widget.further).flatMap((further) => allWidgets({ widgets: further })),
  ]);
}

export function widgetNamed(type: NodeType | undefined, name: string): Widget | undefined {
  return type === undefined ? undefined : allWidgets(type).find((one) => one.name === name);
}

/** Returns the socket type of a widget's input. */
export function socketOf({ kind, whole }: Widget): string {
  if (kind === "number") return whole ? "INT" : "FLOAT";
  return { text: "STRING", switch: "BOOLEAN", choice: "COMBO", colour: "COLOR" }[kind];
}

const PACKS = "custom_nodes.";
const BUILT_IN = "builtin";

function packOf(module: string): string {
  return packNamed(module.startsWith(PACKS) ? module.slice(PACKS.length) : BUILT_IN);
}

/** Returns the display name of a pack. */
export function packNamed(name: string): string {
  return name === BUILT_IN ? "Katz Graph" : name;
}

/** Returns whether an output may be linked to an input; all gestures use this rule. */
export function compatible(output: string, input: string): boolean {
  if (output === "*" || input === "*") return true;
  const given = new Set(output.split(","));
  return input.split(",").some((type) => given.has(type.trim()));
}
