/** Previews an output of the selected node: runs a copy of the document up to it. */
import {
  type PreviewableOutput,
  previewable,
  withPreview,
} from "../../catalog/edits/outputPreview";
import { nodesOf } from "../../document/model";
import { changeAt } from "../../document/scope";
import { activeSession, docOf, graphOf, type Peek, useDocuments } from "../../state/documents";
import { notify, useLive } from "../../state/live";
import { usePage } from "../../state/page";
import { workOf } from "../../state/planning";
import { send } from "../run";
import { selection } from "./selection";

/** Returns the outputs of the selected node that can be previewed. */
export function previewableOutputs(): readonly PreviewableOutput[] {
  const chosen = selection();
  const node = chosen && nodesOf(chosen.graph).find(({ id }) => chosen.nodes.has(id));
  return node ? previewable(node) : [];
}

/** Previews an output of the selected node; asks which one if it has several. */
export function peek(): void {
  const [first, ...others] = previewableOutputs();
  if (first === undefined) notify("no output of the selected node can be shown");
  else if (others.length === 0) void showPreview(first);
  else usePage.setState({ dialog: "peek" });
}

export async function showPreview(output: PreviewableOutput): Promise<void> {
  const session = activeSession();
  if (session === null) return;
  const { path } = session;
  const made = withPreview(graphOf(session), useLive.getState().catalog, output);
  if (typeof made === "string") return notify(made);
  const job = crypto.randomUUID();
  const target = [...path, made.node].join(":");
  const key = [...path, output.node].join(":");
  const work = workOf(docOf(session));
  keep(session.id, key, { job, node: target, label: output.label, work });
  const copy = changeAt(docOf(session), path, () => made.graph);
  await send(session, copy, job, { targets: [target] }).catch((error) => {
    removePreview(session.id, key);
    notify(error);
  });
}

function keep(session: string, node: string, peeked: Peek): void {
  const { sessions, update } = useDocuments.getState();
  const peeks = sessions.find(({ id }) => id === session)?.peeks ?? {};
  update(session, { peeks: { ...peeks, [node]: peeked } });
}

/** Removes the preview at a node. */
export function removePreview(session: string, node: string): void {
  const { sessions, update } = useDocuments.getState();
  const { [node]: _, ...peeks } = sessions.find(({ id }) => id === session)?.peeks ?? {};
  update(session, { peeks });
}
