/** Requests, moves and deletes jobs. */
import { isObject, type Json, listOf, printJson } from "../json";
import { asked, type Opened, open, posted, Refused } from "./client";
import type { ForgetBody, MoveBody } from "./generated/messages";

/** Returns the workflow of an ended job as executed, including seeds. */
export async function workflowOf(job: string): Promise<Opened> {
  const answer = await asked(`history/${encodeURIComponent(job)}`);
  const entry = isObject(answer) ? answer[job] : undefined;
  const [, , graph, extra] = isObject(entry) ? listOf(entry.prompt) : [];
  const info = isObject(extra) && isObject(extra.extra_pnginfo) ? extra.extra_pnginfo : {};
  const workflow = isObject(info.workflow) ? info.workflow : graph;
  if (workflow === undefined) throw new Refused("the server no longer has this job", 0);
  return open(new Blob([printJson(workflow)], { type: "application/json" }));
}

/** Returns the report of an ended job: plans, spans, seconds, reasons. */
export function report(job: string, client: string): Promise<Json> {
  const query = new URLSearchParams({ client_id: client });
  return asked(`katz/jobs/${encodeURIComponent(job)}/report?${query}`);
}

export async function forget(job: string): Promise<void> {
  await posted("history", { delete: [job] } satisfies ForgetBody);
}

/** Moves a waiting job to the front of the queue. */
export async function moveToFront(job: string): Promise<void> {
  await posted(`katz/jobs/${encodeURIComponent(job)}/move`, { front: true } satisfies MoveBody);
}
