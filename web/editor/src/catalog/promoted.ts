/**
 * Finds and changes the widgets that a subgraph's node shows of its inside. Three generations of files: values
 * by name, values in the order of the subgraph's inputs that lead to widgets, and a list of
 * [inner node, widget] in `properties.proxyWidgets`.
 */
import { type Doc, type DocNode, linksOf, nodesOf } from "../document/model";
import { fieldsOf, isObject, type Json, type JsonObject, listOf, textOf } from "../json";
import { type Catalog, type Widget, widgetNamed } from "./catalog";
import { type Placed, placedWidgets } from "./placed";

const OWN = "-1";

/** The widgets that a node shows: its own, or of a subgraph those of its inside. */
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

/** A value that a subgraph's node gives its inside, and the widgets there that have it. */
export interface Given {
  readonly value: Json;
  readonly targets: readonly { readonly node: string; readonly widget: string }[];
}

/** The values that count: an input that is linked gives what the link does. */
export function givenBy(node: DocNode, inside: Doc): readonly Given[] {
  const linked = new Set(node.inputs.flatMap(({ name, link }) => (link === null ? [] : [name])));
  const counting = promotedBy(node, inside).filter(
    ({ inner, name }) => inner !== OWN || !linked.has(name),
  );
  return counting.map(({ inner, name, value }) => {
    const targets =
      inner === OWN
        ? endsOf(inside, name).flatMap(({ id, slot }) =>
            slot.widget === null ? [] : [{ node: id, widget: slot.widget }],
          )
        : [{ node: inner, widget: name }];
    return { value, targets };
  });
}

/** Has a node show a widget of its inside. `inner`: the node there, or the way to it, with colons. */
export function withProxy(
  node: DocNode,
  inside: Doc,
  inner: string,
  name: string,
  value: Json,
): JsonObject {
  const made = { inner, name, key: name, value };
  return withPromoted(node, [...withoutNamed(promotedBy(node, inside), inner, name), made]);
}

/** Takes such a widget back; null where the node does not show it. */
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

/** What is promoted by inputs alone needs no list of proxies. */
function withPromoted({ raw }: DocNode, all: readonly Promoted[]): JsonObject {
  const { proxyWidgets, ...properties } = fieldsOf(raw.properties);
  const listed = all.every(({ inner }) => inner === OWN) ? [] : all;
  const entries = [
    ...listOf(proxyWidgets).filter((entry) => isInternal(textOf(listOf(entry)[1]))),
    ...listed.map(({ inner, name }) => [inner, name]),
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
      return { inner: OWN, name, key: name, value };
    });
  const listed = values as readonly Json[];
  const names = proxies(node.raw) ?? owned(node.raw, inside, listed.length);
  if (names.length !== listed.length) return [];
  return names.map((named, key) => ({ ...named, key, value: listed[key] ?? null }));
}

interface Named {
  readonly inner: string;
  readonly name: string;
}

function proxies(raw: JsonObject): readonly Named[] | null {
  const entries = isObject(raw.properties) ? raw.properties.proxyWidgets : undefined;
  if (!Array.isArray(entries) || entries.length === 0) return null;
  return (entries as readonly Json[])
    .map((entry) => ({ inner: String(listOf(entry)[0]), name: textOf(listOf(entry)[1]) }))
    .filter(({ name }) => !isInternal(name));
}

/** Whether a front end keeps something else under the name. */
function isInternal(name: string): boolean {
  return name.startsWith("$$");
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
  return names.map((name) => ({ inner: OWN, name }));
}

/** The inputs inside that a subgraph's input leads to. */
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

/** A widget for a value of which no type tells. */
function inferred(name: string, value: Json): Widget {
  const number = typeof value === "number" || typeof value === "bigint";
  const kind = number ? "number" : typeof value === "boolean" ? "switch" : "text";
  const whole = number && (typeof value === "bigint" || Number.isInteger(value));
  return { name, kind, whole, lines: false, choices: [], options: {}, further: {}, helper: null };
}
