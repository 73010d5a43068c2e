/** Runs the document in front again after each change that a run depends on; only the newest counts. */
import type { Doc } from "../document/model";
import { type Checked, cancel } from "../server/client";
import { activeSession, docOf, type Sent, useDocuments } from "./documents";
import { tell, useLive } from "./live";
import { workOf } from "./planning";
import { run } from "./running";

/** Whether a document that was just checked is to run: it can, and is not what was sent. */
export function isDue(checked: Checked | null, sent: Sent, work: string): boolean {
  const runs = checked !== null && checked.error === null && checked.failing.size === 0;
  return runs && work !== sent.work;
}

/** Turns it on or off for the document in front; what stands there by then is no change. */
export function toggleRerunning(): void {
  const session = activeSession();
  if (session === null) return;
  const { id, runs, reruns } = session;
  const begun = { job: runs.at(-1), work: workOf(docOf(session)) };
  useDocuments.getState().update(id, { reruns: reruns === null ? begun : null });
}

/** Waits for the check of each change, so that what cannot run is not sent. */
export function watchChanges(): () => void {
  let seen: { readonly doc: Doc; readonly before: Checked | null } | undefined;
  const look = () => {
    const session = activeSession();
    if (session === null || session.reruns === null) return;
    const { id, runs, reruns, checked } = session;
    const job = runs.at(-1);
    const doc = docOf(session);
    if (reruns.job !== job)
      return useDocuments.getState().update(id, { reruns: { job, work: workOf(doc) } });
    if (seen?.doc !== doc) seen = { doc, before: checked };
    if (checked === seen.before) return;
    seen = { doc, before: checked };
    if (isDue(checked, reruns, workOf(doc))) void again(job);
  };
  return useDocuments.subscribe(look);
}

async function again(before: string | undefined): Promise<void> {
  const status = useLive.getState().jobs.byId[before ?? ""]?.status;
  if (before !== undefined && (status === "pending" || status === "running"))
    await cancel(before).catch(tell);
  await run({ keepSeeds: true });
}
