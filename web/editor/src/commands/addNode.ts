/** Adds new nodes to the graph in view. */
import type { NodeType } from "../catalog/catalog";
import { newNode, placedWidgets } from "../catalog/placed";
import { addNode, type Place, setValue } from "../document/commands";
import { freePlace } from "../document/layout/directions";
import { type Doc, type DocNode, nodesOf } from "../document/model";
import { useCanvas } from "../state/canvas";
import { activeSession, graphOf, useDocuments } from "../state/documents";
import { useLive } from "../state/live";
import { useSettings } from "../state/settings";

/** The data type of a dragged node type. */
export const NODE_TYPE = "application/x-katz-node";

/** Adds a node of a type to the active graph with `put`, and records the use of the type. */
export function place(
  name: string,
  at: Place = useCanvas.getState().middle(),
  put: (graph: Doc, type: NodeType, at: Place) => Doc = withNode,
): void {
  const type = useLive.getState().catalog.get(name);
  const session = activeSession();
  if (type === undefined || session === null) return;
  useDocuments.getState().change(session.id, `add ${type.title}`, (graph) => put(graph, type, at));
  useSettings.getState().use(name);
  selectLast();
}

/** Returns the graph with a new node at the end of its list. */
export function withNode(graph: Doc, type: NodeType, { x, y }: Place): Doc {
  const free = freePlace(graph, Math.round(x), Math.round(y));
  return addNode(graph, newNode(type, free.x, free.y));
}

/** The data type of the value for a dragged node type. */
export const CHOICE = "application/x-katz-choice";

/** Adds a node of a type, with this value in the first choice that offers it. */
export function placeChosen(name: string, value: string, at?: Place, put = withNode): void {
  place(name, at, (graph, type, where) => {
    const added = put(graph, type, where);
    const node = nodesOf(added).at(-1);
    const placed =
      node && placedWidgets(node, type).find(({ widget }) => widget.choices.includes(value));
    return node === undefined || placed === undefined
      ? added
      : setValue(added, node.id, placed.key, value, placed.widget.name);
  });
}

const LOADER = "LoadImage";

/** Loads an image of the server in the selected node or, without one, in a new node. */
export function loadPicture(address: string): void {
  const { selected, middle } = useCanvas.getState();
  loadPictures([address], selected, middle());
}

/**
 * Loads images of the server: the first in one of these nodes if it loads images, the others in new
 * nodes.
 */
export function loadPictures(
  addresses: readonly string[],
  nodes: ReadonlySet<string>,
  at: Place,
): void {
  const { catalog } = useLive.getState();
  const session = activeSession();
  const type = catalog.get(LOADER);
  if (session === null || type === undefined) return;
  const loads = (node: DocNode) =>
    placedWidgets(node, catalog.get(node.type)).find(({ widget }) => widget.helper === "upload");
  const one = nodesOf(graphOf(session)).find((node) => nodes.has(node.id) && loads(node));
  const label = addresses.length === 1 ? "load a picture" : `load ${addresses.length} pictures`;
  useDocuments.getState().change(session.id, label, (before) =>
    addresses.reduce((graph, address, number) => {
      const known = number === 0 ? one : undefined;
      const ready = known === undefined ? withNode(graph, type, at) : graph;
      const node = known ?? nodesOf(ready).at(-1);
      const placed = node && loads(node);
      return node === undefined || placed === undefined
        ? graph
        : setValue(ready, node.id, placed.key, valueOf(address), placed.widget.name);
    }, before),
  );
}

/** Returns the LoadImage value of an image address. */
function valueOf(address: string): string {
  const query = new URL(address, document.baseURI).searchParams;
  const folder = query.get("subfolder") ?? "";
  const name = (folder === "" ? "" : `${folder}/`) + (query.get("filename") ?? "");
  const type = query.get("type") ?? "output";
  return type === "input" ? name : `${name} [${type}]`;
}

/** Selects the node added last. */
export function selectLast(): void {
  const session = activeSession();
  const last = session && nodesOf(graphOf(session)).at(-1);
  if (last) requestAnimationFrame(() => useCanvas.getState().select(new Set([last.id])));
}
