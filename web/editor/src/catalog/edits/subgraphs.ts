/** Makes and unpacks subgraphs with their widget values, and promotes widgets to subgraph nodes. */
import { changeNode } from "../../document/commands";
import { type Doc, type DocNode, nodesOf } from "../../document/model";
import {
  addSubgraph,
  changeAt,
  graphAt,
  type Path,
  subgraphOf,
  withoutUnused,
} from "../../document/scope";
import { made } from "../../document/subgraphs/create";
import { renamedProxies } from "../../document/subgraphs/proxies";
import { unpacked } from "../../document/subgraphs/unpack";
import { type Json, textOf } from "../../json";
import type { Catalog } from "../catalog";
import { setWidget } from "../dynamic";
import { givenBy, keyShown, shownPlaced, type Target, withoutProxy, withProxy } from "../promoted";

/** The changed document and the ids of its new nodes. */
export interface Changed {
  readonly doc: Doc;
  readonly nodes: readonly string[];
}

/**
 * Makes a subgraph of nodes and groups in the graph at a path; null if none of the nodes is in it.
 */
export function withMade(
  doc: Doc,
  catalog: Catalog,
  path: Path,
  chosen: ReadonlySet<string>,
  groups: readonly number[],
  name: string,
): Changed | null {
  const graph = graphAt(doc, path);
  const valueOf = (node: DocNode, widget: string) =>
    shownBy(doc, catalog, node).find((one) => one.widget.name === widget)?.value ?? null;
  const done = graph === null ? null : made(graph, chosen, groups, name, valueOf);
  if (graph === null || done === null) return null;
  const next = addSubgraph(
    changeAt(doc, path, () => done.graph),
    done.inside,
  );
  const renamed = renamedProxies(next, doc, textOf(graph.id), ([first = "", ...rest]) => {
    const inside = done.nodes.get(first);
    return inside === undefined ? [first, ...rest] : [done.node, inside, ...rest];
  });
  return { doc: renamed, nodes: [done.node] };
}

/** Unpacks a node in the graph at a path; null if it is not a subgraph node. */
export function withUnpacked(
  doc: Doc,
  catalog: Catalog,
  path: Path,
  instance: string,
): Changed | null {
  const graph = graphAt(doc, path);
  const node = graph && nodesOf(graph).find(({ id }) => id === instance);
  const inside = node ? subgraphOf(doc, node.type) : undefined;
  if (graph === null || !node || inside === undefined) return null;
  const done = unpacked(graph, node, settled(doc, catalog, node, inside));
  const next = changeAt(doc, path, () => done.graph);
  const renamed = renamedProxies(next, doc, textOf(graph.id), ([first = "", ...rest]) => {
    const outside = first === instance ? done.nodes.get(rest[0] ?? "") : undefined;
    return outside === undefined ? [first, ...rest] : [outside, ...rest.slice(1)];
  });
  return { doc: withoutUnused(renamed, node.type), nodes: [...done.nodes.values()] };
}

/** Returns the inside of a subgraph node with the node's values applied. */
function settled(doc: Doc, catalog: Catalog, node: DocNode, inside: Doc): Doc {
  return givenBy(node, inside)
    .flatMap(({ value, targets }) => targets.map((target) => ({ ...target, value })))
    .reduce((next, target) => withShown(doc, next, catalog, target), inside);
}

interface Setting extends Target {
  readonly value: Json;
}

function withShown(doc: Doc, graph: Doc, catalog: Catalog, target: Setting): Doc {
  const [node = "", ...deeper] = target.node.split(":");
  const { value } = target;
  if (deeper.length > 0)
    return withProxyAt(doc, graph, node, { ...target, node: deeper.join(":") });
  const there = nodesOf(graph).find(({ id }) => id === node);
  const placed = there && placedFor(doc, catalog, there, target);
  if (placed === undefined || placed.value === value) return graph;
  return setWidget(graph, catalog, node, placed, value);
}

function placedFor(doc: Doc, catalog: Catalog, node: DocNode, target: Target) {
  const inside = subgraphOf(doc, node.type);
  const key = inside === undefined ? null : keyShown(node, inside, target);
  return shownBy(doc, catalog, node).find((one) =>
    inside === undefined ? one.widget.name === target.widget : one.key === key,
  );
}

function withProxyAt(doc: Doc, graph: Doc, id: string, { node, widget, value }: Setting): Doc {
  const there = nodesOf(graph).find((one) => one.id === id);
  const inside = there && subgraphOf(doc, there.type);
  return there === undefined || inside === undefined
    ? graph
    : changeNode(graph, id, () => withProxy(there, inside, node, widget, value));
}

/**
 * Promotes a widget to the subgraph node whose inside is at a path, or undoes its promotion.
 * Returns null if neither is possible.
 */
export function withPromotion(
  doc: Doc,
  catalog: Catalog,
  path: Path,
  id: string,
  widget: string,
): { readonly doc: Doc; readonly shown: boolean } | null {
  const [graph, around, instance] = [graphAt(doc, path), path.slice(0, -1), path.at(-1)];
  const node = graph && nodesOf(graph).find((one) => one.id === id);
  const outer = nodesOf(graphAt(doc, around) ?? doc).find((one) => one.id === instance);
  if (!graph || !node || !outer || subgraphOf(doc, node.type) !== undefined) return null;
  const value = shownBy(doc, catalog, node).find((one) => one.widget.name === widget)?.value;
  const isLinked = node.inputs.some((slot) => slot.widget === widget && slot.link !== null);
  if (value === undefined || isLinked) return null;
  const without = withoutProxy(outer, graph, id, widget);
  const next = without ?? withProxy(outer, graph, id, widget, value);
  return {
    doc: changeAt(doc, around, (before) => changeNode(before, outer.id, () => next)),
    shown: without === null,
  };
}

function shownBy(doc: Doc, catalog: Catalog, node: DocNode) {
  return shownPlaced(node, subgraphOf(doc, node.type), catalog);
}
