/** Places new nodes of a type in the graph in view. */
import { useCanvas } from "../canvas/state";
import { newNode } from "../catalog/catalog";
import { addNode, type Place } from "../document/commands";
import { activeSession, useDocuments } from "./documents";
import { useLive } from "./live";

/** What a dragged node type carries. */
export const NODE_TYPE = "application/x-katz-node";

export function place(name: string, { x, y }: Place = useCanvas.getState().middle()): void {
  const type = useLive.getState().catalog.get(name);
  const session = activeSession();
  if (type === undefined || session === null) return;
  useDocuments
    .getState()
    .change(session.id, `add ${type.title}`, (graph) =>
      addNode(graph, newNode(type, Math.round(x), Math.round(y))),
    );
}
