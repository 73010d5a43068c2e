/** Runs the active document after each change that affects a run, and cancels the previous run. */
import type { Doc } from "../document/model";
import { type Checked, cancel } from "../server/client";
import { activeSession, docOf, type Sent, useDocuments } from "../state/documents";
import { notify, useLive } from "../state/live";
import { workOf } from "../state/planning";
import { run } from "./run";

/**
 * Returns whether a checked document should run: it has no errors and differs from the last run.
 */
export function isDue(checked: Checked | null, sent: Sent, work: string): boolean {
  const runs = checked !== null && checked.error === null && checked.failing.size === 0;
  return runs && work !== sent.work;
}

/**
 * Toggles running on change for the active document. Its present content does not count as a
 * change.
 */
export function toggleAutoQueue(): void {
  const session = activeSession();
  if (session === null) return;
  const { id, runs, reruns } = session;
  const started = { job: runs.at(-1), work: workOf(docOf(session)) };
  useDocuments.getState().update(id, { reruns: reruns === null ? started : null });
}

/** Waits for the check of each change, so that documents with errors are not sent. */
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
    await cancel(before).catch(notify);
  await run({ keepSeeds: true });
}
