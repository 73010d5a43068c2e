/** Copies nodes with the links between them as text, and pastes such text under new ids. */
import { isObject, type Json, type JsonObject, listOf, parseJson, printJson } from "../json";
import { addNode } from "./commands";
import { connect } from "./links";
import { type Doc, idOf, linksOf, nodeOf, nodesOf } from "./model";

const KIND = "katz-graph/nodes";

export function copied(doc: Doc, nodes: ReadonlySet<string>): string {
  const inner = linksOf(doc).filter((link) => nodes.has(link.from) && nodes.has(link.to));
  return printJson({
    kind: KIND,
    nodes: listOf(doc.nodes).filter((raw) => isObject(raw) && nodes.has(idOf(raw.id))),
    links: inner.map((link) => ({ ...link })),
  });
}

/** Pastes with the upper left corner at a place; null for text that is none of ours. */
export function pasted(
  doc: Doc,
  text: string,
  x: number,
  y: number,
): { readonly doc: Doc; readonly ids: readonly string[] } | null {
  let data: Json;
  try {
    data = parseJson(text);
  } catch {
    return null;
  }
  if (!isObject(data) || data.kind !== KIND) return null;
  const raws = listOf(data.nodes).filter(isObject);
  const places = raws.map(nodeOf);
  const [left, top] = [
    Math.min(...places.map((node) => node.x)),
    Math.min(...places.map((node) => node.y)),
  ];
  let next = doc;
  const ids = new Map<string, string>();
  raws.forEach((raw, number) => {
    const place = places[number];
    if (place === undefined) return;
    next = addNode(next, { ...unlinked(raw), pos: [place.x - left + x, place.y - top + y] });
    ids.set(place.id, nodesOf(next).at(-1)?.id ?? "");
  });
  for (const link of listOf(data.links).filter(isObject)) {
    const [from, to] = [ids.get(idOf(link.from)), ids.get(idOf(link.to))];
    if (from !== undefined && to !== undefined)
      next = connect(
        next,
        { node: from, slot: Number(link.fromSlot) },
        { node: to, slot: Number(link.toSlot) },
        String(link.type),
      );
  }
  return { doc: next, ids: [...ids.values()] };
}

function unlinked(raw: JsonObject): JsonObject {
  const inputs = listOf(raw.inputs).map((slot) =>
    isObject(slot) ? { ...slot, link: null } : slot,
  );
  const outputs = listOf(raw.outputs).map((slot) =>
    isObject(slot) ? { ...slot, links: [] } : slot,
  );
  return { ...raw, inputs, outputs };
}
