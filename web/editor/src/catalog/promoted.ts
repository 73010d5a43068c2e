/**
 * Finds and changes the inner widgets that a subgraph node shows. Three generations of files store
 * them: values by name; values in the order of the subgraph's inputs that lead to widgets; or a
 * list of [inner node, widget] in `properties.proxyWidgets`. Values and entries match by position.
 * In an entry `5: steps`, or one of three parts, the number is the id of the node further inside
 * that has the widget.
 */
import { type Doc, type DocNode, linksOf, nodesOf } from "../document/model";
import { fieldsOf, isObject, type Json, type JsonObject, listOf, parseJson, textOf } from "../json";
import { type Catalog, type Widget, widgetNamed } from "./catalog";
import { type Placed, placedWidgets } from "./placed";

const OWN = "-1";

/** Returns the widgets that a node shows: its own, or the promoted ones of a subgraph. */
export function shownPlaced(
  node: DocNode,
  inside: Doc | undefined,
  catalog: Catalog,
): readonly Placed[] {
  if (inside === undefined) return placedWidgets(node, catalog.get(node.type));
  return promotedBy(node, inside).map(({ inner, name, key, value }) => {
    const widget =
      inner === OWN ? widgetFor(inside, catalog, name) : widgetOf(inside, catalog, inner, name);
    return { widget: { ...(widget ?? inferred(name, value)), name, helper: null }, key, value };
  });
}

/** A value that a subgraph node passes to its inner widgets. */
export interface Given {
  readonly value: Json;
  readonly targets: readonly Target[];
}

/**
 * A widget of an inner node. `owner`: the node further inside that has the widget, or "" if
 * unknown.
 */
export interface Target {
  readonly node: string;
  readonly widget: string;
  readonly owner: string;
}

/** Returns the values in effect. A linked input takes its value from the link. */
export function givenBy(node: DocNode, inside: Doc): readonly Given[] {
  const linked = new Set(node.inputs.flatMap(({ name, link }) => (link === null ? [] : [name])));
  const counting = promotedBy(node, inside).filter(
    ({ inner, name }) => inner !== OWN || !linked.has(name),
  );
  return counting.map(({ inner, name, owner, value }) => {
    const targets =
      inner === OWN
        ? endsOf(inside, name).flatMap(({ id, slot }) =>
            slot.widget === null ? [] : [{ node: id, widget: slot.widget, owner: "" }],
          )
        : [{ node: inner, widget: name, owner }];
    return { value, targets };
  });
}

/**
 * Returns the key of the value that a node shows for a widget; null if it shows none of this name.
 */
export function keyShown(node: DocNode, inside: Doc, { widget, owner }: Target) {
  const all = promotedBy(node, inside);
  const leads = ({ name }: Promoted, id: string) =>
    endsOf(inside, name).some((end) => end.slot.widget === widget && (id === "" || end.id === id));
  const owned = (one: Promoted) =>
    (one.name === widget && [one.inner, one.owner].includes(owner)) || leads(one, owner);
  const found =
    (owner === "" ? undefined : all.find(owned)) ??
    all.find(({ name }) => name === widget) ??
    all.find((one) => leads(one, ""));
  return found?.key ?? null;
}

/**
 * Promotes an inner widget to the node. `inner`: the id of the inner node, or a path of ids with
 * colons.
 */
export function withProxy(
  node: DocNode,
  inside: Doc,
  inner: string,
  name: string,
  value: Json,
): JsonObject {
  const made = { inner, name, owner: "", entry: [inner, name], key: name, value };
  return withPromoted(node, [...withoutNamed(promotedBy(node, inside), inner, name), made]);
}

/** Undoes the promotion of a widget; null if the node does not show it. */
export function withoutProxy(
  node: DocNode,
  inside: Doc,
  inner: string,
  name: string,
): JsonObject | null {
  const before = promotedBy(node, inside);
  const after = withoutNamed(before, inner, name);
  return after.length === before.length ? null : withPromoted(node, after);
}

function withoutNamed(all: readonly Promoted[], inner: string, name: string) {
  return all.filter((one) => one.inner !== inner || one.name !== name);
}

/** Writes the promoted widgets. The list of proxies is omitted if inputs alone promote them. */
function withPromoted({ raw }: DocNode, all: readonly Promoted[]): JsonObject {
  const { proxyWidgets, ...properties } = fieldsOf(raw.properties);
  const listed = all.every(({ inner }) => inner === OWN) ? [] : all;
  const held = new Set(all.map(({ entry }) => entry));
  const entries = [
    ...listed.map(({ entry }) => entry),
    ...listOf(proxyWidgets).filter((entry) => isInternal(entry) && !held.has(entry)),
  ];
  const byName = Object.fromEntries(all.map(({ name, value }) => [name, value]));
  const isNamed = isObject(raw.widgets_values_named) || isObject(raw.widgets_values);
  return {
    ...raw,
    properties: entries.length === 0 ? properties : { ...properties, proxyWidgets: entries },
    widgets_values: all.map(({ value }) => value),
    ...(isNamed ? { widgets_values_named: byName } : {}),
  };
}

interface Promoted extends Named {
  readonly key: number | string;
  readonly value: Json;
}

function promotedBy(node: DocNode, inside: Doc): readonly Promoted[] {
  const { values } = node;
  if (!Array.isArray(values))
    return Object.entries(values as JsonObject).map(([name, value]) => {
      return { ...ownInput(name), key: name, value };
    });
  const listed = values as readonly Json[];
  const names = proxies(node.raw) ?? owned(node.raw, inside, listed.length);
  return names.flatMap((named, key) => {
    const value = listed[key] ?? null;
    return named === null || value === null ? [] : [{ ...named, key, value }];
  });
}

/** `entry`: the entry as written in the list. */
interface Named {
  readonly inner: string;
  readonly name: string;
  readonly owner: string;
  readonly entry: Json;
}

function ownInput(name: string): Named {
  return { inner: OWN, name, owner: "", entry: [OWN, name] };
}

/**
 * Returns the entries of the list in order, null for those without a widget; null without a list.
 */
function proxies(raw: JsonObject): readonly (Named | null)[] | null {
  const written = isObject(raw.properties) ? raw.properties.proxyWidgets : undefined;
  const entries = typeof written === "string" ? listFrom(written) : written;
  if (!Array.isArray(entries) || entries.length === 0) return null;
  return (entries as readonly Json[]).map((entry) => {
    if (isInternal(entry)) return null;
    const [inner, name, third] = listOf(entry);
    return { inner: String(inner), ...plain(textOf(name), String(third ?? "")), entry };
  });
}

function listFrom(text: string): Json {
  try {
    return parseJson(text);
  } catch {
    return null;
  }
}

const PREFIXED = /^\s*(\d+)\s*:\s*(.+)$/s;

/** Strips number prefixes from a widget's name; the last number is its owner. */
function plain(name: string, owner: string): Pick<Named, "name" | "owner"> {
  const [, number, rest] = PREFIXED.exec(name) ?? [];
  return number === undefined || rest === undefined ? { name, owner } : plain(rest, number);
}

/** Returns whether the entry holds internal data of a front end instead of a widget. */
function isInternal(entry: Json): boolean {
  return textOf(listOf(entry)[1]).startsWith("$$");
}

function owned(raw: JsonObject, inside: Doc, count: number): readonly Named[] {
  const named = isObject(raw.widgets_values_named) ? Object.keys(raw.widgets_values_named) : [];
  const inputs = listOf(inside.inputs).filter(isObject);
  const names =
    named.length === count
      ? named
      : inputs
          .map(({ name }) => textOf(name))
          .filter((name) => endsOf(inside, name).some(({ slot }) => slot.widget !== null));
  return names.map(ownInput);
}

/** Returns the inner inputs that a subgraph's input leads to. */
function endsOf(inside: Doc, name: string) {
  const input = listOf(inside.inputs)
    .filter(isObject)
    .find((slot) => slot.name === name);
  const ids = new Set(listOf(input?.linkIds).map(Number));
  return linksOf(inside)
    .filter(({ id }) => ids.has(id))
    .flatMap(({ to, toSlot }) => {
      const node = nodesOf(inside).find(({ id }) => id === to);
      const slot = node?.inputs[toSlot];
      return node === undefined || slot === undefined ? [] : [{ id: to, type: node.type, slot }];
    });
}

function widgetFor(inside: Doc, catalog: Catalog, name: string): Widget | undefined {
  const end = endsOf(inside, name).find(({ slot }) => slot.widget !== null);
  return widgetNamed(catalog.get(end?.type ?? ""), end?.slot.widget ?? "");
}

function widgetOf(inside: Doc, catalog: Catalog, id: string, name: string): Widget | undefined {
  const type = nodesOf(inside).find((node) => node.id === id)?.type ?? "";
  return widgetNamed(catalog.get(type), name);
}

/** Infers a widget from a value whose type is unknown. */
function inferred(name: string, value: Json): Widget {
  const number = typeof value === "number" || typeof value === "bigint";
  const kind = number ? "number" : typeof value === "boolean" ? "switch" : "text";
  const whole = number && (typeof value === "bigint" || Number.isInteger(value));
  return { name, kind, whole, lines: false, choices: [], options: {}, further: {}, helper: null };
}
