/** Finds and changes one graph of a document: the root, or the inside of a subgraph. */
import { fieldsOf, isObject, type JsonObject, listOf, textOf } from "../json";
import { type Doc, idOf, nodesOf } from "./model";

/** The nodes that were entered, outermost first; empty for the root. */
export type Path = readonly string[];

function definitions(doc: Doc): readonly JsonObject[] {
  return isObject(doc.definitions) ? listOf(doc.definitions.subgraphs).filter(isObject) : [];
}

/** The subgraph that nodes of this type stand for. */
export function subgraphOf(doc: Doc, type: string): JsonObject | undefined {
  return definitions(doc).find((raw) => raw.id === type);
}

/** The graph that lies at a path; null where the path leads nowhere (any more). */
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

/** Changes the graph at a path. All nodes of a subgraph's type share its inside. */
export function changeAt(doc: Doc, path: Path, edit: (graph: Doc) => Doc): Doc {
  const before = graphAt(doc, path);
  if (before === null) return doc;
  return path.length === 0 ? edit(doc) : withSubgraph(doc, before, edit(before));
}

/** Changes every graph of a document. */
export function changeAll(doc: Doc, edit: (graph: Doc) => Doc): Doc {
  return definitions(doc).reduce<Doc>(
    (next, inside) => withSubgraph(next, inside, edit(inside)),
    edit(doc),
  );
}

/** Every graph of a document with a path to it; a subgraph used twice stands there twice. */
export function graphsOf(doc: Doc): readonly { readonly path: Path; readonly graph: Doc }[] {
  const within = (path: Path, graph: Doc): { path: Path; graph: Doc }[] => [
    { path, graph },
    ...nodesOf(graph).flatMap((node) => {
      const inside = path.length < DEEPEST ? subgraphOf(doc, node.type) : undefined;
      return inside === undefined ? [] : within([...path, node.id], inside);
    }),
  ];
  return within([], doc);
}

const DEEPEST = 16;

/** What the breadcrumb says of a path, from the outermost on. */
export function trail(doc: Doc, path: Path): readonly string[] {
  return path.map((id, depth) => {
    const node = nodesOf(graphAt(doc, path.slice(0, depth)) ?? doc).find((one) => one.id === id);
    const inside = node && subgraphOf(doc, node.type);
    return node?.title || textOf(inside?.name) || id;
  });
}

/** Adds the inside of a subgraph, for nodes of its type. */
export function addSubgraph(doc: Doc, inside: JsonObject): Doc {
  const before = fieldsOf(doc.definitions);
  return {
    ...doc,
    definitions: { ...before, subgraphs: [...listOf(before.subgraphs), inside] },
  };
}

/** Removes a subgraph of whose type no node is left. */
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

/** A subgraph's own inputs or outputs as they stand inside of it. */
export interface Boundary {
  readonly id: string;
  readonly side: "inputs" | "outputs";
  readonly x: number;
  readonly y: number;
  readonly slots: readonly { readonly name: string; readonly type: string }[];
}

const NODES = { inputs: "inputNode", outputs: "outputNode" } as const;
const IDS = { inputs: "-10", outputs: "-20" } as const;

/** The two boundaries of a subgraph; none of the root. */
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
