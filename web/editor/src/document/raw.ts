/** Changes parts of a raw graph; what does not change keeps its identity. */
import { isObject, type Json, type JsonObject, listOf, numberFrom } from "../json";
import { type Doc, idOf } from "./model";

export function withNodes(graph: Doc, change: (raw: JsonObject) => JsonObject): Doc {
  const before = listOf(graph.nodes);
  const after = before.map((raw) => (isObject(raw) ? change(raw) : raw));
  return after.every((raw, number) => raw === before[number]) ? graph : { ...graph, nodes: after };
}

/** Changes one entry of a list that an object has. */
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

/** A node's id as the file has it: a number or a text. */
export function rawId(graph: Doc, id: string): Json {
  const raw = listOf(graph.nodes).find((node) => isObject(node) && idOf(node.id) === id);
  return isObject(raw) ? (raw.id ?? id) : Number.isSafeInteger(Number(id)) ? Number(id) : id;
}

const COUNTERS = {
  node: { plain: "last_node_id", inState: "lastNodeId" },
  link: { plain: "last_link_id", inState: "lastLinkId" },
} as const;

/** The highest id that was given; v1.0 keeps it in `state`. */
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
