/** Replaces the selected sampler by the nodes of its step. */
import { unfolded } from "../../catalog/edits/stepNodes";
import { nodesOf } from "../../document/model";
import { writtenStep } from "../../server/stepNodes";
import { useCanvas } from "../../state/canvas";
import { activeSession, docOf, useDocuments } from "../../state/documents";
import { notify, useLive } from "../../state/live";
import { selection } from "./selection";

export async function unfold(): Promise<void> {
  const [session, chosen] = [activeSession(), selection()];
  const [sampler, ...others] = nodesOf(chosen?.graph ?? {}).filter(({ id }) =>
    chosen?.nodes.has(id),
  );
  if (session === null || chosen === null || sampler === undefined || others.length > 0)
    return notify("select one sampler to expand it into step nodes");
  const prefix = session.path.map((id) => `${id}:`).join("");
  try {
    const step = await writtenStep(docOf(session), prefix + sampler.id);
    const now = activeSession();
    if (now?.id !== session.id || docOf(now) !== docOf(session) || now.path !== session.path)
      return notify("the workflow has changed: expand the sampler again");
    const made = unfolded(chosen.graph, useLive.getState().catalog, sampler, step, prefix);
    if (made === null)
      return notify("the step reads nodes outside this subgraph: unpack the subgraph first");
    useDocuments.getState().change(session.id, "expand a sampler", () => made.graph);
    requestAnimationFrame(() => useCanvas.getState().select(new Set(made.nodes)));
  } catch (error) {
    notify(error);
  }
}
