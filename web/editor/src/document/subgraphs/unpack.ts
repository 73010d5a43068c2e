/** Unpacks a subgraph node: replaces it by a copy of its inner nodes. */
import { isObject, listOf, numberFrom } from "../../json";
import { type Place, removeNodes, setMode } from "../commands";
import { withNamesOf } from "../hidden";
import { connect, type End, type Ends, moveLinks } from "../links";
import { type Doc, type DocLink, type DocNode, linksOf, nodesOf } from "../model";
import { cornerOf, withPart } from "../parts";
import { lastOf } from "../raw";
import { type Reroute, waysOf, withWays } from "../reroutes";
import { boundariesOf } from "../scope";

/** The graph with the inner nodes, and their new ids by the old ones. */
export interface Unpacked {
  readonly graph: Doc;
  readonly nodes: ReadonlyMap<string, string>;
}

/** An outer link and the inner link that continues it. */
interface Crossing {
  readonly around: DocLink;
  readonly within: DocLink;
}

/** Replaces a subgraph node by its inner nodes. */
export function unpacked(graph: Doc, node: DocNode, inside: Doc): Unpacked {
  const { inner, entering, leaving, before } = crossings(graph, node, inside);
  const corner = cornerOf(nodesOf(inside));
  const shift = { x: node.x - corner.x, y: node.y - corner.y };
  const raws = nodesOf(inside).map(({ raw }) => raw);
  const part = withPart(graph, raws, inner, shift);
  const end = (id: string, slot: number): End => ({ node: part.nodes.get(id) ?? "", slot });
  const [waysAround, waysWithin] = [waysOf(graph), shiftedWays(inside, shift)];
  const ways = new Map(waysAround);
  const continued = new Map(part.links); // the outer links by the inner links that they continue
  for (const [within, id] of part.links) ways.set(id, waysWithin.get(within) ?? []);

  const moved = leaving.flatMap(({ around, within }): [number, Ends][] => {
    const source = before(within);
    const way = [...(waysWithin.get(within.id) ?? []), ...(waysAround.get(around.id) ?? [])];
    ways.set(around.id, [...(waysAround.get(source?.id ?? -1) ?? []), ...way]);
    const from = source
      ? { node: source.from, slot: source.fromSlot }
      : end(within.from, within.fromSlot);
    const to = { node: around.to, slot: around.toSlot };
    return from.node === "" ? [] : [[around.id, { from, to, type: around.type }]];
  });
  let next = moveLinks(part.graph, new Map(moved));
  for (const { around, within } of entering) {
    const from = { node: around.from, slot: around.fromSlot };
    next = connect(next, from, end(within.to, within.toSlot), around.type);
    const id = lastOf(next, "link");
    ways.set(id, [...(waysAround.get(around.id) ?? []), ...(waysWithin.get(within.id) ?? [])]);
    continued.set(within.id, id);
  }
  const led = withGroups(withNamesOf(inside, continued, withWays(next, ways)), inside, shift);
  const copies = new Set(part.nodes.values());
  const switched = node.mode === 0 ? led : setMode(led, copies, node.mode);
  return { graph: removeNodes(switched, new Set([node.id])), nodes: part.nodes };
}

/** Returns the inner links, and the pairs of outer and inner links. Inputs are matched by name. */
function crossings(graph: Doc, node: DocNode, inside: Doc) {
  const idOfSide = (side: "inputs" | "outputs") =>
    boundariesOf(inside).find((one) => one.side === side)?.id;
  const [input, output] = [idOfSide("inputs"), idOfSide("outputs")];
  const [around, within] = [linksOf(graph), linksOf(inside)];
  const names = listOf(inside.inputs).map((raw) => (isObject(raw) ? raw.name : undefined));
  /** Returns the outer link that continues an inner one at the input boundary. */
  const before = ({ from, fromSlot }: DocLink): DocLink | undefined => {
    if (from !== input) return undefined;
    const at = node.inputs.findIndex(({ name }) => name === names[fromSlot]);
    return around.find(({ to, toSlot }) => to === node.id && toSlot === at);
  };
  const entering = within.flatMap((link): Crossing[] => {
    const source = link.to === output ? undefined : before(link);
    return source === undefined ? [] : [{ around: source, within: link }];
  });
  const leaving = around.flatMap((link): Crossing[] => {
    if (link.from !== node.id) return [];
    const source = within.find(({ to, toSlot }) => to === output && toSlot === link.fromSlot);
    return source === undefined ? [] : [{ around: link, within: source }];
  });
  const inner = within.filter(({ from, to }) => from !== input && to !== output);
  return { inner, entering, leaving, before };
}

/** Shifts all points; links that share a point share the shifted one. */
function shiftedWays(graph: Doc, by: Place): ReadonlyMap<number, readonly Reroute[]> {
  const known = new Map<Reroute, Reroute>();
  const shifted = (point: Reroute): Reroute => {
    const there = known.get(point) ?? { ...point, x: point.x + by.x, y: point.y + by.y };
    known.set(point, there);
    return there;
  };
  return new Map([...waysOf(graph)].map(([link, way]) => [link, way.map(shifted)]));
}

function withGroups(graph: Doc, inside: Doc, { x, y }: Place): Doc {
  const groups = listOf(inside.groups)
    .filter(isObject)
    .map((raw) => {
      const [left = 0, top = 0, ...size] = listOf(raw.bounding);
      return { ...raw, bounding: [numberFrom(left) + x, numberFrom(top) + y, ...size] };
    });
  return groups.length === 0 ? graph : { ...graph, groups: [...listOf(graph.groups), ...groups] };
}
