/** Copies nodes and the links between them as text, and pastes that text with new ids. */
import {
  isObject,
  type Json,
  type JsonObject,
  listOf,
  numberFrom,
  parseJson,
  printJson,
} from "../json";
import { type Doc, type DocLink, idOf, linksOf, nodeOf } from "./model";
import { cornerOf, withPart } from "./parts";

const KIND = "katz-graph/nodes";

export function copied(doc: Doc, nodes: ReadonlySet<string>): string {
  const inner = linksOf(doc).filter((link) => nodes.has(link.from) && nodes.has(link.to));
  return printJson({
    kind: KIND,
    nodes: listOf(doc.nodes).filter((raw) => isObject(raw) && nodes.has(idOf(raw.id))),
    links: inner.map((link) => ({ ...link })),
  });
}

/** Pastes nodes with their top left corner at a position; null if the text is not from `copied`. */
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
  const links = listOf(data.links).filter(isObject).map(readLink);
  const { x: left, y: top } = cornerOf(raws.map(nodeOf));
  const part = withPart(doc, raws, links, { x: x - left, y: y - top });
  return { doc: part.graph, ids: [...part.nodes.values()] };
}

function readLink({ id, from, fromSlot, to, toSlot, type }: JsonObject): DocLink {
  const ends = {
    from: idOf(from),
    fromSlot: Number(fromSlot),
    to: idOf(to),
    toSlot: Number(toSlot),
  };
  return { id: numberFrom(id), ...ends, type: String(type) };
}
