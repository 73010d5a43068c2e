/** Changes parts of a raw graph; unchanged parts keep their identity. */
import { isObject, type Json, type JsonObject, listOf, numberFrom } from "../json";
import { type Doc, idOf } from "./model";

export function withNodes(graph: Doc, change: (raw: JsonObject) => JsonObject): Doc {
  const before = listOf(graph.nodes);
  const after = before.map((raw) => (isObject(raw) ? change(raw) : raw));
  return after.every((raw, number) => raw === before[number]) ? graph : { ...graph, nodes: after };
}

/** Changes one entry of an object's list. */
export function withSlot(
  holder: JsonObject,
  list: string,
  number: number,
  change: (slot: JsonObject) => JsonObject,
): JsonObject {
  const slots = listOf(holder[list]).map((slot, place) =>
    place === number && isObject(slot) ? change(slot) : slot,
  );
  return { ...holder, [list]: slots };
}

/** Returns a node's id as written in the file: a number or a string. */
export function rawId(graph: Doc, id: string): Json {
  const raw = listOf(graph.nodes).find((node) => isObject(node) && idOf(node.id) === id);
  return isObject(raw) ? (raw.id ?? id) : Number.isSafeInteger(Number(id)) ? Number(id) : id;
}

const COUNTERS = {
  node: { plain: "last_node_id", inState: "lastNodeId" },
  link: { plain: "last_link_id", inState: "lastLinkId" },
} as const;

/** Returns the highest id given so far, which v1.0 stores in `state`. */
export function lastOf(graph: Doc, kind: keyof typeof COUNTERS): number {
  const { plain, inState } = COUNTERS[kind];
  return Math.max(0, numberFrom(isObject(graph.state) ? graph.state[inState] : graph[plain]));
}

export function counted(graph: Doc, kind: keyof typeof COUNTERS, id: number): Doc {
  const { plain, inState } = COUNTERS[kind];
  return isObject(graph.state)
    ? { ...graph, state: { ...graph.state, [inState]: id } }
    : { ...graph, [plain]: id };
}
