/**
 * Renames inner nodes in the `properties.proxyWidgets` lists of outer nodes. An entry names an
 * inner node by the ids on its path, joined by colons.
 */
import { isObject, listOf, textOf } from "../../json";
import { type Doc, idOf, nodesOf } from "../model";
import { withNodes } from "../raw";
import { changeAll, subgraphOf } from "../scope";

/** The ids on the path to a node, outermost first. */
export type Way = readonly string[];

/**
 * Renames the entries for nodes in a subgraph. `before`: the document that the entries refer to.
 */
export function renamedProxies(
  doc: Doc,
  before: Doc,
  subgraph: string,
  rename: (way: Way) => Way,
): Doc {
  const renamed = (type: string, way: Way): Way => {
    const [first, ...rest] = way;
    if (first === undefined) return way;
    if (type === subgraph) return rename(way);
    const inside = subgraphOf(before, type);
    const node = inside && nodesOf(inside).find(({ id }) => id === first);
    return node === undefined ? way : [first, ...renamed(node.type, rest)];
  };
  return changeAll(doc, (graph) =>
    withNodes(graph, (raw) => {
      const properties = isObject(raw.properties) ? raw.properties : {};
      if (!Array.isArray(properties.proxyWidgets)) return raw;
      const proxyWidgets = listOf(properties.proxyWidgets).map((entry) => {
        const [inner, ...rest] = listOf(entry);
        const old = idOf(inner);
        const now = renamed(textOf(raw.type), old.split(":")).join(":");
        return now === old ? entry : [now, ...rest];
      });
      return proxyWidgets.every((entry, at) => entry === listOf(properties.proxyWidgets)[at])
        ? raw
        : { ...raw, properties: { ...properties, proxyWidgets } };
    }),
  );
}
