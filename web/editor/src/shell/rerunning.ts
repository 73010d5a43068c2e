/** Runs the document in front again after each change that a run depends on; only the newest counts. */
import type { Doc } from "../document/model";
import { type Checked, cancel } from "../server/client";
import { activeSession, docOf, useDocuments } from "./documents";
import { tell, useLive } from "./live";
import { workOf } from "./planning";
import { run } from "./running";

/** What stood in a document when its last job was sent, or when running on change began. */
interface Sent {
  readonly job: string | null;
  readonly work: string;
}

/** Whether a document that was just checked is to run: it can, and is not what was sent. */
export function isDue(checked: Checked | null, sent: Sent, work: string): boolean {
  const runs = checked !== null && checked.error === null && checked.failing.size === 0;
  return runs && work !== sent.work;
}

/** Turns it on or off for the document in front; what stands there by then is no change. */
export function toggleRerunning(): void {
  const session = activeSession();
  if (session !== null) useDocuments.getState().update(session.id, { reruns: !session.reruns });
}

/** Waits for the check of each change, so that what cannot run is not sent. */
export function watchChanges(): () => void {
  const sent = new Map<string, Sent>();
  let seen: { readonly doc: Doc; readonly before: Checked | null } | undefined;
  const look = () => {
    const session = activeSession();
    if (session === null) return;
    const { id, job, reruns, checked } = session;
    if (!reruns) return void sent.delete(id);
    const doc = docOf(session);
    const known = sent.get(id);
    const last = known?.job === job ? known : { job, work: workOf(doc) };
    sent.set(id, last);
    if (seen?.doc !== doc) seen = { doc, before: checked };
    if (checked === seen.before) return;
    seen = { doc, before: checked };
    if (isDue(checked, last, workOf(doc))) void again(job);
  };
  return useDocuments.subscribe(look);
}

async function again(before: string | null): Promise<void> {
  const status = useLive.getState().jobs.byId[before ?? ""]?.status;
  if (before !== null && (status === "pending" || status === "running"))
    await cancel(before).catch(tell);
  await run({ keepSeeds: true });
}
