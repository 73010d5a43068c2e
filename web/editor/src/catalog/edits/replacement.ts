/** Replaces nodes by another type and retains compatible values, links and appearance. */
import { changeNode } from "../../document/commands";
import { type Ends, moveLinks, removeLinks } from "../../document/links";
import { type Doc, type DocNode, linksOf, nodeOf, nodesOf } from "../../document/model";
import { fieldsOf, isObject, type JsonObject, listOf } from "../../json";
import { type Catalog, compatible, type NodeType, widgetNamed } from "../catalog";
import { inputType } from "../ends";
import { heldBy, type Known, newNode, offers, placedWidgets } from "../placed";

const LOOKS = ["id", "pos", "flags", "order", "mode", "color", "bgcolor"];

export function replaced(
  graph: Doc,
  catalog: Catalog,
  nodes: ReadonlySet<string>,
  type: NodeType,
): Doc {
  return nodesOf(graph)
    .filter(({ id }) => nodes.has(id))
    .reduce((next, node) => replacedOne(next, catalog, node, type), graph);
}

function replacedOne(graph: Doc, catalog: Catalog, node: DocNode, type: NodeType): Doc {
  const made = remade(catalog, node, type);
  const kept = keptLinks(graph, node, nodeOf(grown(made, type)));
  const raw = grown(made, type, kept, node.id);
  const own = linksOf(graph).filter(({ from, to }) => from === node.id || to === node.id);
  const lost = own.flatMap(({ id }) => (kept.has(id) ? [] : [id]));
  const free = removeLinks(graph, new Set(lost));
  return moveLinks(
    changeNode(free, node.id, () => raw),
    kept,
  );
}

/** Returns how many links of the nodes a type would retain. */
export function keeps(graph: Doc, nodes: readonly DocNode[], type: NodeType): number {
  const made = nodeOf(grown(newNode(type, 0, 0), type));
  return nodes.reduce((sum, node) => sum + keptLinks(graph, node, made).size, 0);
}

/** Builds the new node without links. */
function remade(catalog: Catalog, node: DocNode, type: NodeType): JsonObject {
  const before = catalog.get(node.type);
  const made = newNode(type, node.x, node.y, knownTo(type, valuesOf(node, before)));
  const looks = Object.entries(node.raw).filter(([name]) => LOOKS.includes(name));
  const isNamed = node.title !== "" && node.title !== before?.title && node.title !== node.type;
  const { height } = nodeOf(made);
  return {
    ...made,
    ...Object.fromEntries(looks),
    size: [node.width, Math.max(node.height, height)],
    ...(isNamed ? { title: node.title } : {}),
  };
}

/** Lists further inputs of the node's groups: up to the last linked one, or all without `kept`. */
function grown(
  raw: JsonObject,
  type: NodeType,
  kept?: ReadonlyMap<number, Ends>,
  node?: string,
): JsonObject {
  const listed = listOf(raw.inputs);
  const names = new Set(listed.map((one) => fieldsOf(one).name));
  const further = type.sockets
    .filter(({ name }) => !names.has(name))
    .map(({ name, type: socket }) => ({ name, type: socket, link: null }));
  const slots = [...(kept?.values() ?? [])].flatMap(({ to }) => (to.node === node ? to.slot : []));
  const most =
    kept === undefined ? Infinity : Math.max(listed.length, ...slots.map((at) => at + 1));
  return { ...raw, inputs: [...listed, ...further].slice(0, most) };
}

/**
 * Returns a node's values by name, from its type or, if that is unknown, from names in the file.
 */
function valuesOf(node: DocNode, type: NodeType | undefined): Known {
  const placed = placedWidgets(node, type);
  if (placed.length > 0) return heldBy(node, placed);
  const { widgets_values: values, widgets_values_named: named } = node.raw;
  const entries = Object.entries(isObject(values) ? values : fieldsOf(named));
  return new Map(entries.map(([name, value]) => [name, { value }]));
}

function knownTo(type: NodeType, values: Known): Known {
  return new Map(
    [...values].filter(([name, { value }]) => {
      const widget = widgetNamed(type, name);
      return widget !== undefined && offers(widget, value);
    }),
  );
}

/**
 * Finds the new ends of a node's links on its replacement: by name and type first, then by type.
 */
function keptLinks(graph: Doc, node: DocNode, made: DocNode): ReadonlyMap<number, Ends> {
  const kept = new Map<number, Ends>();
  const taken = new Set<number>();
  const incoming = linksOf(graph).filter(({ to, from }) => to === node.id && from !== node.id);
  for (const isByName of [true, false])
    for (const link of incoming) {
      const name = node.inputs[link.toSlot]?.name;
      const slot = made.inputs.findIndex(
        (input, at) =>
          !taken.has(at) &&
          compatible(link.type, input.type) &&
          (isByName ? input.name === name : input.widget === null),
      );
      if (slot < 0 || kept.has(link.id)) continue;
      taken.add(slot);
      const from = { node: link.from, slot: link.fromSlot };
      kept.set(link.id, { from, to: { node: node.id, slot }, type: link.type });
    }
  for (const link of linksOf(graph)) {
    if (link.from !== node.id || link.to === node.id) continue;
    const old = node.outputs[link.fromSlot];
    const goal = inputType(graph, link);
    const fitting = made.outputs
      .map((output, slot) => ({ ...output, slot }))
      .filter(({ type }) => compatible(type, goal));
    const output = fitting.find(({ name }) => name === old?.name) ?? fitting[0];
    if (output === undefined) continue;
    const from = { node: node.id, slot: output.slot };
    const to = { node: link.to, slot: link.toSlot };
    kept.set(link.id, { from, to, type: output.type });
  }
  return kept;
}
