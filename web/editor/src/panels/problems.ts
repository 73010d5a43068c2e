/** Lists the problems that prevent a run, from the server's check and the last job. */
import type { Job } from "../jobs/job";
import { isObject, listOf, textOf } from "../json";
import type { Checked } from "../server/client";

export interface Problem {
  readonly node: string;
  readonly input: string;
  readonly line: string;
}

export function problemsOf(checked: Checked | null, job: Job | null): readonly Problem[] {
  const found: Problem[] = [];
  for (const [node, reported] of Object.entries(checked?.nodeErrors ?? {}))
    for (const error of listOf(isObject(reported) ? reported.errors : undefined).filter(isObject)) {
      const extra = isObject(error.extra_info) ? error.extra_info : {};
      const details = textOf(error.details);
      found.push({
        node,
        input: textOf(extra.input_name),
        line: textOf(error.message) + (details === "" ? "" : `: ${details}`),
      });
    }
  if (checked?.error && found.length === 0) {
    const details = textOf(checked.error.details);
    const line = textOf(checked.error.message) + (details === "" ? "" : `: ${details}`);
    found.push({ node: "", input: "", line });
  }
  if (job?.error) found.push({ node: job.error.node, input: "", line: job.error.message });
  return found;
}
