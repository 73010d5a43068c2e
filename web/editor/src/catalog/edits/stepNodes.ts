/** Replaces a sampler by the nodes of its step, framed by a group. */
import { addNode, moveNodes, removeNodes } from "../../document/commands";
import { addGroup } from "../../document/groups";
import { arranged } from "../../document/layout/arrange";
import { withRoom } from "../../document/layout/room";
import { connect, type End, type Ends, moveLinks } from "../../document/links";
import { type Doc, type DocNode, linksOf, nodesOf } from "../../document/model";
import type { StepNode, WrittenStep } from "../../server/stepNodes";
import type { Catalog } from "../catalog";
import { heldBy, newNode, placedWidgets } from "../placed";

const EDGE = 30;
/** The height of a node above its position: its title. */
const TITLE = 34;

export interface UnfoldedStep {
  readonly graph: Doc;
  readonly nodes: readonly string[];
}

/**
 * `prefix`: the start of the server's ids for nodes of this graph. Returns null if the step reads
 * inputs outside this graph, or has nodes of unknown types.
 */
export function unfolded(
  graph: Doc,
  catalog: Catalog,
  sampler: DocNode,
  step: WrittenStep,
  prefix: string,
): UnfoldedStep | null {
  const { x, y } = sampler;
  const made = withNodes(graph, catalog, sampler, step.nodes);
  if (made === null) return null;
  const { ids } = made;
  let next = made.graph;
  for (const node of step.nodes) {
    const to = (input: string): End => endOf(next, ids.get(node.name) ?? "", input);
    for (const [input, [other, output]] of Object.entries(node.links)) {
      const from = { node: ids.get(other) ?? "", slot: output };
      next = connect(next, from, to(input), typeOf(next, from));
    }
    for (const [input, [reader, name]] of Object.entries(node.sources)) {
      const link = reader.startsWith(prefix)
        ? linkInto(graph, reader.slice(prefix.length), name)
        : undefined;
      if (link === undefined) return null;
      next = connect(next, { node: link.from, slot: link.fromSlot }, to(input), link.type);
    }
  }
  const nodes = [...ids.values()];
  next = moveLinks(next, leaving(graph, sampler, ids.get(step.end) ?? ""));
  next = removeNodes(next, new Set([sampler.id]));
  for (const id of step.passedBy.map((one) => one.slice(prefix.length)))
    if (!linksOf(next).some(({ from }) => from === id)) next = removeNodes(next, new Set([id]));
  const places = arranged(next, new Set(nodes), ({ height }) => height + TITLE);
  const sizes = nodesOf(next).flatMap(({ id, width, height }) => {
    const place = places.get(id);
    return place ? [{ right: place.x + width, bottom: place.y + height }] : [];
  });
  const width = Math.max(...sizes.map(({ right }) => right)) - x + EDGE;
  const height = Math.max(...sizes.map(({ bottom }) => bottom)) - y + EDGE;
  const others = withRoom(next, sampler, width, height);
  const title = sampler.title || catalog.get(sampler.type)?.title || sampler.type;
  return { graph: addGroup(moveNodes(others, places), new Set(nodes), title), nodes };
}

/** Adds the nodes at the sampler's position. Seeds retain the sampler's control value. */
function withNodes(graph: Doc, catalog: Catalog, sampler: DocNode, step: readonly StepNode[]) {
  const held = heldBy(sampler, placedWidgets(sampler, catalog.get(sampler.type)));
  const after = [...held.values()].find((one) => one.after !== undefined)?.after;
  const ids = new Map<string, string>();
  let next = graph;
  for (const { name, type, title, values } of step) {
    const known = catalog.get(type);
    if (known === undefined) return null;
    const given = Object.entries(values).map(
      ([input, value]) => [input, { value, after: after ?? "fixed" }] as const,
    );
    const raw = newNode(known, sampler.x, sampler.y, new Map(given));
    next = addNode(next, title === "" ? raw : { ...raw, title });
    ids.set(name, nodesOf(next).at(-1)?.id ?? "");
  }
  return { graph: next, ids };
}

function leaving(graph: Doc, sampler: DocNode, end: string): ReadonlyMap<number, Ends> {
  const links = linksOf(graph).filter(({ from }) => from === sampler.id);
  return new Map(
    links.map(({ id, fromSlot, to, toSlot, type }) => [
      id,
      { from: { node: end, slot: fromSlot }, to: { node: to, slot: toSlot }, type },
    ]),
  );
}

function linkInto(graph: Doc, node: string, input: string) {
  const { slot } = endOf(graph, node, input);
  return linksOf(graph).find(({ to, toSlot }) => to === node && toSlot === slot);
}

function endOf(graph: Doc, node: string, input: string): End {
  const inputs = nodesOf(graph).find(({ id }) => id === node)?.inputs ?? [];
  return { node, slot: inputs.findIndex(({ name }) => name === input) };
}

function typeOf(graph: Doc, { node, slot }: End): string {
  return nodesOf(graph).find(({ id }) => id === node)?.outputs[slot]?.type ?? "*";
}
