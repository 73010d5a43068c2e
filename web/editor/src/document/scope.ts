/** Finds and changes one graph of a document: the root or the inside of a subgraph. */
import { fieldsOf, isObject, type JsonObject, listOf, textOf } from "../json";
import { type Doc, idOf, nodesOf } from "./model";

/** The ids of the entered subgraph nodes, outermost first; empty for the root. */
export type Path = readonly string[];

function definitions(doc: Doc): readonly JsonObject[] {
  return isObject(doc.definitions) ? listOf(doc.definitions.subgraphs).filter(isObject) : [];
}

/** Returns the subgraph of a node type. */
export function subgraphOf(doc: Doc, type: string): JsonObject | undefined {
  return definitions(doc).find((raw) => raw.id === type);
}

/** Returns the graph at a path; null if the path does not exist. */
export function graphAt(doc: Doc, path: Path): Doc | null {
  let graph: Doc = doc;
  for (const id of path) {
    const node = nodesOf(graph).find((one) => one.id === id);
    const inside = node && subgraphOf(doc, node.type);
    if (inside === undefined) return null;
    graph = inside;
  }
  return graph;
}

/** Changes the graph at a path. All nodes of the same subgraph type share it. */
export function changeAt(doc: Doc, path: Path, edit: (graph: Doc) => Doc): Doc {
  const before = graphAt(doc, path);
  if (before === null) return doc;
  return path.length === 0 ? edit(doc) : withSubgraph(doc, before, edit(before));
}

/** Changes all graphs of a document. */
export function changeAll(doc: Doc, edit: (graph: Doc) => Doc): Doc {
  return definitions(doc).reduce<Doc>(
    (next, inside) => withSubgraph(next, inside, edit(inside)),
    edit(doc),
  );
}

/** Returns all graphs of a document with their paths. A subgraph used twice appears twice. */
export function graphsOf(doc: Doc): readonly { readonly path: Path; readonly graph: Doc }[] {
  const within = (path: Path, graph: Doc): { path: Path; graph: Doc }[] => [
    { path, graph },
    ...nodesOf(graph).flatMap((node) => {
      const inside = path.length < MAX_DEPTH ? subgraphOf(doc, node.type) : undefined;
      return inside === undefined ? [] : within([...path, node.id], inside);
    }),
  ];
  return within([], doc);
}

const MAX_DEPTH = 16;

/** Returns the names in a path's breadcrumb, outermost first. */
export function trail(doc: Doc, path: Path): readonly string[] {
  return path.map((id, depth) => {
    const node = nodesOf(graphAt(doc, path.slice(0, depth)) ?? doc).find((one) => one.id === id);
    const inside = node && subgraphOf(doc, node.type);
    return node?.title || textOf(inside?.name) || id;
  });
}

/** Adds the definition of a subgraph. */
export function addSubgraph(doc: Doc, inside: JsonObject): Doc {
  const before = fieldsOf(doc.definitions);
  return {
    ...doc,
    definitions: { ...before, subgraphs: [...listOf(before.subgraphs), inside] },
  };
}

/** Removes the definition of a subgraph if no node uses it. */
export function withoutUnused(doc: Doc, type: string): Doc {
  const used = [doc, ...definitions(doc)].some((graph) =>
    nodesOf(graph).some((node) => node.type === type),
  );
  if (used || !isObject(doc.definitions)) return doc;
  const subgraphs = listOf(doc.definitions.subgraphs).filter(
    (raw) => !(isObject(raw) && raw.id === type),
  );
  return { ...doc, definitions: { ...doc.definitions, subgraphs } };
}

export function renameSubgraph(doc: Doc, type: string, name: string): Doc {
  const inside = subgraphOf(doc, type);
  return inside === undefined ? doc : withSubgraph(doc, inside, { ...inside, name });
}

function withSubgraph(doc: Doc, before: JsonObject, after: JsonObject): Doc {
  if (before === after || !isObject(doc.definitions)) return doc;
  const subgraphs = listOf(doc.definitions.subgraphs).map((raw) => (raw === before ? after : raw));
  return { ...doc, definitions: { ...doc.definitions, subgraphs } };
}

/** The inputs or outputs of a subgraph, seen from inside. */
export interface Boundary {
  readonly id: string;
  readonly side: "inputs" | "outputs";
  readonly x: number;
  readonly y: number;
  readonly slots: readonly { readonly name: string; readonly type: string }[];
}

const NODES = { inputs: "inputNode", outputs: "outputNode" } as const;
const IDS = { inputs: "-10", outputs: "-20" } as const;

/** Returns the two boundaries of a subgraph; none for the root. */
export function boundariesOf(graph: Doc): readonly Boundary[] {
  return (["inputs", "outputs"] as const).flatMap((side) => {
    const raw = graph[NODES[side]];
    if (!isObject(raw)) return [];
    const [x, y] = listOf(raw.bounding).map(Number);
    const slots = listOf(graph[side])
      .filter(isObject)
      .map((slot) => ({
        name: textOf(slot.label) || textOf(slot.name),
        type: textOf(slot.type, "*"),
      }));
    const id = raw.id === undefined ? IDS[side] : idOf(raw.id);
    return [{ id, side, x: x ?? 0, y: y ?? 0, slots }];
  });
}
