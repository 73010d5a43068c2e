/**
 * Rewires nodes and retains compatible links: inserts nodes into links, dissolves them, swaps
 * inputs, links neighbours.
 */
import { removeNodes } from "../../document/commands";
import { connect, type Ends, moveLinks } from "../../document/links";
import { type Doc, type DocLink, type DocNode, linksOf, nodesOf } from "../../document/model";
import { type Catalog, compatible } from "../catalog";
import { refusal } from "../connections";
import { type Input, inputType, inputsOf, linked, listed, type Output, whyNot } from "../ends";

/**
 * Inserts a node into a link by a free input and an unlinked output. Returns null if none fit, or
 * if the link already starts or ends at the node.
 */
export function inserted(graph: Doc, catalog: Catalog, id: string, link: number): Doc | null {
  const old = linksOf(graph).find((one) => one.id === link);
  const node = nodesOf(graph).find((one) => one.id === id);
  if (old === undefined || node === undefined || old.from === id || old.to === id) return null;
  const from = { node: old.from, slot: old.fromSlot, type: old.type };
  const goal = { node: old.to, slot: old.toSlot, type: inputType(graph, old) };
  const input = freeInputs(graph, catalog, node).find((end) => whyNot(graph, from, end) === null);
  const output = freeOutputs(graph, node).find((end) => refusal(graph, end, goal) === null);
  if (input === undefined || output === undefined) return null;
  const { graph: ready, slot } = listed(graph, input);
  const led: Ends = { from, to: { node: id, slot }, type: old.type };
  return connect(moveLinks(ready, new Map([[link, led]])), output, goal, output.type);
}

/** Returns whether a node has a free input and a free output. */
export function isInsertable(graph: Doc, catalog: Catalog, id: string): boolean {
  const node = nodesOf(graph).find((one) => one.id === id);
  if (node === undefined) return false;
  return freeInputs(graph, catalog, node).length > 0 && freeOutputs(graph, node).length > 0;
}

/** Removes nodes and connects their sources to their targets, as bypassing would. */
export function dissolved(graph: Doc, nodes: ReadonlySet<string>): Doc {
  const around = nodesOf(graph)
    .filter(({ id }) => nodes.has(id))
    .reduce(withReroute, graph);
  return removeNodes(around, nodes);
}

function withReroute(graph: Doc, node: DocNode): Doc {
  const links = linksOf(graph);
  const moved = links.flatMap((link): [number, Ends][] => {
    if (link.from !== node.id) return [];
    const slot = passing(node, link.fromSlot);
    const source = links.find(({ to, toSlot }) => to === node.id && toSlot === slot);
    if (source === undefined || !compatible(source.type, inputType(graph, link))) return [];
    const from = { node: source.from, slot: source.fromSlot };
    return [[link.id, { from, to: { node: link.to, slot: link.toSlot }, type: source.type }]];
  });
  return moveLinks(graph, new Map(moved));
}

/**
 * Returns the input that a bypassed output passes on: the one in the same slot, else the first that
 * fits.
 */
function passing({ inputs, outputs }: DocNode, output: number): number {
  const type = outputs[output]?.type ?? "*";
  const fits = (slot: number) => compatible(inputs[slot]?.type ?? "", type);
  if (inputs[output] !== undefined && fits(output)) return output;
  const exact = inputs.findIndex((input) => input.type === type);
  return exact >= 0 ? exact : inputs.findIndex((_, slot) => fits(slot));
}

/** Two inputs of a node that can exchange their links. */
export interface Pair {
  readonly one: number;
  readonly other: number;
}

/** Returns the pairs of a node's inputs that can be swapped. */
export function swappable(graph: Doc, node: DocNode): readonly Pair[] {
  const links = linksOf(graph).filter(({ to }) => to === node.id);
  const linkTo = (slot: number) => links.find(({ toSlot }) => toSlot === slot);
  const takes = (slot: number, link: DocLink | undefined) =>
    link === undefined || compatible(link.type, node.inputs[slot]?.type ?? "");
  return node.inputs.flatMap((_, one) =>
    node.inputs.flatMap((__, other): readonly Pair[] => {
      const [first, second] = [linkTo(one), linkTo(other)];
      if (other <= one || (first === undefined && second === undefined)) return [];
      return takes(one, second) && takes(other, first) ? [{ one, other }] : [];
    }),
  );
}

/** Swaps the links of two inputs. */
export function swapped(graph: Doc, node: string, { one, other }: Pair): Doc {
  const moved = linksOf(graph).flatMap((link): [number, Ends][] => {
    if (link.to !== node || (link.toSlot !== one && link.toSlot !== other)) return [];
    const slot = link.toSlot === one ? other : one;
    const from = { node: link.from, slot: link.fromSlot };
    return [[link.id, { from, to: { node, slot }, type: link.type }]];
  });
  return moveLinks(graph, new Map(moved));
}

/**
 * Links a node's output to a free input of another node: same type and name first, then same type,
 * then any compatible one. Returns null if none fits.
 */
export function linkedNext(graph: Doc, catalog: Catalog, from: string, to: string): Doc | null {
  const [source, target] = [from, to].map((id) => nodesOf(graph).find((node) => node.id === id));
  if (source === undefined || target === undefined) return null;
  const outputs = outputsOf(source).map((end, slot) => ({ end, slot: source.outputs[slot] }));
  const found = freeInputs(graph, catalog, target)
    .flatMap((input) =>
      outputs.flatMap(({ end, slot }) => {
        if (whyNot(graph, end, input) !== null) return [];
        const sameType = end.type === input.type;
        const sameName = slot?.name.toLowerCase() === input.name.toLowerCase();
        return [{ end, input, rank: (sameType ? 2 : 0) + (sameName ? 1 : 0) }];
      }),
    )
    .sort((one, other) => other.rank - one.rank);
  const best = found[0];
  return best === undefined ? null : linked(graph, best.end, best.input);
}

/** Returns the unlinked inputs of a node, excluding widgets. */
function freeInputs(graph: Doc, catalog: Catalog, node: DocNode): readonly Input[] {
  const taken = new Set(
    linksOf(graph).flatMap(({ to, toSlot }) => (to === node.id ? [toSlot] : [])),
  );
  return inputsOf(node, catalog.get(node.type)).filter(
    ({ widget, slot }) => widget === null && (slot === null || !taken.has(slot)),
  );
}

function freeOutputs(graph: Doc, node: DocNode): readonly Output[] {
  const given = new Set(
    linksOf(graph).flatMap(({ from, fromSlot }) => (from === node.id ? [fromSlot] : [])),
  );
  return outputsOf(node).filter(({ slot }) => !given.has(slot));
}

function outputsOf({ id, outputs }: DocNode): readonly Output[] {
  return outputs.map(({ type }, slot) => ({ node: id, slot, type }));
}
