/** Makes a subgraph: moves nodes into a new graph and puts one node in their place. */
import { type Json, type JsonObject, listOf } from "../../json";
import { addNode, removeNodes } from "../commands";
import { removeGroup } from "../groups";
import { withNamesOf } from "../hidden";
import { connect, type End, type Ends, moveLinks } from "../links";
import { type Doc, type DocLink, type DocNode, linksOf, nodesOf } from "../model";
import { cornerOf, type Part, withPart } from "../parts";
import { lastOf } from "../raw";
import { type Reroute, waysOf, withWays } from "../reroutes";
import { BOUNDARIES, emptySubgraph, freeName } from "./definition";

/** Returns the value of a node's widget by its name. */
export type ValueOf = (node: DocNode, widget: string) => Json;

type Way = readonly Reroute[];

/** An input or output of a subgraph, for all links across its boundary from one output. */
interface Port {
  readonly name: string;
  readonly type: string;
  /** The value of the inner widget that an input leads to, if any. */
  readonly value: Json | undefined;
  /** The first points shared by all links; they stay on the output's side of the boundary. */
  readonly shared: Way;
  readonly first: DocLink;
  readonly links: readonly { readonly link: DocLink; readonly beyond: Way }[];
}

/** The parts into which a graph is divided. */
interface Division {
  readonly nodes: readonly DocNode[];
  readonly ways: ReadonlyMap<number, Way>;
  readonly inner: readonly DocLink[];
  readonly inputs: readonly Port[];
  readonly outputs: readonly Port[];
}

export interface Made {
  /** The outer graph, with the new node. */
  readonly graph: Doc;
  readonly inside: JsonObject;
  readonly node: string;
  /** The inner node ids by the old ones. */
  readonly nodes: ReadonlyMap<string, string>;
}

/** Moves nodes and groups of a graph into a new subgraph; null if none of the nodes exist. */
export function made(
  graph: Doc,
  chosen: ReadonlySet<string>,
  groups: readonly number[],
  name: string,
  valueOf: ValueOf,
): Made | null {
  const division = divided(graph, chosen, valueOf);
  if (division.nodes.length === 0) return null;
  const framed = listOf(graph.groups).filter((_, number) => groups.includes(number));
  const empty = { ...emptySubgraph(name, division), groups: framed };
  const part = withPart(
    empty,
    division.nodes.map(({ raw }) => raw),
    division.inner,
  );
  const inside = bordered(graph, part, division);
  const { around, node } = withInstance(graph, empty.id, division);
  const last = [...groups].sort((one, other) => other - one);
  return { graph: last.reduce(removeGroup, around), inside, node, nodes: part.nodes };
}

function divided(graph: Doc, chosen: ReadonlySet<string>, valueOf: ValueOf): Division {
  const nodes = nodesOf(graph).filter(({ id }) => chosen.has(id));
  const byId = new Map(nodes.map((node) => [node.id, node]));
  const ways = waysOf(graph);
  const across = (from: boolean, to: boolean) =>
    linksOf(graph).filter((link) => byId.has(link.from) === from && byId.has(link.to) === to);
  const inputs = portsOf(across(false, true), ways, (links) => {
    const ends = links.flatMap(({ to, toSlot }) => {
      const [node, slot] = [byId.get(to), byId.get(to)?.inputs[toSlot]];
      return node === undefined || slot === undefined ? [] : [{ node, slot }];
    });
    const held = ends.find(({ slot }) => slot.widget !== null);
    return {
      name: ends[0]?.slot.name ?? "",
      value: held && valueOf(held.node, held.slot.widget ?? ""),
    };
  });
  const outputs = portsOf(across(true, false), ways, ([link]) => ({
    name: byId.get(link?.from ?? "")?.outputs[link?.fromSlot ?? 0]?.name ?? "",
    value: undefined,
  }));
  return { nodes, ways, inner: across(true, true), inputs, outputs };
}

function portsOf(
  links: readonly DocLink[],
  ways: ReadonlyMap<number, Way>,
  describe: (links: readonly DocLink[]) => Pick<Port, "name" | "value">,
): readonly Port[] {
  const byOutput = new Map<string, [DocLink, ...DocLink[]]>();
  for (const link of links) {
    const key = `${link.fromSlot} ${link.from}`;
    const there = byOutput.get(key);
    if (there === undefined) byOutput.set(key, [link]);
    else there.push(link);
  }
  const names = new Set<string>();
  return [...byOutput.values()].map((group): Port => {
    const [first] = group;
    const all = group.map(({ id }) => ways.get(id) ?? []);
    const shared = all.reduce((one, other) => {
      const parting = one.findIndex((point, at) => point !== other[at]);
      return parting < 0 ? one : one.slice(0, parting);
    });
    const described = describe(group);
    const name = freeName(described.name || first.type.toLowerCase(), names);
    names.add(name);
    const beyond = (at: number) => (all[at] ?? []).slice(shared.length);
    return {
      ...described,
      name,
      type: first.type,
      shared,
      first,
      links: group.map((link, at) => ({ link, beyond: beyond(at) })),
    };
  });
}

/** Links the inner nodes to the inputs and outputs of the subgraph. */
function bordered(around: Doc, part: Part, { ways, inner, inputs, outputs }: Division): Doc {
  let inside = part.graph;
  const continued = new Map(part.links);
  const led = new Map(inner.map(({ id }) => [part.links.get(id) ?? 0, ways.get(id) ?? []]));
  const join = (from: End, to: End, { type }: DocLink, way: Way): number => {
    inside = connect(inside, from, to, type);
    const id = lastOf(inside, "link");
    led.set(id, way);
    return id;
  };
  const end = (node: string, slot: number): End => ({ node: part.nodes.get(node) ?? "", slot });
  inputs.forEach((port, slot) => {
    const from = { node: BOUNDARIES.inputs, slot };
    for (const { link, beyond } of port.links)
      continued.set(link.id, join(from, end(link.to, link.toSlot), link, beyond));
  });
  outputs.forEach(({ first, shared }, slot) =>
    join(end(first.from, first.fromSlot), { node: BOUNDARIES.outputs, slot }, first, shared),
  );
  return withNamesOf(around, continued, withWays(inside, led));
}

/** Replaces the nodes by one node of the subgraph. */
function withInstance(graph: Doc, type: string, division: Division) {
  const { nodes, ways, inputs, outputs } = division;
  const added = addNode(graph, instanceOf(type, division));
  const node = nodesOf(added).at(-1)?.id ?? "";
  const [moved, led] = [new Map<number, Ends>(), new Map(ways)];
  inputs.forEach(({ first, shared }, slot) => {
    const from = { node: first.from, slot: first.fromSlot };
    moved.set(first.id, { from, to: { node, slot }, type: first.type });
    led.set(first.id, shared);
  });
  outputs.forEach((port, slot) => {
    for (const { link, beyond } of port.links) {
      const to = { node: link.to, slot: link.toSlot };
      moved.set(link.id, { from: { node, slot }, to, type: link.type });
      led.set(link.id, beyond);
    }
  });
  const gone = new Set(nodes.map(({ id }) => id));
  return { node, around: removeNodes(withWays(moveLinks(added, moved), led), gone) };
}

function instanceOf(type: string, { nodes, inputs, outputs }: Division): JsonObject {
  const { x, y } = cornerOf(nodes);
  const held = inputs.filter(({ value }) => value !== undefined);
  return {
    type,
    pos: [x, y],
    size: [260, 40 + 24 * Math.max(inputs.length, outputs.length)],
    flags: {},
    mode: 0,
    inputs: inputs.map(({ name, type: taken, value }) => ({
      name,
      type: taken,
      link: null,
      ...(value === undefined ? {} : { widget: { name } }),
    })),
    outputs: outputs.map(({ name, type: given }) => ({ name, type: given, links: [] })),
    properties: {},
    widgets_values: held.map(({ value }) => value ?? null),
    widgets_values_named: Object.fromEntries(held.map(({ name, value }) => [name, value ?? null])),
  };
}
