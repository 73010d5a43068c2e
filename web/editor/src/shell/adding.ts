/** Places new nodes of a type in the graph in view. */
import { useCanvas } from "../canvas/state";
import { newNode } from "../catalog/catalog";
import { addNode, type Place } from "../document/commands";
import { freePlace } from "../document/directions";
import { type Doc, nodesOf } from "../document/model";
import { activeSession, graphOf, useDocuments } from "./documents";
import { useLive } from "./live";

/** What a dragged node type carries. */
export const NODE_TYPE = "application/x-katz-node";

export function place(name: string, { x, y }: Place = useCanvas.getState().middle()): void {
  const type = useLive.getState().catalog.get(name);
  const session = activeSession();
  if (type === undefined || session === null) return;
  const at = (graph: Doc): [number, number] => {
    const free = freePlace(graph, Math.round(x), Math.round(y));
    return [free.x, free.y];
  };
  useDocuments
    .getState()
    .change(session.id, `add ${type.title}`, (graph) =>
      addNode(graph, newNode(type, ...at(graph))),
    );
  selectLast();
}

/** Selects the node that was added last. */
export function selectLast(): void {
  const session = activeSession();
  const last = session && nodesOf(graphOf(session)).at(-1);
  if (last) requestAnimationFrame(() => useCanvas.getState().select(new Set([last.id])));
}
