/** Reads the selection in the graph in view, and changes that graph. */
import type { Doc } from "../../document/model";
import { useCanvas } from "../../state/canvas";
import { activeSession, graphOf, useDocuments } from "../../state/documents";

const GROUP = "group:";

export interface Selection {
  readonly graph: Doc;
  readonly nodes: ReadonlySet<string>;
  /** The indices of the selected groups, in descending order. */
  readonly groups: readonly number[];
}

export function selection(): Selection | null {
  const session = activeSession();
  if (session === null) return null;
  const chosen = [...useCanvas.getState().selected];
  const groups = chosen.filter((id) => id.startsWith(GROUP)).map((id) => Number(id.slice(6)));
  const nodes = new Set(chosen.filter((id) => !id.startsWith(GROUP)));
  return { graph: graphOf(session), nodes, groups: groups.sort((one, other) => other - one) };
}

/** Changes the graph in view. Changes of one gesture form one step. */
export function change(label: string, edit: (graph: Doc) => Doc, gesture = ""): void {
  const session = activeSession();
  if (session !== null) useDocuments.getState().change(session.id, label, edit, gesture);
}

export function onNodes(act: (graph: Doc, nodes: ReadonlySet<string>) => void): void {
  const chosen = selection();
  if (chosen !== null && chosen.nodes.size > 0) act(chosen.graph, chosen.nodes);
}
