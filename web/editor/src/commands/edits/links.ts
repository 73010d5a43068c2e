/** Rewires the selection in the graph in view. */
import { replaced } from "../../catalog/edits/replacement";
import { dissolved, linkedNext, type Pair, swappable, swapped } from "../../catalog/edits/rewire";
import { removeLinks } from "../../document/links";
import { type Doc, linksOf, nodesOf } from "../../document/model";
import { notify, useLive } from "../../state/live";
import { usePage } from "../../state/page";
import { useSettings } from "../../state/settings";
import { change, onNodes } from "./selection";

/** Removes the selected nodes and connects their neighbours. */
export function dissolve(): void {
  onNodes((graph, nodes) => {
    if (nodesOf(graph).some(({ id }) => nodes.has(id)))
      change("dissolve", (now) => dissolved(now, nodes));
  });
}

/** Removes all links of the selected nodes. */
export function cutLinks(): void {
  onNodes((graph, nodes) => {
    const gone = linksOf(graph).filter(({ from, to }) => nodes.has(from) || nodes.has(to));
    change("cut all links", (now) => removeLinks(now, new Set(gone.map(({ id }) => id))));
  });
}

/** Replaces the selected nodes by a type. */
export function replace(name: string): void {
  const { catalog } = useLive.getState();
  const type = catalog.get(name);
  if (type === undefined) return;
  onNodes((_, nodes) =>
    change(`change to ${type.title}`, (now) => replaced(now, catalog, nodes, type)),
  );
  useSettings.getState().use(name);
}

export interface NamedPair extends Pair {
  readonly node: string;
  readonly title: string;
}

/** Returns the pairs of inputs of the selected node that can be swapped. */
export function swappablePairs(): readonly NamedPair[] {
  let found: readonly NamedPair[] = [];
  onNodes((graph, nodes) => {
    const node = nodesOf(graph).find(({ id }) => nodes.has(id));
    if (node === undefined) return;
    const name = (slot: number) => node.inputs[slot]?.label ?? "";
    found = swappable(graph, node).map((pair) => {
      return { ...pair, node: node.id, title: `${name(pair.one)} ⇄ ${name(pair.other)}` };
    });
  });
  return found;
}

export function swap(pair: NamedPair): void {
  change("swap inputs", (now) => swapped(now, pair.node, pair));
}

/** Swaps two inputs of the selected node; asks which ones if several pairs can be swapped. */
export function swapInputs(): void {
  const [first, ...others] = swappablePairs();
  if (first === undefined)
    notify("the selected node has no two inputs that accept each other's links");
  else if (others.length === 0) swap(first);
  else usePage.setState({ dialog: "swap" });
}

/** Links the selected nodes from left to right, each pair by its best match. */
export function linkSelected(): void {
  onNodes((graph, nodes) => {
    const { catalog } = useLive.getState();
    const row = nodesOf(graph)
      .filter(({ id }) => nodes.has(id))
      .sort((one, other) => one.x - other.x || one.y - other.y)
      .map(({ id }) => id);
    const linkedAll = row.slice(1).reduce<Doc>((next, right, at) => {
      const left = row[at] ?? right;
      return (
        linkedNext(next, catalog, left, right) ?? linkedNext(next, catalog, right, left) ?? next
      );
    }, graph);
    if (row.length < 2) notify("select two nodes to link them");
    else if (linkedAll === graph) notify("no free input of these nodes fits an output");
    else change("link nodes", () => linkedAll);
  });
}
