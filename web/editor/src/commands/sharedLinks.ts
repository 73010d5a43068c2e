/** Opens the workflows of jobs, and copies links to their pages. */
import { addressParameter, jobLink } from "../server/jobLinks";
import { workflowOf } from "../server/jobs";
import { activeSession, useDocuments } from "../state/documents";
import { followedBy, notify } from "../state/live";

/** Opens a job's workflow as executed in a new tab. */
export async function openAsItRan(job: string, name: string): Promise<void> {
  const { document, notes } = await workflowOf(job);
  useDocuments.getState().open(name || "workflow", document, notes);
}

/** Opens the copy that this page's address requests, once. */
export async function openRequestedCopy(): Promise<void> {
  const job = addressParameter("copy");
  if (job === null) return;
  history.replaceState(null, "", location.pathname);
  await openAsItRan(job, `job ${job.slice(0, 8)}`).catch(notify);
}

export async function copyJobLink(job: string): Promise<void> {
  const link = jobLink(job);
  try {
    await navigator.clipboard.writeText(link);
    notify("copied a link to the job's page");
  } catch {
    notify(link);
  }
}

/** Copies the link to the latest job of the active document. */
export function shareRun(): void {
  const { latest } = followedBy(activeSession());
  if (latest === null) return notify("run the workflow first: the page shows a run");
  void copyJobLink(latest.id);
}
