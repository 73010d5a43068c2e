/** Compares two versions of a document node by node. Pure. */
import { type Doc, type DocNode, linksOf, nodesOf } from "../document/model";
import { isObject, type Json, listOf, printJson, textOf } from "../json";
import type { Catalog } from "./catalog";
import { placedWidgets } from "./placed";

export interface Changed {
  /** The name of the subgraph that holds the node; "" for the root graph. */
  readonly inside: string;
  readonly id: string;
  readonly title: string;
  readonly kind: "added" | "removed" | "changed";
  /** The changes, such as `steps: 20 → 7`. */
  readonly lines: readonly string[];
}

/** Returns the nodes that were added, removed or changed between the versions. */
export function difference(before: Doc, after: Doc, catalog: Catalog): readonly Changed[] {
  const [old, now] = [graphsById(before), graphsById(after)];
  return [...new Set([...old.keys(), ...now.keys()])].flatMap((key) =>
    ofGraph(
      textOf((now.get(key) ?? old.get(key))?.name),
      old.get(key) ?? {},
      now.get(key) ?? {},
      catalog,
    ),
  );
}

/** Returns the root graph and its subgraphs by id. */
function graphsById(doc: Doc): ReadonlyMap<string, Doc> {
  const inside = isObject(doc.definitions) ? listOf(doc.definitions.subgraphs) : [];
  const { name: _, ...root } = doc;
  return new Map([["", root], ...inside.filter(isObject).map((one) => entry(one))]);
}

function entry(subgraph: Doc): [string, Doc] {
  return [textOf(subgraph.id), subgraph];
}

function ofGraph(inside: string, before: Doc, after: Doc, catalog: Catalog): readonly Changed[] {
  const old = new Map(nodesOf(before).map((node) => [node.id, node]));
  const now = new Map(nodesOf(after).map((node) => [node.id, node]));
  const [wiresBefore, wiresNow] = [wiresOf(before), wiresOf(after)];
  return [...new Set([...now.keys(), ...old.keys()])].flatMap((id): readonly Changed[] => {
    const [was, is] = [old.get(id), now.get(id)];
    const node = is ?? was;
    if (node === undefined) return [];
    const title = `${node.title || catalog.get(node.type)?.title || node.type} #${id}`;
    if (was === undefined || is === undefined || was.type !== is.type)
      return [{ inside, id, title, kind: is === undefined ? "removed" : "added", lines: [] }];
    const lines = [
      ...(was === is ? [] : valueLines(was, is, catalog)),
      ...wireLines(wiresBefore.get(id) ?? NONE, wiresNow.get(id) ?? NONE),
    ];
    return lines.length === 0 ? [] : [{ inside, id, title, kind: "changed", lines }];
  });
}

function valueLines(was: DocNode, is: DocNode, catalog: Catalog): readonly string[] {
  const type = catalog.get(is.type);
  const before = new Map(placedWidgets(was, type).map((one) => [one.widget.name, one.value]));
  const values = placedWidgets(is, type).flatMap(({ widget, value }) =>
    line(widget.name, before.get(widget.name), value),
  );
  const known = before.size > 0 || values.length > 0;
  const raw = known ? [] : line("values", Object.values(was.values), Object.values(is.values));
  const modes = ["runs", "", "muted", "", "bypassed"];
  return [
    ...values,
    ...raw,
    ...line("title", was.title, is.title),
    ...(was.mode === is.mode ? [] : [`${modes[was.mode]} → ${modes[is.mode]}`]),
    ...line("colour", was.colour, is.colour),
    ...(was.x === is.x && was.y === is.y ? [] : ["moved"]),
  ];
}

function line(what: string, was: Json | undefined, is: Json): readonly string[] {
  const [before, after] = [shown(was ?? null), shown(is)];
  return before === after ? [] : [`${what}: ${before} → ${after}`];
}

const MAX_VALUE_CHARACTERS = 60;

function shown(value: Json): string {
  const text = typeof value === "string" ? value : printJson(value);
  return text.length > MAX_VALUE_CHARACTERS
    ? `${text.slice(0, MAX_VALUE_CHARACTERS)}…`
    : text || "nothing";
}

const NONE: ReadonlyMap<string, string> = new Map();

/** Returns the incoming links of each node: by input, the source node and output. */
function wiresOf(doc: Doc): ReadonlyMap<string, ReadonlyMap<string, string>> {
  const nodes = new Map(nodesOf(doc).map((node) => [node.id, node]));
  const found = new Map<string, Map<string, string>>();
  for (const { from, fromSlot, to, toSlot } of linksOf(doc)) {
    const input = nodes.get(to)?.inputs[toSlot]?.name ?? String(toSlot);
    const output = nodes.get(from)?.outputs[fromSlot]?.name ?? String(fromSlot);
    found.set(to, (found.get(to) ?? new Map()).set(input, `#${from} ${output}`));
  }
  return found;
}

function wireLines(
  was: ReadonlyMap<string, string>,
  is: ReadonlyMap<string, string>,
): readonly string[] {
  return [...new Set([...was.keys(), ...is.keys()])].flatMap((input) =>
    line(input, was.get(input) ?? "", is.get(input) ?? ""),
  );
}
