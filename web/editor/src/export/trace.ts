/**
 * Writes a job's measured spans in the Trace Event Format for Perfetto and Chrome: a process per
 * sampler node, a thread per device and link. Pure.
 */
import type { Job } from "../jobs/job";
import type { Json, JsonObject } from "../json";

const MICROSECONDS = 1e6;

export function traceOf(job: Job): JsonObject {
  return {
    displayTimeUnit: "ms",
    traceEvents: Object.entries(job.spans).flatMap(([node, spans], place) => {
      const pid = place + 1;
      const rows = [...new Set(spans.map(rowOf))].sort();
      const names: readonly Json[] = [
        { ph: "M", pid, name: "process_name", args: { name: `node ${node}` } },
        ...rows.map((name, tid) => ({ ph: "M", pid, tid, name: "thread_name", args: { name } })),
      ];
      const events = spans.map((span): Json => ({
        ph: "X",
        pid,
        tid: rows.indexOf(rowOf(span)),
        ts: MICROSECONDS * span.start,
        dur: MICROSECONDS * span.seconds,
        name: span.target || span.kind,
        cat: span.kind,
        args: span.evaluation === null ? {} : { evaluation: span.evaluation },
      }));
      return [...names, ...events];
    }),
    otherData: { job: job.id, status: job.status },
  };
}

function rowOf({ device, peer, kind }: Job["spans"][string][number]): string {
  return kind === "send" ? `${device} → ${peer}` : device;
}
