/** Adds nodes of one graph to another with new ids, and the links between them. */
import { isObject, type JsonObject, listOf } from "../json";
import { addNode, type Place } from "./commands";
import { connect } from "./links";
import { type Doc, type DocLink, nodeOf, nodesOf } from "./model";
import { lastOf } from "./raw";

export interface Part {
  readonly graph: Doc;
  /** The new node ids by the old ones. */
  readonly nodes: ReadonlyMap<string, string>;
  readonly links: ReadonlyMap<number, number>;
}

/** `shift`: the offset of the nodes' positions. */
export function withPart(
  graph: Doc,
  raws: readonly JsonObject[],
  links: readonly DocLink[],
  shift: Place = { x: 0, y: 0 },
): Part {
  const [nodes, made] = [new Map<string, string>(), new Map<number, number>()];
  let next = graph;
  for (const raw of raws) {
    const { id, x, y } = nodeOf(raw);
    next = addNode(next, { ...unlinked(raw), pos: [x + shift.x, y + shift.y] });
    nodes.set(id, nodesOf(next).at(-1)?.id ?? "");
  }
  for (const link of links) {
    const [from, to] = [nodes.get(link.from), nodes.get(link.to)];
    if (from === undefined || to === undefined) continue;
    const source = { node: from, slot: link.fromSlot };
    next = connect(next, source, { node: to, slot: link.toSlot }, link.type);
    made.set(link.id, lastOf(next, "link"));
  }
  return { graph: next, nodes, links: made };
}

/** Returns the top left corner of nodes; the origin if there are none. */
export function cornerOf(places: readonly Place[]): Place {
  if (places.length === 0) return { x: 0, y: 0 };
  return { x: Math.min(...places.map(({ x }) => x)), y: Math.min(...places.map(({ y }) => y)) };
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
