/**
 * Finds the widgets that a subgraph's node shows of its inside. Three generations of files: values
 * by name, values in the order of the subgraph's inputs that lead to widgets, and a list of
 * [inner node, widget] in `properties.proxyWidgets`.
 */
import { type Doc, type DocNode, linksOf, nodesOf } from "../document/model";
import { isObject, type Json, type JsonObject, listOf, textOf } from "../json";
import { type Catalog, type Widget, widgetNamed } from "./catalog";
import { type Placed, placedWidgets } from "./placed";

const OWN = "-1";

/** The widgets that a node shows: its own, or of a subgraph those of its inside. */
export function shownPlaced(
  node: DocNode,
  inside: Doc | undefined,
  catalog: Catalog,
): readonly Placed[] {
  return inside === undefined
    ? placedWidgets(node, catalog.get(node.type))
    : promotedWidgets(node.raw, node, inside, catalog);
}

export function promotedWidgets(
  raw: JsonObject,
  node: DocNode,
  inside: Doc,
  catalog: Catalog,
): readonly Placed[] {
  const { values } = node;
  if (!Array.isArray(values))
    return Object.entries(values as JsonObject).map(([name, value]) => ({
      widget: widgetFor(inside, catalog, name) ?? inferred(name, value),
      key: name,
      value,
    }));
  const listed = values as readonly Json[];
  const names = proxies(raw) ?? owned(raw, inside, listed.length);
  if (names.length !== listed.length) return [];
  return names.map(({ inner, name }, key) => {
    const value = listed[key] ?? null;
    const widget =
      inner === OWN ? widgetFor(inside, catalog, name) : widgetOf(inside, catalog, inner, name);
    return { widget: { ...(widget ?? inferred(name, value)), name, helper: null }, key, value };
  });
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
    .filter(({ name }) => !name.startsWith("$$"));
}

function owned(raw: JsonObject, inside: Doc, count: number): readonly Named[] {
  const named = isObject(raw.widgets_values_named) ? Object.keys(raw.widgets_values_named) : [];
  const inputs = listOf(inside.inputs).filter(isObject);
  const names =
    named.length === count
      ? named
      : inputs.map(({ name }) => textOf(name)).filter((name) => innerOf(inside, name)?.widget);
  return names.map((name) => ({ inner: OWN, name }));
}

/** The input inside that a subgraph's input leads to. */
function innerOf(inside: Doc, name: string) {
  const input = listOf(inside.inputs)
    .filter(isObject)
    .find((slot) => slot.name === name);
  const [first] = listOf(input?.linkIds);
  const link = linksOf(inside).find(({ id }) => id === Number(first));
  const node = nodesOf(inside).find(({ id }) => id === link?.to);
  const slot = node?.inputs[link?.toSlot ?? -1];
  return node === undefined || slot === undefined ? null : { type: node.type, widget: slot.widget };
}

function widgetFor(inside: Doc, catalog: Catalog, name: string): Widget | undefined {
  const inner = innerOf(inside, name);
  return widgetNamed(catalog.get(inner?.type ?? ""), inner?.widget ?? "");
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
